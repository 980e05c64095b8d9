"""Checks that the feed has exactly what happened (I39).

Laws:
1. Every event that has changed a run's status since the feed begins is in it, and every line of it belongs to an existing
   event. Events from before its first row do not count: the feed is trimmed, and opened late.
2. The runs are read first and the feed afterwards, so that a commit in between is not reported.
3. At most EVENTS_MAX events are remembered; newer ones are not checked.
"""

from __future__ import annotations

from tenure.clock import us
from tenure.doctor import RunDump
from tenure.kernel.feed import decode_feed_lines
from tenure.kernel.history import decode_body
from tenure.store.port import QueryReader

PAGE_ROWS = 500
EVENTS_MAX = 200_000
TRIMMED_SECONDS = 60.0
"""The feed begins at a position, events have a time: around its first row the two may differ by this."""


class FeedCheck:
    """A check of the feed; see the laws above."""

    def __init__(self, since_us: int | None) -> None:
        self._since_us = since_us
        self._expected: dict[tuple[int, int], int] = {}
        """(run, sequence) -> when."""
        self._versions: dict[int, int] = {}

    @classmethod
    async def begin(cls, store: QueryReader) -> FeedCheck:
        """Read where the feed begins."""
        return cls(await _since(store))

    def see(self, bundle: RunDump) -> None:
        """Remember what the feed must have of a run."""
        since = self._since_us
        if since is None or bundle.run.event_at <= since or len(self._expected) >= EVENTS_MAX:
            return
        self._versions[bundle.run.id] = bundle.run.version
        for event in bundle.events:
            if event.at > since and any("run" in edge for edge in decode_body(event).get("edges", ())):
                self._expected[event.run_id, event.seq] = event.at

    async def finish(self, store: QueryReader) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(run, sequence) of events that are not in the feed, and of lines without an event."""
        left, beyond = self._expected, set()
        pos, since = 0, await _since(store) or 0  # it may have been trimmed meanwhile
        while rows := await store.read("feed_rows_after", pos, PAGE_ROWS):
            pos = rows[-1].pos
            for row in rows:
                for told in decode_feed_lines(row.body):
                    left.pop((told.run_id, told.seq), None)
                    if told.seq > self._versions.get(told.run_id, told.seq):
                        beyond.add((told.run_id, told.seq))
        unfounded = []
        for run_id, seq in sorted(beyond):  # the run may have gone on since it was read
            found = await store.read("get_run", run_id)
            if found and found[0].version < seq:
                unfounded.append((run_id, seq))
        return sorted(key for key, at in left.items() if at > since), unfounded


async def _since(store: QueryReader) -> int | None:
    """The time after which the feed is complete; None: the feed is empty."""
    first = await store.read("feed_rows_after", 0, 1)
    return first[0].at + us(TRIMMED_SECONDS) if first else None
