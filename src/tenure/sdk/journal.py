"""What an execution has recorded, what it records now, and its end.

Laws:
1. Records become durable in the order in which they are made. After `barrier` all of them are.
2. An execution that has ended (suspended, mismatched, lease lost) records nothing more, whatever its code catches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from tenure.errors import TenureError
from tenure.kernel.commands import RecordCheckpoint
from tenure.kernel.lease_types import LeaseReply
from tenure.limits import WORKFLOW_STEPS_WARNED_SHARE
from tenure.sdk.exits import ExecutionExit, Interrupted, LeaseLost, ReplayMismatch, StartRefused
from tenure.sdk.lease_port import LeasePort
from tenure.sdk.outcomes import LEASE_OVER_CODES
from tenure.sdk.replay_log import ReplayLog
from tenure.sdk.replay_order import ReplayOrder
from tenure.store.replay import ReplayWait

CANCELING = "RUN_CANCELING"


class ExecutionJournal:
    def __init__(self, lease_port: LeasePort, replay_log: ReplayLog, steps_max: int) -> None:
        self.lease_port = lease_port
        self.replay_log = replay_log
        self.loop = asyncio.get_running_loop()
        self.replay_order = ReplayOrder(self.loop)
        self.exit: ExecutionExit | None = None
        self.closed = False
        """Whether the workflow's code has ended."""
        self.main_task: asyncio.Task[Any] | None = None
        self.pending: list[asyncio.Future[LeaseReply]] = []
        """Replies to messages that no branch waits for yet."""
        self.unsent: RecordCheckpoint | None = None
        """The last record. It is sent in the loop's next turn, or with the end of the run if that comes first."""
        self.collecting = False
        """Whether a branch waits for the replies in `_awaited`."""
        self._awaited: list[asyncio.Future[LeaseReply]] = []
        self.openings: set[asyncio.Future[LeaseReply]] = set()
        """Openings of waits that the code did not wait for, until they are durable."""
        self.waiters: dict[int, list[asyncio.Future[ReplayWait]]] = {}
        """Branches that wait, by the number of the wait."""
        self.unawaited: dict[str, Coroutine[Any, Any, Any]] = {}
        """Durable calls by key that were made and have not begun: the code may have forgotten to await them."""
        self.steps_begun = 0
        """How many steps this execution has begun that were not recorded before."""
        self._steps_max = steps_max

    def end(self, reason: ExecutionExit) -> None:
        """End the execution, unless it has ended. Its code cannot prevent that."""
        if self.exit is not None:
            return
        self.exit = reason
        main = self.main_task
        if main is not None and not main.done() and main is not asyncio.current_task():
            main.cancel()
        for waiter in [each for waiters in self.waiters.values() for each in waiters]:
            if not waiter.done():
                waiter.cancel()

    def leave(self, reason: ExecutionExit) -> NoReturn:
        """End the execution and raise its exit: `reason`, unless it has ended before."""
        self.end(reason)
        raise self.exit or reason

    def check(self) -> None:
        if self.exit is not None:
            raise self.exit

    def is_active(self) -> bool:
        """Whether the code may still record something: neither the code nor the lease has ended."""
        return self.exit is None and not self.closed and not self.lease_port.stop.is_set()

    def record(self, key: str, **fields: Any) -> None:
        self.flush()
        if self.lease_port.costs:
            fields["spent"] = self.lease_port.take_costs()
        self.unsent = RecordCheckpoint(**self.lease_port.next_address(), name=key, **fields)
        self.loop.call_soon(self.flush)

    def flush(self) -> None:
        unsent = self.unsent
        if unsent is not None:
            self.unsent = None
            self.pending.append(self.lease_port.record(unsent))

    async def barrier(self) -> None:
        """Wait until everything recorded is durable."""
        self.flush()
        if (
            self.collecting
        ):  # another branch takes the replies: wait for the last of those that are due so far
            last = (self.pending or self._awaited)[-1]
            if not last.done():
                await asyncio.wait((last,))
            self.check()
            if not last.cancelled() and isinstance(refused := last.exception(), TenureError):
                raise self.refuse(refused, last)
            return
        self.collecting = True
        try:
            while self.pending:
                self._awaited, self.pending = self.pending, []
                for place, recorded in enumerate(self._awaited):
                    try:
                        # Shielded: other branches may wait for the same reply when this one is canceled.
                        reply = recorded.result() if recorded.done() else await asyncio.shield(recorded)
                    except TenureError as refused:
                        raise self.refuse(refused, recorded) from refused
                    except asyncio.CancelledError:
                        self.pending[:0] = self._awaited[place:]
                        raise
                    if reply.cancel:
                        self.lease_port.heartbeat_now()
                    if reply.state == "refused":  # the run exceeded its budget and has ended
                        self.leave(LeaseLost(reply.outcome or "refused"))
        finally:
            self.collecting = False

    def refuse(
        self, refused: TenureError, message: asyncio.Future[LeaseReply] | None = None
    ) -> BaseException:
        """The exception to raise for a refused message. The execution ends, unless only the message's content was refused."""
        if refused.code in LEASE_OVER_CODES:
            self.end(LeaseLost(refused.code))
        elif refused.retryable:
            self.end(Interrupted(refused.code))
        elif message in self.openings and refused.code != CANCELING:
            self.end(StartRefused(refused))
        return self.exit or refused

    def begin_step(self, key: str) -> None:
        """Check that a call that was never recorded comes after all that were, and within the workflow's `steps_max`."""
        if self.replay_log:
            self.check_replay(self.replay_log.check_new, key)
        self.steps_begun += 1
        steps = len(self.replay_log.checkpoints) + self.steps_begun
        if steps > self._steps_max:
            self.fail_replay(
                f"{key!r} would be recorded step {steps} of at most {self._steps_max}: raise `steps_max` of the workflow, or"
                " let its code end with `tenure.restart(...)`"
            )
        if steps == int(self._steps_max * WORKFLOW_STEPS_WARNED_SHARE):
            text = f"{steps} of at most {self._steps_max} steps are recorded: use `tenure.restart(...)` or raise `steps_max`"
            self.lease_port.log(key, "warning", text, {})

    def check_replay(self, check: Callable[[str], None], key: str) -> None:
        try:
            check(key)
        except ReplayMismatch as mismatch:
            self.leave(mismatch)

    def fail_replay(self, why: str) -> NoReturn:
        self.leave(ReplayMismatch(why))
