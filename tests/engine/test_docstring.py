"""The example in the package's docstring works; and an engine that only reads."""

import asyncio
import textwrap
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tenure import engine as embedded
from tenure.engine import Engine, StepSpec
from tenure.errors import TenureError
from tenure.services.plans import CHOICES
from tenure.shapes.runs import RunTrigger


def test_the_example_in_the_package_docstring_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = (embedded.__doc__ or "").partition("\n\n    ")[2].partition("\n\nA tool")[0]
    names: dict[str, Any] = dict(vars(embedded))
    exec("async def main():\n" + textwrap.indent(textwrap.dedent("    " + example), "    "), names)
    asyncio.run(names["main"]())
    assert capsys.readouterr().out == "{'image': 'app:main'}\n"


async def test_an_in_memory_database_is_refused() -> None:
    with pytest.raises(TenureError, match=r"INVALID_INPUT.*use a file"):
        await Engine(":memory:").__aenter__()


async def test_a_read_only_engine_changes_nothing(url: str) -> None:
    async with Engine(url, sweep=False) as engine:
        run = await engine.create("w", [StepSpec(name="a")])
    async with Engine(url, only_reads=True) as engine:
        assert (await engine.get(run)).status == "queued"
        with pytest.raises(TenureError, match="STORE_READ_ONLY"):
            await engine.runs.pause(run)
        with pytest.raises(TenureError, match="INVALID_INPUT"):
            await engine.runs.events(run, after=1 << 70)


async def test_status_and_repository_are_filtered_page_by_page(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.reads.runs.LIST_MAX", 2)
    async with Engine(url, sweep=False) as engine:
        plan, trigger = [StepSpec(name="a")], RunTrigger(repo="me/app")
        made = [await engine.create("w", plan, trigger=trigger) for _ in range(6)]
        await engine.create("w", plan)
        for run in (made[0], made[1]):
            await engine.cancel(run)
        found = await engine.runs.list(status="canceled", repo="me/app", limit=2)
        assert {line.id for line in found} == {made[0], made[1]}
        assert len(await engine.runs.list(status="queued", repo="me/app", limit=1)) == 1
        assert await engine.runs.list(status="failed", repo="me/app", limit=2) == []


def test_the_documented_choices_match_the_kernel() -> None:
    kinds = get_args(get_type_hints(StepSpec)["kind"])
    assert {*CHOICES[".kind"], "body", "plan"} == set(kinds)
    assert CHOICES[".approval.tier"] == get_args(get_type_hints(embedded.ApprovalSpec)["tier"])
