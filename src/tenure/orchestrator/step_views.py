"""The steps of a run as people see them.

Laws:
1. Users see one kind of step: leased steps, gates, checkpoints, waits and children are lines of one list, in the
   order in which they began; the body of a code-first run is hidden.
2. One set of states: pending, ready, running, retry_wait, waiting_approval, waiting_external, succeeded, failed, …;
   a checkpoint that is done has succeeded, a wait that was refused has failed (`reason` says how).
3. What was told beside a result (agent, duration, tokens, costs) is shown with its step and summed up for the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from tenure import ids
from tenure.kernel.decide.checks import ACT_LABEL
from tenure.kernel.model import CONDITION_FALSE, Approval, Attempt, Checkpoint, Child, Step, Wait

_VALUES = ("now", "uuid", "random", "patched")
_WAIT_KINDS = {"approval": "approval", "proposal": "proposal", "event": "wait", "child": "child"}
_GOOD = frozenset({"approved", "received", "elapsed", "resumed", "finished"})


class CostView(msgspec.Struct, frozen=True, kw_only=True):
    """What calls to a provider have cost."""

    provider: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    money: float
    currency: str
    micros: int = 0
    """The same money as `money`, exactly: in millionths."""


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step: leased, a gate, a checkpoint, a wait or a child."""

    name: str
    kind: str
    """work, checkpoint, approval, proposal, wait, sleep, child, value (a recorded time, uuid or number)."""
    tool: str = ""
    state: str
    shown: str
    """The state in the profile's words."""
    required: bool = True
    needs: tuple[str, ...] = ()
    within: str | None = None
    """The step it was recorded in, where that is one of the list."""
    attempt: int = 0
    """The number of its newest try."""
    attempts_max: int | None = None
    worker: str | None = None
    progress: str = ""
    lease_until: datetime | None = None
    retry_at: datetime | None = None
    until: datetime | None = None
    """Of a wait: when it ends by itself."""
    reason: str | None = None
    skipped: bool = False
    """Whether it succeeded without being done, because its condition was false (reason CONDITION_FALSE)."""
    condition: str | None = None
    """Its condition, as its workflow file has it."""
    last_error: str | None = None
    last_failure: str | None = None
    """Of a step that needed several tries: what the last one that failed said."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    seconds: float | None = None
    """How long it took; of a step with several tries, its last."""
    agent: str | None = None
    costs: tuple[CostView, ...] = ()
    child: str | None = None
    """The run that it started."""
    question: Any = None
    """Of an approval: what people are shown."""
    note: Any = None
    """What was said with a decision."""
    output: Any = None
    error: Any = None


class _Cost(msgspec.Struct, frozen=True):
    provider: str = ""
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    micros: int = 0
    currency: str = "USD"
    calls: int = 1


class _Meta(msgspec.Struct, frozen=True):
    us: int | None = None
    agent: str | None = None
    costs: list[_Cost] = []
    tokens_in: int = 0
    tokens_out: int = 0


# ------------------------------------------------------------------------------------------- plain values


def moment(us: int) -> datetime:
    """A time of the store's as a datetime."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


def maybe(us: int | None) -> datetime | None:
    """A time that may not have come."""
    return None if us is None else moment(us)


def decoded(body: bytes | None) -> Any:
    """A payload as the value it encodes: JSON where it is JSON, else text, else the bytes."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def title_of(question: Any) -> str | None:
    """The title of what people are asked, where it has one."""
    title = question.get("title") if isinstance(question, dict) else None
    return str(title) if title else None


def label_of(wait: str) -> str:
    """The label of a wait as people know it: one for an act's approval has the act's own, as its receipt does (with a number behind
    it where people were asked again). Pauses have a `!` in it, and are nobody's approval."""
    return wait if "!" in wait else wait.removeprefix(ACT_LABEL)


def _between(begun: int | None, ended: int | None) -> float | None:
    return None if begun is None or ended is None else max(ended - begun, 0) / 1e6


def meta_of(text: str | None) -> _Meta:
    """What was told beside a result; something unreadable tells nothing."""
    try:
        return _Meta() if not text else msgspec.json.decode(text, type=_Meta)
    except msgspec.DecodeError:
        return _Meta()


