"""Stories of workers that end and that stood still: what `planted_bugs.py` plants into them must be noticed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tenure import clock
from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease
from tests.worker import drain_flows as flows
from tests.worker.flows import notes, open_gate
from tests.worker.helpers import Watched, until

STILL_SECONDS = 100.0


async def ends_between_steps(folder: Path) -> None:
    """A worker that ends lets its step end, begins no other, and hands the run over."""
    place = str(folder)
    async with Watched(f"sqlite:{folder / 'runs.db'}", sweep=False) as engine:
        worker = engine.worker(flows.once)
        await worker.start()
        run = await engine.start(flows.once, place)
        await until(lambda: "at gate" in notes(place), "the step")
        stopping = asyncio.ensure_future(worker.stop(600.0))
        await until(lambda: worker._stopping, "the drain")
        open_gate(place, "gate")
        await stopping
        assert "last" not in notes(place), "a worker that ends began another step"
        assert (await engine.step(run.id)).state == "ready"


async def begins_nothing_after_its_lease(folder: Path) -> None:
    """A claim's answer lies in the socket of a process that stands still; meanwhile the lease is somebody else's."""
    place, real, still = str(folder), clock.boot_seconds, [0.0]
    url = f"sqlite:{folder / 'runs.db'}"
    with patch.object(clock, "boot_seconds", lambda: real() + still[0]):
        async with Watched(url, sweep=False) as engine, Watched(url, sweep=False) as other:
            claim = other.orchestrator.claim

            async def claiming(*args: Any, **how: Any) -> list[Lease]:
                leases = await claim(*args, **how)
                for lease in leases if not still[0] else ():
                    still[0] = STILL_SECONDS
                    taken = c.RevokeLease(
                        context=engine.scope.context(), run_id=lease.run_id, idx=lease.idx, n=lease.n
                    )
                    await engine.orchestrator.send(taken)
                return leases

            with patch.object(other.orchestrator, "claim", claiming):
                run = await engine.start(flows.single_step, place)
                async with other.worker(flows.single_step):
                    await engine.see_end(run.id)
            assert notes(place) == ["only"], "a step began under a lease that had ended"
