"""`tenure costs` with a local database, for one run and for all runs."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tenure as sdk
from tenure.engine import Engine
from tenure.sdk import StepFunction, Workflow
from tests.cli.shell import Tenure, in_folder


async def _ask(money: str) -> None:
    sdk.report_cost("openai", "large", tokens_in=10, tokens_out=5, money=money)


ask: Any = StepFunction(_ask, name="ask")


async def _dear(money: str) -> None:
    await ask(money)


dear = Workflow(_dear, name="dear", budget="1 USD")


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    return in_folder(tmp_path, monkeypatch, capsys)


async def _spent(*amounts: str) -> list[str]:
    async with Engine("sqlite:tenure.db") as engine, engine.worker(dear):
        runs = [await engine.start(dear, money) for money in amounts]
        for run in runs:
            await asyncio.wait_for(_ended(run), 30)
        return [run.id for run in runs]


async def _ended(run: Any) -> None:
    with suppress(sdk.TenureError):  # one run exceeds its budget
        await run.result()


def test_costs_of_one_run_and_of_all_runs_are_shown(tenure: Tenure) -> None:
    within, over = asyncio.run(_spent("0.25", "1.50"))
    assert tenure("costs", within).out.startswith("spent 0.25 of 1.00 USD\n")
    assert tenure("costs", within, "--json").json()["lines"][0]["micros"] == 250_000
    assert "spent 1.50 of 1.00 USD" in tenure("runs", "show", over).out
    assert "BUDGET_EXCEEDED" in tenure("runs", "show", over).out
    listed = tenure("costs").out
    assert "dear" in listed
    assert "1.75 USD" in listed
    assert tenure("costs", "--by", "model", "--since", "7d", "--json").json()["items"][0]["model"] == "large"
    assert "1.75 USD" in tenure("costs", "--by", "day", "--since", "2020-01-01").out
    assert tenure("costs", "--since", "2020-01-01", "--until", "2020-01-31").out == (
        "nothing was spent from 2020-01-01 to 2020-01-31\n"
    )
    assert tenure("costs", "--by", "moon").code == 2
    assert tenure("costs", "--since", "soon").code == 2
