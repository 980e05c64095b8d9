"""The encoding of commands and rows between a runner and its server: no field is lost, and the format does not change."""

from __future__ import annotations

import json
import types
import typing
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.costs import Cost
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_terms import NO_TERMS, RunTerms
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.store.replay import ReplayAct, ReplayCheckpoint, ReplayWait
from tenure.worker import protocol as p
from tenure.worker import protocol_codec as codec
from tests.worker import protocol_samples as samples

RECORDED: dict[str, str] = json.loads((Path(__file__).parent / "protocol_samples.json").read_text())
"""The samples as an earlier version sent them, which copied each field by hand."""
GIVEN = samples.ENVELOPE | {"new_id": lambda: samples.CHILD}

ROWS: list[tuple[codec.FieldTable[Any, Any], dict[str, Any]]] = [
    (codec.REPLY, samples.REPLIES),
    (codec.CHECKPOINT, samples.CHECKPOINTS),
    (codec.WAIT, samples.WAITS),
    (codec.ACT, samples.ACTS),
    (codec.ACT_CALL, samples.ACT_CALLS),
    (codec.ACT_REPLY, samples.ACT_REPLIES),
]


def over_the_wire(message: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(message), type=type(message))


# ------------------------------------------------------------------------------------- compatibility


def test_the_samples_are_encoded_as_before() -> None:
    sent = {name: codec.encode_message(each, "LEASE", "TOKEN") for name, each in samples.COMMANDS.items()}
    sent |= {name: table.encode(row) for table, rows in ROWS for name, row in rows.items()}
    sent |= {
        name: codec.GRANTED_LEASE.encode(each, {"token": "TOKEN"}) for name, each in samples.LEASES.items()
    }
    assert {name: msgspec.json.encode(each).decode() for name, each in sent.items()} == RECORDED


def test_the_samples_are_decoded_to_the_same_commands_and_rows() -> None:
    for name, command in samples.COMMANDS.items():
        message = msgspec.json.decode(RECORDED[name], type=p.AnyMessage)
        again = codec.encode_message(codec.decode_message(message, GIVEN), "LEASE", "TOKEN")
        assert over_the_wire(again) == message, name
        if "2.50" not in RECORDED[name]:
            assert codec.decode_message(message, GIVEN) == command, name
    for table, rows in ROWS:
        for name, row in rows.items():
            assert table.decode(over_the_wire(table.encode(row))) == row, name
    for lease in samples.LEASES.values():
        given_times = {"granted_at": lease.granted_at, "asked_at": lease.asked_at}
        assert (
            codec.GRANTED_LEASE.decode(codec.GRANTED_LEASE.encode(lease, {"token": "T"}), given_times)
            == lease
        )


def test_a_message_without_an_address_is_the_same_command() -> None:
    message = msgspec.json.decode(b'{"seq":7,"name":"a","output":null}', type=p.CheckpointMessage)
    assert codec.decode_message(message, GIVEN) == c.RecordCheckpoint(
        **samples.ENVELOPE, seq=7, name="a", output=b"null"
    )


def test_a_runner_reports_that_it_has_started() -> None:
    command = codec.decode_message(p.RunningMessage(seq=2), GIVEN)
    assert command == c.Heartbeat(**samples.ENVELOPE, seq=2, begins=True)


def test_a_child_without_an_id_is_given_one_and_a_wrong_id_is_refused() -> None:
    started = p.StartChildMessage(seq=1, label="s", child=p.ChildRun(workflow="build"))
    command = codec.decode_message(started, GIVEN)
    assert isinstance(command, c.OpenWait)
    assert command.child == c.StartChild(run_id=samples.CHILD, workflow="build")
    wrong = p.StartChildMessage(seq=1, label="s", child=p.ChildRun(workflow="build", run_id="run_x"))
    with pytest.raises(TenureError, match="run_id: 'run_x' is not a run id"):
        codec.decode_message(wrong, GIVEN)


def test_arguments_that_are_not_hex_are_refused() -> None:
    with pytest.raises(TenureError, match="arguments: 'zz' is not a digest in hex"):
        codec.decode_message(p.CheckpointMessage(seq=1, name="a", arguments="zz"), GIVEN)


# ----------------------------------------------------------------------------------------- no field is lost


def lease_commands() -> set[type[c.LeaseCommand]]:
    return {
        each for each in vars(c).values() if isinstance(each, type) and issubclass(each, c.LeaseCommand)
    } - {c.LeaseCommand, c.CostCommand}  # bases


LEFT_OUT: dict[str, set[str]] = {
    "heartbeat": {"begins"},
    "running": {"progress"},
    "wait": {"proposal", "child"},
    "start": {"approval", "proposal", "question", "event", "until"},
    "propose": {"approval", "event", "until", "child", "fatal"},
}
"""Fields that a verb does not send, because another verb of the same command does, or because the verb implies them."""


def test_every_field_of_a_command_is_in_a_table_or_listed_as_server_only() -> None:
    assert {table.ours for table in codec.MESSAGES.values()} == lease_commands()
    for verb, table in codec.MESSAGES.items():
        left_out = set(table.ours.__struct_fields__) - table.our_fields
        assert left_out == LEFT_OUT.get(verb, set()), verb


def test_a_new_field_of_a_command_is_noticed() -> None:
    class Newer(c.Release, frozen=True, kw_only=True):
        new: str = ""

    table = codec._message("release", Newer)
    assert set(Newer.__struct_fields__) - table.our_fields == {"new"}


