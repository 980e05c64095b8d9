"""People in a lab decide the approvals of gates and of governed actions."""

from __future__ import annotations

import pytest

from tenure.errors import TenureError
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import ASK, lab_of, order, orders, receipts


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None), or PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


async def test_a_person_approves_a_governed_action(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, url=url, policy=ASK) as lab:
            run = await lab.start(order, 7)
            await run.reaches("waiting_approval")
            assert await lab.approve(run) == "approved"
            assert await run.result() == [1, 700]
            assert len(service.effects) == 1


async def test_a_person_rejects_a_governed_action() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, policy=ASK) as lab:
            run = await lab.start(order, 7)
            await run.reaches("waiting_approval")
            assert await lab.reject(run, reason="not today") == "rejected"
            with pytest.raises(TenureError) as refused:
                await run.result()
            assert refused.value.code == "APPROVAL_REJECTED"
            assert service.requests == []


async def test_invalid_decisions_have_a_code() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, orders, policy=ASK) as lab:
            run = await lab.start(order, 7)
            await run.reaches("waiting_approval")
            with pytest.raises(TenureError, match="APPROVAL_STALE"):
                await lab.approve(run, digest="00" * 32)
            with pytest.raises(TenureError, match="APPROVAL_STALE"):
                await lab.approve(run, revision=7)
            assert await lab.approve(run) == "approved"
            await run.result()
            with pytest.raises(TenureError):
                await lab.approve(run, by="bob")
            many = await lab.start(orders, [1, 2])
            await many.reaches("waiting_approval")
            with pytest.raises(TenureError, match="name one of"):
                await lab.approve(many)
            for question in await lab.engine.approvals.list(many.id):
                assert await lab.approve(many, no=question.no) == "approved"
            assert await many.result() == [201, 201]
            assert len(await receipts(lab, many)) == 2
