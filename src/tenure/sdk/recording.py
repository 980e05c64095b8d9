"""What a body makes durable, and its end.

Laws:
1. What is recorded is durable at the next barrier, in the order in which it was recorded.
2. A body that has been told to end (suspended, misfit, lease lost) does nothing durable any more, whatever it catches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.commands import RecordCheckpoint
from tenure.kernel.decide.leases import Reply
from tenure.limits import WORKFLOW_STEPS_WARNED_SHARE
from tenure.sdk import codec
from tenure.sdk.faults import Interrupted, LeaseLost, Misfit, Signal
from tenure.sdk.line import Line
from tenure.sdk.outcomes import LOST
from tenure.sdk.past import Past
from tenure.sdk.turns import Turns

T = TypeVar("T")

ARTIFACT_PAUSES_SECONDS = (0.5, 2.0, 8.0, 30.0)
"""How often a place for artifacts is asked again that cannot be reached: a run does not fail of a short outage."""


class Recording:
    """See the laws above."""

    def __init__(self, line: Line, past: Past, steps_max: int) -> None:
        self.line = line
        self.past = past
        self.run_id = ids.run_text(line.lease.run_id)
        self._loop = asyncio.get_running_loop()
        self._pending: list[asyncio.Future[Reply]] = []
        self._awaited: list[asyncio.Future[Reply]] = []
        """Taken from there by a strand that waits for their answers."""
        self._collects = False
        """Whether there is such a strand now."""
        self._unsent: RecordCheckpoint | None = None
        """Recorded a moment ago: it goes out at once, or with the end of the body if that comes in the same breath."""
        self.unbegun: dict[str, Coroutine[Any, Any, Any]] = {}
        """Durable calls that were made and have not begun, by key: nobody may have awaited them."""
        self.turns = Turns(self._loop)
        self._steps_max = steps_max
        self._steps_begun = 0
        """Steps that were begun here for the first time."""
        self._over: Signal | None = None
        self._main: asyncio.Task[Any] | None = None

    def end(self, signal: Signal) -> None:
        """The body is over, whatever its code does; see law 2."""
        if self._over is None:
            self._over = signal
            main = self._main
            if main is not None and not main.done() and main is not asyncio.current_task():
                main.cancel()

    def check(self) -> None:
        """Raise when the body is over."""
        if self._over is not None:
            raise self._over

    def record(self, key: str, **fields: Any) -> None:
        """Record a checkpoint; durable at the next barrier."""
        self.flush()
        if self.line.costs:
            fields["spent"] = self.line.told()
        self._unsent = RecordCheckpoint(**self.line.head(), name=key, **fields)
        self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was recorded last, if it has not gone out."""
        unsent = self._unsent
        if unsent is not None:
            self._unsent = None
            self._pending.append(self.line.record(unsent))

    def last(self) -> RecordCheckpoint | None:
        """At the end of the body: what was recorded last and has not gone out, to go with the end itself."""
        unsent, self._unsent = self._unsent, None
        return unsent

    async def barrier(self) -> None:
        """Wait until everything recorded is durable."""
        self.flush()
        if self._collects:  # another strand takes the answers; this one waits for what was recorded by now
            last = (self._pending or self._awaited)[-1]
            if not last.done():
                await asyncio.wait((last,))
            self.check()
            if not last.cancelled() and isinstance(refused := last.exception(), TenureError):
                raise self._refuse(last, refused)
            return
        self._collects = True
        try:
            while self._pending:
                self._awaited, self._pending = self._pending, []
                for place, recorded in enumerate(self._awaited):
                    try:
                        # Shielded: whoever gives up here does not give up for others that wait for the same answer.
                        reply = recorded.result() if recorded.done() else await asyncio.shield(recorded)
                    except TenureError as refused:
                        raise self._refuse(recorded, refused) from refused
                    except asyncio.CancelledError:
                        self._pending[:0] = self._awaited[place:]
                        raise
                    if reply.cancel:
                        self.line.hurry()
                    if reply.state == "refused":  # the run has spent more than it may, and has ended
                        self.end(LeaseLost(reply.outcome or "refused"))
                        self.check()
        finally:
            self._collects = False

    def _refuse(self, recorded: asyncio.Future[Reply], refused: TenureError) -> BaseException:
        """What the refusal of something recorded comes to."""
        del recorded
        return self._trouble(refused)

    def _trouble(self, refused: TenureError) -> BaseException:
        """What a refusal of something durable means: the body is over, unless it is about the content alone."""
        if refused.code in LOST:
            self.end(LeaseLost(refused.code))
        elif refused.retryable:
            self.end(Interrupted(refused.code))
        return self._over or refused

    async def aside(self, body: bytes | None) -> bytes | None:
        """A payload as it is stored: a large one goes to the artifacts."""
        if body is not None and (len(body) > codec.INLINE_BYTES_MAX or body.startswith(codec.RESERVED)):
            return await self._patiently(partial(self.line.put_aside, body))
        return body

    async def fetched(self, body: bytes | None) -> bytes | None:
        """A stored payload as it was."""
        if body is not None and body.startswith(codec.RESERVED):
            try:
                return await self._patiently(partial(self.line.fetch, body))
            except TenureError as refused:
                if not refused.retryable:
                    raise
                # What was recorded stands, whether it can be read now or not: the run is given back.
                self.end(Interrupted(refused.code))
                raise self._over or refused from refused
        return body

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Ask a place for artifacts that may be away for a moment."""
        for pause in ARTIFACT_PAUSES_SECONDS:
            try:
                return await self._at_work(work())
            except TenureError as refused:
                if not refused.retryable:
                    raise
            await self._let_pass(pause)
        return await self._at_work(work())

    async def _at_work(self, work: Awaitable[T]) -> T:
        """Something of ours that a strand waits for."""
        return await work

    async def _let_pass(self, seconds: float) -> None:
        await self.line.sleep(seconds)

    async def recall(self, key: str, make: Callable[[], Any]) -> Any:
        """A value that is made once and is the same in every replay."""
        self.unbegun.pop(key, None)
        self.check()
        known = self.past.checkpoints.get(key)
        if known is not None:
            await self.turns.take((known.at, known.no))
            return msgspec.json.decode(await self.fetched(known.output) or b"null")
        self.begin_step(key)
        value = make()
        body = codec.encode(value, key) or b"null"
        self.record(key, output=body)
        return msgspec.json.decode(body)

    def _fit(self, check: Callable[[str], None], key: str) -> None:
        try:
            check(key)
        except Misfit as misfit:
            self.end(misfit)
            raise

    def begin_step(self, key: str) -> None:
        """Something begins that was never recorded: after everything that was, and within the workflow's `steps_max`."""
        if self.past:
            self._fit(self.past.check_new, key)
        self._steps_begun += 1
        steps = len(self.past.checkpoints) + self._steps_begun
        if steps > self._steps_max:
            self.misfit(
                f"{key!r} would be recorded step {steps} of at most {self._steps_max}: raise `steps_max` of the workflow, or"
                " let its code end with `tenure.restart(...)`"
            )
        if steps == int(self._steps_max * WORKFLOW_STEPS_WARNED_SHARE):
            text = f"{steps} of at most {self._steps_max} steps are recorded: use `tenure.restart(...)` or raise `steps_max`"
            self.line.log(key, "warning", text, {})

    def misfit(self, why: str) -> None:
        """The code does not fit what was recorded."""
        misfit = Misfit(why)
        self.end(misfit)
        raise misfit
