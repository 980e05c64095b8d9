"""Acts: each is done once if a policy allows it, and each kind of failure has its outcome."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tenure
from tenure.errors import TenureError
from tenure.govern.connectors.github import GitHubConnector
from tenure.ids import run_int
from tenure.reads import run_documents
from tenure.reads.history import check_step_exists
from tenure.reads.status_document import read_status_document
from tenure.sdk import Workflow
from tenure.testing import Lab
from tenure.testing.doubles import GitHubDouble, ServiceDouble
from tests.govern.act_service import (
    ASK,
    DENY,
    SILENT,
    careful,
    greedy,
    keyed,
    lab_of,
    local_service,
    mistaken,
    order,
    orders,
    plain,
    post_effect,
    price,
    receipts,
    settle,
    verdicts,
)

LABELS = """
version: 1
rules:
  - {name: labels, connector: github, operation: [label.add, label.remove], allow: true}
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


@pytest.mark.clause("GOV-15")
async def test_an_act_is_done_once_and_has_a_receipt(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, url=url) as lab:
            run = await lab.start(order, 7)
            assert await run.result() == [1, 700]
            assert [effect.body for effect in service.effects] == [{"n": 70}]
            (receipt,) = await receipts(lab, run)
            assert (receipt.state, receipt.label) == ("succeeded", "act:http.post")
            assert receipt.name == service.effects[0].key == f"{run.id}:main:act:http.post"
            (verdict,) = await verdicts(lab, run)
            assert (verdict.outcome, verdict.digest) == ("allow", receipt.digest)


async def test_an_act_adds_two_commits_to_its_run() -> None:
    async def quiet(n: int) -> Any:
        before = await price(n)
        return [1, await price(before)]

    without = Workflow(quiet, name="quiet")
    with ServiceDouble() as service:
        async with lab_of(service, order, without) as lab:
            acted, still = await lab.start(order, 7), await lab.start(without, 7)
            assert await acted.result() == await still.result() == [1, 700]
            events = [len(await run.history()) for run in (acted, still)]
            assert events[0] - events[1] == 2


# -------------------------------------------------------------------------------------------------- people


@pytest.mark.clause("GOV-16")
async def test_people_are_asked_once_and_a_replay_does_not_ask_again(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, url=url, policy=ASK) as lab:
            run = await lab.start(order, 7)
            assert await run.reaches("waiting_approval") == "waiting_approval"
            assert service.effects == []
            (asked,) = await lab.engine.approvals.list(run.id)
            assert asked.question["why"] == "the customer asked for it"
            assert asked.question["writes"][0].startswith("POST ")
            assert "n = 70" in asked.question["writes"]
            assert any("posts are seen by everybody" in line for line in asked.question["rationale"])
            await lab.approve(run, by="ada", digest=asked.digest, revision=asked.revision)
            async with lab.crash_before("price"):
                await lab.settle()
            assert await run.result() == [1, 700]
            assert len(service.effects) == 1
            assert len(await lab.engine.approvals.list(run.id)) == 1
            (receipt,) = await receipts(lab, run)
            assert receipt.approval_no == asked.no


@pytest.mark.clause("GOV-23")
@pytest.mark.parametrize("how", ["rejected", "expired"])
async def test_a_rejection_or_an_expiry_ends_the_run_and_cannot_be_caught(how: str) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, greedy, policy=ASK) as lab:
            run = await lab.start(greedy, 1)
            await run.reaches("waiting_approval")
            (asked,) = await lab.engine.approvals.list(run.id)
            if how == "rejected":
                await lab.reject(run, by="ada", digest=asked.digest)
            else:
                await lab.jump("2d")
            with pytest.raises(TenureError) as failed:
                await run.result()
            assert failed.value.code == f"APPROVAL_{how.upper()}"
            assert service.requests == []


