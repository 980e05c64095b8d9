"""Stories about draining and paused workers, for the bugs of `story_bugs.py`."""

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

PAUSE_SECONDS = 100.0


async def a_draining_worker_starts_no_step(folder: Path) -> None:
    """A draining worker finishes its current step, starts no other step, and releases the run."""
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
        assert "last" not in notes(place), "a draining worker started another step"
        assert (await engine.step(run.id)).state == "ready"


async def a_paused_worker_starts_nothing_under_an_ended_lease(folder: Path) -> None:
    """A process pauses while the reply to its claim is in the socket. The lease is revoked in the meantime."""
    place, real, pause = str(folder), clock.boot_seconds, [0.0]
    url = f"sqlite:{folder / 'runs.db'}"
    with patch.object(clock, "boot_seconds", lambda: real() + pause[0]):
        async with Watched(url, sweep=False) as engine, Watched(url, sweep=False) as other:
            claim = other.orchestrator.claim

            async def claim_then_pause(*args: Any, **how: Any) -> list[Lease]:
                leases = await claim(*args, **how)
                for lease in leases if not pause[0] else ():
                    pause[0] = PAUSE_SECONDS
                    taken = c.RevokeLease(
                        context=engine.scope.context(), run_id=lease.run_id, idx=lease.idx, n=lease.n
                    )
                    await engine.orchestrator.send(taken)
                return leases

            with patch.object(other.orchestrator, "claim", claim_then_pause):
                run = await engine.start(flows.single_step, place)
                async with other.worker(flows.single_step):
                    await engine.see_end(run.id)
            assert notes(place) == ["only"], "a step started under an ended lease"
