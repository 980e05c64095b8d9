"""The watch over workers of this host: one that is certainly dead loses its leases at once.

Laws:
1. Only a proof counts (`tenure.processes`): a closed connection, a silent worker or an equal name is none. Without one a lease
   runs out, as everywhere else.
2. A lease belongs to a session, which is one process: whoever is called alike keeps theirs.
3. It decides nothing: it submits what was proven with the fence of each lease, and the kernel knows what that means. It may run
   everywhere at once.
"""

from __future__ import annotations

import asyncio

from tenure.errors import TenureError
from tenure.kernel.commands import Context, ExpireDeadLease
from tenure.kernel.registry_rows import WorkerProcessRow
from tenure.logs import get_logger
from tenure.orchestrator.core import Orchestrator
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.processes import ProcessIdentity, is_gone, own_identity
from tenure.store.workers import SessionLease, delete_worker_process

log = get_logger(__name__)

WATCH_SECONDS = 1.0
NEVER_MANY = 1 << 30
"""A round is never followed at once."""


class ProcessWatch(PeriodicTask):
    """Watches until it is stopped."""

    def __init__(self, orchestrator: Orchestrator, *, seconds: float = WATCH_SECONDS) -> None:
        super().__init__("process-watch", self.look, seconds, NEVER_MANY)
        self._orchestrator = orchestrator

    async def look(self) -> int:
        """Look at every worker of this host; how many leases were freed or are about to be."""
        mine = own_identity()
        if mine is None:
            return 0
        rows: list[WorkerProcessRow] = await self._orchestrator.store.read(
            "worker_processes_at", mine.boot_id, mine.namespaces
        )
        found = 0
        for row in rows:
            other = ProcessIdentity(row.boot_id, row.namespaces, row.pid, row.start_ticks)
            if is_gone(other, mine):
                found += await self._free(row, other)
        return found

    async def _free(self, row: WorkerProcessRow, dead: ProcessIdentity) -> int:
        """Free the leases of a dead process; a row that has none is of no more use."""
        store = self._orchestrator.store
        leases: list[SessionLease] = await store.read("leases_of_session", row.session, row.tenant)
        if not leases:
            await delete_worker_process(store, row.session)
            return 0
        context = Context("system:process-watch", "system", f"process is gone: {dead}")
        answers = await asyncio.gather(
            *(
                self._orchestrator.send(
                    ExpireDeadLease(
                        context=context, run_id=lease.run_id, idx=lease.idx, n=lease.n, session=row.session
                    )
                )
                for lease in leases
            ),
            return_exceptions=True,
        )
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Exception) and not isinstance(answer, TenureError):
                log.warning("holder_died_failed", lease=repr(lease), error=repr(answer))
        freed = sum(answer is True for answer in answers)
        if freed:
            log.warning("dead_worker_freed", worker=row.name, pid=row.pid, leases=freed)
        return len(leases)
