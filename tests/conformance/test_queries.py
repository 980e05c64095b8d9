"""Every named query on every store: given these rows, it returns this answer."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import astuple

from tenure.kernel.act_rows import CostLineRow, RunSpendRow
from tenure.kernel.governance_rows import GovernanceRow
from tenure.kernel.identity_rows import PersonRow, UnconfirmedPerson
from tenure.kernel.run_rows import Cap, CheckpointRow, Row, WaitRow
from tenure.store import port, replay
from tenure.store.port import Save, Store
from tests.conformance.samples import (
    DONE,
    ENDED,
    a_checkpoint,
    a_child,
    a_message,
    a_payload,
    a_ready_step,
    a_receipt,
    a_run,
    a_spec,
    a_step,
    a_verdict,
    a_wait,
    an_approval,
    an_attempt,
    an_event,
    an_idempotency_record,
    an_outbox_row,
)
from tests.conformance.stores import KINDS, ask, open_store, save, tables

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens stores of one kind. All stores of a test share one database."""
    dsn = request.getfixturevalue("migrated_dsn") if request.param == "postgres" else ""
    return partial(open_store, request.param, tmp_path, dsn)


# ---------------------------------------------------------------------------------------- the database

BUILDING = a_run(
    101, status="running", version=3, created_at=1000, admitted_at=1005, rated=True, repo="app",
    concurrency_key="deploy", wake_at=9000,
)  # fmt: skip
WAITS_FOR_KEY = a_run(
    102, status="queued", created_at=2000, repo="app", concurrency_key="deploy", wake_at=3000
)
DELAYED = a_run(103, status="queued", created_at=1500, concurrency_key="deploy", wake_at=90_000)
FINISHED = a_run(
    104, **DONE, workspace="lab", workflow="test", created_at=3000, admitted_at=3001, rated=True, repo="lib",
    sealed_at=4500,
)  # fmt: skip
UNSEALED = a_run(105, **DONE, created_at=3000)
OTHERS = a_run(
    201, tenant="beta", status="running", created_at=1200, admitted_at=1201, concurrency_key="deploy"
)
RUNS = [BUILDING, WAITS_FOR_KEY, DELAYED, FINISHED, UNSEALED, OTHERS]

SPECS = {run.id: a_spec(run.id, tenant=run.tenant) for run in RUNS}
SPECS[101].idempotency_key = "once"
SPECS[201].idempotency_key = "once"

LEASED = a_step(101, 0, name="compile", state="running", attempt=1, wake_at=5000)
READY = a_ready_step(101, 1, priority=5, ready_at=1100)
GATE = a_step(101, 2, kind="approval", state="waiting_approval", wait_no=1, wake_at=8000)
CLOSED = a_step(101, 3, state="succeeded", finished_at=2000, reason="done")
MADE = a_step(
    104, 0, state="succeeded", attempt=1, finished_at=3500, reason="done", reuse="{}", reuse_key=b"same"
)
MADE_AGAIN = a_step(
    104, 1, state="succeeded", attempt=2, finished_at=3600, reason="done", reuse="{}", reuse_key=b"same"
)
REUSED = a_step(
    104, 2, state="succeeded", finished_at=3700, reason="REUSED", reuse="{}", reuse_key=b"same",
    reused_run=101, reused_step="compile",
)  # fmt: skip
OLDER = a_ready_step(102, 0, priority=5, ready_at=1050)
URGENT = a_ready_step(102, 1, priority=9, ready_at=1200, workflow="fix")
PAUSED = a_step(102, 2, state="ready", ready_at=1000)
LAB = a_ready_step(102, 3, workspace="lab")
BETA = a_ready_step(201, 0, tenant="beta")
BETA_GPU = a_ready_step(201, 1, tenant="beta", workspace="gpu", queue="q2")
GRANTED = a_step(201, 2, tenant="beta", state="leased", attempt=2, wake_at=6000)

LIVE = an_attempt(101, 0, 1, beat_at=1300, expires_at=5000)
LOST = an_attempt(201, 2, 1, tenant="beta", **{**ENDED, "state": "stale", "lease": "expired"})
NEXT = an_attempt(201, 2, 2, tenant="beta", state="leased", lease="granted", beat_at=1100, owner="worker-2")

