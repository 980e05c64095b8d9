"""Control of runs over HTTP: cancel, pause, resume, signal, revoke, update."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tenure import ids
from tenure.client import Client
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease
from tests.server.stage import ACME, Site, problem, site
from tests.server.workflows import begin, echo, patient, register

NOWHERE = "run_2026-02-14_080000_abc123"


async def claim_run(s: Site, run: str, queues: Iterable[str] = echo.serves) -> Lease:
    """Claim the next step of a run."""
    [lease] = await s.engine.orchestrator.claim("somebody", queues=tuple(queues), limit=1)
    assert ids.run_text(lease.run_id) == run
    return lease


def lease_message(lease: Lease, message: type[c.LeaseCommand], seq: int = 1, **more: Any) -> c.LeaseCommand:
    context = c.Context("worker:somebody", "system", "test")
    return message(
        run_id=lease.run_id, tenant=ACME, idx=lease.idx, n=lease.n, seq=seq, context=context, **more
    )


# -------------------------------------------------------------------------------------------------- cancel


ASKED: list[dict[str, Any]] = [{"name": "build"}, {"name": "ask", "kind": "approval"}, {"name": "ship"}]


@pytest.mark.clause("APR-13")
@pytest.mark.parametrize("shown", ["PENDING", "RUNNING", "WAITING_APPROVAL"])
async def test_a_cancel_ends_the_run_and_all_of_its_open_steps(url: str, shown: str) -> None:
    async with site(url) as s:
        operator, engine = await s.as_("operator"), s.engine.scoped(tenant=ACME)
        run = await engine.create("release", ASKED, profile="approval-runs")
        lease = None
        if shown != "PENDING":
            lease = await claim_run(s, run, ("default|tool:build",))
        if shown == "WAITING_APPROVAL":
            assert lease is not None
            await s.engine.orchestrator.send(lease_message(lease, c.Complete))
        assert (await engine.get(run)).shown == shown
        answer = await operator.post(f"/runs/{run}/cancel")
        assert answer.status_code == 202
        if shown == "RUNNING":
            assert lease is not None
            assert answer.json()["status"] == "canceling"
            await s.engine.orchestrator.send(lease_message(lease, c.AckCancel))
        else:
            assert answer.json() == {"id": run, "status": "canceled"}
        assert (await engine.get(run)).shown == "CANCELED"
        rows = await s.engine.store.read("steps_of", ids.run_int(run))
        done = "succeeded" if shown == "WAITING_APPROVAL" else "canceled"
        assert [step.state for step in rows] == [done, "canceled", "canceled"]
        events = len(await engine.runs.events(run))
        answer = await operator.post(f"/runs/{run}/cancel")
        assert (answer.status_code, problem(answer)) == (409, "RUN_TERMINAL_STATE")
        assert len(await engine.runs.events(run)) == events, "nothing changed"


async def test_a_running_run_is_canceling_until_its_work_has_stopped(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(operator)
        lease = await claim_run(s, run)
        for _ in range(2):
            answer = await operator.post(f"/runs/{run}/cancel", json={"reason": "MISTAKE"})
            assert (answer.status_code, answer.json()["status"]) == (202, "canceling"), (
                "a repeated cancel gets 202, too"
            )
        await s.engine.orchestrator.send(lease_message(lease, c.AckCancel))
        found = await s.engine.scoped(tenant=ACME).get(run)
        assert found.status == "canceled"
        answer = await operator.post(f"/runs/{run}/cancel")
        assert (answer.status_code, problem(answer)) == (409, "RUN_TERMINAL_STATE")


@pytest.mark.parametrize("first", ["cancel", "complete"])
async def test_a_cancel_and_a_complete_have_one_outcome(url: str, first: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator, engine = await s.as_("operator"), s.engine.scoped(tenant=ACME)
        run = await begin(operator)
        lease = await claim_run(s, run)
        done = lease_message(lease, c.Complete, output=b'"A"')
        if first == "complete":
            await s.engine.orchestrator.send(done)
            answer = await operator.post(f"/runs/{run}/cancel")
            assert (answer.status_code, problem(answer)) == (409, "RUN_TERMINAL_STATE")
            assert "succeeded" in answer.json()["error"]["message"]
            assert (await engine.get(run)).status == "succeeded"
        else:
            assert (await operator.post(f"/runs/{run}/cancel")).json()["status"] == "canceling"
            await s.engine.orchestrator.send(done)
            assert (await engine.get(run)).status == "canceled"


async def test_a_cancel_reaches_a_run_whose_runner_is_dead_by_its_deadline(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator, engine = await s.as_("operator"), s.engine.scoped(tenant=ACME)
        run = await begin(operator)
        await claim_run(s, run)
        assert (await operator.post(f"/runs/{run}/cancel")).json()["status"] == "canceling"
        s.engine.store.shift_clock(3_600_000_000)
        await s.engine.settle()
        assert await engine.run(run).reaches("canceled", wait=20) == "canceled"


async def test_a_retryable_failure_after_a_cancel_is_not_retried(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(operator)
        lease = await claim_run(s, run)
        await operator.post(f"/runs/{run}/cancel")
        await s.engine.orchestrator.send(lease_message(lease, c.Fail, code="NLM_UNAVAILABLE"))
        assert (await s.engine.scoped(tenant=ACME).get(run)).status == "canceled"


@pytest.mark.clause("DCI-19")
async def test_a_single_step_is_canceled_in_two_phases(url: str) -> None:
    async with site(url) as s:
        operator, engine = await s.as_("operator"), s.engine.scoped(tenant=ACME)
        plan: list[dict[str, Any]] = [{"name": "a"}, {"name": "b"}, {"name": "c", "required": False}]
        run = await engine.create("ci", plan, profile="delta-ci")
        [lease] = await s.engine.orchestrator.claim("somebody", queues=("default|tool:a",), limit=1)
        answer = await operator.post(f"/runs/{run}/steps/c/cancel")
        assert (answer.status_code, answer.json()) == (202, {"id": run, "step": "c", "state": "canceled"})
        assert (await engine.get(run)).status == "running", "only one step is canceled"
        answer = await operator.post(f"/runs/{run}/steps/a/cancel")
        assert answer.status_code == 202
        assert answer.json()["state"] != "canceled", "its worker is asked to stop first"
        await s.engine.orchestrator.send(lease_message(lease, c.AckCancel))
        states = {step.name: step.state for step in await engine.runs.steps(run)}
        assert states["a"] == "canceled"
        answer = await operator.post(f"/runs/{run}/steps/nothing/cancel")
        assert answer.status_code in (404, 409)


# ------------------------------------------------------------------------------------------ pause, resume


async def test_a_paused_run_has_no_claimable_step_until_it_is_unpaused(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(operator)
        for _ in range(2):
            answer = await operator.post(f"/runs/{run}/pause")
            assert (answer.status_code, answer.json()) == (200, {"id": run, "paused": True})
        claim = s.engine.orchestrator.claim
        assert await claim("somebody", queues=echo.serves) == []
        answer = await operator.post(f"/runs/{run}/unpause")
        assert (answer.status_code, answer.json()) == (200, {"id": run, "paused": False})
        assert len(await claim("somebody", queues=echo.serves)) == 1


@pytest.mark.clause("GWI-24")
async def test_a_canceled_run_can_be_resumed_as_a_new_one(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator, engine = await s.as_("operator"), s.engine.scoped(tenant=ACME)
        run = await begin(operator)
        answer = await operator.post(f"/runs/{run}/rerun")
        assert (answer.status_code, problem(answer)) == (409, "RUN_INVALID_TRANSITION")
        await operator.post(f"/runs/{run}/cancel")
        resumed = await operator.post(f"/runs/{run}/resume", json={})
        assert resumed.status_code == 201, resumed.text
        assert resumed.headers["location"] == f"/runs/{resumed.json()['id']}"
        spec = await engine.scope.reader.spec(ids.run_int(resumed.json()["id"]))
        assert (spec.resumed_from, spec.resume_count) == (ids.run_int(run), 1)
        fresh = await operator.post(f"/runs/{run}/rerun")
        assert fresh.status_code == 201
        spec = await engine.scope.reader.spec(ids.run_int(fresh.json()["id"]))
        assert (spec.rerun_of, spec.attempt_no) == (ids.run_int(run), 2)
        async with s.engine.worker(echo):
            for made in (resumed, fresh):
                assert await engine.result(made.json()["id"], wait=20) == "A"


async def test_resuming_a_waiting_run_ends_its_wait(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator, engine = await s.as_("operator"), s.engine.scoped(tenant=ACME)
        run = await begin(operator, workflow="patient", input={})
        async with s.engine.worker(patient):
            await engine.run(run).reaches("waiting_external", wait=20)
            answer = await operator.post(f"/runs/{run}/resume")
            assert (answer.status_code, answer.json()["id"]) == (200, run)
            await engine.run(run).reaches("succeeded", "failed", wait=20)


async def test_a_signal_is_taken_by_its_wait_or_stored_for_one(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator, engine = await s.as_("operator"), s.engine.scoped(tenant=ACME)
        early = await begin(operator, workflow="patient", input={})
        answer = await operator.post(f"/runs/{early}/signals/news", json={"data": {"n": 1}, "event_id": "e1"})
        assert (answer.status_code, answer.json()) == (200, {"taken": False, "again": False, "awaited": []})
        answer = await operator.post(f"/runs/{early}/signals/news", json={"data": {"n": 2}, "event_id": "e1"})
        assert answer.json()["again"] is True
        late = await begin(operator, workflow="patient", input={})
        async with s.engine.worker(patient):
            assert await engine.result(early, wait=20) == {"n": 1}
            await engine.run(late).reaches("waiting_external", wait=20)
            answer = await operator.post(f"/runs/{late}/signals/other")
            assert answer.json() == {"taken": False, "again": False, "awaited": ["news"]}
            answer = await operator.post(f"/runs/{late}/signals/news", json={"data": 7})
            assert answer.json()["taken"] is True
            assert await engine.result(late, wait=20) == 7
        answer = await operator.post(f"/runs/{late}/signals/news", json={"data": 8})
        assert (answer.status_code, problem(answer)) == (409, "RUN_TERMINAL_STATE")


# --------------------------------------------------------------------------------------- leases and reports


async def test_a_revoked_step_can_be_claimed_again(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(operator)
        answer = await operator.post(f"/runs/{run}/revoke")
        assert (answer.status_code, problem(answer)) == (409, "RUN_INVALID_TRANSITION"), "no worker has it"
        lease = await claim_run(s, run)
        answer = await operator.post(f"/runs/{run}/revoke", json={"step": "nothing"})
        assert (answer.status_code, problem(answer)) == (404, "STEP_NOT_FOUND")
        answer = await operator.post(f"/runs/{run}/revoke")
        assert (answer.status_code, answer.json()) == (200, {"id": run, "state": "ready"})
        with pytest.raises(TenureError, match="LEASE_STALE"):
            await s.engine.orchestrator.send(lease_message(lease, c.Complete))
        await claim_run(s, run)
        async with Client(s.address, operator.headers["Authorization"].removeprefix("Bearer ")) as client:
            assert await client.runs.revoke_lease(run, "main") == "ready"


async def test_marking_a_run_as_reported_does_not_change_its_status(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(operator)
        answer = await operator.post(f"/runs/{run}/reported")
        assert (answer.status_code, problem(answer)) == (409, "RUN_INVALID_TRANSITION")
        await operator.post(f"/runs/{run}/cancel")
        answers = [await operator.post(f"/runs/{run}/reported") for _ in range(2)]
        first = answers[0].json()
        assert [(one.status_code, one.json()) for one in answers] == [(200, first)] * 2
        assert (first["id"], first["reported"]) == (run, False)
        seen = (await operator.get(f"/runs/{run}?profile=delta-ci")).json()
        assert (seen["shown"], seen["reported_at"], seen["reported_statement"]) == (
            "CANCELED", None, first["statement"],
        )  # fmt: skip
        assert first["statement"]["by"].startswith("client:")


# ------------------------------------------------------------------------------------- labels and metadata


async def test_labels_and_metadata_can_change_after_the_run_has_ended(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(
            operator,
            labels={"team": "blue", "stage": "test"},
            metadata={"a": 1},
            trigger={"pr_id": "7", "commit": "abc"},
        )
        await operator.post(f"/runs/{run}/cancel")
        answer = await operator.patch(
            f"/runs/{run}", json={"labels": {"team": "red", "stage": None}, "metadata": {"b": [1, 2]}}
        )
        assert answer.status_code == 200, answer.text
        assert answer.json() == {
            "id": run,
            "labels": {"team": "red"},
            "metadata": {"a": 1, "prId": "7", "commit": "abc", "b": [1, 2]},
        }
        found = await s.engine.scoped(tenant=ACME).get(run)
        assert (found.labels, found.metadata["b"]) == ({"team": "red"}, [1, 2])
        wrong: list[Any] = [
            {"labels": {"a": 1}},
            {"status": "failed"},
            {"labels": []},
            [],
            {"metadata": {"a": "x" * 70_000}},
        ]
        for bad in wrong:
            answer = await operator.patch(f"/runs/{run}", json=bad)
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), bad


# ------------------------------------------------------------------------------------------------- many runs


async def test_canceling_by_a_filter_needs_a_preview(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator, engine = await s.as_("operator"), s.engine.scoped(tenant=ACME)
        blue = [await begin(operator, labels={"team": "blue"}, trigger={"repo": "acme/a"}) for _ in range(3)]
        red = await begin(operator, labels={"team": "red"}, trigger={"repo": "acme/a"})
        ended = await begin(operator, labels={"team": "blue"})
        await operator.post(f"/runs/{ended}/cancel")
        foreign = await begin(await s.as_("operator", tenant="globex"), labels={"team": "blue"})
        asked = {"filter": {"label": "team=blue"}}
        look = await operator.post("/runs/cancel", json=asked)
        assert look.status_code == 200, look.text
        assert look.json()["matched"] == 3
        assert set(look.json()["sample"]) == set(blue)
        assert {(await engine.get(run)).status for run in blue} == {"queued"}, "the preview cancels nothing"
        token = look.json()["token"]
        for other in (
            {"filter": {"label": "team=red"}, "token": token},
            {**asked, "token": "0" * 64},
        ):
            answer = await operator.post("/runs/cancel", json=other)
            assert (answer.status_code, problem(answer)) == (409, "FILTER_CHANGED")
        more = await begin(operator, labels={"team": "blue"})
        answer = await operator.post("/runs/cancel", json={**asked, "token": token})
        assert (answer.status_code, problem(answer)) == (409, "FILTER_CHANGED"), (
            "another run matches the filter now"
        )
        token = (await operator.post("/runs/cancel", json=asked)).json()["token"]
        stranger = await (await s.as_("operator", tenant="globex")).post(
            "/runs/cancel", json={**asked, "token": token}
        )
        assert stranger.status_code == 409
        answer = await operator.post("/runs/cancel", json={**asked, "token": token})
        assert (answer.status_code, answer.json()) == (202, {"canceled": 4, "failed": []})
        assert {(await engine.get(run)).status for run in (*blue, more)} == {"canceled"}
        assert (await engine.get(red)).status == "queued"
        assert (await s.engine.scoped(tenant="globex").get(foreign)).status == "queued"


async def test_a_filter_combines_all_of_its_conditions(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(operator, labels={"a": "1", "b": "2"}, trigger={"repo": "acme/a"})
        await begin(operator, workflow="patient", input={}, labels={"a": "1"})
        now = datetime.now(UTC)
        later, earlier = (now + timedelta(hours=1)).isoformat(), (now - timedelta(hours=1)).isoformat()
        cases: list[tuple[dict[str, Any], int]] = [
            ({}, 2),
            ({"workflow": "echo"}, 1),
            ({"repo": "acme/a"}, 1),
            ({"label": ["a=1", "b=2"]}, 1),
            ({"label": "a=1"}, 2),
            ({"status": "queued"}, 2),
            ({"status": "running"}, 0),
            ({"created_after": earlier, "created_before": later}, 2),
            ({"created_after": later}, 0),
            ({"created_before": earlier}, 0),
        ]
        for conditions, matched in cases:
            answer = await operator.post("/runs/cancel", json={"filter": conditions})
            assert (answer.status_code, answer.json()["matched"]) == (200, matched), conditions
        for bad in (
            {"label": "a"},
            {"colour": "red"},
            {"created_after": "2026-02-14T08:00:00"},
            {"status": 1},
            {"status": "bogus"},
        ):
            answer = await operator.post("/runs/cancel", json={"filter": bad})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), bad
        assert (await s.engine.scoped(tenant=ACME).get(run)).status == "queued"


# ---------------------------------------------------------------------------------------------- other tenants

VERBS = ("cancel", "resume", "rerun", "pause", "unpause", "signals/news", "steps/main/cancel")


@pytest.mark.clause("APR-11")
async def test_another_tenants_run_looks_missing_for_every_operation(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        run = await begin(await s.as_("operator"))
        stranger = await s.as_("operator", tenant="globex")

        async def check_missing(call: Any) -> None:
            theirs, nothing = await call(run), await call(NOWHERE)
            assert (theirs.status_code, nothing.status_code) == (404, 404)
            assert problem(theirs) == "RUN_NOT_FOUND"
            assert _without_ids(theirs, run) == _without_ids(nothing, NOWHERE)

        for verb in VERBS:
            await check_missing(lambda id_, verb=verb: stranger.post(f"/runs/{id_}/{verb}"))
        await check_missing(lambda id_: stranger.patch(f"/runs/{id_}", json={"labels": {"a": "b"}}))
        assert (await s.engine.scoped(tenant=ACME).get(run)).status == "queued"
        for verb in VERBS:
            for bad in ("..%2f..", "run_", "%00", "run_2026-02-14_080000_abc123%20"):
                answer = await stranger.post(f"/runs/{bad}/{verb}")
                assert answer.status_code in (400, 404), (bad, verb, answer.text)


def _without_ids(answer: httpx.Response, run: str) -> Any:
    body = answer.json()
    body["error"].pop("request_id")
    body["error"]["message"] = body["error"]["message"].replace(run, "RUN")
    return body


async def test_concurrent_operations_leave_one_outcome(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(operator)
        answers = await asyncio.gather(*(operator.post(f"/runs/{run}/cancel") for _ in range(20)))
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses.count(202) >= 1
        assert set(statuses) <= {202, 409}
        assert (await s.engine.scoped(tenant=ACME).get(run)).status == "canceled"