async def test_the_approval_of_an_act_has_the_label_of_the_act(url: str | None) -> None:
    """The kernel uses a reserved label for the approval. People see the label of the act, as in its receipt."""
    with ServiceDouble() as service:
        async with lab_of(service, order, url=url, policy=ASK) as lab:
            run = await lab.start(order, 7)
            await run.reaches("waiting_approval")
            (asked,) = await lab.engine.approvals.list(run.id)
            names = [step.name for step in await run.steps()]
            why = await lab.engine.runs.explain(run.id)
            store, views = lab.engine.store, lab.engine.scope.reader
            document = await run_documents.read_document(views, store, run_int(run.id), run_documents.PROFILE)
            [glance] = await store.read("run_glances", rows=[(run_int(run.id),)])
            status = await read_status_document(store, glance, "waiting")
            notes = [note for event in await lab.engine.runs.events(run.id) for note in event.notes]
            assert {asked.step, names[-1], why.step} == {"act:http.post"}
            assert {document.current_step, status.current_step} == {"act:http.post"}
            assert "act:http.post: waits" in notes
            assert not any("act:act:" in note for note in notes)
            assert asked.governed
            await check_step_exists(store, run_int(run.id), "act:http.post")
            await lab.approve(run, by="ada", digest=asked.digest, revision=asked.revision)
            await run.result()
            (receipt,) = await receipts(lab, run)
            assert receipt.label == asked.step


async def test_several_acts_wait_for_their_approvals_concurrently(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, orders, url=url, policy=ASK) as lab:
            run = await lab.start(orders, [1, 2, 3])
            await run.reaches("waiting_approval")
            await lab.settle()
            asked = await lab.engine.approvals.list(run.id)
            assert len(asked) == 3
            for one in reversed(asked):
                await lab.approve(run, no=one.no, digest=one.digest)
                await lab.settle()
            assert await run.result() == [201, 201, 201]
            assert sorted(effect.body["n"] for effect in service.effects) == [1, 2, 3]


async def test_a_run_canceled_before_the_approval_does_nothing() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, policy=ASK) as lab:
            run = await lab.start(order, 7)
            await run.reaches("waiting_approval")
            await lab.cancel(run)
            assert await run.reaches("canceled") == "canceled"
            assert service.requests == []


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.clause("GOV-17")
@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (DENY, None),
        (None, "POLICY_MISSING"),
        ("version: [", "POLICY_ERROR"),
        (SILENT, "POLICY_NO_RULE"),
    ],
)
async def test_a_denial_ends_the_run_and_nothing_is_called(policy: str | None, error: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, greedy, policy=policy) as lab:  # type: ignore[arg-type]  # None: no policy
            run = await lab.start(greedy, 1)
            with pytest.raises(TenureError, match="POLICY_DENIED"):
                await run.result()
            (verdict,) = await verdicts(lab, run)
            assert (verdict.outcome, verdict.error) == ("deny", error)
            assert await receipts(lab, run) == []
            assert service.requests == []


@pytest.mark.clause("GOV-17")
async def test_an_unknown_action_is_denied() -> None:
    async def strange() -> None:
        await tenure.act("telegraph.send")

    flow = Workflow(strange, name="strange")
    with ServiceDouble() as service:
        async with lab_of(service, flow) as lab:
            run = await lab.start(flow)
            with pytest.raises(TenureError, match="POLICY_DENIED"):
                await run.result()
            (verdict,) = await verdicts(lab, run)
            assert verdict.error == "UNKNOWN_OPERATION"


async def test_invalid_fields_are_refused_before_the_approval() -> None:
    async def wrong() -> str:
        try:
            await tenure.act("http.post", target={"url": "/effects", "port": 1})
        except tenure.ActionFailed as failed:
            return failed.fault
        return "?"

    flow = Workflow(wrong, name="wrong")
    with ServiceDouble() as service:
        async with lab_of(service, flow) as lab:
            run = await lab.start(flow)
            assert await run.result() == "INVALID_INPUT"
            assert await verdicts(lab, run) == []
            assert service.requests == []


async def test_an_act_inside_a_step_is_refused_with_advice() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, mistaken) as lab:
            run = await lab.start(mistaken)
            with pytest.raises(TenureError, match="ACT_IN_STEP"):
                await run.result()


