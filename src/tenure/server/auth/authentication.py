"""The gate: who asks, and whether they may.

Laws:
1. Every route passes it, before its body is read. What the table of roles does not allow is refused.
2. A wrong credential is refused in the same way, whatever is wrong with it, and is compared in constant time. Each one counts for the
   address that it came from, whether its id is known or not.
3. What was looked up is believed for a second (`Settings.key_cache_seconds`): a revoked key works so much longer at most.
   What is kept of it is bounded, and strangers cannot crowd out those who are known.
4. A cookie is believed for reading; to change something with it, the Origin must be this server.
5. A credential is sent in a header or a cookie. One in a URL is not even looked at.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import time
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import structlog
from litestar.connection import ASGIConnection

from tenure.clock import us
from tenure.errors import TenureError
from tenure.server.auth.roles import ALLOWED, ANYONE, HERE, INSTALLATION, LEASE
from tenure.server.http.forwarded import address_group
from tenure.server.load_limits import REQUESTS_PER_KEY, LoadLimits
from tenure.server.settings import LOOPBACK, Settings
from tenure.services.identity.principals import NewCredential, Principal, new_id, new_key
from tenure.store.identity import Identity, KeyOwner

__all__ = ["COOKIE", "Authenticator", "NewCredential", "check_origin", "new_id", "new_key"]

log = structlog.get_logger(__name__)
K = TypeVar("K")

_BEARER = re.compile(rb"[Bb]earer +tn_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")
COOKIE = "tenure_session"
_COOKIE_NAME = COOKIE.encode()
CACHED_MAX = 10_000
"""Keys, sessions, strangers and addresses that are kept, each."""
REFUSALS_PER_SECOND = 50.0
"""Wrong credentials a second from one address that are answered UNAUTHENTICATED. Beyond that the answer is RATE_LIMITED, and the database
is not asked."""
REFUSALS_BURST = 500.0
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_NOBODY = b"\0" * 32
_HOUR_US = us(3600.0)


class _Known:
    """A key that was looked up."""

    __slots__ = ("hash", "hour_us", "until", "used", "who")

    def __init__(self, owner: KeyOwner, until: float) -> None:
        self.hash = owner.hash
        self.until = until
        self.hour_us = owner.now_us - owner.now_us % _HOUR_US
        self.used = owner.used_at is not None and owner.used_at >= self.hour_us
        """Whether this hour's use was written down."""
        self.who = _principal(owner)


