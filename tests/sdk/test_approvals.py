"""Approvals, which block the run, and proposals, which do not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import tenure
from tenure.errors import TenureError
from tenure.testing import Lab
from tests.sdk.flows import Steps, flow, noted


async def test_an_approval_resumes_the_run_and_names_the_approver(url: str | None) -> None:
    @flow
    async def whole() -> dict[str, Any]:
        decision = await tenure.approve("Deploy?", show={"image": "app:7"})
        return {
            "approved": decision.approved,
            "by": decision.approver,
            "why": decision.reason,
            "at": decision.at,
        }

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert await run.status() == "waiting_approval"
        (question,) = await lab.engine.approvals.list(run.id)
        assert (question.action, question.question) == ("Deploy?", {"image": "app:7"})
        await lab.jump("1d")
        await lab.approve(run, by="ada", reason="looks good")
        result = await run.result()
    assert (result["approved"], result["by"], result["why"]) == (True, "ada", "looks good")
    assert result["at"].startswith("2026-01-06T10:00:0")


async def test_a_rejection_can_be_caught() -> None:
    @flow
    async def whole() -> str:
        try:
            await tenure.approve("Deploy?")
        except tenure.ApprovalRejected as no:
            return f"{no.action} {no.reason}"
        return "deployed"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.reject(run, by="ada", reason="too late on a friday")
        assert await run.result() == "Deploy? too late on a friday"


async def test_a_rejection_that_is_not_caught_fails_the_run() -> None:
    done: Steps = []
    ship = noted(done, "ship")

    @flow
    async def whole() -> None:
        await tenure.approve("Deploy?")
        await ship()

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.reject(run, by="ada")
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert failed.value.code == "APPROVAL_REJECTED"
        assert await run.status() == "failed"
    assert done == []


async def test_an_approval_expires_at_its_time_and_not_before(url: str | None) -> None:
    @flow
    async def whole() -> str:
        try:
            await tenure.approve("Deploy?", within="2h")
        except tenure.ApprovalExpired as late:
            return f"nobody answered {late.action}"
        return "deployed"

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.jump("1h59m")
        assert await run.status() == "waiting_approval"
        await lab.jump("61s")
        assert await run.status() == "succeeded"
        assert await run.result() == "nobody answered Deploy?"


async def test_an_expiry_that_is_not_caught_fails_the_run() -> None:
    @flow
    async def whole() -> None:
        await tenure.approve("Deploy?", within="2h")

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert failed.value.code == "APPROVAL_EXPIRED"


async def test_two_approvals_need_two_people() -> None:
    @flow
    async def whole() -> str:
        return str((await tenure.approve("Delete all?", tier="high", people=2)).approved)

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert await lab.approve(run, by="ada") == "requested"
        await lab.settle()
        assert await run.status() == "waiting_approval"
        assert await lab.approve(run, by="ada") == "requested"  # the same person again
        assert await lab.approve(run, by="bob") == "approved"
        assert await run.result() == "True"


async def test_approving_twice_or_without_a_question_is_refused(url: str | None) -> None:
    done: Steps = []
    work, ship = noted(done, "work"), noted(done, "ship")

    @flow
    async def whole() -> None:
        await work()
        await tenure.approve("Ship?")
        await ship()
        await tenure.approve("Announce?")

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        (question,) = await lab.engine.approvals.list(run.id)
        assert await lab.approve(run, by="ada", no=question.no) == "approved"
        await lab.settle()
        assert done == ["work", "ship"]
        events = len(await run.history())
        assert (
            await lab.approve(run, by="ada", no=question.no) == "approved"
        )  # a repeated decision gets the same answer
        await lab.settle()
        assert len(await run.history()) == events
        assert await run.status() == "waiting_approval"  # the second question is still open
        await lab.approve(run, by="ada")
        await run.result()
        silent = await lab.start(flow(name="silent")(_nothing))
        await lab.settle()
        with pytest.raises(TenureError) as refused:
            await lab.approve(silent, by="ada")
        assert refused.value.code == "APPROVAL_NOT_FOUND"


async def _nothing() -> None:
    """A workflow without approvals."""


async def test_a_proposal_does_not_block_the_run_and_is_decided_later(url: str | None) -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    async def whole() -> int:
        first = await tenure.propose("Rename the table", {"from": "a", "to": "b"})
        second = await tenure.propose("Drop the column", "c")
        await work()
        return first.no + second.no

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        assert await run.result() > 0
        assert done == ["work"]
        proposals = {each.action: each for each in await lab.engine.approvals.list(run.id)}
        assert proposals["Rename the table"].question == {"from": "a", "to": "b"}
        assert {each.status for each in proposals.values()} == {"requested"}
        inbox = await lab.engine.approvals.list()
        assert {each.action for each in inbox} == set(proposals)
        await lab.approve(run, by="ada", no=proposals["Rename the table"].no)
        await lab.reject(run, by="ada", no=proposals["Drop the column"].no)
        after = {each.action: each.status for each in await lab.engine.approvals.list(run.id)}
        assert after == {"Rename the table": "approved", "Drop the column": "rejected"}
        assert await run.status() == "succeeded"


async def test_a_replay_finds_the_proposal_and_the_answer_of_the_first_run() -> None:
    seen: list[Any] = []

    @flow
    async def whole() -> None:
        seen.append(await tenure.propose("Rename", 1))
        seen.append(await tenure.approve("Go?"))
        await tenure.sleep("1h")

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        no = next(each.no for each in await lab.engine.approvals.list(run.id) if each.action == "Go?")
        await lab.approve(run, by="ada", no=no)
        await run.result()
        assert len(await lab.engine.approvals.list(run.id)) == 2
    proposal, _, decision = seen[0], seen[1], seen[2]
    assert seen == [proposal, proposal, decision, proposal, decision]
    assert decision.at == datetime(2026, 1, 5, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "profile", ["approval-runs", "delta-ci", "git-with-intent", "governed-runtime", "tenure"]
)
async def test_a_workflow_asks_waits_and_resumes_under_every_profile(profile: str) -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow(profile=profile)
    async def whole() -> list[Any]:
        await work()
        decision = await tenure.approve("Go?")
        await tenure.sleep("10m")
        healthy = await tenure.wait("healthy")
        await work(2)
        return [decision.approver, healthy]

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.approve(run, by="ada")
        await lab.jump("11m")
        await lab.deliver(run, "healthy", 1)
        assert await run.result() == ["ada", 1]
    assert done == ["work", "work 2"]


async def test_an_approval_counts_only_for_the_question_that_was_asked(url: str | None) -> None:
    asked = ["delete staging"]

    @flow
    async def whole() -> str:
        await tenure.approve(asked[-1])
        return asked[-1]

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        asked.append("delete production")
        await lab.approve(run, by="ann")
        await lab.settle()
        assert "delete staging" in (await lab.engine.runs.explain(run.id)).text
        asked.pop()
        await lab.engine.runs.unpause(run.id)
        assert await run.result() == "delete staging"
