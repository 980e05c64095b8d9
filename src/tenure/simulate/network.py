"""The network between the processes and everything outside of them. It loses, delays, repeats and reorders messages."""

from __future__ import annotations

import asyncio
import contextvars
from random import Random
from typing import TYPE_CHECKING, Any

from tenure.errors import TenureError
from tenure.futures import fail_future

if TYPE_CHECKING:
    from tenure.simulate.world import World

ANSWER_SECONDS_MAX = 8.0
TRIES_MAX = 12
RETRYABLE_CODES = frozenset({"STORE_UNAVAILABLE", "STORE_BUSY", "COMMAND_DEADLINE", "QUEUE_FULL"})
"""Errors after which the same request may be sent again."""


class NoAnswer(Exception):
    """No answer came, so it is not known whether the request was carried out."""


class Network:
    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng

    async def call(self, verb: str, asked: Any) -> Any:
        """Send a request to any process; `NoAnswer` if no answer comes in time."""
        world, rng, faults = self._world, self._rng, self._world.faults
        process = world.any_process()
        if process is None:
            await asyncio.sleep(rng.random())
            raise NoAnswer
        answer: asyncio.Future[Any] = world.loop.create_future()
        back = contextvars.copy_context()
        if rng.random() >= faults.lose:
            process.receive(self._delay(), verb, asked, answer, back)
        if verb != "claim" and rng.random() < faults.duplicate:
            other = world.any_process() or process
            other.receive(self._delay() * rng.choice((1, 1, 10)), verb, asked, answer, back)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await answer
        except TimeoutError:
            raise NoAnswer from None

    def _delay(self) -> float:
        rng = self._rng
        if rng.random() < self._world.faults.delay:
            return rng.choice((1.0, 10.0, 100.0)) * rng.random()
        return 0.02 * rng.random()

    def send_back(
        self, answer: asyncio.Future[Any], back: contextvars.Context, result: Any, error: TenureError | None
    ) -> None:
        """Send an answer, which may get lost."""
        if self._rng.random() >= self._world.faults.lose:
            self._world.loop.call_later(self._delay(), _settle, answer, result, error, context=back)

    async def call_until_answered(self, verb: str, asked: Any) -> Any:
        """Send the same request until there is an answer; `NoAnswer` after TRIES_MAX tries."""
        for n in range(TRIES_MAX):
            try:
                return await self.call(verb, asked)
            except NoAnswer:
                pass
            except TenureError as refused:
                if refused.code not in RETRYABLE_CODES:
                    raise
            await asyncio.sleep(min(0.2 * 2**n, 5.0) * self._rng.random())
        raise NoAnswer


def _settle(answer: asyncio.Future[Any], result: Any, error: TenureError | None) -> None:
    if answer.done():
        return  # the request was repeated, and its first answer has arrived
    if error is None:
        answer.set_result(result)
    else:
        fail_future(answer, error)
