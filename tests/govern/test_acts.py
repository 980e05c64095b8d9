"""Acts: done once, as a policy allows it, in workflows of Python and of YAML."""

from __future__ import annotations

import pytest

from tenure.ids import run_int
from tenure.kernel.governed import Receipt, Verdict
from tenure.testing import Lab
from tenure.testing.doubles import ServiceDouble
from tenure.testing.lab import LabRun
from tests.govern.acting import ALLOW, connector, order


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """Where a lab lies: its own SQLite file (None), or PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))


async def receipts(lab: Lab, run: LabRun[object]) -> list[Receipt]:
    """What a run did."""
    return await lab.engine.store.read("receipts_of", run_int(run.id))


async def verdicts(lab: Lab, run: LabRun[object]) -> list[Verdict]:
    """What was said of it."""
    return await lab.engine.store.read("verdicts_of", run_int(run.id))


@pytest.mark.clause("GOV-15")
async def test_an_act_is_done_once_and_its_receipt_says_so(url: str | None) -> None:
    with ServiceDouble() as service:
        async with Lab(order, url=url, connectors=[connector(service.url, "honours")], policy=ALLOW) as lab:
            run = await lab.start(order, 7)
            assert await run.result() == [1, 700]
            assert [effect.body for effect in service.effects] == [{"n": 70}]
            (receipt,) = await receipts(lab, run)
            assert (receipt.state, receipt.label) == ("succeeded", "act:http.post")
            assert receipt.name == service.effects[0].key == f"{run.id}:main:act:http.post"
            (verdict,) = await verdicts(lab, run)
            assert (verdict.outcome, verdict.digest) == ("allow", receipt.digest)
