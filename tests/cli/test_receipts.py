"""`tenure receipts` with a local database: the local user settles acts with unknown outcomes."""

import asyncio
from pathlib import Path

import pytest

from tenure.engine import Engine
from tenure.store.policies import PolicyRegistry
from tenure.testing.doubles import ServiceDouble
from tests.cli.shell import Tenure, in_folder
from tests.govern.act_service import ALLOW, connector, order


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    return in_folder(tmp_path, monkeypatch, capsys)


async def _run_with_lost_response(service: ServiceDouble, actor: str) -> str:
    """Start a run whose only act gets no response."""
    async with Engine(
        "sqlite:tenure.db", actor=actor, connectors=[connector(service.url, service.mode)]
    ) as engine:
        await PolicyRegistry(engine.store, "default").install(ALLOW)
        service.trouble(drop="after")
        async with engine.worker(order):
            run = await engine.start(order, 7)
            while not await engine.receipts.list():  # noqa: ASYNC110 - the worker writes the receipt
                await asyncio.sleep(0.01)
            return run.id


def test_unknown_receipts_are_listed_shown_and_settled(tenure: Tenure) -> None:
    with ServiceDouble("neither") as service:
        run = asyncio.run(_run_with_lost_response(service, "ci"))
        assert "1 action with an unknown outcome" in tenure("approvals", "list").out
        (listed,) = tenure("receipts", "list", "--json").json()
        assert (listed["run_id"], listed["state"]) == (run, "unknown")
        receipt = listed["id"]
        assert receipt in tenure("receipts", "list").out
        shown = tenure("receipts", "show", receipt).out
        assert service.effects[0].key in shown
        assert "http.post" in shown
        assert tenure("receipts", "settle", receipt, "perhaps").code == 2
        settled = tenure("receipts", "settle", receipt, "done", "--result", '{"json": {"no": 1}}', "--json")
        assert settled.json() == {"receipt": receipt, "state": "succeeded"}
        assert tenure("receipts", "list").out == "no action has an unknown outcome\n"
        assert "succeeded" in tenure("receipts", "list", "--run", run).out
        assert "RECEIPT_SETTLED" in tenure("receipts", "settle", receipt, "not_done").err
        assert "RECEIPT_NOT_FOUND" in tenure("receipts", "show", "rcp_2026-01-01_aaaaaaaaaa1").err