SECOND = a_checkpoint(101, 0, "a", 2)
FIRST = a_checkpoint(101, 0, "b", 1)
OTHER_STEPS = a_checkpoint(101, 1, "a", 1)

ASKED = a_wait(101, 1, idx=2, kind="approval", gate=True, wake_at=7000)
SETTLED = a_wait(101, 2, label="twice", state="settled", outcome="received", settled_at=2000)
OPEN_AGAIN = a_wait(101, 3, label="twice")
OPEN_APPROVAL = an_approval(101, 1, requested_at=1400)
OLDER_APPROVAL = an_approval(102, 1, requested_at=1300)
DECIDED = an_approval(101, 2, status="approved", decided_at=2000, decided_by="person_2")

TAKEN = a_message(101, 1, "e1", wait_no=2)
BUFFERED = a_message(101, 2, "e2")
LATER = a_message(101, 3, "e3")
OTHER_NAME = a_message(101, 4, "e4", name="tested")
OPEN_CHILD = a_child(101, 104)
GONE_CHILD = a_child(101, 102, state="closed", outcome="succeeded")

EVENTS = [an_event(101, 1), an_event(101, 2), an_event(101, 3)]
OWED = an_outbox_row(104, 2, target_id=101, created_at=1500)
OWED_LATER = an_outbox_row(101, 3, 1, created_at=1700)
OWED_TOO = an_outbox_row(101, 3, 0, created_at=1700)
PAYLOADS = [a_payload(101, 1), a_payload(101, 2)]

RULED = a_verdict(101, 10)
DONE_ACT = a_receipt(101, 11, state="succeeded", settled_at=2000, name="shared")
TRIED = a_receipt(101, 13, label="b#1", state="failed", settled_at=2000, name="other")
TRIED_AGAIN = a_receipt(101, 14, label="b#1", try_no=2, name="other", verdict_no=10)
LOST_ACT = a_receipt(102, 3, state="unknown", wait_no=2)
RUN_SPEND = RunSpendRow(101, 250, 2)
SPENT = CostLineRow(101, 1, "acme", "build", 20_000, "openai", "large", "USD", 3, 40, 50, 200)
SPENT_MORE = CostLineRow(101, 2, "acme", "build", 20_001, "openai", "large", "USD", 1, 10, 20, 50)
HOLDS = GovernanceRow("acme", 3, None, None, '{"*":"person:ada"}', "{}", 1, 1000)
ADA = PersonRow("acme", "ada", "Ada", '["approver"]', "[]", None, None, None, 1000)
NEW = PersonRow("acme", "new", "New", "[]", "[]", None, None, None, 1000, unconfirmed='["person:ada"]')
THEIRS = PersonRow("beta", "new", "New", "[]", "[]", None, None, None, 1000, unconfirmed='["person:bea"]')

SOON = an_idempotency_record("soon", expires_at=2000, run_id=101)
LATE = an_idempotency_record("late", expires_at=3000, run_id=101)
FAILED = an_idempotency_record("failed", expires_at=1000, run_id=101, status="failed")
CAPS = [Cap("acme", "", 2, 50, 100), Cap("acme", "wf:build", 1, 5), Cap("beta", "ws:gpu", 3)]

BENEATH: list[Row] = [
    LEASED, READY, GATE, CLOSED, MADE, MADE_AGAIN, REUSED, OLDER, URGENT, PAUSED, LAB, BETA, BETA_GPU, GRANTED,
    LIVE, LOST, NEXT, SECOND, FIRST, OTHER_STEPS,
    ASKED, SETTLED, OPEN_AGAIN, OPEN_APPROVAL, OLDER_APPROVAL, DECIDED,
    TAKEN, BUFFERED, LATER, OTHER_NAME, OPEN_CHILD, GONE_CHILD,
    *EVENTS, OWED, OWED_LATER, OWED_TOO, *PAYLOADS, SOON, LATE, FAILED,
    RULED, DONE_ACT, TRIED, TRIED_AGAIN, LOST_ACT, RUN_SPEND, SPENT, SPENT_MORE,
]  # fmt: skip


