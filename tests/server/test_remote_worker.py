"""The SDK's worker at a server: everything it does beside a database it does over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.embedded import Engine
from tenure.ids import run_int
from tenure.worker import Worker
from tenure.worker.remote import RemoteStation
from tests.server import remote_flows as flows
from tests.server.stage import Site, site
from tests.worker.flows import notes
from tests.worker.stage import until


@asynccontextmanager
async def remote_worker(s: Site, *served: Any, address: str = "", **how: Any) -> AsyncIterator[Worker]:
    """A worker of the tenant acme, over HTTP."""
    async with (
        RemoteStation(address or s.address, await s.key("runner")) as station,
        Worker(
            station, *(served or (flows.remote_whole, flows.remote_child, flows.remote_heavy)), **how
        ) as worker,
    ):
        yield worker


def acme(s: Site) -> Engine:
    """The engine as the tenant sees it."""
    return s.engine.scoped(tenant="acme")


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place for large payloads."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))


async def test_a_workflow_with_a_bit_of_everything(url: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    async with site(url) as s, remote_worker(s):
        run = await acme(s).start(flows.remote_whole, folder)

        async def asked() -> bool:
            return bool(await acme(s).approvals(run.id))

        await until(asked, "the question")
        await acme(s).approve(run.id, approver="person:ann", reason="looks good")
        result = await run.result(wait=30)
        assert result == {"numbers": [2, 4, 6], "child": 24, "reason": "looks good"}
        assert notes(folder) == ["before the question", "after the question"]

        async def logged() -> bool:
            lines = await s.engine.store.read("log_lines_of", run_int(run.id), 0, 10)
            return {(line.text, line.fields) for line in lines} == {("numbers are there", '{"count":3}')}

        await until(logged, "the line of the log")


async def test_large_payloads_go_up_and_down(url: str) -> None:
    async with site(url) as s, remote_worker(s):
        run = await acme(s).start(flows.remote_heavy, 300_000)
        assert await run.result(wait=30) == 600_000


async def test_steps_of_a_plan_are_done_by_tools(url: str) -> None:
    async with site(url) as s, remote_worker(s, flows.nothing, flows.add):
        plan: list[dict[str, Any]] = [
            {"name": "first", "tool": "tests.add", "input": {"left": 1, "right": 2}},
            {"name": "second", "tool": "tests.nothing"},
            {"name": "third", "tool": "tests.add", "input": {"left": 5}},
        ]
        run = await acme(s).create("plan", plan)
        await acme(s).result(run, wait=30)
        seen = {step.name: step.output for step in await acme(s).steps(run)}
        assert seen == {"first": 3, "second": None, "third": 5}
