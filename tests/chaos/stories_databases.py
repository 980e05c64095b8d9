"""Stories of what databases and processes do to each other, for the bugs of `planted_bugs.py`."""

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


async def nobody_waits_for_a_stale_message(folder: Path) -> None:
    """A lease is taken away while its holder has messages under way and does not wait for the answers."""
    said: list[str] = []

    def hear(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        said.append(context["message"])

    asyncio.get_running_loop().set_exception_handler(hear)
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
    assert said == [], f"the loop was told: {said}"


async def a_run_is_made_anew_under_its_id(folder: Path) -> None:
    """One process knows a run, another deletes it and makes one with its id, which comes to the same version."""
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
        "a refused message whose sender has gone away is reported as an exception that was never retrieved",
        (Change(futures.fail_future, "        future.exception()", "        pass"),),
        nobody_waits_for_a_stale_message,
        "the loop was told: .*exception was never retrieved",
    ),
    "quick-way-without-head": (
        "the quick way compares a run's version only: it writes over another run with the same id",
        (Change(batch.build_save, "save.heads[run.id] = work.head", "pass"),),
        a_run_is_made_anew_under_its_id,
        "I51 event 2: its hash does not follow",
    ),
}
"""Name -> what it breaks, how, the story that notices it, and what that then says. Registered in `planted_bugs.py`."""
