"""Evidence of runs with acts: decisions, approvals, receipts and undos."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.declared import load_workflow
from tenure.errors import TenureError
from tenure.govern.evidence.archive import unpack_zip
from tenure.govern.evidence.verification import verify_parts
from tenure.sdk import Registry
from tenure.testing import Lab
from tenure.testing.doubles import GitHubDouble, ServiceDouble
from tenure.testing.lab import LabRun
from tests.govern.act_service import ASK, DENY, lab_of, order
from tests.govern.evidence_samples import given, sealed
from tests.govern.test_undo import github as service_of_github
from tests.govern.test_undo import lab_of as github_lab
from tests.govern.test_undo import triage

Said = dict[str, Any]
github = service_of_github
"""A fixture of `test_undo`."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


async def parts_of(lab: Lab, run: LabRun[Any]) -> list[Said]:
    """Seal the run, verify the new parts, and return their JSON documents."""
    documents = []
    for row in await sealed(lab, run):
        part = await given(lab, row)
        (report,) = verify_parts([part])
        assert report.wrong is None
        files = unpack_zip(part.zip)
        documents.append({name: json.loads(body) for name, body in files.items() if name.endswith(".json")})
    return documents


async def test_decisions_approvals_and_receipts_of_a_bundle_share_a_digest(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, url=url, policy=ASK) as lab:
            run = await lab.start(order, 7)
            await run.reaches("waiting_approval")
            (question,) = await lab.engine.approvals.list(run.id)
            await lab.engine.approve(run.id, approver="ada", digest=question.digest)
            await run.result()
            (documents,) = await parts_of(lab, run)
    (receipt,) = documents["receipts.json"]
    (approval,) = documents["approvals.json"]
    decisions = documents["decisions.json"]
    assert {one["digest"] for one in (receipt, approval, *decisions)} == {receipt["digest"]}
    assert (receipt["state"], receipt["approval_no"], approval["used_no"]) == (
        "succeeded",
        approval["no"],
        receipt["no"],
    )
    assert (approval["votes"], approval["decided_by"], approval["tier"]) == (["ada"], "ada", "high")
    assert all(one["outcome"] == "needs_approval" and one["version"] == 1 for one in decisions)
    assert decisions[0]["rules"][0][0] == "posts"
    assert set(receipt["request"]) == {"ref", "digest"}
    assert documents["run.json"]["writes"] == 1
    (past,) = documents["ungoverned.json"]
    assert past["inside"] == [{"name": "price", "tries": 2}], "the act is listed as ungoverned"


MIXED = """
name: mixed
steps:
  - id: post
    uses: http.post
    idempotency_key: post:${{ run.id }}
    with: {target: {url: /effects}, fields: {json: {n: 1}}}
  - id: compile
    needs: [post]
    run: ["true"]
"""


async def test_a_step_that_acts_is_governed_and_a_command_is_not(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, Registry(), url=url, commands=True) as lab:
            run = await lab.submit(load_workflow(MIXED))
            await run.result()
            (documents,) = await parts_of(lab, run)
    assert [one["tool"] for one in documents["steps.json"]] == ["http.post", "run"]
    assert [(one["step"], one["tool"]) for one in documents["ungoverned.json"]] == [("compile", "run")]


async def test_a_denial_is_in_the_bundle_of_the_run_that_it_ended(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, url=url, policy=DENY) as lab:
            run = await lab.start(order, 7)
            with pytest.raises(TenureError):
                await run.result()
            (documents,) = await parts_of(lab, run)
    (decision,) = documents["decisions.json"]
    assert (decision["outcome"], documents["receipts.json"]) == ("deny", [])
    assert (documents["manifest.json"]["outcome"], documents["run.json"]["reason"]) == (
        "failed",
        "POLICY_DENIED",
    )


async def test_an_undo_adds_a_supplement(github: GitHubDouble, url: str | None) -> None:
    async with github_lab(github, url, triage) as lab:
        run = await lab.start(triage)
        await run.result()
        (documents,) = await parts_of(lab, run)
        assert [one["state"] for one in documents["receipts.json"]] == ["succeeded", "succeeded"]
        undo = lab.run(await lab.engine.undos.start(run.id, actor="person:eve"))
        await undo.result()
        await lab.engine.settle()
        (later,) = await parts_of(lab, run)
        assert [one["state"] for one in later["changes.json"]["receipt"].values()] == ["reversed", "reversed"]
        (own,) = await parts_of(lab, undo)
        assert own["run.json"]["undo_of"] == run.id
        assert {one["reverses_run"] for one in own["receipts.json"]} == {run.id}
