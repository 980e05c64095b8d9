"""Crashes where a test wants them: before or after a commit that a worker asks for.

Laws:
1. A crash before a commit: what was done is done, and nobody was told. After: it is recorded, and its worker does not
   live to hear it.
2. A commit point is a message or a claim of a worker, or a call on the world; they are counted from 0 in the order in which they are said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tenure.kernel.commands import Complete, RecordCheckpoint
from tenure.sdk.definitions import Registry, Tool, Workflow
from tenure.testing.station import Said, step_name

if TYPE_CHECKING:
    from tenure.testing.lab import Lab

When = Literal["before", "after"]
WHEN: tuple[When, When] = ("before", "after")


class Crash:
    """A crash that is planned: at a step's outcome, or at a commit point by its number."""

    def __init__(self, when: When, *, step: str | None = None, point: int | None = None) -> None:
        self.when = when
        self.step = step
        self.point = point
        self.happened = False

    def fits(self, point: int, message: Said | None) -> bool:
        """Whether this is where it comes."""
        if self.happened:
            return False
        if self.point is not None:
            return point == self.point
        if isinstance(message, Complete):  # the last step's outcome may come with the end of its run
            message = message.last
        # The last outcome of a run may go with its end.
        told = message if isinstance(message, RecordCheckpoint) else getattr(message, "last", None)
        return (
            isinstance(told, RecordCheckpoint)
            and told.state != "started"
            and step_name(told.name) == self.step
        )

    def __str__(self) -> str:
        return f"a crash {self.when} " + (
            f"commit point {self.point}" if self.step is None else f"{self.step!r}"
        )


class Crashes:
    """The crashes of a lab; see the laws above."""

    def __init__(self, kill: Callable[[str], None]) -> None:
        self._kill = kill
        self.planned: list[Crash] = []
        self.doomed: set[str] = set()
        """Workers whose last commit is under way: they say nothing more."""
        self.points: list[str] = []
        """What was committed or asked for, in order."""

    def strikes(self, worker: str, when: Literal["before", "claim"], message: Said | None) -> bool:
        """A worker asks for a commit, or was given leases: whether it dies of it."""
        point = len(self.points)
        if message is None:
            self.points.append(f"{worker}: claim")
        for crash in self.planned:
            # What a claim was given is committed: it can only be lost behind it.
            if crash.fits(point, message) and (crash.when == "before") == (when == "before"):
                self._strike(crash, worker)
                if message is not None:
                    self.points.append(f"{worker}: {_shown(message)}, lost")
                return True
        return False

    def said(self, worker: str, message: Said, answer: asyncio.Future[Any]) -> bool:
        """A message is on its way to its commit, or there already: whether its worker dies before it hears of it."""
        point = len(self.points)
        self.points.append(f"{worker}: {_shown(message)}")
        fatal = [crash for crash in self.planned if crash.when == "after" and crash.fits(point, message)]
        for crash in fatal:
            self.doomed.add(worker)
            answer.add_done_callback(partial(self._committed, crash, worker))
        return bool(fatal)

    def _committed(self, crash: Crash, worker: str, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled():
            answer.exception()  # nobody else looks at it
        self._strike(crash, worker)

    def _strike(self, crash: Crash, worker: str) -> None:
        if not crash.happened:
            crash.happened = True
            self._kill(worker)


def _shown(message: Said) -> str:
    what = getattr(message, "name", "") or getattr(message, "label", "")
    return f"{type(message).__name__} {what}".strip()


async def crash_everywhere(
    story: Callable[[Lab], Awaitable[Any]],
    *definitions: Workflow[..., Any] | Tool | Registry,
    **how: Any,
) -> int:
    """Tell a story once as it is, then once per commit point with the worker killed before that commit, and once with
    it killed after it. How many tellings there were.

    The story gets a lab of its own each time, and has to come out right each time: let it wait with
    `run.reaches(…)` and `run.result()`, which let the time pass that a new worker needs.
    """
    from tenure.testing.lab import Lab

    async with Lab(*definitions, **how) as lab:
        await story(lab)
        points = list(lab.crashes.points)
    told = 1
    for number, name in enumerate(points):
        for when in WHEN:
            crash = Crash(when, point=number)
            async with Lab(*definitions, **how) as lab:
                lab.crashes.planned.append(crash)
                try:
                    await story(lab)
                except BaseException as fault:
                    fault.add_note(f"with a crash {when} commit point {number} ({name})")
                    raise
            told += 1
    return told
