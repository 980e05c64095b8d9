"""Whether the feed tells what happened, and nothing else: the doctor's look at it (I39).

Laws:
1. Every event that has changed a run's status since the feed begins is in it, and every line of it is of an event that is
   there. Events from before its first row are not asked for: it is trimmed, and opened when somebody wants it.
2. The runs are looked at first and the feed afterwards, so that what is committed meanwhile is no finding.
3. What it remembers is bounded: beyond that, newer events are not asked for.
"""

from __future__ import annotations

from typing import Any, Protocol

from tenure.clock import us
from tenure.doctor import Bundle
from tenure.kernel.feed import decoded
from tenure.kernel.history import decode_body

PAGE_ROWS = 500
EVENTS_MAX = 200_000
TRIMMED_SECONDS = 60.0
"""It begins at a position and events are dated by time: around its first row the two may differ by this."""


class Reader(Protocol):
    """The part of a store that is needed here."""

    async def read(self, name: str, *scalars: Any) -> list[Any]:
        """Ask one named query."""
        ...


class FeedCheck:
    """See the laws above."""

    def __init__(self, since_us: int | None) -> None:
        self._since_us = since_us
        self._expected: dict[tuple[int, int], int] = {}
        """When each of them was."""
        self._versions: dict[int, int] = {}

    @classmethod
    async def begin(cls, store: Reader) -> FeedCheck:
        """Look where the feed begins."""
        return cls(await _since(store))

    def see(self, bundle: Bundle) -> None:
        """Remember what the feed must tell of a run."""
        since = self._since_us
        if since is None or bundle.run.event_at <= since or len(self._expected) >= EVENTS_MAX:
            return
        self._versions[bundle.run.id] = bundle.run.version
        for event in bundle.events:
            if event.at > since and any("run" in edge for edge in decode_body(event).get("edges", ())):
                self._expected[event.run_id, event.seq] = event.at

    async def finish(self, store: Reader) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(run, sequence) of events that are not told, and of lines that tell of no event."""
        left, beyond = self._expected, set()
        pos, since = 0, await _since(store) or 0  # it may have been trimmed meanwhile
        while rows := await store.read("feed_rows_after", pos, PAGE_ROWS):
            pos = rows[-1].pos
            for row in rows:
                for told in decoded(row.body):
                    left.pop((told.run_id, told.seq), None)
                    if told.seq > self._versions.get(told.run_id, told.seq):
                        beyond.add((told.run_id, told.seq))
        unfounded = []
        for run_id, seq in sorted(beyond):  # it has gone on since it was looked at, or it has not
            found = await store.read("get_run", run_id)
            if found and found[0].version < seq:
                unfounded.append((run_id, seq))
        return sorted(key for key, at in left.items() if at > since), unfounded


async def _since(store: Reader) -> int | None:
    """The moment after which everything is told; None: there is nothing."""
    first = await store.read("feed_rows_after", 0, 1)
    return first[0].at + us(TRIMMED_SECONDS) if first else None
