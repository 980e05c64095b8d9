"""Looks up keys and sessions for authentication, with a cache.

Laws:
1. A key or session that was looked up is cached for `cache_seconds`: a revoked key works for that much longer at most.
2. The cache is bounded, and unknown ids cannot displace known ones.
3. Requests that need the same key at the same time share one read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import structlog

from tenure.clock import us
from tenure.errors import TenureError
from tenure.services.identity.principals import Principal
from tenure.store.identity import Identity, KeyOwner

log = structlog.get_logger(__name__)
K = TypeVar("K")

CACHED_MAX = 10_000
"""Known keys, unknown key ids and sessions that are cached, each."""
_HOUR_US = us(3600.0)


class KnownKey:
    """A key that was looked up."""

    __slots__ = ("hash", "hour_us", "until", "used", "who")

    def __init__(self, owner: KeyOwner, until: float) -> None:
        self.hash = owner.hash
        self.until = until
        self.hour_us = owner.now_us - owner.now_us % _HOUR_US
        self.used = owner.used_at is not None and owner.used_at >= self.hour_us
        """Whether its use in this hour was recorded."""
        self.who = _principal(owner)
        """None if the key has ended or its owner is closed."""


class KeyLookup:
    """The keys and sessions of a database; see the laws above."""

    def __init__(
        self, identity: Identity, cache_seconds: float, check_guess_rate: Callable[[str], None]
    ) -> None:
        """`check_guess_rate` is called with an address before the database is asked about an unknown credential, and may refuse it."""
        self._identity = identity
        self._cache_seconds = cache_seconds
        self._check_guess_rate = check_guess_rate
        self._known: dict[str, KnownKey] = {}
        self._reads: dict[str, tuple[float, asyncio.Future[KeyOwner | None]]] = {}
        """Keys that are being read, and since when."""
        self._unknown: dict[str, float] = {}
        """Key ids that do not exist, and until when that is cached."""
        self._sessions: dict[bytes, tuple[float, str]] = {}
        """Hashes of sessions: until when they are cached, and their keys."""
        self._writes: set[asyncio.Task[None]] = set()

    def cached(self, key_id: str) -> KnownKey | None:
        known = self._known.get(key_id)
        return None if known is None or known.until <= time.monotonic() else known

    async def find(self, key_id: str, address: str = "") -> KnownKey | None:
        """The key with this id, from the cache or the database."""
        known = self.cached(key_id)
        if known is not None:
            return known
        now = time.monotonic()
        if self._unknown.get(key_id, 0.0) > now:
            return None
        before = self._known.get(key_id)
        if before is None:
            self._check_guess_rate(address)
        read = self._reads.get(key_id)
        if read is None:
            read = self._reads[key_id] = (now, asyncio.ensure_future(self._identity.owner_of(key_id)))
            read[1].add_done_callback(lambda _: self._reads.pop(key_id, None))
        owner = await asyncio.shield(read[1])
        until = read[0] + self._cache_seconds
        if owner is None:
            self._known.pop(key_id, None)
            _cache(self._unknown, key_id, until)
            return None
        before, known = self._known.get(key_id), KnownKey(owner, until)
        known.used = known.used or (before is not None and before.used and before.hour_us == known.hour_us)
        _cache(self._known, key_id, known)
        return known

    async def find_session(self, digest: bytes, address: str = "") -> Principal | None:
        """The owner of the session with this hash."""
        now = time.monotonic()
        session = self._sessions.get(digest)
        if session is None or session[0] <= now:
            if session is None:
                self._check_guess_rate(address)
            found = await self._identity.read("session_named", digest)
            if not found or found[0].expires_at <= await self._identity.now_us():
                self._sessions.pop(digest, None)
                return None
            session = (now + self._cache_seconds, found[0].key_id)
            _cache(self._sessions, digest, session)
        known = await self.find(session[1], address)
        if known is None or known.who is None:
            return None
        return msgspec.structs.replace(known.who, by_cookie=True, session=digest)

    def record_use(self, known: KnownKey, key_id: str) -> None:
        """Record in the background that a key is used in this hour."""
        known.used = True

        async def write() -> None:
            try:
                await self._identity.touch_key(key_id, known.hour_us)
            except TenureError as fault:  # the time of the last use is only informative
                log.warning("key_use_not_written", key_id=key_id, code=fault.code)

        task = asyncio.ensure_future(write())
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    def clear(self) -> None:
        """Forget everything: rights have just changed in this process."""
        self._known.clear()
        self._unknown.clear()
        self._sessions.clear()

    async def close(self) -> None:
        """Wait for the writes in the background."""
        if self._writes:
            await asyncio.wait(self._writes)


def _cache(cache: dict[K, Any], key: K, value: Any) -> None:
    if key not in cache and len(cache) >= CACHED_MAX:
        del cache[next(iter(cache))]
    cache[key] = value


def _principal(owner: KeyOwner) -> Principal | None:
    expired = owner.expires_at is not None and owner.expires_at <= owner.now_us
    if expired or owner.revoked_at is not None or owner.closed:
        return None
    roles = frozenset(msgspec.json.decode(owner.roles, type=list[str]))
    if owner.key_roles is not None:
        roles &= frozenset(msgspec.json.decode(owner.key_roles, type=list[str]))
    return Principal(
        kind=owner.owner_kind,  # type: ignore[arg-type]  # the schema allows these three only
        tenant=owner.tenant,
        id=owner.owner_id,
        roles=roles,
        groups=frozenset(msgspec.json.decode(owner.groups, type=list[str])),
        key_id=owner.id,
        owner=owner.owner,
        unconfirmed=owner.unconfirmed,
    )
