"""Guarantees of the runner protocol: sequence numbers, repeats, fences, cancels, late uploads; and its documentation page."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from examples.plain_runner import Canceled, Job, PlainRunner, Refused
from tenure import ids
from tenure.clock import us
from tenure.engine import Engine
from tenure.worker import protocol as p
from tenure.worker import protocol as ps
from tests.server.cutting_proxy import cutting
from tests.server.stage import Site, problem, site
from tests.server.test_runner_leases import claim, say, start
from tests.worker.helpers import until

CAPABILITIES = ["default|tool:build"]
PAGE = Path(__file__).parents[2] / "docs" / "runner-protocol.md"


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for artifacts."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))


def acme(s: Site) -> Engine:
    return s.engine.scoped(tenant="acme")


async def status(s: Site, run: str) -> str:
    return (await acme(s).get(run)).status


async def kinds(s: Site, run: str) -> list[str]:
    """The kinds of the events of a run's history."""
    return [event.kind for event in await s.engine.store.read("events_of", ids.run_int(run))]


async def stale_count(s: Site) -> int:
    """The number of recorded late messages."""
    sizes = {row.table: row.rows for row in await s.engine.store.read("sizes")}
    return int(sizes["stale_message"])


async def advance_clock(s: Site, seconds: float) -> None:
    """Shift the clock and process due timers."""
    s.engine.store.shift_clock(us(seconds))
    await s.engine.settle()


# ------------------------------------------------------------------------------------ a runner without an SDK


