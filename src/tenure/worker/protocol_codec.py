"""The runner protocol's messages as the kernel's commands and rows, and back.

Laws:
1. Each message has one `FieldTable`. A field that no row of its table names has the same name and value on both sides.
2. A command's run, step, attempt, tenant and context do not travel: they are those of the lease that the message was sent under.
   Whatever else does not travel is listed with the value it has after decoding (`server_only`). A test fails for a field that is
   neither in a table nor listed.
3. A payload is sent as the JSON value it is. One that is not JSON is sent as `{"$tenure.text": …}` or, if it is not text either, as
   `{"$tenure.base64": …}`; an artifact as its reference `{"$tenure.artifact": …}`. A field that is left out means no payload; `null` is
   the payload null.
4. Times are RFC 3339 in UTC with microseconds, so that nothing is lost.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from tenure import ids, money
from tenure.clock import to_datetime, to_micros
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_terms import RunTerms
from tenure.limits import INTEGER_MAX
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.store.replay import ReplayAct, ReplayCheckpoint, ReplayWait
from tenure.worker import protocol as p

W = TypeVar("W", bound=msgspec.Struct)
D = TypeVar("D", bound=msgspec.Struct)
Given = Mapping[str, Any]
"""Fields that the caller adds: those of the lease, and `new_id`, which makes an id for a child without one."""

ENVELOPE_FIELDS = ("run_id", "idx", "n", "tenant", "context")

TEXT_KEY = "$tenure.text"
BASE64_KEY = "$tenure.base64"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Conversion(NamedTuple):
    """How the value of a field travels, unless it is None: then the wire has `absent`."""

    encode: Callable[[Any], Any]
    decode: Callable[..., Any]
    absent: Any = None
    needs_lease: bool = False
    """Whether `decode` also takes what the caller gives: for a message inside a message."""


class FieldTable(Generic[W, D]):
    """The fields of a struct on the wire (W) and of ours (D); see the laws above.

    `renamed` has our names of wire fields; `derived_wire` and `derived_ours` are the fields that are made from the whole other struct;
    `given_wire` and `given_ours` are those that the caller adds.
    """

    def __init__(
        self,
        wire: type[W],
        ours: type[D],
        conversions: Mapping[str, Conversion] = {},
        *,
        renamed: Mapping[str, str] = {},
        derived_wire: Mapping[str, Callable[[D], Any]] = {},
        derived_ours: Mapping[str, Callable[[W], Any]] = {},
        server_only: Mapping[str, Any] = {},
        given_wire: Iterable[str] = (),
        given_ours: Iterable[str] = (),
    ) -> None:
        self.ours = ours
        to_wire: dict[str, tuple[str, Any]] = {}
        to_ours: dict[str, tuple[str, Any]] = {}
        for name in wire.__struct_fields__:
            our_name = renamed.get(name, name)
            if our_name not in ours.__struct_fields__:
                continue
            if (how := conversions.get(name)) is None:
                to_wire[name] = f"value.{our_name}", None
                to_ours[our_name] = f"value.{name}", None
            else:
                absent = "UNSET" if how.absent is UNSET else "None"
                to_wire[name] = f"{absent} if (x := value.{our_name}) is None else {{0}}(x)", how.encode
                given = ", given" if how.needs_lease else ""
                to_ours[our_name] = (
                    f"None if (x := value.{name}) is {absent} else {{0}}(x{given})",
                    how.decode,
                )
        to_wire |= {name: ("{0}(value)", derive) for name, derive in derived_wire.items()}
        to_ours |= {name: ("{0}(value)", derive) for name, derive in derived_ours.items()}
        to_wire |= {name: (f"given[{name!r}]", None) for name in given_wire}
        to_ours |= {name: (f"given[{name!r}]", None) for name in given_ours}
        to_ours |= {name: ("{0}", value) for name, value in server_only.items()}
        self.wire_fields = frozenset(to_wire)
        self.our_fields = frozenset(to_ours)
        self.encode: Callable[..., W] = _compile(wire, to_wire)
        self.decode: Callable[..., D] = _compile(ours, to_ours)


def _compile(make: type[Any], arguments: Mapping[str, tuple[str, Any]]) -> Callable[..., Any]:
    """A function that makes a struct from a `value`: written out and compiled, as `dataclasses` does, because every message of every
    remote worker passes through it."""
    scope: dict[str, Any] = {"make": make, "UNSET": UNSET}
    texts = []
    for at, (name, (text, bound)) in enumerate(arguments.items()):
        scope[f"bound_{at}"] = bound
        texts.append(f"{name}={text.format(f'bound_{at}')}")
    exec(f"def convert(value, given=None): return make({', '.join(texts)})", scope)
    convert: Callable[..., Any] = scope["convert"]
    return convert


# ------------------------------------------------------------------------------------------------- values


def encode_payload(body: bytes | None) -> Any:
    if body is None:
        return UNSET
    try:
        _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    else:
        return msgspec.Raw(body)
    try:
        return {TEXT_KEY: body.decode()}
    except UnicodeDecodeError:
        return {BASE64_KEY: b64encode(body).decode()}


def decode_payload(value: Any) -> bytes | None:
    if value is UNSET:
        return None
    if isinstance(value, dict) and len(value) == 1:
        if isinstance(text := value.get(TEXT_KEY), str):
            return text.encode(errors="replace")
        if isinstance(text := value.get(BASE64_KEY), str):
            try:
                return b64decode(text, validate=True)
            except ValueError as wrong:
                raise TenureError("INVALID_INPUT", f"{BASE64_KEY} is not base64: {wrong}") from wrong
    return _encode(value)


def format_lease_id(run_id: int, idx: int, n: int) -> str:
    return f"{ids.run_text(run_id)}.{idx}.{n}"


def parse_lease_id(text: str) -> tuple[int, int, int]:
    """Run, index of the step, attempt. Anything that is not a lease id is refused like an unknown lease."""
    run, _, rest = text.partition(".")
    idx, _, n = rest.partition(".")
    if not (idx.isascii() and idx.isdigit() and n.isascii() and n.isdigit() and len(rest) < 22):
        raise TenureError("UNAUTHENTICATED")
    try:
        run_id = ids.run_int(run)
    except TenureError as wrong:
        raise TenureError("UNAUTHENTICATED") from wrong
    if max(int(idx), int(n)) > INTEGER_MAX:
        raise TenureError("UNAUTHENTICATED")
    return run_id, int(idx), int(n)


def _decode_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as wrong:
        raise TenureError("INVALID_INPUT", f"arguments: {text[:60]!r} is not a digest in hex") from wrong


PAYLOAD = Conversion(encode_payload, decode_payload, UNSET)
TIME = Conversion(to_datetime, to_micros)
TEXT = Conversion(lambda body: body.decode(errors="replace"), lambda text: text.encode(errors="replace"))
HEX = Conversion(bytes.hex, _decode_hex)
JSON = Conversion(lambda text: msgspec.Raw(text.encode()), lambda value: msgspec.json.encode(value).decode())
RUN_ID = Conversion(ids.run_text, ids.run_int)

# ------------------------------------------------------------------------------------- parts of messages


def _format_budget(child: c.StartChild) -> str | None:
    terms = child.terms
    return None if terms.budget is None else money.format_amount(terms.budget, terms.currency)


def _decode_child(child: p.ChildRun, given: Given) -> c.StartChild:
    terms = RunTerms.of(child.budget, child.compensate)
    if child.run_id is None:
        run_id = given["new_id"]()
    else:
        try:
            run_id = ids.run_int(child.run_id)
        except TenureError as wrong:
            raise TenureError("INVALID_INPUT", f"run_id: {child.run_id[:60]!r} is not a run id") from wrong
    return CHILD_RUN.decode(child, {"run_id": run_id, "terms": terms})


PLAN_STEP = FieldTable(
    p.PlanStep,
    c.StepSpec,
    {"input": PAYLOAD},
    server_only={"template": None},
)
CHILD_RUN = FieldTable(
    p.ChildRun,
    c.StartChild,
    {
        "input": PAYLOAD,
        "plan": Conversion(
            lambda plan: tuple(map(PLAN_STEP.encode, plan)),
            lambda plan: tuple(map(PLAN_STEP.decode, plan)) or (c.BODY_STEP,),
        ),
    },
    derived_wire={
        "run_id": lambda child: ids.run_text(child.run_id),
        "budget": _format_budget,
        "compensate": lambda child: child.terms.compensate,
    },
    given_ours=("run_id", "terms"),
)
_CHILD = Conversion(CHILD_RUN.encode, _decode_child, needs_lease=True)
_CHECKPOINT_FIELDS = {
    "output": PAYLOAD,
    "message": TEXT,
    "arguments": HEX,
    "next_at": TIME,
    "input": PAYLOAD,
    "meta": JSON,
}
LAST_CHECKPOINT = FieldTable(
    p.CheckpointMessage, c.RecordCheckpoint, _CHECKPOINT_FIELDS, given_ours=ENVELOPE_FIELDS
)

# ------------------------------------------------------------------------------------ messages of a lease


def _message(
    verb: str, command: type[c.LeaseCommand], conversions: Mapping[str, Conversion] = {}, **more: Any
) -> FieldTable[Any, Any]:
    return FieldTable(
        p.ADDRESSED_MESSAGES[verb],
        command,
        conversions,
        given_wire=("lease", "token"),
        given_ours=ENVELOPE_FIELDS,
        **more,
    )


MESSAGES: dict[str, FieldTable[Any, Any]] = {
    "ack": _message("ack", c.AckLease),
    "running": _message("running", c.Heartbeat, server_only={"begins": True}),
    "heartbeat": _message("heartbeat", c.Heartbeat),
    "checkpoint": _message("checkpoint", c.RecordCheckpoint, _CHECKPOINT_FIELDS),
    "uploading": _message("uploading", c.BeginUpload),
    "suspend": _message("suspend", c.Suspend),
    "wait": _message("wait", c.OpenWait, {"question": PAYLOAD, "until": TIME}),
    "start": _message("start", c.OpenWait, {"child": _CHILD}),
    "propose": _message("propose", c.OpenWait, {"question": PAYLOAD}),
    "cost": _message("cost", c.ReportCost),
    "complete": _message(
        "complete",
        c.Complete,
        {
            "output": PAYLOAD,
            "last": Conversion(LAST_CHECKPOINT.encode, LAST_CHECKPOINT.decode, needs_lease=True),
            "restart": _CHILD,
            "plan": Conversion(
                lambda plan: tuple(map(PLAN_STEP.encode, plan)),
                lambda plan: tuple(map(PLAN_STEP.decode, plan)),
            ),
        },
    ),
    "fail": _message("fail", c.Fail, {"message": TEXT}),
    "release": _message("release", c.Release),
    "park": _message("park", c.Park),
    "cancel-ack": _message("cancel-ack", c.AckCancel),
}
"""The tables by verb. `log` has none: log lines are no command."""
_ENCODERS = {table.ours: table.encode for verb, table in MESSAGES.items() if verb != "running"}
"""Without `running`: a worker says so with its claim."""
_DECODERS: dict[type, Callable[..., c.LeaseCommand]] = {
    body: table.decode
    for verb, table in MESSAGES.items()
    for body in (p.MESSAGES[verb], p.ADDRESSED_MESSAGES[verb])
}


def encode_message(message: c.LeaseCommand, lease: str, token: str) -> Any:
    encode = _ENCODERS[type(message)]
    if isinstance(message, c.OpenWait):
        verb = "start" if message.child is not None else "propose" if message.proposal is not None else "wait"
        encode = MESSAGES[verb].encode
    return encode(message, {"lease": lease, "token": token})


def decode_message(message: p.RunnerMessage, given: Given) -> c.LeaseCommand:
    """A message as a command. `given` has the lease's `ENVELOPE_FIELDS` and `new_id`, which makes the id of a child that has none."""
    return _DECODERS[type(message)](message, given)


