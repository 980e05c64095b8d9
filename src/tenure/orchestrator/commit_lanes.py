"""A commit lane: a queue of commands from which the next batch is taken.

Laws:
1. Commands on one run leave in the order of their arrival.
2. A batch has at most one gated command per tenant: a command that depends on other runs and so needs the tenant's lock. The
   next gated command of the tenant has to see its result. It waits in a queue of its tenant, so that commands of other
   tenants do not wait for it.
3. A lane is idle when its last batch was a single command, its queue is empty, and it has committed few lone commands in
   this turn of the event loop. So batches grow under load, and a run that never waits does not hold the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tenure.kernel.run_rows import Cap
from tenure.limits import BATCH_COMMANDS_MAX
from tenure.orchestrator.batch import PendingCommand

LONE_COMMANDS_MAX = 8
"""Lone commands per turn of the event loop: each holds the loop for one commit."""


class CommitLane:
    __slots__ = (
        "_gated",
        "_gated_runs",
        "_items",
        "_known_caps",
        "_last_batch",
        "_lone_commands",
        "_sequence",
        "busy",
        "number",
        "task",
        "wake",
    )

    def __init__(self, number: int, known_caps: Callable[[str], dict[str, Cap] | None]) -> None:
        self.number = number
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._known_caps = known_caps
        self._items: deque[tuple[int, PendingCommand]] = deque()
        self._gated: dict[str, deque[tuple[int, PendingCommand]]] = {}
        """Tenant -> its gated commands, each followed by later commands on the same run."""
        self._gated_runs: dict[int, list[str]] = {}
        """Run -> the tenant in whose queue its commands wait, once per command."""
        self._sequence = 0
        self.busy = False
        self._last_batch = 1
        self._lone_commands = 0
        """Lone commands in this turn of the event loop."""

    def __bool__(self) -> bool:
        return bool(self._items or self._gated)

    def put(self, item: PendingCommand) -> None:
        self._sequence += 1
        waiting = self._gated_runs.get(item.run_id)
        tenant = item.gate_tenant if waiting is None else waiting[0]
        if tenant is None:
            self._items.append((self._sequence, item))
        else:
            self._gated.setdefault(tenant, deque()).append((self._sequence, item))
            self._gated_runs.setdefault(item.run_id, []).append(tenant)
        self.wake.set()

    @property
    def is_idle(self) -> bool:
        """Whether a command may be committed at once (law 3)."""
        return not (
            self._last_batch > 1
            or self.busy
            or self._items
            or self._gated
            or self._lone_commands >= LONE_COMMANDS_MAX
        )

    def count_lone_command(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._lone_commands:
            loop.call_soon(self._reset_lone_commands)
        self._lone_commands += 1

    def _reset_lone_commands(self) -> None:
        self._lone_commands = 0

    def take(self) -> list[PendingCommand]:
        queue = self._items
        if len(queue) <= BATCH_COMMANDS_MAX:
            batch = [item for _, item in queue]
            queue.clear()
        else:
            batch = [queue.popleft()[1] for _ in range(BATCH_COMMANDS_MAX)]
        if self._gated:
            # A gated command must not overtake an earlier command on the same run that is still queued.
            before = queue[0][0] if queue else self._sequence + 1
            room = BATCH_COMMANDS_MAX  # a separate limit, so that a long queue does not shut them out
            for tenant in list(self._gated):
                taken = self._take_gated(tenant, before, room)
                batch += taken
                room -= len(taken)
                if room <= 0:
                    break
        self._last_batch = len(batch)
        return batch

    def _take_gated(self, tenant: str, before: int, room: int) -> list[PendingCommand]:
        """A tenant's next gated command, and the commands after it that are not gated."""
        queue = self._gated.pop(tenant)
        taken: list[PendingCommand] = []
        locked = False
        while queue and queue[0][0] < before and len(taken) < room:
            item = queue[0][1]
            if item.caps is None:
                item.caps = self._known_caps(tenant)  # they may be known by now
            if item.gate_tenant is not None:
                if locked:
                    break
                locked = True
            queue.popleft()
            taken.append(item)
            waiting = self._gated_runs[item.run_id]
            waiting.pop()
            if not waiting:
                del self._gated_runs[item.run_id]
        if queue:
            self._gated[tenant] = queue  # at the end: tenants take turns
        return taken
