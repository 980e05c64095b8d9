"""Authentication and authorization: who sends a request, and whether they may.

Laws:
1. Every route passes here before its body is read. Whatever the table of roles does not allow is refused.
2. A wrong credential is refused in the same way, whatever is wrong with it, and is compared in constant time. Each refusal counts
   against the address that it came from, whether the key's id is known or not.
3. Keys and sessions are cached for `Settings.key_cache_seconds`; see `services.identity.key_lookup`.
4. A cookie suffices for reading. To change something with it, the Origin must be this server.
5. A credential is sent in a header or a cookie. One in a URL is ignored.
"""

from __future__ import annotations

import hmac
import math
import re
import time
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from litestar.connection import ASGIConnection

from tenure.errors import TenureError
from tenure.server.auth.roles import ALLOWED, ANYONE, HERE, INSTALLATION, LEASE
from tenure.server.http.forwarded import address_group
from tenure.server.load_limits import REQUESTS_PER_KEY, LoadLimits
from tenure.server.settings import Settings
from tenure.services.identity.key_lookup import KeyLookup
from tenure.services.identity.principals import Principal
from tenure.services.repositories import Repositories
from tenure.status_server.listen_address import LOOPBACK

_BEARER = re.compile(rb"[Bb]earer +tn_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")
COOKIE = "tenure_session"
_COOKIE_NAME = COOKIE.encode()
BUCKETS_MAX = 10_000
"""Keys and addresses whose rates are counted, each."""
REFUSALS_PER_SECOND = 50.0
"""Wrong credentials per second from one address that are answered UNAUTHENTICATED. Beyond that the answer is RATE_LIMITED, and the database
is not asked."""
REFUSALS_BURST = 500.0
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_NO_HASH = b"\0" * 32


class Authenticator:
    def __init__(self, repositories: Repositories, settings: Settings, load: LoadLimits) -> None:
        self._load = load
        self._settings = settings
        self._keys = KeyLookup(repositories.identity, settings.key_cache_seconds, self.check_guess_rate)
        self._buckets: dict[str, tuple[float, float]] = {}
        self._refusals: dict[str, tuple[float, float]] = {}

    async def admit(self, connection: ASGIConnection) -> None:  # type: ignore[type-arg]  # any of them
        """Set the caller of a request, or refuse it."""
        scope: Any = connection.scope
        method = scope.get("method", "GET")
        scope["user"] = None
        if method == "OPTIONS":  # its answer is public: the documentation lists the methods, too
            return
        route = f"{method} {scope['path_template']}"
        allowed = ALLOWED.get(route)
        if allowed is None:
            raise TenureError("FORBIDDEN", f"no role allows {route}")
        if ANYONE in allowed or LEASE in allowed:
            return
        if HERE in allowed and self._settings.on_loopback and _names_this_machine(connection.headers):
            return
        who = await self.caller(connection)
        self.permit(who, route)
        scope["user"] = who

    def permit(self, who: Principal, route: str) -> None:
        """Refuse a caller who sends too many requests, or may not use the route."""
        self.check_key_rate(who.key_id)
        allowed = ALLOWED[route]
        if HERE in allowed or (INSTALLATION in allowed if who.kind == "operator" else who.roles & allowed):
            return
        if INSTALLATION in allowed:
            raise TenureError("FORBIDDEN", "this request needs the installation's operator key")
        raise TenureError("FORBIDDEN", f"this request needs one of the roles {', '.join(sorted(allowed))}")

    async def caller(self, connection: ASGIConnection) -> Principal:  # type: ignore[type-arg]  # any of them
        """The owner of the credential in a request."""
        scope: Any = connection.scope
        address = scope["client"][0] if scope.get("client") else ""
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        if headers:
            return await self.by_bearer(headers[0] if len(headers) == 1 else b"", address)
        cookie = session_cookie(scope["headers"])
        if cookie is not None:
            who = await self.by_cookie(cookie, address)
            if scope.get("method", "GET") not in _READS:
                check_origin(connection.headers, self._settings)
            return who
        raise TenureError("UNAUTHENTICATED", "the request has no credential")

    async def by_bearer(self, header: bytes, address: str = "") -> Principal:
        """The owner of a key, by the whole `Authorization` header."""
        found = _BEARER.fullmatch(header)
        known = None
        if found is not None:
            key_id = found[1].decode()
            known = self._keys.cached(key_id) or await self._keys.find(key_id, address)
        digest = sha256(b"" if found is None else found[2]).digest()
        matches = hmac.compare_digest(digest, _NO_HASH if known is None else known.hash)
        if known is None or not matches or known.who is None:
            self.note_refusal(address)
            raise TenureError("UNAUTHENTICATED")
        if not known.used:
            self._keys.record_use(known, known.who.key_id)
        return known.who

    async def by_cookie(self, cookie: str, address: str = "") -> Principal:
        """The owner of a browser's session."""
        who = None
        if _COOKIE.fullmatch(cookie) is not None:
            who = await self._keys.find_session(hash_session(cookie), address)
        if who is None:
            self.note_refusal(address)
            raise TenureError("UNAUTHENTICATED")
        return who

    async def revalidate(self, who: Principal) -> Principal | None:
        """A caller who was admitted before, with its current rights; None if it would be refused now. Streams use this."""
        if who.by_cookie:
            return await self._keys.find_session(who.session)
        known = await self._keys.find(who.key_id)
        return None if known is None else known.who

    async def allows(self, key_id: str, role: str) -> bool:
        """Whether a key is still valid and has a role."""
        known = await self._keys.find(key_id)
        return known is not None and known.who is not None and role in known.who.roles

    def forget(self) -> None:
        """Forget cached keys and sessions, because rights have just changed in this process."""
        self._keys.clear()

    async def close(self) -> None:
        await self._keys.close()

    # --------------------------------------------------------------------------------------------- rates

    def check_key_rate(self, name: str) -> None:
        """Refuse a key, or a lease, that sends too many requests: a token bucket each, in this process."""
        rate, burst = self._settings.requests_per_second, self._settings.burst
        left = _tokens_left(self._buckets, name, rate, burst)
        if left < 1:
            self._load.refused[REQUESTS_PER_KEY] += 1
            raise _rate_limited(left, rate)
        self._buckets[name] = (left - 1, time.monotonic())

    def check_guess_rate(self, address: str) -> None:
        """Refuse an address that has sent too many wrong credentials, before the database is asked about another."""
        group = address_group(address)
        if group in self._refusals:
            left = _tokens_left(self._refusals, group, REFUSALS_PER_SECOND, REFUSALS_BURST)
            if left < 1:
                raise _rate_limited(
                    left, REFUSALS_PER_SECOND, "too many wrong credentials came from this address"
                )

    def note_refusal(self, address: str) -> None:
        """Count a wrong credential against its address. Raises RATE_LIMITED if there were too many."""
        self.check_guess_rate(address)
        group = address_group(address)
        left = _tokens_left(self._refusals, group, REFUSALS_PER_SECOND, REFUSALS_BURST)
        self._refusals[group] = (left - 1, time.monotonic())