async def fill(store: Store) -> None:
    everything = Save(new_runs=RUNS, new_specs=list(SPECS.values()), rows=tables(BENEATH))
    saved = await save(store, everything)
    assert saved.ids == {run.id for run in RUNS}
    await store.put_caps(CAPS)
    await ask(store, "save_governance", (), *astuple(HOLDS))
    for person in (ADA, NEW, THEIRS):
        await ask(store, "save_person", (), *astuple(person))


# ------------------------------------------------------------------------------------------ the answers


class Case(NamedTuple):
    name: str
    rows: Sequence[tuple[Any, ...]]
    scalars: tuple[Any, ...]
    answer: list[Any]
    in_order: bool = False


def rows(name: str, keys: Sequence[tuple[Any, ...]], answer: list[Any], *, in_order: bool = False) -> Case:
    """A query with keys as its argument."""
    return Case(name, keys, (), answer, in_order)


def one(name: str, *scalars: Any, answer: list[Any], in_order: bool = True) -> Case:
    """A query with scalar arguments."""
    return Case(name, (), scalars, answer, in_order)


def claim_queues(*pairs: tuple[str, str]) -> list[port.ClaimQueue]:
    return [port.ClaimQueue(tenant, workspace) for tenant, workspace in pairs]


def candidates(*steps: Any) -> list[port.ClaimCandidate]:
    return [
        port.ClaimCandidate(s.run_id, s.idx, s.tenant, s.workspace, s.workflow, s.priority, s.ready_at)
        for s in steps
    ]


def ids(*runs: Any) -> list[port.RunId]:
    return [port.RunId(run.id) for run in runs]


def recorded(row: CheckpointRow) -> replay.ReplayCheckpoint:
    fields: dict[str, Any] = {
        name: getattr(row, name, None) for name in replay.ReplayCheckpoint.__struct_fields__
    }
    return replay.ReplayCheckpoint(**fields)


def waited(row: WaitRow, **answer: Any) -> replay.ReplayWait:
    fields: dict[str, Any] = {name: getattr(row, name, None) for name in replay.ReplayWait.__struct_fields__}
    return replay.ReplayWait(**{**fields, **answer})


