"""Approvals have a tier, a number of required people, and one of five statuses."""

from __future__ import annotations

from typing import Any

import pytest

import tenure
from tenure.errors import TenureError
from tenure.sdk import Workflow
from tenure.testing import Lab


async def _ask(tier: Any, people: int) -> str:
    await tenure.approve("do it?", tier=tier, people=people, within="1h")
    return "done"


ask = Workflow(_ask, name="ask")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


@pytest.mark.clause("GOV-03")
@pytest.mark.parametrize("tier", ["low", "med", "high"])
async def test_an_approval_has_a_tier_a_number_of_people_and_a_status(url: str | None, tier: str) -> None:
    async with Lab(ask, url=url) as lab:
        engine = lab.engine
        runs = [await lab.start(ask, tier, people) for people in (1, 2, 1, 1, 1)]
        alone, both, refused, expired, canceled = runs
        for run in runs:
            await run.reaches("waiting_approval")
            (asked,) = await engine.approvals.list(run.id)
            assert (asked.tier, asked.status) == (tier, "requested")
        assert await engine.approve(alone.id, approver="person:ada") == "approved"
        assert await engine.approve(both.id, approver="person:ada") == "requested"
        assert await engine.approve(both.id, approver="person:bob") == "approved"
        assert await engine.reject(refused.id, approver="person:ada") == "rejected"
        await engine.cancel(canceled.id)
        with pytest.raises(TenureError):
            await expired.result()  # the hour passes
        found = [(await engine.approvals.list(run.id))[0].status for run in runs]
        assert found == ["approved", "approved", "rejected", "expired", "canceled"]
        assert [await run.result() for run in (alone, both)] == ["done", "done"]


async def test_an_unknown_tier_is_refused(url: str | None) -> None:
    async with Lab(ask, url=url) as lab:
        run = await lab.start(ask, "enormous", 1)
        with pytest.raises(TenureError) as refused:
            await run.result()
        assert "one of low, med, high" in refused.value.message
