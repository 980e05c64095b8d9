"""Failure 18, second half: an invalid row is set aside, and the loop continues."""

from __future__ import annotations

import apsw
import asyncpg
import pytest

from tenure import ids
from tests.worker import flows
from tests.worker.helpers import Watched


async def change(url: str, sqlite: str, postgres: str, run_id: str) -> None:
    """Change the rows of a run directly, as no command does."""
    number = ids.run_int(run_id)
    if url.startswith("sqlite:"):
        connection = apsw.Connection(url.removeprefix("sqlite:"))
        connection.set_busy_timeout(5000)
        connection.execute(sqlite, (number,))
        connection.close()
        return
    server = await asyncpg.connect(url)
    await server.execute(postgres, number)
    await server.close()


async def test_a_run_with_an_unknown_profile_blocks_no_other_and_runs_once_the_profile_is_known(
    url: str, folder: str
) -> None:
    set_profile = "update {} set profile = '{}' where id = {}"
    async with Watched(url) as engine:
        broken = await engine.start(flows.quick, folder, "broken")
        runs = [await engine.start(flows.quick, folder, f"r{n}") for n in range(3)]
        await change(
            url, set_profile.format("run", "gone", "?"), set_profile.format("tenure.run", "gone", "$1"), broken.id
        )  # fmt: skip
        async with Watched(url) as other, other.worker(flows.quick, slots=1):
            for run in runs:
                await engine.see_end(run.id)
            assert "broken" not in flows.notes(folder)
        await change(
            url, set_profile.format("run", "tenure", "?"), set_profile.format("tenure.run", "tenure", "$1"), broken.id
        )  # fmt: skip
        async with Watched(url) as other, other.worker(flows.quick, slots=1):
            await engine.see_end(broken.id)


@pytest.mark.parametrize("table", ["run", "run_spec"])
async def test_a_step_without_its_run_blocks_no_other(url: str, folder: str, table: str) -> None:
    column = "id" if table == "run" else "run_id"
    async with Watched(url) as engine:
        broken = await engine.start(flows.quick, folder, "broken")
        run = await engine.start(flows.quick, folder, "fine")
        await change(
            url, f"delete from {table} where {column} = ?", f"delete from tenure.{table} where {column} = $1", broken.id
        )  # fmt: skip
        async with Watched(url) as other, other.worker(flows.quick, slots=1):
            await engine.see_end(run.id)