async def test_a_runner_written_with_the_standard_library_does_a_job(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        runner = PlainRunner(s.address, await s.key("runner"), CAPABILITIES)

        def work(job: Job) -> Any:
            assert job.input == {"what": "all"}
            job.checkpoint("compiled", {"objects": 3})
            job.log("compiling", "linking")
            assert job.say("heartbeat", progress="half")["state"] == "ok"
            uploaded = job.upload("report.txt", b"all is well", "text/plain")
            assert not uploaded["late"]
            assert job.download("report.txt") == b"all is well"
            assert [one["name"] for one in job.state()["checkpoints"]] == ["compiled"]
            return {"ok": True, "report": uploaded["digest"]}

        job = await asyncio.to_thread(runner.run_one, work)
        assert job is not None
        assert job.outcome == "succeeded"
        seen = await acme(s).get(run)
        assert seen.status == "succeeded"
        lines = await s.engine.store.read("log_lines_of", ids.run_int(run), 0, 10)
        assert [(line.text, line.step) for line in lines] == [("compiling", "build"), ("linking", "build")]
        (row,) = await acme(s).runs.list_artifacts(run)
        assert (row.name, row.size, row.content_type, row.state) == (
            "report.txt", 11, "text/plain", "accepted",
        )  # fmt: skip


async def test_a_runner_waits_at_the_server_for_work(url: str) -> None:
    async with site(url) as s:
        runner = PlainRunner(s.address, await s.key("runner"), CAPABILITIES)
        waiting = asyncio.create_task(asyncio.to_thread(runner.claim, 20))
        await until(lambda: s.service.leases is not None, "the server")
        run = await start(s)
        (job,) = await waiting
        assert job.lease["run_id"] == run
        await asyncio.to_thread(job.say, "release")


@pytest.mark.clause("DCI-11")
async def test_a_cancel_arrives_with_a_reply_and_is_acknowledged_in_time(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        runner = PlainRunner(s.address, await s.key("runner"), CAPABILITIES)
        at_work = threading.Event()

        def work(job: Job) -> None:
            at_work.set()
            while not job.canceled.is_set():
                job.say("heartbeat")
            raise Canceled

        doing = asyncio.create_task(asyncio.to_thread(runner.run_one, work))
        await until(at_work.is_set, "the work")
        assert await acme(s).cancel(run) == "canceling"
        job = await doing
        assert job is not None
        assert job.outcome == "canceled"
        assert await status(s, run) == "canceled"


# ----------------------------------------------------------------------------------------- the sequence


@pytest.mark.clause("DCI-16")
async def test_every_repeated_message_gets_its_first_answer(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        (lease,) = await claim(await s.as_("runner"))
        script: list[tuple[str, dict[str, Any]]] = [
            ("ack", {}),
            ("running", {}),
            ("checkpoint", {"name": "a", "output": 1}),
            ("log", {"lines": [{"text": "once"}]}),
            ("cost", {"cost": "1 USD"}),
            ("wait", {"label": "w", "event": {"event": "go", "within_seconds": 60}}),
            ("propose", {"label": "p", "proposal": {"action": "merge"}}),
            ("uploading", {}),
            ("complete", {"output": {"ok": True}}),
        ]
        for seq, (verb, what) in enumerate(script, start=1):
            first = await say(s, lease, verb, seq, **what)
            assert first.status_code == 200, first.text
            again = await say(s, lease, verb, seq, **what)
            assert again.status_code == 200, again.text
            if (
                verb != "log"
            ):  # log lines are kept once; the first message has extended the lease, so the repeat gets `ignored`
                assert again.json() == first.json(), verb
        assert (await acme(s).get(run)).status == "succeeded"
        made = await kinds(s, run)
        assert made == [
            "create", "claim", "ack", "begin", "checkpoint", "cost", "open_wait", "open_wait", "uploading", "complete",
        ]  # fmt: skip
        lines = await s.engine.store.read("log_lines_of", ids.run_int(run), 0, 10)
        assert [line.text for line in lines] == ["once"]


async def test_a_late_heartbeat_is_ignored(url: str) -> None:
    async with site(url) as s:
        await start(s)
        (lease,) = await claim(await s.as_("runner"), ack=True)
        assert (await say(s, lease, "heartbeat", 5)).json()["state"] == "ok"
        late = await say(s, lease, "heartbeat", 3)
        assert (late.status_code, late.json()["state"]) == (200, "ignored")
        older = await say(s, lease, "uploading", 4)
        assert (older.status_code, problem(older)) == (409, "MESSAGE_OUT_OF_ORDER")


MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("ack", {}),
    ("running", {}),
    ("checkpoint", {"name": "a", "output": "A"}),
    ("checkpoint", {"name": "b", "output": "B"}),
    ("cost", {"cost": "2 USD"}),
    ("uploading", {}),
    ("complete", {"output": "done"}),
]


@pytest.mark.clause("DCI-16")
async def test_reordered_and_duplicated_messages_have_the_same_result(url: str) -> None:
    """Failure 28. Checkpoints arrive early. Copies of sent messages arrive in any order and number, while the runner sends its
    messages and after its last one."""
    strays = st.lists(st.integers(0, len(MESSAGES) - 2), max_size=8)
    ahead = st.lists(st.sampled_from([2, 3]), max_size=4)
    stories: list[tuple[list[int], list[int], list[int]]] = []

    @settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(ahead, strays, st.permutations(range(len(MESSAGES))))
    def collect(before: list[int], between: list[int], after: list[int]) -> None:
        stories.append((before, between, after))

    await asyncio.to_thread(collect)
    async with site(url) as s:
        runner = await s.as_("runner")
        ends = set()
        for no, (before, between, after) in enumerate(stories):
            run = await start(s)
            (lease,) = await claim(runner, f"c{no}")

            async def one(at: int, lease: dict[str, Any] = lease) -> int:
                verb, what = MESSAGES[at]
                return (await say(s, lease, verb, at + 1, **what)).status_code

            for at in before:
                await one(at)
            for at in range(len(MESSAGES) - 1):
                await one(at)
                for stray in between:
                    if stray <= at:
                        await one(stray)
            assert await one(len(MESSAGES) - 1) == 200, (before, between)
            for at in after:
                await one(at)
            seen = await acme(s).get(run)
            attempts = await s.engine.store.read("attempts_of", ids.run_int(run))
            checkpoints = await s.engine.store.read("checkpoints_of", ids.run_int(run))
            steps = await acme(s).runs.steps(run)
            found = sorted(row.name for row in checkpoints)
            ends.add((seen.status, str(steps[0].output), len(attempts), attempts[0].cost, str(found)))
        assert ends == {("succeeded", "done", 1, "2 USD", "['a', 'b']")}


# ------------------------------------------------------------------------------------------- the fence


@pytest.mark.clause("DCI-10")
async def test_a_runner_that_pauses_past_its_lease_is_refused_and_recorded_once(url: str) -> None:
    """Failure 3."""
    async with site(url) as s:
        run = await start(s, profile="delta-ci")
        runner = await s.as_("runner")
        (old,) = await claim(runner, "c1", ack=True)
        await advance_clock(s, old["lease_seconds"] + 1)
        (new,) = await claim(runner, "c2", ack=True)
        assert new["attempt"] == 2
        for _ in range(3):
            late = await say(s, old, "complete", 1, output="old")
            assert (late.status_code, problem(late)) == (409, "LEASE_STALE")
        for verb in ("heartbeat", "fail", "cancel-ack"):
            assert problem(await say(s, old, verb, 2)) == "LEASE_STALE"
        assert (await say(s, new, "complete", 1, output="new")).status_code == 200
        assert (await acme(s).runs.steps(run))[0].output == "new"
        assert await stale_count(s) == 4  # complete, heartbeat, fail, cancel-ack: once each
        assert await claim(runner, "c1") == []


@pytest.mark.clause("DCI-10")
async def test_two_workers_with_the_same_name_are_distinguished_by_the_fence(url: str) -> None:
    """Failure 4."""
    async with site(url) as s:
        run = await start(s, profile="delta-ci")
        runner = await s.as_("runner")
        (old,) = await claim(runner, "c1", worker="bob", ack=True)
        await advance_clock(s, old["lease_seconds"] + 1)
        (new,) = await claim(runner, "c2", worker="bob", ack=True)
        older = await say(s, old, "heartbeat", 1)
        assert (older.status_code, problem(older)) == (409, "LEASE_STALE")
        wrong = await say(s, {**new, "token": old["token"]}, "heartbeat", 1)
        assert (wrong.status_code, problem(wrong)) == (401, "UNAUTHENTICATED")
        assert (await say(s, new, "heartbeat", 1)).status_code == 200
        assert (await say(s, new, "complete", 2)).status_code == 200
        assert await status(s, run) == "succeeded"


@pytest.mark.clause("DCI-10")
async def test_complete_needs_an_acknowledged_lease(url: str) -> None:
    async with site(url) as s:
        await start(s)
        (lease,) = await claim(await s.as_("runner"))
        answer = await say(s, lease, "complete", 1)
        assert (answer.status_code, problem(answer)) == (409, "LEASE_NOT_ACTIVE")
        assert (await say(s, lease, "release", 1)).status_code == 200


# ----------------------------------------------------------------------------------------- a forced cancel


@pytest.mark.clause("DCI-12")
async def test_a_forced_cancel_keeps_late_logs_and_artifacts_and_refuses_a_late_complete(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        (lease,) = await claim(await s.as_("runner"), ack=True)
        await acme(s).cancel(run)
        await advance_clock(s, 300)  # past the cancel's deadline
        assert await status(s, run) == "canceled"
        before = await kinds(s, run)
        refused = await say(s, lease, "complete", 1, output="too late")
        assert (refused.status_code, problem(refused)) == (409, "LEASE_STALE")
        logged = await say(s, lease, "log", 2, lines=[{"text": "the last line"}])
        assert (logged.status_code, logged.json()["late"]) == (200, True)
        caller = await s.caller(lease["token"])
        path = f"/runner/leases/{lease['id']}/artifacts/core.dump"
        uploaded = await caller.put(path, content=b"bytes")
        assert (uploaded.status_code, uploaded.json()["late"]) == (200, True)
        assert await kinds(s, run) == before
        assert await status(s, run) == "canceled"
        (row,) = await acme(s).runs.list_artifacts(run)
        assert (row.name, row.late, row.state) == ("core.dump", True, "late")
        (line,) = await s.engine.store.read("log_lines_of", ids.run_int(run), 0, 10)
        assert msgspec.json.decode(line.fields) == {"late": True}
        await advance_clock(s, 3600)
        for answer in (
            await caller.put(path, content=b"bytes"),
            await say(s, lease, "log", 3, lines=[{"text": "?"}]),
        ):
            assert (answer.status_code, problem(answer)) == (409, "LEASE_STALE")


async def test_a_complete_after_the_cancel_request_is_kept_as_evidence(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        (lease,) = await claim(await s.as_("runner"), ack=True)
        await acme(s).cancel(run)
        answer = (await say(s, lease, "complete", 1, output="done anyway")).json()
        assert answer == {"state": "ok", "cancel": True, "late": True}
        assert await status(s, run) == "canceled"


# ------------------------------------------------------------------------------------------ lost answers


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_connection_cut_before_or_after_the_commit_has_one_effect(url: str, when: str) -> None:
    """Failure 17: every kind of request of a job is cut once."""
    async with site(url) as s, cutting(s.address) as proxy:
        run = await start(s)
        runner = PlainRunner(proxy.address, await s.key("runner"), CAPABILITIES)
        for path in ("/claim", "/ack", "/running", "/checkpoint", "/log", "/artifacts/", "/complete"):
            proxy.cut(when, path)

        def work(job: Job) -> str:
            job.checkpoint("a", 1)
            job.log("one line")
            job.upload("file", b"content")
            return "done"

        job = await asyncio.to_thread(runner.run_one, work)
        assert job is not None
        assert job.outcome == "succeeded"
        assert proxy.cuts == 7
        made = await kinds(s, run)
        assert made == ["create", "claim", "ack", "begin", "checkpoint", "complete"]
        assert len(await s.engine.store.read("attempts_of", ids.run_int(run))) == 1
        lines = await s.engine.store.read("log_lines_of", ids.run_int(run), 0, 10)
        assert [line.text for line in lines] == ["one line"]


# ------------------------------------------------------------------------------------------------ batches


async def test_a_batch_answers_each_message_in_order_and_carries_the_next_claim(url: str) -> None:
    async with site(url) as s:
        for _ in range(3):
            await start(s)
        runner = await s.as_("runner")
        one, two = await claim(runner, "c1", max=2, ack=True)
        to_one = {"lease": one["id"], "token": one["token"]}
        to_two = {"lease": two["id"], "token": two["token"]}
        asked: dict[str, Any] = {
            "messages": [
                {"type": "checkpoint", **to_one, "seq": 1, "name": "a"},
                {"type": "complete", **to_two, "seq": 1, "output": 2},
                {"type": "complete", **to_one, "seq": 2, "output": 1},
                {"type": "complete", "lease": one["id"], "token": two["token"], "seq": 3},
                {"type": "heartbeat", "lease": "nonsense", "token": "x"},
            ],
            "claim": {"claim_id": "c2", "capabilities": CAPABILITIES, "max": 5, "ack": True},
        }
        answer = (await runner.post("/runner/messages", json=asked)).json()
        states = [one["state"] for one in answer["answers"]]
        assert states == ["ok", "ok", "ok", "error", "error"]
        assert [one["error"]["code"] for one in answer["answers"][3:]] == ["UNAUTHENTICATED"] * 2
        assert len(answer["leases"]) == 1
        again = (await runner.post("/runner/messages", json=asked)).json()
        assert [one["state"] for one in again["answers"]] == states
        assert again["leases"] == answer["leases"]
        theirs = await s.as_("runner", tenant="globex")
        refused = (await theirs.post("/runner/messages", json={"messages": asked["messages"][:1]})).json()
        assert refused["answers"][0]["error"]["code"] == "UNAUTHENTICATED"


async def test_a_waiting_claim_can_be_ended_by_its_id(url: str) -> None:
    async with site(url) as s:
        runner = await s.as_("runner")
        waiting = asyncio.create_task(claim(runner, "c1", wait_s=25))
        await asyncio.sleep(0.1)
        assert await claim(runner, "c1", max=0) == []
        assert await asyncio.wait_for(waiting, 10) == []


# -------------------------------------------------------------------------------------------- refused requests


async def test_invented_ids_do_not_reach_another_tenants_data(url: str) -> None:
    async with site(url) as s:
        await s.tenant("globex")
        await start(s, "globex")
        (theirs,) = await claim(await s.as_("runner", tenant="globex"), ack=True)
        caller = await s.caller(theirs["token"])
        path = f"/runner/leases/{theirs['id']}/artifacts/secret.txt"
        reference = (await caller.put(path, content=b"secret")).json()["reference"]
        await start(s)
        (ours,) = await claim(await s.as_("runner"), ack=True)
        mine = await s.caller(ours["token"])
        for name in (reference["$tenure.artifact"], "secret.txt"):
            answer = await mine.get(f"/runner/leases/{ours['id']}/artifacts/{name}?run={reference['run']}")
            assert (answer.status_code, problem(answer)) == (404, "ARTIFACT_NOT_FOUND")
        forged = await say(s, ours, "complete", 1, output=reference)
        assert (forged.status_code, problem(forged)) == (404, "ARTIFACT_NOT_FOUND")
        child = {"workflow": "w", "run_id": theirs["run_id"]}
        taken = await say(s, ours, "start", 1, label="x", child=child)
        assert (taken.status_code, problem(taken)) == (422, "INVALID_INPUT")
        odd = await say(s, ours, "complete", 1, output={"$tenure.restarted": theirs["run_id"]})
        assert (odd.status_code, problem(odd)) == (422, "INVALID_INPUT")


async def test_invalid_requests_are_refused_with_a_reason(url: str) -> None:
    async with site(url) as s:
        await start(s)
        runner = await s.as_("runner")
        for wrong in (
            {},
            {"claim_id": "", "capabilities": CAPABILITIES},
            {"claim_id": "c", "capabilities": []},
            {"claim_id": "c", "capabilities": CAPABILITIES, "max": 501},
            {"claim_id": "c", "capabilities": CAPABILITIES, "wait_s": 31},
            {"claim_id": "c", "capabilities": CAPABILITIES, "unknown": 1},
        ):
            answer = await runner.post("/runner/claim", json=wrong)
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), wrong
        (lease,) = await claim(runner, ack=True)
        for verb, what in (
            ("checkpoint", {}),
            ("checkpoint", {"name": "a", "arguments": "no hex"}),
            ("complete", {"output": {"$tenure.base64": "?"}}),
            ("suspend", {"waits": []}),
            ("start", {"label": "x", "child": {"workflow": "w", "run_id": "run_2020-01-01_000000_abc123"}}),
            ("start", {"label": "x", "child": {"workflow": "w", "run_id": "abc123"}}),
            ("log", {"lines": [{}]}),
            ("wait", {"label": "w"}),
        ):
            answer = await say(s, lease, verb, 1, **what)
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), (verb, answer.text)
        with pytest.raises(Refused):
            await asyncio.to_thread(PlainRunner(s.address, "tn_nobody", CAPABILITIES).claim)


# ------------------------------------------------------------------------------------------------ the page


def test_the_page_names_every_field_of_every_message() -> None:
    page = PAGE.read_text()
    words = set(re.findall(r"\w+", page))
    structs = [
        *p.MESSAGES.values(),
        p.ClaimRequest,
        p.GrantedLease,
        p.MessageReply,
        p.LogEntry,
        p.ChildRun,
        p.PlanStep,
    ]
    structs += [
        ps.RecordedCheckpoint,
        ps.OpenedWait,
        ps.BufferedEvent,
        ps.LeaseState,
        p.UploadReply,
        p.RegisterRequest,
    ]
    structs += [p.WorkflowEntry, p.MessageFault, p.MessageBatch, p.MessageBatchReply, ps.RunFacts]
    structs += [ps.ActCallMessage, ps.ActCallReply, ps.ActReceipt, ps.ActionsReply]
    struct: Any
    for struct in structs:
        missing = [name for name in struct.__struct_fields__ if name not in words]
        assert not missing, (struct.__name__, missing)
    for verb in p.MESSAGES:
        assert f"| `{verb}` |" in page, verb


def test_the_examples_of_the_page_match_the_protocol() -> None:
    page = PAGE.read_text()
    for verb, example in re.findall(r"^\| `([\w-]+)` \|.*\| `(\{.*\})` \|$", page, re.MULTILINE):
        assert msgspec.json.decode(example, type=p.MESSAGES[verb]) is not None
    requests = re.findall(r"```http\nPOST (\S+)\n.*?\n\n(.*?)\n```", page, re.DOTALL)
    types: dict[str, Any] = {"/runner/claim": p.ClaimRequest, "/runner/messages": p.MessageBatch}
    for path, body in requests:
        verb = path.rpartition("/")[2]
        wanted = types.get(path) or (ps.ActCallMessage if verb == "act" else p.MESSAGES[verb])
        assert msgspec.json.decode(body, type=wanted) is not None
    assert len(requests) == 4
    answers = re.findall(r"```json\n(.*?)\n```", page, re.DOTALL)
    replies = (p.ClaimReply, p.MessageReply, ps.ActCallReply, p.UploadReply, p.MessageBatchReply)
    for body, wanted in zip(answers, replies, strict=True):
        assert msgspec.json.decode(body, type=wanted) is not None
