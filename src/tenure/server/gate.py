"""The gate: who asks, and whether they may.

Laws:
1. Every route passes it, before its body is read. What the table of roles does not allow is refused.
2. A wrong credential is refused in the same way, whatever is wrong with it, and is compared in constant time.
3. What was looked up is believed for a second (`Settings.key_cache_seconds`): a revoked key works so much longer at most.
4. A cookie is believed for reading; to change something with it, the Origin must be this server.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
import time
from collections.abc import Mapping
from hashlib import sha256

import msgspec
from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from tenure.errors import TenureError
from tenure.server.principals import Principal
from tenure.server.roles import ALLOWED, ANYONE, HERE, INSTALLATION, LEASE
from tenure.server.settings import Settings
from tenure.store.identity import Identity, Owner

_BEARER = re.compile(r"[Bb]earer +tn_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
COOKIE = "tenure_session"
KEYS_CACHED_MAX = 10_000
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_NOBODY = b"\0" * 32


def new_id(prefix: str, chars: int = 12) -> str:
    """An opaque id."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(chars))


class NewKey(msgspec.Struct, frozen=True):
    """A fresh credential: shown once, kept as a hash."""

    id: str
    secret: str
    hash: bytes

    @property
    def text(self) -> str:
        """As its owner sends it."""
        return f"tn_{self.id}_{self.secret}"


def new_key() -> NewKey:
    """A credential nobody has had before: 32 random bytes."""
    secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
    return NewKey(new_id(""), secret, sha256(secret.encode()).digest())


class Gate:
    """See the laws above."""

    def __init__(self, identity: Identity, settings: Settings) -> None:
        self._identity = identity
        self._settings = settings
        self._known: dict[str, tuple[float, Owner | None]] = {}
        self._buckets: dict[str, tuple[float, float]] = {}

    async def admit(self, connection: ASGIConnection, _handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]  # any of them
        """Let a request pass, with its caller; or refuse it."""
        scope = connection.scope
        route = f"{scope.get('method', 'GET')} {scope['path_template']}"
        allowed = ALLOWED.get(route)
        if allowed is None:
            raise TenureError("FORBIDDEN", "nobody may do that")
        if ANYONE in allowed or LEASE in allowed or (HERE in allowed and self._settings.on_loopback):
            scope["user"] = None
            return
        who = await self.caller(connection)
        self.pace(who)
        scope["user"] = who
        wanted = INSTALLATION if who.kind == "operator" else None
        if HERE in allowed or wanted in allowed or (wanted is None and who.roles & allowed):
            return
        raise TenureError("FORBIDDEN", f"{route} is for: {', '.join(sorted(allowed))}")

    async def caller(self, connection: ASGIConnection) -> Principal:  # type: ignore[type-arg]  # any of them
        """Whose credential a request carries."""
        found = connection.headers.get("authorization")
        if found is not None:
            return await self.by_bearer(found)
        cookie = connection.cookies.get(COOKIE)
        if cookie is not None:
            who = await self.by_cookie(cookie)
            if connection.scope.get("method", "GET") not in _READS:
                check_origin(connection.headers, self._settings)
            return who
        raise TenureError("UNAUTHENTICATED", "send a key: Authorization: Bearer tn_...")

    async def by_bearer(self, header: str) -> Principal:
        """The owner of a key."""
        found = _BEARER.fullmatch(header.strip())
        owner = None if found is None else await self._owner(found[1])
        given = sha256(b"" if found is None else found[2].encode()).digest()
        fits = hmac.compare_digest(given, _NOBODY if owner is None else owner.hash)
        if owner is None or not fits:
            raise TenureError("UNAUTHENTICATED")
        return self._principal(owner)

    async def by_cookie(self, cookie: str) -> Principal:
        """The owner of a browser's session."""
        del cookie
        raise TenureError("UNAUTHENTICATED")

    async def _owner(self, key_id: str) -> Owner | None:
        now = time.monotonic()
        known = self._known.get(key_id)
        if known is not None and known[0] > now:
            return known[1]
        owner = await self._identity.owner_of(key_id)
        if len(self._known) >= KEYS_CACHED_MAX:
            self._known.clear()
        self._known[key_id] = (now + self._settings.key_cache_seconds, owner)
        return owner

    def _principal(self, owner: Owner, *, by_cookie: bool = False) -> Principal:
        if owner.revoked_at is not None or owner.closed or _past(owner.expires_at, owner.now_us):
            raise TenureError("UNAUTHENTICATED")
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
            by_cookie=by_cookie,
        )

    def pace(self, who: Principal) -> None:
        """Refuse a credential that asks too often: a bucket of tokens each, in this process."""
        rate, burst, now = self._settings.requests_per_second, self._settings.requests_burst, time.monotonic()
        left, at = self._buckets.get(who.key_id, (float(burst), now))
        left = min(left + (now - at) * rate, burst)
        if left < 1:
            raise TenureError("RATE_LIMITED", retry_after=1)
        if len(self._buckets) >= KEYS_CACHED_MAX:
            self._buckets.clear()
        self._buckets[who.key_id] = (left - 1, now)


def _past(moment: int | None, now: int) -> bool:
    return moment is not None and moment <= now


def check_origin(headers: Mapping[str, str], settings: Settings) -> None:
    """Refuse a change by cookie that comes from another site's page."""
    origin, host = headers.get("origin"), headers.get("host")
    scheme = "https" if settings.behind_proxy or settings.tls_cert else "http"
    if origin is None or host is None or origin != f"{scheme}://{host}":
        raise TenureError("ORIGIN_REFUSED")