async def test_a_plain_workflow_can_act() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, plain) as lab:
            assert await (await lab.start(plain, 3)).result() == 1


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.clause("GOV-18")
async def test_a_known_failure_can_be_caught_and_is_the_same_in_a_replay(
    url: str | None,
) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, careful, url=url) as lab:
            service.trouble(status=422, json={"message": "no such thing"})
            async with lab.crash_before("price"):
                run = await lab.start(careful, 7)
                await lab.settle()
            assert await run.result() == "not done: CONNECTOR_REJECTED, 70"
            assert len(service.writes) == 1
            assert [row.state for row in await receipts(lab, run)] == ["failed"]


@pytest.mark.clause("GOV-18")
async def test_an_act_waits_for_a_rate_limit_and_is_retried(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, careful, url=url) as lab:
            service.trouble(status=429, headers={"Retry-After": "600"})
            run = await lab.start(careful, 7)
            await lab.settle()
            assert await run.status() == "waiting_external", "a long pause holds no worker"
            await lab.jump("9m")
            assert len(service.writes) == 1
            assert await run.result() == "done, 70"
            failed, done = await receipts(lab, run)
            assert (failed.state, done.state, done.try_no) == ("failed", "succeeded", 2)
            assert failed.name == done.name


@pytest.mark.clause("GOV-18")
async def test_an_act_fails_after_its_last_try() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, careful) as lab:
            for _ in range(9):
                service.trouble(status=429)
            run = await lab.start(careful, 7)
            assert await run.result() == "not done: CONNECTOR_RATE_LIMITED, 70"
            assert len(service.writes) == 3


@pytest.mark.parametrize("mode", ["honours", "found"])
async def test_a_lost_answer_is_looked_up_or_the_call_is_repeated(mode: Any) -> None:
    """I38: a call is repeated only if that leads to one effect."""
    with ServiceDouble(mode) as service:
        async with lab_of(service, order) as lab:
            service.trouble(drop="after")
            run = await lab.start(order, 7)
            assert await run.result() == [1, 700]
            assert len(service.effects) == 1
            assert len(service.writes) == (2 if mode == "honours" else 1)


@pytest.mark.parametrize(
    ("how", "comes_to"),
    [("done", "done, 70"), ("not_done", "not done: ACTION_FAILED, 70"), ("retry", "done, 70")],
)
async def test_a_person_settles_an_act_with_an_unknown_outcome(
    how: str, comes_to: str, url: str | None
) -> None:
    """I38: an act with an UNKNOWN receipt is not retried automatically."""
    with ServiceDouble("neither") as service:
        async with lab_of(service, careful, url=url) as lab:
            service.trouble(drop="after" if how == "done" else "before")
            run = await lab.start(careful, 7)
            await lab.settle()
            (receipt,) = await receipts(lab, run)
            assert receipt.state == "unknown"
            await lab.jump("1h")
            assert len(service.writes) == 1
            await settle(lab, run, how)
            assert await run.result() == comes_to
            assert len(service.effects) == (0 if how == "not_done" else 1)
            (receipt,) = await receipts(lab, run)
            assert receipt.state == ("failed" if how == "not_done" else "succeeded")


async def test_a_run_ends_if_nobody_settles_its_unknown_act() -> None:
    with ServiceDouble("neither") as service:
        async with lab_of(service, careful) as lab:
            service.trouble(drop="after")
            run = await lab.start(careful, 7)
            with pytest.raises(TenureError, match="RECEIPT_UNKNOWN"):
                await run.result()
            (receipt,) = await receipts(lab, run)
            assert receipt.state == "unknown"


# ------------------------------------------------------------------------------------------------- one key


@pytest.mark.clause("GOV-15")
async def test_two_runs_with_one_key_make_one_effect(url: str | None) -> None:
    with ServiceDouble("neither") as service:
        async with lab_of(service, keyed, url=url) as lab:
            first, second = await lab.start(keyed, "sn:incident:7"), await lab.start(keyed, "sn:incident:7")
            assert [await run.result() for run in (first, second)] == [1, 1]
            assert service.effects_of("sn:incident:7") == 1
            made = [*await receipts(lab, first), *await receipts(lab, second)]
            assert sorted(row.state for row in made) == ["reused", "succeeded"]


@pytest.mark.clause("GOV-15")
async def test_a_failed_receipt_is_not_reused() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, keyed) as lab:
            service.trouble(status=400)
            first = await lab.start(keyed, "once")
            with pytest.raises(TenureError, match="ACTION_FAILED"):
                await first.result()
            second = await lab.start(keyed, "once")
            assert await second.result() == 1
            assert service.effects_of("once") == 1


