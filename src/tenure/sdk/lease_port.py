"""What the execution of a workflow needs from the worker that holds its lease, local or remote.

Law: an execution reaches the store, the clock, threads and other runs only through this port. Its messages are carried out in the
order in which they are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tenure.kernel.commands import ApprovalSpec, RecordCheckpoint, StartChild, WaitSpec
from tenure.kernel.costs import Cost
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.sdk.definitions import StepFunction
from tenure.sdk.frame import AttemptPort
from tenure.store.replay import ReplayWait

if TYPE_CHECKING:
    from tenure.sdk.execution import WorkflowExecution


class Timers(Protocol):
    """Sleeps and timeouts, by the host's clock or by one that a test moves."""

    quiet_seconds: float
    """How long code may await something the SDK cannot see before its run suspends; always in real time."""

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """Raises TimeoutError after `seconds`; None is no limit."""


class LeasePort(AttemptPort, Protocol):
    lease: Lease
    timers: Timers
    draining: bool
    """Whether the worker is stopping: running steps may finish, and nothing new begins."""
    execution: WorkflowExecution | None

    def check_begin(self) -> None:
        """Called from any thread just before a step's function. Raises NotBegun if the worker is stopping, and LeaseLost if the lease may
        have expired."""

    def next_address(self) -> dict[str, Any]:
        """The first fields of the next message: run, step, attempt, a new sequence number, tenant and context."""

    last_checkpoint: RecordCheckpoint | None
    """The last record, if it was not sent before the code ended."""

    def record(self, checkpoint: RecordCheckpoint) -> asyncio.Future[LeaseReply]:
        """Send a checkpoint; the reply comes when it is durable."""

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
    ) -> asyncio.Future[LeaseReply]:
        """Open a wait, or find it open; the reply comes when it is durable."""

    async def suspend(self, waits: tuple[int, ...]) -> LeaseReply:
        """Give up the lease until one of these waits settles."""

    async def load_waits(self, first: int, last: int) -> list[ReplayWait]:
        """The waits of this step with numbers from `first` to `last`, and how they were settled."""

    async def act(self, request: ActRequest) -> ActResult:
        """Have a governor act. A caller that is canceled meanwhile still waits for the end of the act."""

    def now_us(self) -> int:
        """The store's time, as far as it is known here."""

    def heartbeat_now(self) -> None:
        """Send a heartbeat now: its reply has news such as a cancellation."""

    def new_run_id(self) -> int: ...

    async def run_in_thread(self, function: Callable[[], Any]) -> Any:
        """Run plain code of a step where it does not block the event loop."""

    async def run_in_process(
        self, step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a step's function in its own process, which is killed if the caller is canceled."""

    costs: list[Cost]
    """Costs that no message has reported yet."""

    def take_costs(self) -> tuple[Cost, ...]:
        """The costs that the next message reports."""

    def abandon(self, work: asyncio.Future[Any]) -> None:
        """Stop waiting for work that does not stop. It keeps its slot until it ends, and its result is dropped."""

    async def store_artifact(self, body: bytes) -> bytes:
        """Store a payload that is too large for the database as an artifact, and return the reference to record."""

    async def load_artifact(self, reference: bytes) -> bytes: ...
