"""Watches the worker processes of this host: the leases of a process that is proven dead end immediately.

Laws:
1. Only a proof counts (`tenure.processes`). A closed connection, a silent worker or an equal name proves nothing; such a lease
   expires as usual.
2. A lease belongs to a session, which is one process. A worker with the same name keeps its leases.
3. The watch decides nothing: it submits a command with the fence of each lease, and the kernel decides. Any number of processes
   may watch at once.
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
NO_LIMIT = 1 << 30
"""A round is never followed by another immediately."""


class ProcessWatch(PeriodicTask):
    def __init__(self, orchestrator: Orchestrator, *, seconds: float = WATCH_SECONDS) -> None:
        super().__init__("process-watch", self.look, seconds, NO_LIMIT)
        self._orchestrator = orchestrator

    async def look(self) -> int:
        """Check every worker process of this host. How many leases of dead processes were found."""
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
                found += await self._expire_leases(row, other)
        return found

    async def _expire_leases(self, row: WorkerProcessRow, dead: ProcessIdentity) -> int:
        """End the leases of a dead process. If it has none left, delete its row."""
        store = self._orchestrator.store
        leases: list[SessionLease] = await store.read("leases_of_session", row.session, row.tenant)
        if not leases:
            await delete_worker_process(store, row.session)
            return 0
        context = Context("system:process-watch", "system", f"process is gone: {dead}")
        commands = [
            ExpireDeadLease(
                context=context, run_id=lease.run_id, idx=lease.idx, n=lease.n, session=row.session
            )
            for lease in leases
        ]
        answers = await asyncio.gather(*map(self._orchestrator.send, commands), return_exceptions=True)
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Exception) and not isinstance(answer, TenureError):
                log.warning("expire_dead_lease_failed", lease=repr(lease), error=repr(answer))
        freed = sum(answer is True for answer in answers)
        if freed:
            log.warning("dead_worker_freed", worker=row.name, pid=row.pid, leases=freed)
        return len(leases)
