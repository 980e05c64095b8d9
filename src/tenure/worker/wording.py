"""A lease holder's messages, from commands to words and back.

Law: whatever the worker says to a database beside it, it can say to a server, and the kernel hears the same. (A child's
id may be left out: then the server makes one.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tenure import ids, money
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.decide.leases import Reply
from tenure.kernel.terms import Terms
from tenure.sdk.acting import Ask, Told
from tenure.worker import protocol as p
from tenure.worker import protocol_state as ps
from tenure.worker.values import maybe, micros, shown, taken

_PLAIN = tuple(name for name in p.PlanStep.__struct_fields__ if name != "input")
Head = dict[str, Any]
NewId = Callable[[], int]

# ------------------------------------------------------------------------------------------- to words


def _child(child: c.StartChild) -> p.ChildRun:
    plan = tuple(
        p.PlanStep(**{name: getattr(spec, name) for name in _PLAIN}, input=shown(spec.input))
        for spec in child.plan
    )
    terms = child.terms
    return p.ChildRun(
        workflow=child.workflow,
        code_version=child.code_version,
        profile=child.profile,
        input=shown(child.input),
        plan=plan,
        on_close=child.on_close,
        timeout_seconds=child.timeout_seconds,
        budget=None if terms.budget is None else money.shown(terms.budget, terms.currency),
        compensate=terms.compensate,
        run_id=ids.run_text(child.run_id),
    )


def _checkpoint(m: c.RecordCheckpoint) -> dict[str, Any]:
    return {
        "seq": m.seq,
        "name": m.name,
        "state": m.state,
        "output": shown(m.output),
        "error": m.error,
        "message": None if m.message is None else m.message.decode(errors="replace"),
        "arguments": m.arguments.hex(),
        "resumable": m.resumable,
        "idempotent": m.idempotent,
        "tries": m.tries,
        "next_at": maybe(m.next_at),
        "input": shown(m.input),
        "closes": m.closes,
        "meta": None if m.meta is None else msgspec.Raw(m.meta.encode()),
        "spent": m.spent,
    }


def _complete(m: c.Complete) -> dict[str, Any]:
    return {
        "seq": m.seq,
        "output": shown(m.output),
        "cost": m.cost,
        "spent": m.spent,
        "last": None if m.last is None else p.Checkpoint(**_checkpoint(m.last)),
        "restart": None if m.restart is None else _child(m.restart),
    }


def _fail(m: c.Fail) -> dict[str, Any]:
    message = m.message.decode(errors="replace")
    return {
        "seq": m.seq,
        "code": m.code,
        "message": message,
        "retryable": m.retryable,
        "cost": m.cost,
        "spent": m.spent,
    }


def _opened(m: c.OpenWait) -> tuple[str, dict[str, Any]]:
    said: dict[str, Any] = {"seq": m.seq, "label": m.label}
    if m.child is not None:
        return "start", said | {"child": _child(m.child), "fatal": m.fatal}
    said["question"] = shown(m.question)
    if m.proposal is not None:
        return "propose", said | {"proposal": m.proposal}
    return "wait", said | {
        "approval": m.approval,
        "event": m.event,
        "until": maybe(m.until),
        "fatal": m.fatal,
    }


_WORDS: dict[type[c.LeaseMessage], tuple[str, Callable[[Any], dict[str, Any]]]] = {
    c.Complete: ("complete", _complete),
    c.RecordCheckpoint: ("checkpoint", _checkpoint),
    c.Fail: ("fail", _fail),
    c.AckLease: ("ack", lambda m: {"seq": m.seq}),
    c.Heartbeat: ("heartbeat", lambda m: {"seq": m.seq, "progress": m.progress}),
    c.Uploading: ("uploading", lambda m: {"seq": m.seq}),
    c.Suspend: ("suspend", lambda m: {"seq": m.seq, "waits": m.waits}),
    c.ReportCost: ("cost", lambda m: {"seq": m.seq, "cost": m.cost, "spent": m.spent}),
    c.Release: ("release", lambda m: {"seq": m.seq}),
    c.Park: ("park", lambda m: {"seq": m.seq, "why": m.why}),
    c.CancelAck: ("cancel-ack", lambda m: {"seq": m.seq}),
}


def worded(message: c.LeaseMessage, lease: str, token: str) -> Any:
    """A message as a worker sends it, with its address."""
    if isinstance(message, c.OpenWait):
        verb, said = _opened(message)
    else:
        verb, words = _WORDS[type(message)]
        said = words(message)
    return p.ADDRESSED[verb](lease=lease, token=token, **said)


def heard(answer: p.Answer) -> Reply:
    """What a worker was answered."""
    return Reply(
        state=answer.state,
        cancel=answer.cancel,
        expires_at=None if answer.expires_at is None else micros(answer.expires_at),
        no=answer.wait,
        outcome=answer.outcome,
        settled=answer.settled,
        late=answer.late,
    )


def asked(ask: Ask) -> ps.Act:
    """An act as a worker asks for it."""
    return ps.Act(**{name: getattr(ask, name) for name in ps.Act.__struct_fields__})


def told(answer: ps.ActAnswer) -> Told:
    """What a worker was told of an act."""
    return Told(
        state=answer.state,
        result=answer.result,
        no=answer.wait,
        code=answer.code,
        message=answer.message,
        retry_at=None if answer.retry_at is None else micros(answer.retry_at),
        tried=answer.tried,
        receipt=answer.receipt,
    )


# ----------------------------------------------------------------------------------------- to commands


def ask_of(act: ps.Act) -> Ask:
    """An act as a governor hears it."""
    return Ask(**{name: getattr(act, name) for name in ps.Act.__struct_fields__})


def act_answered(reply: Told) -> ps.ActAnswer:
    """What a runner is told of an act."""
    return ps.ActAnswer(
        state=reply.state,
        result=reply.result,
        wait=reply.no,
        code=reply.code,
        message=reply.message,
        retry_at=maybe(reply.retry_at),
        tried=reply.tried,
        receipt=reply.receipt,
    )


def _started(child: p.ChildRun, new_id: NewId) -> c.StartChild:
    plan = tuple(
        c.StepSpec(**{name: getattr(step, name) for name in _PLAIN}, input=taken(step.input))
        for step in child.plan
    )
    return c.StartChild(
        run_id=new_id() if child.run_id is None else _own_id(child.run_id),
        workflow=child.workflow,
        code_version=child.code_version,
        profile=child.profile,
        input=taken(child.input),
        plan=plan or (c.BODY,),
        on_close=child.on_close,
        timeout_seconds=child.timeout_seconds,
        terms=Terms.of(child.budget, child.compensate),
    )


def _own_id(text: str) -> int:
    try:
        return ids.run_int(text)
    except TenureError as wrong:
        raise TenureError("INVALID_INPUT", f"run_id: {text[:60]!r} is no id of a run") from wrong


def _recorded(m: p.Checkpoint, head: Head) -> c.RecordCheckpoint:
    try:
        arguments = bytes.fromhex(m.arguments)
    except ValueError as wrong:
        raise TenureError("INVALID_INPUT", "arguments: a digest in hex") from wrong
    return c.RecordCheckpoint(
        **(head | {"seq": m.seq}),
        name=m.name,
        state=m.state,
        output=taken(m.output),
        error=m.error,
        message=None if m.message is None else m.message.encode(errors="replace"),
        arguments=arguments,
        resumable=m.resumable,
        idempotent=m.idempotent,
        tries=m.tries,
        next_at=None if m.next_at is None else micros(m.next_at),
        input=taken(m.input),
        closes=m.closes,
        meta=None if m.meta is None else msgspec.json.encode(m.meta).decode(),
        spent=m.spent,
    )


def _completed(m: p.Complete, head: Head, new_id: NewId) -> c.Complete:
    return c.Complete(
        **head,
        output=taken(m.output),
        cost=m.cost,
        spent=m.spent,
        last=None if m.last is None else _recorded(m.last, head),
        restart=None if m.restart is None else _started(m.restart, new_id),
    )


def _waited(m: p.Wait, head: Head, _new_id: NewId) -> c.OpenWait:
    return c.OpenWait(
        **head,
        label=m.label,
        approval=m.approval,
        question=taken(m.question),
        event=m.event,
        until=None if m.until is None else micros(m.until),
        fatal=m.fatal,
    )


_COMMANDS: dict[str, Callable[[Any, Head, NewId], c.LeaseMessage]] = {
    "ack": lambda _, head, __: c.AckLease(**head),
    "running": lambda _, head, __: c.Heartbeat(**head, begins=True),
    "heartbeat": lambda m, head, _: c.Heartbeat(**head, progress=m.progress),
    "checkpoint": lambda m, head, _: _recorded(m, head),
    "uploading": lambda _, head, __: c.Uploading(**head),
    "suspend": lambda m, head, _: c.Suspend(**head, waits=m.waits),
    "wait": _waited,
    "start": lambda m, head, new_id: c.OpenWait(
        **head, label=m.label, child=_started(m.child, new_id), fatal=m.fatal
    ),
    "propose": lambda m, head, _: c.OpenWait(
        **head, label=m.label, proposal=m.proposal, question=taken(m.question)
    ),
    "cost": lambda m, head, _: c.ReportCost(**head, cost=m.cost, spent=m.spent),
    "complete": _completed,
    "fail": lambda m, head, _: c.Fail(
        **head,
        code=m.code,
        message=m.message.encode(errors="replace"),
        retryable=m.retryable,
        cost=m.cost,
        spent=m.spent,
    ),
    "release": lambda _, head, __: c.Release(**head),
    "park": lambda m, head, _: c.Park(**head, why=m.why),
    "cancel-ack": lambda _, head, __: c.CancelAck(**head),
}


def command_of(message: p.Said, head: Head, new_id: NewId) -> c.LeaseMessage:
    """A message as the kernel hears it; `head` says whose it is. (Lines of a log are no command.)"""
    return _COMMANDS[p.VERBS[type(message)]](message, head | {"seq": message.seq}, new_id)


def answered(reply: Reply) -> p.Answer:
    """What a runner is answered."""
    return p.Answer(
        state=reply.state,
        cancel=reply.cancel,
        expires_at=maybe(reply.expires_at),
        wait=reply.no,
        outcome=reply.outcome,
        settled=reply.settled,
        late=reply.late,
    )