CASES = [
    rows("lock_tenants", [("beta",), ("acme",)], []),
    rows("lock_runs", [(201,), (101,), (999,)], [BUILDING, OTHERS], in_order=True),
    rows("lock_free_runs", [(201,), (101,), (999,)], [BUILDING, OTHERS], in_order=True),
    rows(
        "lock_free_heads",
        [(201,), (101,), (999,)],
        [port.RunHead(run.id, run.version, run.head) for run in (BUILDING, OTHERS)],
        in_order=True,
    ),
    rows("lock_runs", [], []),
    rows("load_specs", [(101,), (999,), (201,)], [SPECS[101], SPECS[201]]),
    rows("load_steps", [(101, 2), (102, 0), (101, 9)], [GATE, OLDER]),
    rows("load_named_steps", [(101, "compile"), (102, "compile")], [LEASED]),
    rows("load_open_steps", [(101,)], [LEASED, READY, GATE], in_order=True),
    rows("load_open_steps", [(201,), (104,)], [BETA, BETA_GPU, GRANTED]),
    rows("load_attempts", [(101, 0, 1), (201, 2, 1), (201, 2, 7)], [LIVE, LOST]),
    rows("load_checkpoints", [(101, 0, "a"), (101, 0, "none")], [SECOND]),
    rows("load_step_checkpoints", [(101, 0)], [FIRST, SECOND], in_order=True),
    rows("load_open_waits", [(101,), (102,)], [ASKED, OPEN_AGAIN]),
    rows("load_waits", [(101, 2), (101, 9)], [SETTLED]),
    rows("load_event_waits", [(101, OPEN_AGAIN.name), (101, "never")], [OPEN_AGAIN]),
    rows("load_labeled_waits", [(101, 0, "twice"), (101, 0, "never")], [SETTLED, OPEN_AGAIN]),
    rows("load_approvals", [(101, 2), (102, 1)], [DECIDED, OLDER_APPROVAL]),
    rows("load_buffered", [(101, "built")], [BUFFERED, LATER], in_order=True),
    rows("load_buffered", [(101, "tested"), (101, "other")], [OTHER_NAME]),
    rows("load_inbox_ids", [(101, "e1"), (101, "e9")], [TAKEN]),
    rows("load_open_children", [(101,)], [OPEN_CHILD]),
    rows("load_children", [(101, 102), (101, 999)], [GONE_CHILD]),
    rows("load_acts", [(101, 0, "b#1"), (101, 0, "c#1"), (102, 1, "b#1")], [TRIED, TRIED_AGAIN], in_order=True),
    rows("load_receipts", [(101, 11), (101, 12)], [DONE_ACT]),
    rows("load_open_receipts", [(101,), (102,), (103,)], [TRIED_AGAIN, LOST_ACT]),
    rows("load_run_spends", [(101,), (102,)], [RUN_SPEND]),
    rows("load_cost_lines", [(101,), (102,)], [SPENT, SPENT_MORE]),
    rows("load_key_holders", [("acme", "shared"), ("beta", "shared"), ("acme", "other")], [DONE_ACT, TRIED_AGAIN]),
    rows("load_governance", [("acme",), ("beta",)], [HOLDS]),
    rows("load_people", [("acme", "ada"), ("beta", "ada"), ("acme", "bob")], [ADA]),
    rows("load_unconfirmed", [("acme",), ("gamma",)], [UnconfirmedPerson(NEW.id, NEW.unconfirmed)]),
    rows("load_payloads", [(101, 2), (101, 9)], [PAYLOADS[1]]),
    rows("load_event_hashes", [(101, 2), (101, 9)], [port.EventHash(101, 2, b"hash-2")]),
    rows("find_keys", [("acme", "api", "once"), ("acme", "slack", "once")], [SPECS[101]]),
    rows("caps", [("acme",), ("nobody",)], CAPS[:2]),
    Case("claim_queues", [("q1",)], ("", "", 9), claim_queues(("acme", "lab"), ("acme", "main"), ("beta", "main")), True),
    Case("claim_queues", [("q1",)], ("acme", "lab", 9), claim_queues(("acme", "main"), ("beta", "main")), True),
    Case("claim_queues", [("q1",)], ("acme", "main", 9), claim_queues(("beta", "main")), True),
    Case("claim_queues", [("q1",)], ("", "", 2), claim_queues(("acme", "lab"), ("acme", "main")), True),
    Case("claim_queues", [("q1",)], ("beta", "main", 9), [], True),
    Case("claim_queues", [("q2",), ("q1",)], ("acme", "main", 9), claim_queues(("beta", "gpu"), ("beta", "main")), True),
    Case("claim_queues", [("q2",), ("q1",)], ("acme", "main", 1), claim_queues(("beta", "gpu")), True),
    Case("claim_queues", [("q3",)], ("", "", 9), [], True),
    Case("tenant_claim_queues", [("q1",)], ("acme", "", 9), claim_queues(("acme", "lab"), ("acme", "main")), True),
    Case("tenant_claim_queues", [("q1",)], ("acme", "lab", 9), claim_queues(("acme", "main")), True),
    Case("tenant_claim_queues", [("q1",)], ("acme", "", 1), claim_queues(("acme", "lab")), True),
    Case("tenant_claim_queues", [("q2",), ("q1",)], ("beta", "", 9), claim_queues(("beta", "gpu"), ("beta", "main")), True),
    Case("tenant_claim_queues", [("q2",), ("q1",)], ("nobody", "", 9), [], True),
    rows("usage", [("acme",), ("nobody",), ("beta",)], [port.LeaseUsage("acme", "build", 1), port.LeaseUsage("beta", "build", 1)]),
    rows("candidates", [("q1", "acme", "main", 9)], candidates(URGENT, OLDER, READY), in_order=True),
    rows("candidates", [("q1", "acme", "main", 2), ("q2", "beta", "gpu", 1)], candidates(URGENT, OLDER, BETA_GPU)),
    rows("candidates_behind", [("q1", "acme", "main", 10, 0, 0, 0, 9)], candidates(URGENT, OLDER, READY), in_order=True),
    rows("candidates_behind", [("q1", "acme", "main", 9, 1200, 102, 1, 9)], candidates(OLDER, READY), in_order=True),
    rows("candidates_behind", [("q1", "acme", "main", 9, 1200, 102, 0, 2)], candidates(URGENT, OLDER), in_order=True),
    rows("candidates_behind", [("q1", "acme", "main", 5, 1050, 102, 0, 9), ("q2", "beta", "gpu", 1, 0, 0, 0, 1)], candidates(READY, BETA_GPU)),
    one("key_queue", "acme", "deploy", 5000, answer=[port.ConcurrencyKeyQueue(101, 102)]),
    one("key_queue", "acme", "deploy", 2999, answer=[port.ConcurrencyKeyQueue(101, None)]),
    one("key_queue", "acme", "deploy", 90_000, answer=[port.ConcurrencyKeyQueue(101, 103)]),
    one("key_queue", "acme", "other", 5000, answer=[port.ConcurrencyKeyQueue(None, None)]),
    one("live_keys", "acme", "deploy", 102, answer=[port.ConcurrencyKeyHolder(101, 1005, 1000), port.ConcurrencyKeyHolder(103, None, 1500)], in_order=False),
    one("rates", "acme", 1004, answer=[port.AdmissionRate("build", 1, 1005), port.AdmissionRate("test", 1, 3001)], in_order=False),
    one("rates", "acme", 1005, answer=[port.AdmissionRate("test", 1, 3001)]),
    one(
        "due", 6000, 9,
        answer=[
            port.DueTimer("run", 102, 0, "acme", False, 3000),
            port.DueTimer("step", 101, 0, "acme", True, 5000),
            port.DueTimer("step", 201, 2, "beta", True, 6000),
        ],
    ),
    one("due", 7000, 1, answer=[port.DueTimer("run", 102, 0, "acme", False, 3000)]),
    one("due", 2999, 9, answer=[]),
    one("next_wake", answer=[port.StoreTime(3000)]),
    one("outbox_pending", 1700, 9, answer=[OWED]),
    one("outbox_pending", 1701, 2, answer=[OWED, OWED_TOO]),
    one("get_run", 104, answer=[FINISHED]),
    one("get_run", 999, answer=[]),
    one("get_spec", 101, answer=[SPECS[101]]),
    one("runs_by_status", "acme", "queued", 9999, 9, answer=[WAITS_FOR_KEY, DELAYED]),
    one("runs_by_status", "acme", "queued", 2000, 9, answer=[DELAYED]),
    one("runs_by_status", "acme", "succeeded", 9999, 1, answer=[UNSEALED]),
    one("approvals_open", "acme", 9, answer=[OLDER_APPROVAL, OPEN_APPROVAL]),
    one("approvals_open", "acme", 1, answer=[OLDER_APPROVAL]),
    one("run_ids_after", 102, 2, answer=ids(DELAYED, FINISHED)),
    one("reusable_steps", "acme", b"same", 9, answer=[MADE_AGAIN, MADE]),
    one("reusable_steps", "acme", b"same", 1, answer=[MADE_AGAIN]),
    one("reusable_steps", "acme", b"other", 9, answer=[]),
    one("reusable_steps", "beta", b"same", 9, answer=[]),
    one("reused_steps_of", 104, answer=[REUSED]),
    one("reused_steps_of", 101, answer=[]),
    one("steps_of", 101, answer=[LEASED, READY, GATE, CLOSED]),
    one("attempts_of", 201, answer=[LOST, NEXT]),
    one("checkpoints_of", 101, answer=[SECOND, FIRST, OTHER_STEPS]),
    one("waits_of", 101, answer=[ASKED, SETTLED, OPEN_AGAIN]),
    one("approvals_of", 101, answer=[OPEN_APPROVAL, DECIDED]),
    one("inbox_of", 101, answer=[TAKEN, BUFFERED, LATER, OTHER_NAME]),
    one("children_of", 101, answer=[GONE_CHILD, OPEN_CHILD]),
    one("verdicts_of", 101, answer=[RULED]),
    one("receipts_of", 101, answer=[DONE_ACT, TRIED, TRIED_AGAIN]),
    one("run_spends_of", 101, answer=[RUN_SPEND]),
    one("cost_lines_of", 101, answer=[SPENT, SPENT_MORE]),
    one("payloads_of", 101, answer=PAYLOADS),
    one("events_of", 101, answer=EVENTS),
    one("outbox_of", 101, answer=[OWED_TOO, OWED_LATER]),
    one("events_after", 101, 1, 1, answer=EVENTS[1:2]),
    one("payload", 101, 2, answer=PAYLOADS[1:]),
    one("resume_checkpoints", 101, 0, answer=[recorded(FIRST), recorded(SECOND)]),
    one("resume_checkpoints", 101, 9, answer=[]),
    one("resume_waits", 101, 0, 0, 99, answer=[waited(SETTLED, revision=1, decided_by="person_2"), waited(OPEN_AGAIN)]),
    one("resume_waits", 101, 2, 0, 99, answer=[waited(ASKED, revision=1)]),
    one("resume_waits", 101, 0, OPEN_AGAIN.no, 99, answer=[waited(OPEN_AGAIN)]),
    one("resume_waits", 101, 0, 0, OPEN_AGAIN.no - 1, answer=[waited(SETTLED, revision=1, decided_by="person_2")]),
    one("all_caps", answer=CAPS),
    one("live_usage", answer=[port.LeaseUsage("acme", "build", 1), port.LeaseUsage("beta", "build", 1)]),
    one("key_holders_twice", answer=[]),
    one("orphan_rows", answer=[]),
    one("lost_specs", answer=[]),
]  # fmt: skip

