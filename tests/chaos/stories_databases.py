"""Stories about several processes on one database, for the bugs of `story_bugs.py`."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

from tenure import futures
from tenure.kernel import commands as c
from tenure.orchestrator import batch
from tests.conformance.world import Place, World
from tests.simulation.planted_bugs import Change


async def a_stale_message_without_a_waiting_sender(folder: Path) -> None:
    """A lease is revoked while two of its messages are in flight, and their sender does not wait for the replies."""
    errors: list[str] = []

    def record(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        errors.append(context["message"])

    asyncio.get_running_loop().set_exception_handler(record)
    async with World(Place("sqlite", str(folder / "world.db"))) as w:
        lease = await w.begin()
        await w.revoke(lease)
        for seq in (1, 2):
            message = c.RecordCheckpoint(
                run_id=lease.run_id,
                idx=lease.idx,
                n=lease.n,
                seq=seq,
                name=f"step-{seq}",
                output=b"1",
                context=c.Context("w_runner", "system", f"{seq}"),
            )
            w.orchestrator.submit(message)
        await w.settle()
    gc.collect()
    assert errors == [], f"the loop logged: {errors}"


async def a_run_is_deleted_and_its_id_reused(folder: Path) -> None:
    """One process caches a run. Another process deletes it and creates a run with the same id, which reaches the same version."""
    async with World(Place("sqlite", str(folder / "world.db")), orchestrators=2) as here:
        there = here.through(1)
        run = await here.create(workflow="first", plan=["work"])
        await there.cancel(run)
        await there.tell(c.SealRun, run)
        await there.later(10).tell(c.DeleteRun, run)
        await there.create(run_id=run, workflow="second", plan=["work"])
        await here.cancel(run)
        now = await here.run(run)
        assert (now.workflow, now.status) == ("second", "canceled"), (
            f"the run is {now.workflow}, {now.status}"
        )


BUGS = {
    "answer-nobody-asked-for": (
        "a refused message whose sender has gone is logged as an exception that was never retrieved",
        (Change(futures.fail_future, "        future.exception()", "        pass"),),
        a_stale_message_without_a_waiting_sender,
        "the loop logged: .*exception was never retrieved",
    ),
    "quick-way-without-head": (
        "a save from the cache compares only the version, so it overwrites another run with the same id",
        (Change(batch.build_save, "save.heads[run.id] = work.head", "pass"),),
        a_run_is_deleted_and_its_id_reused,
        "I51 event 2: its hash does not follow",
    ),
}
"""Name -> the fields of a `PlantedBug`. Registered in `story_bugs.py`."""
