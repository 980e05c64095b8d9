"""A lane: commands in the order they came, until a batch takes them.

Laws:
1. Commands on one run leave in the order they came.
2. A batch has at most one command per tenant that looks beyond its run (it needs the tenant's lock, and the next
   of that tenant has to see what it did). The others of that tenant wait beside the queue: nobody else waits
   for them, and nobody looks at them again until it is their turn.
3. A command is alone when the last batch was one command, nothing waits, and not too many have been alone since the
   loop has turned: so batches grow as soon as there are others, and a run that never waits does not keep the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tenure.kernel.model import Cap
from tenure.limits import BATCH_COMMANDS_MAX
from tenure.orchestrator.batch import Item

ALONE_COMMANDS_MAX = 8
"""Each holds the loop up for a commit of a disk that is quick."""


class Lane:
    """See the laws above."""

    __slots__ = (
        "_alone",
        "_beside",
        "_counted",
        "_crowd",
        "_gated",
        "_items",
        "_known_caps",
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
        self._items: deque[tuple[int, Item]] = deque()
        self._gated: dict[str, deque[tuple[int, Item]]] = {}
        """Tenant -> its commands that look beyond their run, each followed by what came for the same run since."""
        self._beside: dict[int, list[str]] = {}
        """Run -> the tenant's queue that its commands wait in, once for each of them."""
        self._counted = 0
        self.busy = False
        """Whether a batch of it is being committed."""
        self._crowd = 1
        """How many commands the last batch had."""
        self._alone = 0
        """How many commands have been alone since the loop has turned."""

    def __bool__(self) -> bool:
        return bool(self._items or self._gated)

    def put(self, item: Item) -> None:
        """Add a command."""
        self._counted += 1
        waiting = self._beside.get(item.run_id)
        tenant = item.gate_tenant if waiting is None else waiting[0]
        if tenant is None:
            self._items.append((self._counted, item))
        else:
            self._gated.setdefault(tenant, deque()).append((self._counted, item))
            self._beside.setdefault(item.run_id, []).append(tenant)
        self.wake.set()

    @property
    def alone(self) -> bool:
        """Whether a command would be alone (law 3)."""
        return not (
            self._crowd > 1 or self.busy or self._items or self._gated or self._alone >= ALONE_COMMANDS_MAX
        )

    def go_alone(self, loop: asyncio.AbstractEventLoop) -> None:
        """A command goes alone."""
        if not self._alone:
            loop.call_soon(self._turned)
        self._alone += 1

    def _turned(self) -> None:
        self._alone = 0

    def take(self) -> list[Item]:
        """The next batch."""
        batch = self._take()
        self._crowd = len(batch)
        return batch

    def _take(self) -> list[Item]:
        queue = self._items
        if len(queue) <= BATCH_COMMANDS_MAX:
            batch = [item for _, item in queue]
            queue.clear()
        else:
            batch = [queue.popleft()[1] for _ in range(BATCH_COMMANDS_MAX)]
        if self._gated:
            # What is left may be for the same runs: nothing that came after it may overtake it.
            before = queue[0][0] if queue else self._counted + 1
            room = BATCH_COMMANDS_MAX  # of their own, else a long queue would shut them out
            for tenant in list(self._gated):
                taken = self._take_gated(tenant, before, room)
                batch += taken
                room -= len(taken)
                if room <= 0:
                    break
        return batch

    def _take_gated(self, tenant: str, before: int, room: int) -> list[Item]:
        """A tenant's next command that looks beyond its run, and what follows it and does not."""
        queue = self._gated.pop(tenant)
        taken: list[Item] = []
        locked = False
        while queue and queue[0][0] < before and len(taken) < room:
            item = queue[0][1]
            if item.caps is None:
                item.caps = self._known_caps(tenant)  # they may have been read since
            if item.gate_tenant is not None:
                if locked:
                    break
                locked = True
            queue.popleft()
            taken.append(item)
            waiting = self._beside[item.run_id]
            waiting.pop()
            if not waiting:
                del self._beside[item.run_id]
        if queue:
            self._gated[tenant] = queue  # behind the others: every tenant has its turn
        return taken
