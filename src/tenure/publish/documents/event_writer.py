"""Writes the events of each tenant, for streams, after the documents that they are about.

Laws:
1. An event has the type and fields of agent-runs' section 4.3. Its number is one more than that of the tenant's event before.
2. Events are appended to a segment until it is long; then a new one begins. A segment's name has the fence of its writer, so no two writers
   write the same segment. `events/head.json` says which segments count, and is replaced only by a writer that has seen its last version.
3. The oldest segments are deleted when there are too many.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.kernel import profiles
from tenure.kernel.feed import FeedItem
from tenure.kernel.notifications import PROPOSAL_CREATED, STATUS_CHANGED, STEP_COMPLETED, build_notifications
from tenure.outbound.document_store import DocumentChanged, DocumentStore
from tenure.reads.status_document import PROFILE, passed_words
from tenure.shapes.published import (
    EventSegment,
    EventsHead,
    PublishedEvent,
    events_head_path,
    segment_path,
)

SEGMENT_BYTES_MAX = 64 * 1024
SEGMENTS_MAX = 200
CONFLICTS_MAX = 5

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines

EventData = dict[str, Any]


def describe_events(item: FeedItem) -> list[EventData]:
    """The events of one line of the feed."""
    found: list[EventData] = []
    for note in build_notifications([item]):
        if note.type == STATUS_CHANGED:
            words = (*passed_words(_word_before(item), note.word), note.word)
            found += [{"type": note.type, "runId": note.run, "status": word} for word in words]
        elif note.type == STEP_COMPLETED:
            found.append({"type": note.type, "runId": note.run, "step": item.steps})
        elif note.type == PROPOSAL_CREATED:
            found.append({"type": note.type, "proposalId": note.question})
    return found


def _word_before(item: FeedItem) -> str:
    word = "" if item.before is None else profiles.get(PROFILE).run.words.get(item.before)
    return word if isinstance(word, str) else ""


class _TenantLog(msgspec.Struct):
    """What this writer knows about the events of a tenant."""

    head: EventsHead
    version: str | None
    body: bytes = b""
    """The segment that it appends to; empty: a new one begins."""


class EventWriter:
    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents
        self._logs: dict[str, _TenantLog] = {}
        self._pos_max: int | None = None
        self.fence = 0

    def forget(self) -> None:
        self._logs.clear()

    def limit_positions(self, head: int) -> None:
        """Events after `head` have not been written, whatever a tenant's head says: after a move of the database its positions begin again."""
        self._pos_max = head
        self._logs.clear()

    async def append(self, tenant: str, events: list[tuple[int, EventData]], pos: int) -> None:
        """Append events, each with its position in the feed; `pos` is the last position of the page."""
        for _ in range(CONFLICTS_MAX):
            log = self._logs.get(tenant)
            if log is None:
                log = self._logs[tenant] = await self._read(tenant)
            new = [data for at, data in events if at > log.head.pos]
            if not new:
                return
            try:
                await self._append(tenant, log, new, pos)
            except DocumentChanged:  # by another writer, or by a write of ours that was thought lost
                del self._logs[tenant]
            else:
                return
        raise DocumentChanged(events_head_path(tenant))

    async def _read(self, tenant: str) -> _TenantLog:
        found = await self._documents.read(events_head_path(tenant))
        if found is None:
            return _TenantLog(EventsHead(), None)
        head = msgspec.json.decode(found.body, type=EventsHead)
        if self._pos_max is not None and head.pos > self._pos_max:
            head = msgspec.structs.replace(head, pos=self._pos_max)
        return _TenantLog(head, found.version)

    async def _append(self, tenant: str, log: _TenantLog, new: list[EventData], pos: int) -> None:
        head = log.head
        first, last = head.next, head.next + len(new) - 1
        lines = _encode_lines([PublishedEvent(n=first + i, data=data) for i, data in enumerate(new)])
        segments = list(head.segments)
        if log.body and len(log.body) + len(lines) <= SEGMENT_BYTES_MAX:
            body = log.body + lines
            segments[-1] = msgspec.structs.replace(segments[-1], last=last)
        else:
            body = lines
            segments.append(EventSegment(name=f"{first:012}-{self.fence}", first=first, last=last))
        gone, segments = segments[:-SEGMENTS_MAX], segments[-SEGMENTS_MAX:]
        await self._documents.put(segment_path(tenant, segments[-1].name), body)
        moved = EventsHead(next=last + 1, pos=pos, segments=segments)
        version = await self._documents.replace(
            events_head_path(tenant), _encode(moved), expected=log.version
        )
        self._logs[tenant] = _TenantLog(moved, version, body)
        for segment in gone:
            await self._documents.delete(segment_path(tenant, segment.name))