# ------------------------------------------------------------------------------- replies, acts and replays

REPLY = FieldTable(
    p.MessageReply, LeaseReply, {"expires_at": TIME}, renamed={"wait": "no"}, server_only={"result_ref": None}
)
ACT_CALL = FieldTable(p.ActCallMessage, ActRequest)
ACT_REPLY = FieldTable(p.ActCallReply, ActResult, {"retry_at": TIME}, renamed={"wait": "no"})

LEASE_FIELDS: dict[str, Any] = {
    "conversions": {"run_id": RUN_ID, "expires_at": TIME, "timeout_at": TIME, "input": PAYLOAD},
    "renamed": {"step": "name", "resumed": "recorded", "attempt": "n"},
    "derived_wire": {"id": lambda lease: format_lease_id(lease.run_id, lease.idx, lease.n)},
    "derived_ours": {"idx": lambda info: parse_lease_id(info.id)[1]},
    "server_only": {"input_ref": None},
    "given_ours": ("granted_at", "asked_at"),
}
LEASE = FieldTable(p.LeaseInfo, Lease, **LEASE_FIELDS)
GRANTED_LEASE = FieldTable(p.GrantedLease, Lease, given_wire=("token",), **LEASE_FIELDS)
CHECKPOINT = FieldTable(
    p.RecordedCheckpoint,
    ReplayCheckpoint,
    {"arguments": HEX, "at": TIME, "next_at": TIME, "meta": JSON, "output": PAYLOAD},
    renamed={"attempt": "n"},
    derived_wire={"erased": lambda row: row.output is None and row.output_ref is not None},
    derived_ours={"output_ref": lambda wire: 0 if wire.output is not UNSET or wire.erased else None},
)
WAIT = FieldTable(
    p.OpenedWait,
    ReplayWait,
    {
        "opened_at": TIME,
        "expires_at": TIME,
        "settled_at": TIME,
        "result": PAYLOAD,
        "reason": PAYLOAD,
        "child_id": RUN_ID,
        "child_output": PAYLOAD,
        "child_error": PAYLOAD,
    },
    derived_wire={"name": lambda row: ids.run_text(int(row.name)) if row.kind == "child" else row.name},
    derived_ours={"name": lambda wire: str(ids.run_int(wire.name)) if wire.kind == "child" else wire.name},
)
ACT = FieldTable(
    p.ActReceipt,
    ReplayAct,
    {"intent_at": TIME, "settled_at": TIME, "eligible_at": TIME, "request": PAYLOAD, "result": PAYLOAD},
    renamed={"tries": "try_no", "key": "name", "attempt": "n", "wait": "wait_no"},
    derived_wire={"action": lambda row: row.action},
    derived_ours={
        "connector": lambda wire: wire.action.partition(".")[0],
        "operation": lambda wire: wire.action.partition(".")[2],
    },
    server_only={"digest": b"", "repeats": "", "call_by": 0, "by_person": False},
)
