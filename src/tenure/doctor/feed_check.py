"""Checks that the feed matches the events of runs (I39).

Laws:
1. Every event that changed a run's status is in the feed, and every feed line belongs to an existing event. Events from before the feed's
   first row are not checked, because the feed is trimmed and may have been turned on late.
2. The runs are read first and the feed afterwards, so that a commit in between is not reported.
3. At most EVENTS_MAX events are remembered. Events beyond that are not checked.
"""

from __future__ import annotations

from tenure.clock import us
from tenure.doctor import RunDump
from tenure.kernel.feed import decode_feed_rows
from tenure.kernel.history import decode_body
from tenure.store.port import QueryReader

PAGE_ROWS = 500
EVENTS_MAX = 200_000
TRIMMED_SECONDS = 60.0
"""The feed begins at a position, but events have times. Around the feed's first row the two may differ by this."""


class FeedCheck:
    def __init__(self, since_us: int | None) -> None:
        self._since_us = since_us
        self._expected: dict[tuple[int, int], int] = {}
        """(run, sequence) -> time of the event."""
        self._versions: dict[int, int] = {}

    @classmethod
    async def begin(cls, store: QueryReader) -> FeedCheck:
        """Read where the feed begins."""
        return cls(await _since(store))

    def see(self, bundle: RunDump) -> None:
        """Remember which events of a run the feed must have."""
        since = self._since_us
        if since is None or bundle.run.event_at <= since or len(self._expected) >= EVENTS_MAX:
            return
        self._versions[bundle.run.id] = bundle.run.version
        for event in bundle.events:
            if event.at > since and any("run" in edge for edge in decode_body(event).get("edges", ())):
                self._expected[event.run_id, event.seq] = event.at

    async def finish(self, store: QueryReader) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(run, sequence) of events that are not in the feed, and of feed lines without an event."""
        left, beyond = self._expected, set()
        pos, since = 0, await _since(store) or 0  # the feed may have been trimmed meanwhile
        while rows := await store.read("feed_rows_after", pos, PAGE_ROWS):
            pos = rows[-1].pos
            for line in decode_feed_rows(rows):
                left.pop((line.run_id, line.seq), None)
                if line.seq > self._versions.get(line.run_id, line.seq):
                    beyond.add((line.run_id, line.seq))
        feed_without_event = [
            (run_id, seq)
            for run_id, seq in sorted(beyond)
            for run in await store.read("get_run", run_id)  # it may have new events since it was read
            if run.version < seq
        ]
        return sorted(key for key, at in left.items() if at > since), feed_without_event


async def _since(store: QueryReader) -> int | None:
    """The time after which the feed is complete; None if the feed is empty."""
    first = await store.read("feed_rows_after", 0, 1)
    return first[0].at + us(TRIMMED_SECONDS) if first else None