@pytest.mark.clause("GOV-15")
async def test_a_reversed_receipt_is_not_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def label() -> None:
        target = {"repo": "acme/app", "number": 7}
        await tenure.act("github.label.add", target=target, fields={"labels": ["urgent"]}, key="once")

    flow = Workflow(label, name="label")
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    with GitHubDouble(token="hush") as github:
        github.issue("acme/app", 7)
        link = msgspec.structs.replace(local_service(github.url), tokens={"default": "env:GITHUB_TOKEN"})
        async with Lab(flow, connectors=[GitHubConnector("github", link)], policy=LABELS) as lab:
            first = await lab.start(flow)
            await first.result()
            second = await lab.start(flow)
            await second.result()
            assert [row.state for row in await receipts(lab, second)] == ["reused"]
            await lab.run(await lab.engine.undos.start(first.id, actor="person:eve")).result()
            await lab.settle()
            assert [row.state for row in await receipts(lab, first)] == ["reversed"]
            assert "urgent" not in github.issues["acme/app", 7]["labels"]
            third = await lab.start(flow)
            await third.result()
            assert [row.state for row in await receipts(lab, third)] == ["succeeded"]
            assert "urgent" in github.issues["acme/app", 7]["labels"]


@pytest.mark.clause("GOV-12")
async def test_the_number_of_writes_of_a_run_is_limited(url: str | None) -> None:
    """I46, also for concurrent writes."""
    with ServiceDouble() as service:
        async with lab_of(service, orders, url=url) as lab:
            await lab.engine.put_caps([tenure.Cap("default", "", max_writes_per_run=2)])
            run = await lab.start(orders, [1, 2, 3, 4])
            with pytest.raises(TenureError, match="WRITES_EXCEEDED"):
                await run.result()
            assert len(service.effects) <= 2
            assert len([row for row in await receipts(lab, run) if row.state == "succeeded"]) <= 2


# ------------------------------------------------------------------------------------------- code that changes


async def test_another_action_at_the_same_place_is_changed_code() -> None:
    def version(n: int) -> Workflow[..., Any]:
        async def flow() -> str:
            await post_effect(n)
            await tenure.sleep("1h")
            return "done"

        return Workflow(flow, name="flow")

    with ServiceDouble() as service:
        async with lab_of(service, version(1)) as lab:
            run = await lab.start(version(1))
            await run.reaches("waiting_external")
            await lab.deploy(version(2))
            await lab.jump("2h")
            assert "where another act was recorded" in await run.why()
            await lab.deploy(version(1))
            await lab.engine.runs.unpause(run.id)
            assert await run.result() == "done"
            assert len(service.effects) == 1


async def test_a_missing_or_new_act_is_changed_code() -> None:
    async def without() -> None:
        await tenure.sleep("1h")

    async def acting() -> None:
        await post_effect(1)
        await tenure.sleep("1h")

    flow, other = Workflow(acting, name="flow"), Workflow(without, name="flow")
    for first, second in ((flow, other), (other, flow)):
        with ServiceDouble() as service:
            async with lab_of(service, first) as lab:
                run = await lab.start(first)
                await run.reaches("waiting_external")
                await lab.deploy(second)
                await lab.jump("2h")
                assert "recorded" in await run.why()


async def test_a_resumed_run_repeats_no_act() -> None:
    broken = [True]

    async def shaky() -> Any:
        done = await post_effect(1)
        if broken:
            raise tenure.Failure("STEP_FAILED", "not today", retryable=False)
        return done["json"]["no"]

    flow = Workflow(shaky, name="shaky")
    with ServiceDouble("neither") as service:
        async with lab_of(service, flow) as lab:
            run = await lab.start(flow)
            with pytest.raises(TenureError):
                await run.result()
            broken.clear()
            again = lab.run(await lab.engine.runs.resume(run.id), flow)
            assert await again.result() == 1
            assert len(service.effects) == 1
            (receipt,) = await receipts(lab, again)
            assert (receipt.state, receipt.source_run) == ("reused", run_int(run.id))