def session_cookie(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The value of our cookie, as it was sent. (The framework's parser takes quadratic time in the length of a cookie, and ours needs no
    quotes.)"""
    for name, value in headers:
        if name == b"cookie":
            for pair in value.split(b";"):
                key, _, held = pair.partition(b"=")
                if key.strip() == _COOKIE_NAME:
                    return held.strip().decode("latin-1")
    return None


def hash_session(cookie: str) -> bytes:
    return sha256(cookie.encode()).digest()


def _tokens_left(buckets: dict[str, tuple[float, float]], key: str, rate: float, burst: float) -> float:
    """The tokens in a bucket now. The buckets are bounded: the oldest one is dropped for a new one."""
    bucket = buckets.get(key)
    if bucket is None:
        if len(buckets) >= BUCKETS_MAX:
            del buckets[next(iter(buckets))]
        return burst
    left, at = bucket
    return min(left + (time.monotonic() - at) * rate, burst)


def _rate_limited(left: float, rate: float, why: str = "") -> TenureError:
    return TenureError("RATE_LIMITED", why, retry_after=max(1, math.ceil((1 - left) / rate)))


def _names_this_machine(headers: Mapping[str, str]) -> bool:
    """Whether the Host header is a loopback name. A page of another site whose DNS name leads here (DNS rebinding) sends its own name."""
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    return name.strip("[]") in LOOPBACK


def check_origin(headers: Mapping[str, str], settings: Settings) -> None:
    """Refuse a change by cookie that comes from another site's page."""
    origin = headers.get("origin")
    hosts = [headers.get("host")]
    scheme = "https" if settings.behind_proxy or settings.tls_cert else "http"
    if settings.behind_proxy:  # a page of another site cannot set this header
        hosts.append(headers.get("x-forwarded-host"))
    if origin is None or origin not in [f"{scheme}://{host}" for host in hosts if host is not None]:
        raise TenureError("ORIGIN_REFUSED")
