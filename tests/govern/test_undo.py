"""An undo is a run that reverses the actions of another run, newest first, if their targets are unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import tenure
from tenure.errors import TenureError
from tenure.govern.connector import Reversal
from tenure.govern.connectors.github import GitHubConnector
from tenure.govern.connectors.http_service import HttpService
from tenure.govern.undo import check_reversal, load_undoable_acts, plan_reversal
from tenure.ids import run_int
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.urls import OutboundRoute
from tenure.sdk import Workflow
from tenure.sdk.act_request import ActRequest
from tenure.shapes.receipts import UndoResult
from tenure.testing import Lab
from tenure.testing.doubles import GitHubDouble

TOKEN = "nobody-has-this"
ISSUE = {"repo": "acme/app", "number": 7}
POLICY = """
version: 1
rules:
  - name: triage
    connector: github
    operation: [label.add, label.remove, assignee.add, assignee.remove, comment.create, comment.delete]
    allow: true
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHubDouble]:
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    with GitHubDouble(token=TOKEN) as double:
        double.issue("acme/app", 7, labels=("bug",), assignees=("ada",))
        yield double


async def _triage(hold: bool = False) -> str:
    await tenure.act("github.label.add", target=ISSUE, fields={"labels": ["urgent", "bug"]})
    await tenure.act("github.assignee.add", target=ISSUE, fields={"assignees": ["eve"]})
    if hold:
        await tenure.wait("go on")
    return "done"


triage = Workflow(_triage, name="triage")
careful = Workflow(_triage, name="careful", compensate=True)


def lab_of(github: GitHubDouble, url: str | None, *flows: Workflow[..., Any]) -> Lab:
    way = OutboundRoute(
        hosts=(github.url.removeprefix("http://"),), reach=AllowedNetworks(networks=("127.0.0.1",))
    )
    link = HttpService(base_url=github.url, way=way, tokens={"default": "env:GITHUB_TOKEN"})
    return Lab(*flows, url=url, connectors=[GitHubConnector("github", link)], policy=POLICY)


def outcomes(undone: UndoResult) -> list[tuple[str, str]]:
    return [(line.action, line.outcome) for line in undone.lines]


@pytest.mark.clause("GOV-22")
async def test_an_undo_reverses_the_actions_of_a_run_newest_first(
    github: GitHubDouble, url: str | None
) -> None:
    async with lab_of(github, url, triage) as lab:
        run = await lab.start(triage)
        assert await run.result() == "done"
        issue = github.issues["acme/app", 7]
        assert (sorted(issue["labels"]), sorted(issue["assignees"])) == (["bug", "urgent"], ["ada", "eve"])
        foreseen = await lab.engine.undos.preview(run.id)
        assert outcomes(foreseen) == [("github.assignee.add", "to_undo"), ("github.label.add", "to_undo")]
        undo = lab.run(await lab.engine.undos.start(run.id, actor="person:eve"))
        undone = msgspec.convert(await undo.result(), UndoResult)
        assert outcomes(undone) == [("github.assignee.add", "undone"), ("github.label.add", "undone")]
        # The label `bug` existed before the run and stays.
        assert (sorted(issue["labels"]), sorted(issue["assignees"])) == (["bug"], ["ada"])
        await lab.engine.settle()
        receipts = await lab.engine.store.read("receipts_of", run_int(run.id))
        assert [row.state for row in receipts] == ["reversed", "reversed"]
        assert {row.reversed_run for row in receipts} == {run_int(undo.id)}
        # A second undo has nothing to reverse, and the action can be done again.
        assert (await lab.engine.undos.preview(run.id)).lines == ()
        (view,) = await lab.engine.undos.list(run.id)
        assert (view.run, view.status, view.requester) == (undo.id, "succeeded", "person:eve")


async def test_a_target_changed_by_others_is_a_conflict_and_not_touched(
    github: GitHubDouble, url: str | None
) -> None:
    async with lab_of(github, url, triage) as lab:
        run = await lab.start(triage)
        await run.result()
        issue = github.issues["acme/app", 7]
        issue["labels"].remove("urgent")  # a change by a person
        undone = msgspec.convert(await lab.run(await lab.engine.undos.start(run.id)).result(), UndoResult)
        assert outcomes(undone) == [("github.assignee.add", "undone"), ("github.label.add", "conflict")]
        assert sorted(issue["labels"]) == ["bug"]


