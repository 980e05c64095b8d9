"""The line between a workflow's body and whoever holds its lease: a worker beside the database, or a remote one.

Law: the body says what happened in the order in which it happened, and is told what was committed. What it does not
say it does not know: clocks, threads and other runs are behind this line too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tenure.kernel.commands import ApprovalSpec, RecordCheckpoint, StartChild, WaitSpec
from tenure.kernel.costs import Cost
from tenure.kernel.decide.leases import Lease, Reply
from tenure.sdk.acting import Ask, Told
from tenure.sdk.definitions import Step
from tenure.store.port import Waited

if TYPE_CHECKING:
    from tenure.sdk.body import Body


class Line(Protocol):
    """See the law above."""

    lease: Lease
    stop: threading.Event
    """Set when the work should stop, for code in threads."""
    progress: str
    draining: bool
    """Whether the worker ends: what is at work may end, and nothing new begins."""
    body: Body | None
    """The workflow that runs over this line now."""

    def check_begin(self) -> None:
        """Called just before code of a step is: NotBegun where the worker ends, LeaseLost where the lease may have ended
        meanwhile. From whichever thread."""
        ...

    def head(self) -> dict[str, Any]:
        """The address of the next message: run, step, fence, a fresh sequence number, who speaks."""
        ...

    last: RecordCheckpoint | None
    """What the body recorded in the same breath as it ended."""

    def record(self, checkpoint: RecordCheckpoint) -> asyncio.Future[Reply]:
        """Record a checkpoint; the answer is there when it is durable."""
        ...

    def open_wait(
        self,
        label: str,
        *,
        approval: ApprovalSpec | None = None,
        proposal: ApprovalSpec | None = None,
        question: bytes | None = None,
        event: WaitSpec | None = None,
        until: int | None = None,
        child: StartChild | None = None,
    ) -> asyncio.Future[Reply]:
        """Open a wait, or find it opened; the answer is there when it is durable."""
        ...

    async def suspend(self, waits: tuple[int, ...]) -> Reply:
        """Let go of the lease until one of these settles."""
        ...

    async def waited(self, first: int, last: int) -> list[Waited]:
        """The waits of this step from one number to another, with their answers."""
        ...

    async def act(self, ask: Ask) -> Told:
        """Have a governor do something to the world. Whoever is canceled meanwhile is held until what was begun has ended."""
        ...

    def now_us(self) -> int:
        """The store's time, as well as it is known here."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """TimeoutError for what takes longer; None is no limit."""
        ...

    @property
    def quiet_seconds(self) -> float:
        """How long a strand may do something we cannot see."""
        ...

    def hurry(self) -> None:
        """There is news of this run, such as its cancellation: have it told at once."""
        ...

    def new_run_id(self) -> int:
        """An id for a child."""
        ...

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run plain code of a step where it blocks nobody."""
        ...

    async def in_process(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a step's function in a process of its own; cancelling this kills it."""
        ...

    def spend(self, cost: Cost) -> None:
        """Tell of a cost with the next message."""
        ...

    costs: list[Cost]
    """What was spent and not told of yet."""

    def told(self) -> tuple[Cost, ...]:
        """What the next message has to tell of costs; it is told of with that."""
        ...

    def log(self, step: str, level: str, text: str, fields: dict[str, Any]) -> None:
        """Keep a line beside the run's history."""
        ...

    def abandon(self, work: asyncio.Future[Any]) -> None:
        """Work that does not let itself be stopped: its slot is taken until it ends, its result is dropped."""
        ...

    async def put_aside(self, body: bytes) -> bytes:
        """Put a payload that is too large for the database among the artifacts; what to store instead."""
        ...

    async def fetch(self, body: bytes | None) -> bytes | None:
        """A stored payload as it was."""
        ...
