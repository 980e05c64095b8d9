"""Reads published documents, and checks keys by their published digests.

Laws:
1. Nothing here has a way to the database. What was not published does not exist.
2. A key is looked up at most every `KEY_SECONDS`: a revocation that was published counts after that time.
3. A segment of events is read once for all readers, until it grows.
"""

from __future__ import annotations

import hmac
import re
import time
from collections import OrderedDict
from hashlib import sha256

import msgspec

from tenure import ids
from tenure.clock import HostClock, to_micros
from tenure.errors import TenureError
from tenure.outbound.document_store import DocumentStore, VersionedDocument
from tenure.shapes.published import (
    READING_ROLES,
    EventSegment,
    EventsHead,
    KeyDigest,
    PublishedEvent,
    events_head_path,
    inbox_path,
    key_path,
    proposals_path,
    segment_path,
    status_path,
)

KEY_SECONDS = 2.0
KEYS_MAX = 10_000
SEGMENTS_MAX = 200
RETRY_SECONDS = 1
_BEARER = re.compile(r"[Bb]earer +tn_([a-z0-9]{1,64})_([A-Za-z0-9_-]{1,128})")
_NO_DIGEST = "0" * 64
_CLOCK = HostClock()
_decode_lines = msgspec.json.Decoder(PublishedEvent).decode_lines


def not_published(what: str) -> TenureError:
    return TenureError("NOT_PUBLISHED", f"{what} has not been published", retry_after=RETRY_SECONDS)


class PublishedReader:
    def __init__(self, place: str) -> None:
        self._documents = DocumentStore(place)
        self._keys: OrderedDict[str, tuple[float, KeyDigest | None]] = OrderedDict()
        self._segments: OrderedDict[tuple[str, str], tuple[int, list[PublishedEvent]]] = OrderedDict()

    # ------------------------------------------------------------------------------------------------- keys

    async def authenticate(self, header: str) -> KeyDigest:
        """The key of an `Authorization` header, or UNAUTHENTICATED or FORBIDDEN."""
        found = _BEARER.fullmatch(header)
        known = None if found is None else await self._find_key(found[1])
        given = sha256(b"" if found is None else found[2].encode()).hexdigest()
        matches = hmac.compare_digest(given, _NO_DIGEST if known is None else known.sha256)
        if known is None or not matches or not _is_valid(known):
            raise TenureError("UNAUTHENTICATED")
        if not READING_ROLES.intersection(known.roles):
            raise TenureError(
                "FORBIDDEN", f"this request needs one of the roles {', '.join(sorted(READING_ROLES))}"
            )
        return known

    async def is_still_valid(self, key: KeyDigest) -> bool:
        known = await self._find_key(key.id)
        return known is not None and known.sha256 == key.sha256 and _is_valid(known)

    async def _find_key(self, key_id: str) -> KeyDigest | None:
        looked, known = self._keys.get(key_id, (float("-inf"), None))
        if time.monotonic() - looked < KEY_SECONDS:
            return known
        document = await self._documents.read(key_path(key_id))
        known = None if document is None else msgspec.json.decode(document.body, type=KeyDigest)
        self._keys[key_id] = (time.monotonic(), known)
        self._keys.move_to_end(key_id)
        if len(self._keys) > KEYS_MAX:
            self._keys.popitem(last=False)
        return known

    # -------------------------------------------------------------------------------------------- documents

    async def status(self, tenant: str, run_id: str) -> VersionedDocument:
        """status.json of a run."""
        ids.run_int(run_id)  # checked, because it becomes part of a path
        found = await self._documents.read(status_path(tenant, run_id))
        if found is None:
            raise not_published(f"run {run_id}")
        return found

    async def inbox(self, tenant: str) -> VersionedDocument:
        found = await self._documents.read(inbox_path(tenant))
        if found is None:
            raise not_published("the inbox")
        return found

    async def proposals(self, tenant: str) -> VersionedDocument:
        found = await self._documents.read(proposals_path(tenant))
        if found is None:
            raise not_published("the list of proposals")
        return found

    # ----------------------------------------------------------------------------------------------- events

    async def events_version(self, tenant: str) -> str | None:
        """The version of a tenant's events; None: it has none."""
        return await self._documents.version(events_head_path(tenant))

    async def events_head(self, tenant: str) -> EventsHead:
        found = await self._documents.read(events_head_path(tenant))
        return EventsHead() if found is None else msgspec.json.decode(found.body, type=EventsHead)

    async def segment(self, tenant: str, segment: EventSegment) -> list[PublishedEvent]:
        """The events of a segment, at least up to its last one."""
        last, events = self._segments.get((tenant, segment.name), (0, []))
        if last < segment.last:
            found = await self._documents.read(segment_path(tenant, segment.name))
            if found is None:
                raise TenureError("STREAM_RESET")
            events = _decode_lines(found.body)
            self._segments[tenant, segment.name] = (events[-1].n if events else 0, events)
            if len(self._segments) > SEGMENTS_MAX:
                self._segments.popitem(last=False)
        return events


def _is_valid(key: KeyDigest) -> bool:
    return key.expires_at is None or to_micros(key.expires_at) > _CLOCK.now_us()