ELSEWHERE = {"now", "beat", "sizes"}
"""Queries that test_store.py tests."""


def test_every_query_is_tested_here_or_in_test_store() -> None:
    assert {case.name for case in CASES} | ELSEWHERE == port.QUERIES.keys() | {
        "resume_checkpoints",
        "resume_waits",
    }


async def test_every_query_returns_the_expected_rows(opened: OpenStore) -> None:
    async with opened() as store:
        await fill(store)
        wrong = []
        for case in CASES:
            if case.name in port.READS.keys() | replay.READS.keys():
                found = await store.read(case.name, *case.scalars, rows=case.rows)
            else:
                found = await ask(store, case.name, case.rows, *case.scalars)
            expected = case.answer
            if not case.in_order:
                found, expected = sorted(found, key=repr), sorted(expected, key=repr)
            if repr(found) != repr(expected):  # by repr, because 1 == True in Python
                wrong.append((case, found))
        assert wrong == []


async def test_queries_on_an_empty_database_return_nothing(opened: OpenStore) -> None:
    async with opened() as store:
        for case in CASES:
            if case.name in port.READS.keys() | replay.READS.keys():
                found = await store.read(case.name, *case.scalars, rows=case.rows)
            else:
                found = await ask(store, case.name, case.rows, *case.scalars)
            assert found == ([port.ConcurrencyKeyQueue(None, None)] if case.name == "key_queue" else []), case
        assert await store.read("next_wake") == []


async def test_claim_queues_are_found_across_pages(opened: OpenStore) -> None:
    run = a_run(1)
    workspaces = [(f"t{n % 4}", f"w{n % 3}") for n in range(600)]
    steps = [
        a_ready_step(1, n, tenant=tenant, workspace=workspace)
        for n, (tenant, workspace) in enumerate(workspaces)
    ]
    async with opened() as store:
        await save(store, Save(new_runs=[run], new_specs=[a_spec(1)], rows=tables(steps)))
        pages, after = [], ("", "")
        while found := await ask(store, "claim_queues", [("q1",)], *after, 5):
            pages.append(len(found))
            last = found[-1]
            assert (last.tenant, last.workspace) > after
            after = (last.tenant, last.workspace)
        assert pages == [5, 5, 2]
