"""The life of a run from Python, on both stores."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenure.clock import to_datetime
from tenure.engine import ApprovalSpec, Engine, StepSpec, WaitSpec, read_plan
from tenure.errors import TenureError
from tenure.kernel.commands import DeleteRun
from tenure.kernel.run_rows import Cap
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.reads.payloads import decode_payload
from tests.engine.stage import queues, stage
from tests.profiles.custom import OURS, profiles_in_use, use_profiles

BUILD = StepSpec(name="build")
NOBODY = "run_2026-02-14_080000_abc123"


async def refused(code: str, call: Any) -> TenureError:
    with pytest.raises(TenureError) as caught:
        await call
    assert caught.value.code == code
    return caught.value


async def test_an_engine_carries_a_run_to_its_result(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create(
            "release",
            [
                BUILD,
                StepSpec(name="ok", kind="approval", approval=ApprovalSpec("deploy", people=2)),
                StepSpec(name="healthy", kind="wait", wait=WaitSpec("deploy.healthy", within_seconds=60)),
                {"name": "tell", "input": {"who": "all"}},
            ],
            input={"ref": "main"},
            profile="delta-ci",
            labels={"team": "a"},
            priority=3,
        )
        first = await engine.get(run)
        assert (first.status, first.shown, first.input, first.labels) == (
            "queued",
            "QUEUED",
            {"ref": "main"},
            {"team": "a"},
        )
        assert (await engine.runs.explain(run)).reason == "worker"
        lease = await engine.claim()
        assert decode_payload(lease.input) == {"ref": "main"}
        assert (await engine.runs.explain(run)).text == "Step 'build' is being worked on by bob (try 1)."
        await engine.complete(lease, b'"image"')
        assert (await engine.get(run)).status == "waiting_approval"

        (asked,) = await engine.approvals.list()
        assert (asked.run_id, asked.step, asked.action, asked.people) == (run, "ok", "deploy", 2)
        await refused("APPROVER_IS_REQUESTER", engine.approve(run, approver="embedded"))
        assert await engine.approve(run, approver="ada") == "requested"
        assert await engine.approve(run, approver="ada") == "requested"
        assert "1 of 2 people" in (await engine.runs.explain(run)).text
        assert await engine.approve(run, approver="grace", reason="looks good") == "approved"
        assert await engine.approve(run, approver="grace") == "approved"
        await refused("APPROVAL_DECIDED", engine.reject(run, approver="ada"))

        assert (await engine.runs.explain(run)).reason == "event"
        assert (await engine.signal(run, "deploy.healthy", {"ok": True}, event_id="e1")).taken
        assert (await engine.signal(run, "deploy.healthy", {"ok": True}, event_id="e1")).taken, (
            "the same event again"
        )
        lease = await engine.claim()
        assert decode_payload(lease.input) == {"who": "all"}
        await engine.complete(lease, b'{"told": 3}')

        assert await engine.result(run) == {"told": 3}
        done = await engine.get(run)
        assert (done.status, done.reason, done.finished, done.steps_done) == ("succeeded", "done", True, 4)
        steps = {s.name: s for s in await engine.runs.steps(run)}
        assert steps["build"].output == "image"
        assert steps["healthy"].output == {"ok": True}
        assert steps["tell"].needs == ("healthy",)
        assert (await engine.runs.explain(run)).text == "It has ended: succeeded (done)."
        events = await engine.runs.events(run)
        assert [e.seq for e in events] == list(range(1, done.events + 1))
        assert {e.actor for e in events} >= {"embedded", "worker:bob", "ada", "grace"}
        assert await engine.runs.events(run, after=done.events - 1) == events[-1:]
        assert [line.id for line in await engine.runs.list(status="succeeded")] == [run]
        assert await engine.runs.list(status="failed") == []


async def test_an_event_may_arrive_before_its_wait(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD, StepSpec(name="x", kind="wait", wait=WaitSpec("ping"))])
        assert not (await engine.signal(run, "ping", 1, event_id="a")).taken
        assert not (await engine.signal(run, "ping", 1, event_id="a")).taken
        await engine.complete(await engine.claim())
        assert await engine.result(run) == 1
        await refused("RUN_TERMINAL_STATE", engine.signal(run, "ping", 2))


async def test_the_same_key_and_request_is_the_same_run(url: str) -> None:
    async with stage(url) as engine:
        first = await engine.create("w", [BUILD], input=1, key="k")
        assert await engine.create("w", [BUILD], input=1, key="k") == first
        conflict = await refused("IDEMPOTENCY_CONFLICT", engine.create("w", [BUILD], input=2, key="k"))
        assert conflict.data["run_id"] == first
        await engine.cancel(first)
        await refused("IDEMPOTENCY_KEY_REUSED", engine.create("w", [BUILD], input=2, key="k"))
        assert len(await engine.runs.list()) == 1


@pytest.mark.parametrize("run_id", [NOBODY, "", "build", "run_2026-13-14_080000_abc123", "run_1", "1"])
async def test_an_unknown_id_is_run_not_found(tmp_path: Path, run_id: str) -> None:
    async with stage(f"sqlite:{tmp_path}/runs.db") as engine:
        for call in (
            engine.get(run_id),
            engine.runs.steps(run_id),
            engine.runs.events(run_id),
            engine.approvals.list(run_id),
            engine.runs.explain(run_id),
            engine.result(run_id),
            engine.cancel(run_id),
            engine.runs.cancel_step(run_id, "build"),
            engine.runs.pause(run_id),
            engine.runs.unpause(run_id),
            engine.approve(run_id, approver="ada"),
            engine.reject(run_id, approver="ada", no=1),
            engine.signal(run_id, "ping"),
            engine.runs.resume(run_id),
            engine.runs.rerun(run_id),
            engine.runs.add_steps(run_id, [BUILD]),
        ):
            await refused("RUN_NOT_FOUND", call)


async def test_another_tenants_run_looks_missing(url: str) -> None:
    async with stage(url) as mine, Engine(url, tenant="other", sweep=False) as other:
        run = await mine.create("w", [BUILD])
        for call in (other.get(run), other.cancel(run), other.runs.steps(run), other.runs.resume(run)):
            await refused("RUN_NOT_FOUND", call)
        assert await other.runs.list() == []
        assert (await mine.get(run)).status == "queued"


async def test_a_cancel_is_final(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD])
        assert await engine.cancel(run) == "canceled"
        error = await refused("RUN_CANCELED", engine.result(run))
        assert error.data["status"] == "canceled"
        await refused("RUN_TERMINAL_STATE", engine.cancel(run))

        held = await engine.create("w", [BUILD], profile="agent-runs")
        lease = await engine.claim()
        assert await engine.cancel(held, reason="NOT_NEEDED") == "canceling"
        assert (await engine.runs.explain(held)).reason == "canceling"
        assert (await engine.get(held)).shown == "running", (
            "agent-runs has no word for canceling, so the last word stays"
        )
        late = await engine.complete(lease)
        assert late.late
        assert (await engine.get(held)).reason == "NOT_NEEDED"


async def test_a_step_canceled_by_hand_fails_its_run(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD, StepSpec(name="extra", required=False)])
        assert await engine.runs.cancel_step(run, "extra") == "canceled"
        assert await engine.runs.cancel_step(run, "build") == "canceled"
        await refused("STEP_CANCELED", engine.result(run))
        await refused("STEP_NOT_FOUND", engine.runs.cancel_step(run, "other"))


async def test_a_run_gets_more_steps_while_it_runs(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD])
        for _ in range(2):  # the second call repeats the first, as after a lost answer
            await engine.runs.add_steps(run, [{"name": "more", "needs": ["build"]}])
        await refused("PLAN_INVALID", engine.runs.add_steps(run, [{"name": "more"}]))
        await engine.complete(await engine.claim())
        await engine.complete(await engine.claim())
        assert (await engine.get(run)).status == "succeeded"


async def test_result_waits_and_raises_failures(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [StepSpec(name="build", retries=0)])
        late = await refused("COMMAND_DEADLINE", engine.result(run, wait=0.02))
        assert late.data["status"] == "queued"
        await engine.fail(await engine.claim(), "COMPILER_CRASHED")
        error = await refused("STEP_FAILED", engine.result(run))
        assert error.data["reason"] == "COMPILER_CRASHED"


# ------------------------------------------------------------------------------------------------- why


async def test_explain_names_a_delay_a_key_a_cap_and_a_backoff(url: str) -> None:
    async with stage(url) as engine:
        now = to_datetime((await engine.store.read("now"))[0].now_us)
        later = await engine.create("w", [BUILD], not_before=now + timedelta(minutes=5))
        why = await engine.runs.explain(later)
        assert (why.reason, why.until) == ("delayed", (now + timedelta(minutes=5)).replace(tzinfo=UTC))
        await engine.cancel(later)

        first = await engine.create("w", [BUILD], concurrency_key="k")
        second = await engine.create("w", [BUILD], concurrency_key="k")
        why = await engine.runs.explain(second)
        assert why.reason == "key"
        assert first in why.text
        lease = await engine.claim()
        await engine.fail(lease, "TIMEOUT", retryable=True)
        why = await engine.runs.explain(first)
        assert (why.reason, why.step) == ("backoff", "build")
        assert "try 2 of 4" in why.text
        assert why.until is not None
        await engine.cancel(first)
        await engine.settle()
        assert (await engine.runs.explain(second)).reason == "worker"

        await engine.put_caps([Cap("default", "", max_concurrency=0)])
        assert (await engine.runs.explain(second)).reason == "cap"
        assert await engine.nothing_to_claim()
        await engine.put_caps([Cap("default", ""), Cap("default", "wf:w", max_concurrency=0)])
        assert (await engine.runs.explain(second)).reason == "cap"


async def test_explain_names_a_time_and_the_newest_run_supersedes(url: str) -> None:
    async with stage(url) as engine:
        nap = StepSpec(name="nap", kind="wait", wait=WaitSpec(within_seconds=60))
        run = await engine.create("w", [nap], concurrency_key="k")
        why = await engine.runs.explain(run)
        assert (why.reason, why.step) == ("time", "nap")
        newer = await engine.create("w", [nap], concurrency_key="k", supersede=True)
        await engine.settle()
        assert (await engine.get(run)).reason == "SUPERSEDED"
        await engine.settle()
        await engine.later(61)
        assert (await engine.get(newer)).status == "succeeded"


# ------------------------------------------------------------------------------------------- bad input

BAD_PLANS: list[tuple[list[Any], str]] = [
    ([], "at least one step"),
    ([{"name": "a", "needs": ["b"]}, {"name": "b", "needs": ["a"]}], "cycle"),
    ([{"name": "a", "needs": ["a"]}], "cycle"),
    ([{"name": "a", "needs": ["z"]}], "no step named 'z'"),
    ([{"name": "a"}, {"name": "a"}], "two steps named 'a'"),
    ([{"name": ""}], "characters"),
    ([{"name": "a", "queue": ""}], "queue must be printable, not empty"),
    ([{"name": "a|b"}], "what it needs must be printable"),
    ([{"name": "a" * 190}], "together have 203 characters"),
    ([StepSpec(name="a", input=b'{"$tenure.step":1}')], "must not begin with '$tenure'"),
    ([{"nme": "a"}], "unknown field"),
    ([{}], "missing required field"),
    ([{"name": 1}], "Expected `str`"),
    (["a"], "a step must be an object"),
    ([{"name": "a", "kind": "dance"}], "Invalid enum value"),
    ([{"name": "a", "lease_seconds": 0.1}], "must be 1 to"),
    ([{"name": "a", "timeout_seconds": float("inf")}], "must be over 0"),
    ([{"name": "a", "timeout_seconds": float("nan")}], "must be over 0"),
    ([{"name": "a", "retries": -1}], "must be 0 to 1000"),
    ([{"name": "a", "backoff": {"seconds": []}}], "at least one delay"),
    ([{"name": "a", "backoff": {"seconds": [-1.0]}}], "at least one delay"),
    ([{"name": "a", "kind": "wait"}], "name an event, or a time"),
    ([{"name": "a", "kind": "wait", "wait": {"within_seconds": -5}}], "must be over 0"),
    ([{"name": "a", "kind": "approval", "approval": {"people": 0}}], "at least 1"),
    ([{"name": "a", "kind": "approval", "approval": {"digest": "xyz"}}], "hex"),
    ([{"name": "a", "approval": {}}], "can only be set on a step of kind 'approval'"),
]


@pytest.mark.parametrize(("plan", "problem"), BAD_PLANS, ids=[problem for _, problem in BAD_PLANS])
async def test_a_malformed_plan_creates_nothing(tmp_path: Path, plan: list[Any], problem: str) -> None:
    async with stage(f"sqlite:{tmp_path}/runs.db") as engine:
        error = await refused("PLAN_INVALID", engine.create("w", plan))
        assert problem in error.message
        assert error.details[0].path.startswith("plan")
        assert await engine.runs.list() == []


async def test_an_invalid_request_creates_nothing(url: str) -> None:
    async with stage(url) as engine:
        await refused("PROFILE_NOT_FOUND", engine.create("w", [BUILD], profile="none"))
        await refused("PAYLOAD_TOO_LARGE", engine.create("w", [BUILD], input="x" * PAYLOAD_BYTES_MAX))
        await refused("INVALID_INPUT", engine.create("w", [BUILD], input=object()))
        for ours in ({"$tenure.step": 1, "run": ["rm"]}, {"$tenure.artifact": "x"}):
            await refused("INVALID_INPUT", engine.create("w", [BUILD], input=ours))
            await refused("INVALID_INPUT", engine.create("w", [{"name": "a", "input": ours}]))
        await refused("INVALID_INPUT", engine.create("", [BUILD]))
        await refused("INVALID_INPUT", engine.create("w", [BUILD], timeout=-1))
        await refused(
            "PLAN_INVALID", engine.create("w", [{"name": "a", "required": False}], profile="approval-runs")
        )
        await refused("INVALID_INPUT", engine.runs.list(limit=0))
        assert await engine.runs.list() == []


@pytest.mark.parametrize("approver", ["", "ada grace", " ada", "ada\n", "x" * 201])
async def test_an_approver_is_a_single_id(tmp_path: Path, approver: str) -> None:
    async with stage(f"sqlite:{tmp_path}/runs.db") as engine:
        gate = StepSpec(name="ok", kind="approval", approval=ApprovalSpec(people=2))
        run = await engine.create("w", [gate])
        await refused("INVALID_INPUT", engine.approve(run, approver=approver))
        assert (await engine.approvals.list(run))[0].votes == ()


async def test_an_approval_bound_to_a_digest_requires_that_digest(url: str) -> None:
    async with stage(url) as engine:
        gate = StepSpec(name="ok", kind="approval", approval=ApprovalSpec(digest="ab12"))
        run = await engine.create("w", [gate, StepSpec(name="too", kind="approval", needs=())])
        error = await refused("INVALID_INPUT", engine.approve(run, approver="ada"))
        assert "several open questions" in error.message
        await refused("APPROVAL_STALE", engine.approve(run, approver="ada", no=1))
        await refused("APPROVAL_STALE", engine.approve(run, approver="ada", no=1, digest="ffff"))
        await refused("INVALID_INPUT", engine.approve(run, approver="ada", no=1, digest="zz"))
        assert await engine.approve(run, approver="ada", no=1, digest="AB12") == "approved"
        assert await engine.reject(run, approver="ada", reason="no") == "rejected"
        await refused("APPROVAL_REJECTED", engine.result(run))
        plain = await engine.create("w", [BUILD])
        await refused("APPROVAL_NOT_FOUND", engine.approve(plain, approver="ada"))


async def test_an_unusable_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with stage(f"sqlite:{path}"):
        pass
    with pytest.raises(TenureError, match="STORE_READ_ONLY"):
        await Engine(f"sqlite:file:{path}?mode=ro").__aenter__()
    connection = apsw.Connection(str(path))
    connection.execute("insert into schema_version values (999, 'from the future', 1, 'x')")
    connection.close()
    with pytest.raises(TenureError, match="STORE_TOO_NEW"):
        await Engine(f"sqlite:{path}").__aenter__()
    (tmp_path / "text.db").write_text("this is no database, and long enough to be looked at as one" * 20)
    with pytest.raises(TenureError, match="STORE_NOT_A_DATABASE"):
        await Engine(f"sqlite:{tmp_path / 'text.db'}").__aenter__()
    with pytest.raises(TenureError, match="STORE_NOT_A_DATABASE"):
        await Engine("mysql://x/y").__aenter__()
    with pytest.raises(TenureError, match="STORE_NOT_MIGRATED"):
        await Engine(f"sqlite:{tmp_path / 'none.db'}", migrate=False).__aenter__()
    with pytest.raises(TenureError, match="STORE_UNAVAILABLE"):
        await Engine(f"sqlite:{path}").create("w", [BUILD])


# -------------------------------------------------------------------------------------------- retention


async def test_retention_deletes_only_runs_that_ended_before(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.services.runs.RETENTION_PAGE", 3)
    async with stage(url) as engine:
        old = [await engine.create("w", [BUILD]) for _ in range(8)]
        for run in old[:4]:
            await engine.cancel(run)
        for lease in await engine.orchestrator.claim("bob", queues=await queues(engine), limit=10):
            await engine.complete(lease)
        await engine.later(3600)
        limit = datetime.fromtimestamp((await engine.store.read("now"))[0].now_us / 1e6, UTC)
        young = await engine.create("w", [BUILD])
        still = await engine.create("w", [BUILD])
        await engine.cancel(young)
        number = (await engine.store.read("runs_by_status", "default", "canceled", 1 << 62, 9))[-1].id
        await refused("RUN_NOT_SEALED", engine.orchestrator.send(DeleteRun(run_id=number)))
        assert await engine.runs.delete_finished(limit - timedelta(days=1)) == 0
        assert await engine.runs.delete_finished(limit) == 8
        assert await engine.runs.delete_finished(limit) == 0
        assert {line.id for line in await engine.runs.list()} == {young, still}
        await refused("RUN_NOT_FOUND", engine.get(old[0]))
        assert (await engine.store.read("orphan_rows")) == []


async def test_retention_keeps_runs_with_unknown_profiles(url: str) -> None:
    with profiles_in_use(OURS):
        async with stage(url) as engine:
            theirs = await engine.create("w", [BUILD], profile="ours")
            for run in (theirs, await engine.create("w", [BUILD])):
                await engine.cancel(run)
            await engine.later(3600)
            limit = datetime.fromtimestamp((await engine.store.read("now"))[0].now_us / 1e6, UTC)
            use_profiles()
            assert await engine.runs.delete_finished(limit) == 1
            assert [line.id for line in await engine.runs.list()] == [theirs]
            use_profiles(OURS)
            assert await engine.runs.delete_finished(limit) == 1


# ------------------------------------------------------------------------------------------ plan files


def test_a_plan_is_read_from_json_and_from_toml(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"name": "a", "input": {"x": 1}}, {"name": "b", "retries": 2}]')
    (tmp_path / "b.json").write_text(
        '{"steps": [{"name": "a", "input": {"x": 1}}, {"name": "b", "retries": 2}]}'
    )
    (tmp_path / "c.toml").write_text(
        '[[steps]]\nname = "a"\ninput = { x = 1 }\n[[steps]]\nname = "b"\nretries = 2\n'
    )
    plans = [read_plan(tmp_path / name) for name in ("a.json", "b.json", "c.toml")]
    assert plans[0] == plans[1] == plans[2]
    assert plans[0] == (
        StepSpec(name="a", tool="a", queue="default|tool:a", input=b'{"x":1}'),
        StepSpec(name="b", tool="b", queue="default|tool:b", retries=2),
    )


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.json", "[", "is not JSON"),
        ("a.toml", "[[steps", "is not TOML"),
        ("a.json", "3", "a list of steps"),
        ("a.json", '{"stpes": []}', "may contain only steps"),
        ("a.json", "{}", "a list of steps"),
        ("a.json", '[{"name": "a", "needs": "b"}]', "plan[0].needs"),
    ],
)
def test_errors_of_a_malformed_plan_file_name_the_place(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TenureError) as caught:
        read_plan(tmp_path / name)
    assert caught.value.code == "PLAN_INVALID"
    assert problem in caught.value.message


def test_a_missing_plan_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TenureError, match="cannot be read"):
        read_plan(tmp_path / "none.json")


def test_a_payload_that_is_not_json_is_shown_as_it_is() -> None:
    assert decode_payload(None) is None
    assert decode_payload(b"plain words") == "plain words"
    assert decode_payload(b"\xff\xfe") == b"\xff\xfe"


async def test_an_unknown_status_is_refused(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD])
        wrong = await refused("INVALID_INPUT", engine.runs.list(status="bogus"))
        assert wrong.details[0].path == "status"
        assert "waiting_approval" in wrong.details[0].problem
        await refused("INVALID_INPUT", engine.runs.list(status="QUEUED", workflow="w"))
        assert [line.id for line in await engine.runs.list(status="queued")] == [run]
        assert await engine.runs.list(status="failed") == []