def summed(costs: Iterable[CostView]) -> tuple[CostView, ...]:
    """Costs by provider, model and currency."""
    found: dict[tuple[str, str, str], CostView] = {}
    for cost in costs:
        key = (cost.provider, cost.model, cost.currency)
        known = found.get(key)
        found[key] = (
            cost
            if known is None
            else msgspec.structs.replace(
                known,
                calls=known.calls + cost.calls,
                tokens_in=known.tokens_in + cost.tokens_in,
                tokens_out=known.tokens_out + cost.tokens_out,
                money=(known.micros + cost.micros) / 1e6,
                micros=known.micros + cost.micros,
            )
        )
    return tuple(found[key] for key in sorted(found))


def costs_of(meta: _Meta) -> tuple[CostView, ...]:
    """What was told of costs, summed up."""
    return summed(
        CostView(
            provider=c.provider,
            model=c.model,
            calls=c.calls,
            tokens_in=c.tokens_in,
            tokens_out=c.tokens_out,
            money=c.micros / 1e6,
            currency=c.currency,
            micros=c.micros,
        )
        for c in meta.costs
    )


# ------------------------------------------------------------------------------------------------- rows


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What the list of steps is made from."""

    now_us: int
    steps: list[Step]
    attempts: list[Attempt]
    checkpoints: list[Checkpoint]
    waits: list[Wait]
    approvals: list[Approval]
    children: list[Child]
    bodies: dict[int, bytes]


def listed(rows: Rows, words: dict[int, str]) -> list[StepView]:
    """See the laws above; `words` are the leased steps' states in the profile's words, by index."""
    needs = needs_of(rows.steps)
    shown: list[StepView] = []
    for step in rows.steps:
        of_step = [a for a in rows.attempts if a.idx == step.idx]
        is_body = step.kind == "body"
        if not is_body:
            shown.append(_step(rows, step, of_step, words[step.idx], needs[step.idx]))
        within = None if is_body else step.name
        inner = [_checkpoint(rows, c, within) for c in rows.checkpoints if c.idx == step.idx]
        inner += [
            _wait(rows, w, within)
            for w in rows.waits
            if w.idx == step.idx and not w.gate and not _is_backoff(w)
        ]
        shown += [view for _, _, view in sorted(inner, key=lambda each: each[:2])]
    return shown


def _is_backoff(wait: Wait) -> bool:
    """Whether it is the pause between two tries of a checkpoint, which has a line already."""
    return wait.kind not in _WAIT_KINDS and "!" in wait.label


def needs_of(steps: Iterable[Step]) -> dict[int, tuple[str, ...]]:
    """The names of the steps that each step needs, by its index."""
    needs: dict[int, list[str]] = {step.idx: [] for step in steps}
    for step in steps:
        for idx in step.dependents.split(",") if step.dependents else ():
            needs[int(idx)].append(step.name)
    return {idx: tuple(names) for idx, names in needs.items()}


def _step(rows: Rows, step: Step, attempts: list[Attempt], word: str, needs: tuple[str, ...]) -> StepView:
    attempt = next((a for a in attempts if a.n == step.attempt), None)
    live = attempt if attempt is not None and attempt.ended_at is None else None
    wait = next((w for w in rows.waits if w.gate and w.idx == step.idx), None)
    begun = attempt.granted_at if attempt is not None else None if wait is None else wait.opened_at
    ended = step.finished_at or (None if attempt is None else attempt.ended_at)
    meta = meta_of(None if attempt is None else attempt.cost)
    asked = _asked(rows, wait)
    return StepView(
        name=step.name,
        kind=step.kind,
        tool=step.tool if wait is None else wait.name,
        state=step.state,
        shown=word,
        required=step.required,
        needs=needs,
        attempt=step.attempt,
        attempts_max=step.max_attempts,
        worker=attempt.owner if attempt is not None else None if asked is None else asked.decided_by,
        progress=attempt.progress if attempt is not None else _votes(rows, wait),
        lease_until=None if live is None else moment(live.expires_at),
        retry_at=maybe(step.eligible_at),
        until=None if wait is None or wait.state != "open" else maybe(wait.expires_at),
        reason=step.reason,
        skipped=step.reason == CONDITION_FALSE,
        condition=step.condition,
        last_error=step.last_error,
        started_at=maybe(begun),
        finished_at=maybe(step.finished_at),
        seconds=_between(begun, ended),
        costs=costs_of(meta),
        question=None if asked is None else decoded(rows.bodies.get(asked.question_ref or 0)),
        note=None if asked is None else decoded(rows.bodies.get(asked.reason_ref or 0)),
        output=decoded(rows.bodies.get(step.output_ref or 0)),
        error=decoded(rows.bodies.get(step.error_ref or 0)),
    )


def _asked(rows: Rows, wait: Wait | None) -> Approval | None:
    """The question behind a wait."""
    return None if wait is None else next((a for a in rows.approvals if a.no == wait.no), None)


def _votes(rows: Rows, wait: Wait | None) -> str:
    """How far an open question is."""
    asked = None if wait is None or wait.state != "open" else _asked(rows, wait)
    return "" if asked is None else f"{len(asked.votes.split())} of {asked.people} said yes"


def _checkpoint(rows: Rows, row: Checkpoint, within: str | None) -> tuple[int, int, StepView]:
    meta = meta_of(row.meta)
    name = row.name.rpartition("/")[2].partition("#")[0]
    kind = "value" if name.partition(":")[0] in _VALUES and not meta.us else "checkpoint"
    state = {"started": "running", "done": "succeeded"}.get(row.state, "failed")
    if state == "failed" and row.next_at is not None:
        state = "retry_wait"
    elif state == "failed" and not row.tries:
        state = "canceled"  # stopped by its own workflow: the other branch was done first
    output = decoded(rows.bodies.get(row.output_ref or 0))
    begun = row.at - (meta.us or 0)
    until: datetime | None = None
    seconds = None if meta.us is None else meta.us / 1e6
    if name == "sleep" and meta.us is None and isinstance(output, int):
        # A short sleep is kept in memory; what was recorded is the moment at which it ends.
        state = "succeeded" if rows.now_us >= output else "waiting_external"
        kind, until, seconds, output = "sleep", moment(output), _between(row.at, output), None
    failed = row.state == "failed"
    by = next((a.owner for a in rows.attempts if (a.idx, a.n) == (row.idx, row.n)), None)
    view = StepView(
        name=row.name,
        kind=kind,
        state=state,
        shown=state,
        within=within,
        attempt=row.tries,
        worker=by,
        retry_at=maybe(row.next_at),
        until=until,
        reason="done" if row.state == "done" else row.error,
        last_error=row.error,
        started_at=moment(begun),
        finished_at=moment(row.at) if state in ("succeeded", "failed") else None,
        seconds=seconds,
        agent=meta.agent,
        costs=costs_of(meta),
        output=None if failed else output,
        error=output if failed else None,
    )
    return begun, row.no, view


def _wait(rows: Rows, row: Wait, within: str | None) -> tuple[int, int, StepView]:
    kind = _WAIT_KINDS.get(row.kind, "sleep")
    outcome, child = row.outcome, None
    if row.kind == "child":
        child = ids.run_text(int(row.name))
        known = next((c for c in rows.children if c.wait_no == row.no), None)
        outcome = None if known is None else known.outcome
        state = "running" if row.state == "open" else "succeeded" if outcome == "succeeded" else "failed"
    elif row.state == "open":
        state = "waiting_approval" if row.kind in ("approval", "proposal") else "waiting_external"
    else:
        state = "canceled" if outcome is None else "succeeded" if outcome in _GOOD else "failed"
    asked = _asked(rows, row)
    note = None if asked is None else decoded(rows.bodies.get(asked.reason_ref or 0))
    view = StepView(
        name=label_of(row.label),
        kind=kind,
        tool="" if row.kind == "child" else row.name,
        state=state,
        shown=state,
        within=within,
        worker=None if asked is None else asked.decided_by,
        progress=_votes(rows, row),
        until=maybe(row.expires_at) if row.state == "open" else None,
        reason=outcome,
        started_at=moment(row.opened_at),
        finished_at=maybe(row.settled_at),
        seconds=_between(row.opened_at, row.settled_at),
        child=child,
        question=None if asked is None else decoded(rows.bodies.get(asked.question_ref or 0)),
        note=note,
        output=decoded(rows.bodies.get(row.result_ref or 0)),
    )
    return row.opened_at, row.no, view