async def test_an_open_run_cannot_be_undone(github: GitHubDouble, url: str | None) -> None:
    forged = Workflow(_forged, name="forged")
    async with lab_of(github, url, triage, forged) as lab:
        run = await lab.start(triage, hold=True)
        await run.reaches("waiting_external")
        with pytest.raises(TenureError) as refused:
            await lab.engine.undos.start(run.id)
        assert refused.value.code == "RUN_INVALID_TRANSITION"
        other = await lab.start(forged, run.id)
        with pytest.raises(TenureError):
            await other.result()


async def test_a_reversal_must_match_the_action_that_it_reverses(
    github: GitHubDouble, url: str | None
) -> None:
    """Otherwise a caller could use the undo rules of a policy for other actions."""
    async with lab_of(github, url, triage) as lab:
        run = await lab.start(triage)
        await run.result()
        engine, number = lab.engine, run_int(run.id)
        label, _ = await engine.store.read("receipts_of", number)

        async def check(ask: ActRequest, no: int = label.no) -> str | None:
            return await check_reversal(engine.store, engine.artifacts, engine.connectors, number, no, ask)

        way = plan_reversal(
            (await load_undoable_acts(engine.store, engine.artifacts, number))[-1], engine.connectors
        )
        assert isinstance(way, Reversal)
        right = ActRequest(
            label="x",
            action="github.label.remove",
            target=way.target,
            fields=way.fields,
            expects=way.expects,
        )
        assert await check(right) is None
        for wrong in (
            replace(right, action="github.comment.delete"),
            replace(right, target={"repo": "acme/app", "number": 8}),
            replace(right, fields={"labels": ["bug"]}),
            replace(right, expects={}),
            replace(right, expects=None),
        ):
            with pytest.raises(TenureError) as refused:
                await check(wrong)
            assert refused.value.code == "INVALID_INPUT"
        with pytest.raises(TenureError):
            await check(right, no=label.no + 1_000)
        await lab.run(await engine.undos.start(run.id)).result()
        await engine.settle()
        assert await check(right) == "it was already undone"


async def test_two_undos_of_one_run_reverse_each_action_once(github: GitHubDouble, url: str | None) -> None:
    async with lab_of(github, url, triage) as lab:
        run = await lab.start(triage)
        await run.result()
        first, second = await lab.engine.undos.start(run.id), await lab.engine.undos.start(run.id)
        await lab.run(first).result()
        await lab.run(second).result()
        made = [
            (row.name, row.state)
            for undo in (first, second)
            for row in await lab.engine.store.read("receipts_of", run_int(undo))
        ]
        assert len([name for name, state in made if state == "succeeded"]) == 2
        assert {name for name, _ in made} == {
            f"undo:{run.id}:{row.no}" for row in await lab.engine.store.read("receipts_of", run_int(run.id))
        }


async def _forged(run: str) -> None:
    await tenure.act(
        "github.label.remove", target=ISSUE, fields={"labels": ["urgent"]}, reverses=(run, 1), expects={}
    )


async def test_a_canceled_run_with_compensation_is_undone_and_logged(
    github: GitHubDouble, url: str | None
) -> None:
    async with lab_of(github, url, careful) as lab:
        run = await lab.start(careful, hold=True)
        await run.reaches("waiting_external")
        issue = github.issues["acme/app", 7]
        assert sorted(issue["labels"]) == ["bug", "urgent"]
        await lab.engine.cancel(run.id)
        await lab.engine.settle()
        (view,) = await lab.engine.undos.list(run.id)
        await lab.run(view.run).result()
        (view,) = await lab.engine.undos.list(run.id)
        assert [line.outcome for line in view.lines] == ["undone", "undone"]
        assert (sorted(issue["labels"]), sorted(issue["assignees"])) == (["bug"], ["ada"])


async def test_a_canceled_run_without_compensation_is_not_undone(github: GitHubDouble) -> None:
    async with lab_of(github, None, triage) as lab:
        run = await lab.start(triage, hold=True)
        await run.reaches("waiting_external")
        await lab.engine.cancel(run.id)
        await lab.engine.settle()
        assert await lab.engine.undos.list(run.id) == []
        assert sorted(github.issues["acme/app", 7]["labels"]) == ["bug", "urgent"]
