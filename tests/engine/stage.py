"""An engine for tests: the test moves its clock, and the doctor examines the database at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tenure import ids
from tenure.clock import us
from tenure.doctor.examination import examine_database
from tenure.engine import Engine
from tenure.kernel.capability import split
from tenure.kernel.commands import Complete, Fail, RecordCheckpoint
from tenure.kernel.lease_types import Lease


class Stage(Engine):
    """An engine without a sweeper: `later` lets time pass and does what is due."""

    shifted = 0.0

    async def later(self, seconds: float) -> None:
        """Let time pass, and do what is due."""
        self.shifted += seconds
        self.store.shift_clock(us(self.shifted))
        await self.settle()

    async def claim(self, worker: str = "bob") -> Lease:
        """Claim the only ready step."""
        await self.settle()
        (lease,) = await self.orchestrator.claim(worker, queues=await queues(self), limit=10)
        return lease

    async def nothing_to_claim(self) -> bool:
        """Whether no step can be claimed."""
        await self.settle()
        return await self.orchestrator.claim("nobody", queues=await queues(self), limit=10) == []

    async def complete(self, lease: Lease, output: bytes | None = None, seq: int = 9) -> Any:
        """Report that the step succeeded."""
        return await self.orchestrator.send(Complete(**head(lease, seq), output=output))

    async def fail(self, lease: Lease, code: str, *, retryable: bool | None = None) -> Any:
        """Report that the step failed."""
        return await self.orchestrator.send(Fail(**head(lease, 9), code=code, retryable=retryable))

    async def checkpoint(self, lease: Lease, name: str, seq: int, **fields: Any) -> Any:
        """Record a checkpoint."""
        return await self.orchestrator.send(RecordCheckpoint(**head(lease, seq), name=name, **fields))

    async def names(self, run_id: str) -> dict[str, str]:
        """The states of a run's steps by name."""
        return {step.name: step.state for step in await self.runs.steps(run_id)}


def head(lease: Lease, seq: int) -> dict[str, Any]:
    """The common fields of a message from a lease's holder."""
    return {"run_id": lease.run_id, "idx": lease.idx, "n": lease.n, "seq": seq}


async def queues(engine: Engine) -> list[str]:
    """The capabilities that steps on the queue `default` need."""
    runs = await engine.store.read("run_ids_after", 0, 1000)
    steps = [step for run in runs for step in await engine.store.read("steps_of", run.run_id)]
    return sorted({step.queue for step in steps if split(step.queue)[0] == "default"} | {"default"})


def is_from(lease: Lease, run_id: str) -> bool:
    """Whether the lease belongs to this run."""
    return ids.run_text(lease.run_id) == run_id


@asynccontextmanager
async def stage(url: str, **how: Any) -> AsyncIterator[Stage]:
    """A stage. At the end, the doctor examines its database."""
    async with Stage(url, sweep=False, **how) as engine:
        yield engine
        report = await examine_database(engine.store)
        assert report.clean, [str(v) for v in report.violations]
