"""A worker that tests drive by hand: it claims, completes or fails one step at a time."""

from typing import Any

from tenure import ids
from tenure.kernel.commands import Complete, Fail, RecordCheckpoint
from tenure.kernel.lease_types import Lease
from tests.engine.stage import head, queues
from tests.server.stage import Site


async def claim(s: Site, run: str | None = None, worker: str = "bob") -> Lease | None:
    """Claim the next ready step, if there is one."""
    leases = await s.engine.orchestrator.claim(worker, queues=await queues(s.engine), limit=1)
    if not leases:
        return None
    assert run in (None, ids.run_text(leases[0].run_id))
    return leases[0]


async def complete(s: Site, lease: Lease, output: bytes | None = None) -> None:
    await s.engine.orchestrator.send(Complete(**head(lease, 9), output=output))


async def complete_next_step(s: Site, run: str, output: bytes | None = None) -> None:
    """Claim and complete the next step of a run."""
    lease = await claim(s, run)
    assert lease is not None
    await complete(s, lease, output)


async def fail_next_step(s: Site, run: str, code: str, message: bytes = b"") -> None:
    """Claim the next step of a run and fail it without a retry."""
    lease = await claim(s, run)
    assert lease is not None
    await s.engine.orchestrator.send(Fail(**head(lease, 9), code=code, message=message, retryable=False))


async def save_checkpoint(s: Site, lease: Lease, name: str, seq: int, **fields: Any) -> None:
    """Record a checkpoint under a lease."""
    await s.engine.orchestrator.send(RecordCheckpoint(**head(lease, seq), name=name, **fields))