def test_structs_that_travel_as_they_are_have_the_fields_that_runners_know() -> None:
    """A new field of these structs is a new field of the protocol: describe it in docs/runner-protocol.md, and add it here."""
    known: dict[type[msgspec.Struct], str] = {
        c.ApprovalSpec: "action tier people within_seconds digest group",
        c.BackoffSpec: "seconds jitter",
        c.WaitSpec: "event source within_seconds",
        Cost: "provider model tokens_in tokens_out micros currency calls",
        RunTerms: "budget currency compensate",  # a child's `budget` and `compensate`
    }
    for struct, fields in known.items():
        assert struct.__struct_fields__ == tuple(fields.split()), struct


def test_every_field_of_what_messages_hold_is_in_a_table_or_listed() -> None:
    tables: dict[Any, codec.FieldTable[Any, Any]] = {
        c.StepSpec: codec.PLAN_STEP,
        c.StartChild: codec.CHILD_RUN,
        c.RecordCheckpoint: codec.LAST_CHECKPOINT,
        Lease: codec.GRANTED_LEASE,
        LeaseReply: codec.REPLY,
        ReplayCheckpoint: codec.CHECKPOINT,
        ReplayWait: codec.WAIT,
        ReplayAct: codec.ACT,
        ActRequest: codec.ACT_CALL,
        ActResult: codec.ACT_REPLY,
    }
    for struct, table in tables.items():
        assert set(struct.__struct_fields__) == table.our_fields, struct


def test_every_field_of_a_message_is_in_its_table() -> None:
    assert p.MESSAGES.keys() - codec.MESSAGES.keys() == {"log"}
    for verb, table in codec.MESSAGES.items():
        assert set(p.ADDRESSED_MESSAGES[verb].__struct_fields__) == table.wire_fields, verb
    tables: dict[Any, codec.FieldTable[Any, Any]] = {
        p.PlanStep: codec.PLAN_STEP,
        p.ChildRun: codec.CHILD_RUN,
        p.CheckpointMessage: codec.LAST_CHECKPOINT,
        p.LeaseInfo: codec.LEASE,
        p.GrantedLease: codec.GRANTED_LEASE,
        p.RecordedCheckpoint: codec.CHECKPOINT,
        p.OpenedWait: codec.WAIT,
        p.ActReceipt: codec.ACT,
        p.ActCallMessage: codec.ACT_CALL,
        p.ActCallReply: codec.ACT_REPLY,
    }
    for struct, table in tables.items():
        assert set(struct.__struct_fields__) == table.wire_fields, struct
    assert set(p.MessageReply.__struct_fields__) - codec.REPLY.wire_fields == {
        "error"
    }  # a refusal is not a reply


# --------------------------------------------------------------------------------- random commands

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_PAYLOAD = _VALUES.map(msgspec.json.encode) | st.text(max_size=8).map(str.encode).filter(
    lambda body: body[:1] in b"x"
)
_TIME = st.integers(0, 4_000_000_000_000_000)
_RUN = st.integers(samples.RUN, samples.RUN + 10**6)
_BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "output": st.none() | _PAYLOAD,
    "input": st.none() | _PAYLOAD,
    "question": st.none() | _PAYLOAD,
    "arguments": st.binary(max_size=8),
    "meta": st.none()
    | st.dictionaries(st.text(max_size=4), _VALUES).map(msgspec.json.encode).map(bytes.decode),
    "next_at": st.none() | _TIME,
    "until": st.none() | _TIME,
    "run_id": _RUN,
    "template": st.none(),
    "condition": st.none(),
    "skipped": st.just(False),
    "begins": st.just(False),
    "terms": st.just(NO_TERMS)
    | st.builds(RunTerms, budget=st.integers(0, 10**12), currency=st.just("USD"), compensate=st.booleans()),
}


def by_hint(hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([by_hint(each) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(by_hint(arguments[0]), max_size=3).map(tuple)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return struct(hint)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=8),
        int: st.integers(0, 2**53),
        bool: st.booleans(),
        float: st.floats(0, 1e9),
        bytes: st.text(max_size=8).map(str.encode),
        type(None): st.none(),
    }
    return plain[hint]


def struct(kind: type[Any], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    known = _BY_NAME | more
    return st.builds(kind, **{name: known[name] if name in known else by_hint(hints[name]) for name in hints})


def command(kind: type[c.LeaseCommand], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return struct(kind, **{name: st.just(value) for name, value in samples.ENVELOPE.items()}, **more)


def commands() -> st.SearchStrategy[c.LeaseCommand]:
    none = st.none()
    plan = st.lists(struct(c.StepSpec), min_size=1, max_size=2).map(tuple)
    child = struct(c.StartChild, plan=plan)
    last = none | command(c.RecordCheckpoint)
    waits = command(c.OpenWait, child=none, proposal=none)
    starts = command(
        c.OpenWait, child=child, approval=none, question=none, event=none, until=none, proposal=none
    )
    proposes = command(
        c.OpenWait,
        child=none,
        approval=none,
        event=none,
        until=none,
        proposal=struct(c.ApprovalSpec),
        fatal=st.just(False),
    )
    completes = command(c.Complete, last=last, restart=none | child, plan=none | plan)
    others = lease_commands() - {c.OpenWait, c.Complete}
    plain = [command(each) for each in sorted(others, key=lambda each: each.__name__)]
    return st.one_of(waits, starts, proposes, completes, *plain)


@given(commands())
def test_a_command_survives_a_round_trip_over_the_wire(sent: c.LeaseCommand) -> None:
    message = over_the_wire(codec.encode_message(sent, "LEASE", "TOKEN"))
    assert codec.decode_message(message, GIVEN) == sent
