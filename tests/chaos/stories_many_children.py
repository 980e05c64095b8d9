"""Stories about runs with many children and runs that reach their limit of recorded steps, for the bugs of `story_bugs.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tenure
from tenure.kernel.lease_types import Lease
from tenure.orchestrator import outbox
from tenure.sdk import execution_waits
from tenure.sdk.definitions import Workflow
from tenure.sdk.journal import ExecutionJournal
from tenure.store.replay import ReplayWait
from tenure.testing import Lab
from tenure.worker.work_source import LocalWorkSource
from tests.simulation.planted_bugs import Change

CHILDREN = 60
AHEAD = 5


@tenure.step(name="many-one")
async def one(number: int) -> int:
    return number


async def _child(number: int) -> int:
    return number


async def _parent(count: int) -> int:
    started = [await tenure.start(child, number) for number in range(count)]
    return sum([await each.result() for each in started])


child = Workflow(_child, name="many-child")
parent = Workflow(_parent, name="many-parent")


async def collecting_children_reads_few_rows(folder: Path) -> None:
    """Collecting the results of n ended children reads about n rows, whatever the batch size."""
    rows = 0
    ended = asyncio.Event()

    @tenure.step
    async def until_children_have_ended() -> None:
        await ended.wait()

    async def code(count: int) -> int:
        started = [await tenure.start(child, number) for number in range(count)]
        await until_children_have_ended()
        return sum([await each.result() for each in started])

    patient: Workflow[..., Any] = Workflow(code, name="many-patient")
    load_waits = LocalWorkSource.load_waits

    async def count(self: LocalWorkSource, lease: Lease, first: int, last: int) -> list[ReplayWait]:
        nonlocal rows
        found = await load_waits(self, lease, first, last)
        rows += len(found)
        return found

    with (
        patch.object(execution_waits, "AHEAD_MAX", AHEAD),
        patch.object(LocalWorkSource, "load_waits", count),
    ):
        async with Lab(patient, child, url=f"sqlite:{folder / 'story.db'}") as lab:
            run = await lab.start(patient, CHILDREN)
            await lab.settle(leave="until_children_have_ended")
            ended.set()
            assert await run.result() == sum(range(CHILDREN))
    assert rows <= 3 * CHILDREN, f"{rows} rows were read"


async def children_share_commits(folder: Path) -> None:
    """Children that are started together are created in shared commits, and shared commits report their ends to the parent."""
    async with Lab(parent, child, url=f"sqlite:{folder / 'story.db'}") as lab:
        run = await lab.start(parent, CHILDREN)
        assert await run.result() == sum(range(CHILDREN))
        batches = lab.engine.orchestrator.batches
        assert batches < CHILDREN, f"{batches} commits were made"


async def _long(count: int) -> int:
    return sum([await one(number) for number in range(count)])


async def a_run_at_its_step_limit_continues_under_a_higher_limit(folder: Path) -> None:
    """A run that has recorded `steps_max` steps is parked. It continues with a workflow that has a higher `steps_max`."""
    url = f"sqlite:{folder / 'story.db'}"
    small: Workflow[..., Any] = Workflow(_long, name="long", steps_max=10)
    async with Lab(small, url=url) as lab:
        run = await lab.start(small, 12)
        await lab.settle()
        view = await lab.engine.get(run.id)
        assert view.status != "failed", f"the run failed with {view.reason}"
        assert "steps_max" in (view.parked or "")
    larger: Workflow[..., Any] = Workflow(_long, name="long", steps_max=12)
    async with Lab(larger, url=url) as lab:
        await lab.engine.runs.unpause(run.id)
        [same] = await lab.runs()
        assert same.id == run.id
        assert await same.result() == sum(range(12))


BUGS: dict[str, tuple[str, tuple[Change, ...], Any, str]] = {
    "all-waits-for-each-answer": (
        "every result that a run takes reads all of its waits",
        (
            Change(
                execution_waits.ExecutionWaits._suspend,
                "self._lease_port.load_waits(first, max(*reply.settled, first + AHEAD_MAX))",
                "self._lease_port.load_waits(0, 1 << 30)",
            ),
        ),
        collecting_children_reads_few_rows,
        r"\d+ rows were read",
    ),
    "children-one-by-one": (
        "outbox rows of one commit are delivered one by one, each in its own commit",
        (Change(outbox.deliver_outbox, "if len(under_way) >= BATCH_COMMANDS_MAX", "if under_way"),),
        children_share_commits,
        r"\d+ commits were made",
    ),
    "fails-at-the-limit": (
        "a run that reaches its limit of recorded steps fails instead of being parked",
        (Change(ExecutionJournal.begin_step, "self.fail_replay(", 'raise TenureError("LIMIT_EXCEEDED", '),),
        a_run_at_its_step_limit_continues_under_a_higher_limit,
        "the run failed with LIMIT_EXCEEDED",
    ),
}
"""Name -> the fields of a `PlantedBug`. Registered in `story_bugs.py`."""
