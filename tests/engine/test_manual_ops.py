"""Manual operations on both stores: labels, reports and revoked leases."""

from typing import Any

from tenure import ids
from tenure.engine import StepSpec
from tenure.kernel import commands as c
from tests.engine.stage import stage
from tests.engine.test_engine import NOBODY, refused

BUILD = StepSpec(name="build", retries=1)


async def test_a_revoked_worker_is_refused(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD])
        assert (
            "no worker holds a step of the run"
            in (await refused("RUN_INVALID_TRANSITION", engine.runs.revoke_lease(run))).message
        )
        lost = await engine.claim("bob")
        await refused("STEP_NOT_FOUND", engine.runs.revoke_lease(run, "test"))
        await refused("RUN_NOT_FOUND", engine.scoped(tenant="other").runs.revoke_lease(run))
        assert await engine.runs.revoke_lease(run, actor="ada") == "ready"
        await refused("LEASE_STALE", engine.complete(lost))
        assert (await engine.runs.events(run))[-1].actor == "ada"

        await engine.claim("carol")
        assert await engine.runs.revoke_lease(run, "build") == "failed", "its last attempt is charged, too"
        assert (await engine.get(run)).reason == "STEP_LOST"
        await refused("RUN_TERMINAL_STATE", engine.runs.revoke_lease(run))
        await refused("RUN_NOT_FOUND", engine.runs.revoke_lease(NOBODY))


async def test_a_revocation_names_its_step_if_several_run(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [StepSpec(name="a"), StepSpec(name="b", needs=())])
        leases = await engine.orchestrator.claim(
            "bob", queues=["default|tool:a", "default|tool:b", "default"], limit=5
        )
        assert len(leases) == 2
        assert "name one of a, b" in (await refused("INVALID_INPUT", engine.runs.revoke_lease(run))).message
        assert await engine.runs.revoke_lease(run, "b") == "ready"
        assert await engine.names(run) == {"a": "running", "b": "ready"}
        assert await engine.runs.revoke_lease(run) == "ready", "the only step that still runs"


async def test_revoking_a_canceling_step_ends_it(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD])
        await engine.claim()
        assert await engine.cancel(run) == "canceling"
        assert await engine.runs.revoke_lease(run) == "canceled"
        assert (await engine.get(run)).status == "canceled"


async def test_labels_and_metadata_of_an_ended_run_can_change(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD], labels={"team": "a", "stage": "test"}, metadata={"pr": 7})
        await engine.cancel(run)
        await engine.runs.update(
            run, labels={"team": "b", "stage": None}, metadata={"more": [1]}, actor="ada"
        )
        found = await engine.get(run)
        assert (found.labels, found.metadata) == ({"team": "b"}, {"pr": 7, "more": [1]})
        assert [line.id for line in await engine.runs.list(labels={"team": "b"})] == [run]
        await refused("RUN_NOT_FOUND", engine.scoped(tenant="other").runs.update(run, labels={"team": "c"}))


async def test_a_person_who_changes_labels_is_involved_in_the_run(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [StepSpec(name="ok", kind="approval")])
        await engine.runs.update(run, labels={"risk": "low"}, actor="ada")
        await refused("APPROVER_IS_REQUESTER", engine.approve(run, approver="ada"))
        assert await engine.approve(run, approver="bob") == "approved"


async def test_marking_a_run_as_reported_does_not_change_its_status(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD], profile="delta-ci")
        await refused("RUN_INVALID_TRANSITION", engine.runs.mark_reported(run))
        await engine.complete(await engine.claim())
        said = await engine.runs.mark_reported(run, actor="ci")
        found = await engine.get(run)
        assert (found.status, found.shown, found.reported_at) == ("succeeded", "SUCCESS", None)
        assert found.reported_statement == said
        assert said.by == "ci"
        last = (await engine.runs.events(run))[-1]
        assert (last.kind, last.actor) == ("report_stated", "ci")
        assert await engine.runs.mark_reported(run, actor="ada") == said, "the first statement counts"
        assert (await engine.get(run)).events == found.events


async def test_only_the_system_changes_the_status_to_reported(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BUILD], profile="delta-ci")
        await engine.complete(await engine.claim())
        said = await engine.runs.mark_reported(run, actor="ci")
        about: dict[str, Any] = {"run_id": ids.run_int(run), "tenant": engine.tenant}
        by_hand = c.MarkReported(**about, context=engine.scope.context("ci"))
        await refused("FORBIDDEN", engine.orchestrator.send(by_hand))
        assert (await engine.get(run)).shown == "SUCCESS"
        reporter = c.Context("system:reporter", "system", "published")
        await engine.orchestrator.send(c.MarkReported(**about, context=reporter))
        found = await engine.get(run)
        assert (found.status, found.shown, found.reported_statement) == ("succeeded", "REPORTED", said)
        assert found.reported_at is not None