class Authenticator:
    """See the laws above."""

    def __init__(self, identity: Identity, settings: Settings, load: LoadLimits) -> None:
        self._identity = identity
        self._load = load
        self._settings = settings
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, tuple[float, asyncio.Future[KeyOwner | None]]] = {}
        """Keys that are being looked up, since when."""
        self._strangers: dict[str, float] = {}
        """Key ids that nobody has, and until when that is believed."""
        self._sessions: dict[bytes, tuple[float, str]] = {}
        """Sessions by their hash: until when they are believed, and their key."""
        self._buckets: dict[str, tuple[float, float]] = {}
        self._refusals: dict[str, tuple[float, float]] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def admit(self, connection: ASGIConnection) -> None:  # type: ignore[type-arg]  # any of them
        """Let a request pass, with its caller; or refuse it."""
        scope: Any = connection.scope
        method = scope.get("method", "GET")
        scope["user"] = None
        if method == "OPTIONS":  # it says which methods there are, as the documentation does
            return
        route = f"{method} {scope['path_template']}"
        allowed = ALLOWED.get(route)
        if allowed is None:
            raise TenureError("FORBIDDEN", "nobody may do that")
        if ANYONE in allowed or LEASE in allowed:
            return
        if HERE in allowed and self._settings.on_loopback and _asked_here(connection.headers):
            return
        who = await self.caller(connection)
        self.permit(who, route)
        scope["user"] = who

    def permit(self, who: Principal, route: str) -> None:
        """Refuse a caller who asks too often, or for what is not theirs."""
        self.pace(who)
        allowed = ALLOWED[route]
        if HERE in allowed or (INSTALLATION in allowed if who.kind == "operator" else who.roles & allowed):
            return
        who_may = "the installation's operator" if INSTALLATION in allowed else ", ".join(sorted(allowed))
        raise TenureError("FORBIDDEN", f"this is for: {who_may}")

    async def caller(self, connection: ASGIConnection) -> Principal:  # type: ignore[type-arg]  # any of them
        """Whose credential a request carries."""
        scope: Any = connection.scope
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if given:
            return await self.by_bearer(given[0] if len(given) == 1 else b"", _address(scope))
        cookie = session_cookie(scope["headers"])
        if cookie is not None:
            who = await self.by_cookie(cookie, _address(scope))
            if scope.get("method", "GET") not in _READS:
                check_origin(connection.headers, self._settings)
            return who
        raise TenureError("UNAUTHENTICATED", "a key is needed")

    async def by_bearer(self, header: bytes, address: str = "") -> Principal:
        """The owner of a key, by the whole `Authorization` header."""
        found = _BEARER.fullmatch(header)
        known = None
        if found is not None:
            key_id = found[1].decode()
            known = self._known.get(key_id)
            if known is None or known.until <= time.monotonic():
                known = await self._look(key_id, address)
        given = sha256(b"" if found is None else found[2]).digest()
        fits = hmac.compare_digest(given, _NOBODY if known is None else known.hash)
        if known is None or not fits or known.who is None:
            self.note_refusal(address)
            raise TenureError("UNAUTHENTICATED")
        if not known.used:
            self._note_use(known, known.who.key_id)
        return known.who

    async def by_cookie(self, cookie: str, address: str = "") -> Principal:
        """The owner of a browser's session."""
        who = None
        if _COOKIE.fullmatch(cookie) is not None:
            who = await self._by_session(sha256(cookie.encode()).digest(), address)
        if who is None:
            self.note_refusal(address)
            raise TenureError("UNAUTHENTICATED")
        return who

    async def still(self, who: Principal) -> Principal | None:
        """A caller who was let in a while ago, as it would be let in now; None: it would not. (Streams ask.)"""
        if who.by_cookie:
            return await self._by_session(who.session, "")
        known = await self._key(who.key_id, "")
        return None if known is None else known.who

    async def allows(self, key_id: str, role: str) -> bool:
        """Whether a key is still good for something that was begun with it."""
        known = await self._key(key_id, "")
        return known is not None and known.who is not None and role in known.who.roles

    def forget(self) -> None:
        """Somebody's rights have just changed here: look everything up anew."""
        self._known.clear()
        self._strangers.clear()
        self._sessions.clear()

    async def close(self) -> None:
        """Wait for what is being written."""
        if self._writing:
            await asyncio.wait(self._writing)

    # ------------------------------------------------------------------------------------------ looking up

    async def _by_session(self, digest: bytes, address: str) -> Principal | None:
        now = time.monotonic()
        held = self._sessions.get(digest)
        if held is None or held[0] <= now:
            if held is None:
                self.check_guess_rate(address)
            found = await self._identity.read("session_named", digest)
            if not found or found[0].expires_at <= await self._identity.now_us():
                self._sessions.pop(digest, None)
                return None
            held = (now + self._settings.key_cache_seconds, found[0].key_id)
            _keep(self._sessions, digest, held)
        known = await self._key(held[1], address)
        if known is None or known.who is None:
            return None
        return msgspec.structs.replace(known.who, by_cookie=True, session=digest)

    async def _key(self, key_id: str, address: str) -> _Known | None:
        known = self._known.get(key_id)
        if known is not None and known.until > time.monotonic():
            return known
        return await self._look(key_id, address)

    async def _look(self, key_id: str, address: str) -> _Known | None:
        """Ask the database who has a key."""
        now = time.monotonic()
        if self._strangers.get(key_id, 0.0) > now:
            return None
        if key_id not in self._known:
            self.check_guess_rate(address)
        # Of all that come while it is asked, one asks.
        asked = self._asked.get(key_id)
        if asked is None:
            asked = self._asked[key_id] = (now, asyncio.ensure_future(self._identity.owner_of(key_id)))
            asked[1].add_done_callback(lambda _: self._asked.pop(key_id, None))
        owner = await asyncio.shield(asked[1])
        until = asked[0] + self._settings.key_cache_seconds
        if owner is None:
            self._known.pop(key_id, None)
            _keep(self._strangers, key_id, until)
            return None
        before, known = self._known.get(key_id), _Known(owner, until)
        known.used = known.used or (before is not None and before.used and before.hour_us == known.hour_us)
        _keep(self._known, key_id, known)
        return known

    def _note_use(self, known: _Known, key_id: str) -> None:
        """Write down, beside the request, that a key is in use this hour."""
        known.used = True

        async def write() -> None:
            try:
                await self._identity.touch_key(key_id, known.hour_us)
            except TenureError as fault:  # it is only for people to look at
                log.warning("key_use_not_written", key_id=key_id, code=fault.code)

        task = asyncio.ensure_future(write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    # ---------------------------------------------------------------------------------------------- pace

    def pace(self, who: Principal) -> None:
        """Refuse a credential that asks too often."""
        self.check_key_rate(who.key_id)

    def check_key_rate(self, name: str) -> None:
        """The same by the id of a key, or of a lease whose token is one: a bucket of tokens each, in this process."""
        rate, burst = self._settings.requests_per_second, self._settings.burst
        left = _refilled(self._buckets, name, rate, burst)
        if left < 1:
            self._load.refused[REQUESTS_PER_KEY] += 1
            raise _too_often(left, rate)
        self._buckets[name] = (left - 1, time.monotonic())

    def check_guess_rate(self, address: str) -> None:
        """Refuse an address that has sent too many wrong credentials, before the database is asked about another."""
        address = address_group(address)
        if address in self._refusals:
            left = _refilled(self._refusals, address, REFUSALS_PER_SECOND, REFUSALS_BURST)
            if left < 1:
                raise _too_often(
                    left, REFUSALS_PER_SECOND, "too many wrong credentials came from this address"
                )

    def note_refusal(self, address: str) -> None:
        """An address has sent a wrong credential; RATE_LIMITED where it has sent too many."""
        self.check_guess_rate(address)
        address = address_group(address)
        left = _refilled(self._refusals, address, REFUSALS_PER_SECOND, REFUSALS_BURST)
        self._refusals[address] = (left - 1, time.monotonic())


def session_cookie(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The value of our cookie, as it was sent. (The framework's reader takes the square of a cookie's length, and ours needs
    no quotes.)"""
    for name, value in headers:
        if name == b"cookie":
            for pair in value.split(b";"):
                key, _, held = pair.partition(b"=")
                if key.strip() == _COOKIE_NAME:
                    return held.strip().decode("latin-1")
    return None


def _address(scope: Any) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _keep(kept: dict[K, Any], key: K, value: Any) -> None:
    """Keep something; what was kept first goes when there is too much."""
    if key not in kept and len(kept) >= CACHED_MAX:
        del kept[next(iter(kept))]
    kept[key] = value


def _refilled(buckets: dict[str, tuple[float, float]], key: str, rate: float, burst: float) -> float:
    """What is in a bucket now. Those that are kept are bounded: the one that was made first goes."""
    held = buckets.get(key)
    if held is None:
        if len(buckets) >= CACHED_MAX:
            del buckets[next(iter(buckets))]
        return burst
    left, at = held
    return min(left + (time.monotonic() - at) * rate, burst)


def _too_often(left: float, rate: float, why: str = "") -> TenureError:
    return TenureError("RATE_LIMITED", why, retry_after=max(1, math.ceil((1 - left) / rate)))


def _principal(owner: KeyOwner) -> Principal | None:
    """Who has a key; None where it is over, or its owner closed."""
    over = owner.expires_at is not None and owner.expires_at <= owner.now_us
    if over or owner.revoked_at is not None or owner.closed:
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


def _asked_here(headers: Mapping[str, str]) -> bool:
    """Whether a request names this machine: a page from elsewhere, whose name was made to lead here, does not."""
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    return name.strip("[]") in LOOPBACK


def check_origin(headers: Mapping[str, str], settings: Settings) -> None:
    """Refuse a change by cookie that comes from another site's page."""
    origin = headers.get("origin")
    hosts = [headers.get("host")]
    scheme = "https" if settings.behind_proxy or settings.tls_cert else "http"
    if settings.behind_proxy:  # a page of another site cannot set this one
        hosts.append(headers.get("x-forwarded-host"))
    if origin is None or origin not in [f"{scheme}://{host}" for host in hosts if host is not None]:
        raise TenureError("ORIGIN_REFUSED")
