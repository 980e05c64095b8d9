"""Planned crashes of a lab's workers, before or after a commit.

Laws:
1. With a crash before a commit, the work is done and nothing is recorded. With a crash after it, it is recorded, and the worker never gets
   the reply.
2. A commit point is a message or a claim of a worker, or a call of a connector. They are counted from 0 in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from tenure.kernel.commands import Complete, RecordCheckpoint
from tenure.testing.work_source import CrashPoint, step_name

When = Literal["before", "after"]


class PlannedCrash:
    """A crash at a step's outcome, or at a commit point by its number."""

    def __init__(self, when: When, *, step: str | None = None, point: int | None = None) -> None:
        self.when = when
        self.step = step
        self.point = point
        self.happened = False

    def matches(self, point: int, message: CrashPoint | None) -> bool:
        if self.happened:
            return False
        if self.point is not None:
            return point == self.point
        if isinstance(message, Complete):  # it may carry the outcome of the run's last step
            message = message.last
        return (
            isinstance(message, RecordCheckpoint)
            and message.state != "started"
            and step_name(message.name) == self.step
        )

    def __str__(self) -> str:
        return f"a crash {self.when} " + (
            f"commit point {self.point}" if self.step is None else f"{self.step!r}"
        )


class CrashPlan:
    def __init__(self, kill: Callable[[str], None]) -> None:
        self._kill = kill
        self.planned: list[PlannedCrash] = []
        self.doomed: set[str] = set()
        """Workers that die when their current commit is done: they send nothing more."""
        self.points: list[str] = []

    def strikes(self, worker: str, when: Literal["before", "claim"], message: CrashPoint | None) -> bool:
        """Whether a worker dies before a commit, or after a claim."""
        point = len(self.points)
        if message is None:
            self.points.append(f"{worker}: claim")
        for crash in self.planned:
            # A claim is committed when its leases arrive: a crash can only come after it.
            if crash.matches(point, message) and (crash.when == "before") == (when == "before"):
                self._strike(crash, worker)
                if message is not None:
                    self.points.append(f"{worker}: {_describe(message)}, lost")
                return True
        return False

    def sent(self, worker: str, message: CrashPoint, reply: asyncio.Future[Any]) -> bool:
        """Whether the worker dies after the commit of this message, before its reply arrives."""
        point = len(self.points)
        self.points.append(f"{worker}: {_describe(message)}")
        fatal = [crash for crash in self.planned if crash.when == "after" and crash.matches(point, message)]
        for crash in fatal:
            self.doomed.add(worker)
            reply.add_done_callback(partial(self._committed, crash, worker))
        return bool(fatal)

    def _committed(self, crash: PlannedCrash, worker: str, reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled():
            reply.exception()  # its sender is dead and cannot retrieve it
        self._strike(crash, worker)

    def _strike(self, crash: PlannedCrash, worker: str) -> None:
        if not crash.happened:
            crash.happened = True
            self._kill(worker)


def _describe(message: CrashPoint) -> str:
    what = getattr(message, "name", "") or getattr(message, "label", "")
    return f"{type(message).__name__} {what}".strip()
