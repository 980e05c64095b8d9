"""Authentication as a GitHub App, and requests to GitHub's API under it.

Laws:
1. The private key is a reference. It is read when a token is needed, signs in a thread, and is not kept.
2. An installation's token is cached until shortly before it expires. Callers that need one at the same time share one request.
3. If GitHub answers 401, the token is dropped and the request is sent once more with a new one. GitHub does nothing for a 401.
4. Neither the key nor a token is in a message, a log line or a `repr`. Tokens count as resolved secrets, so that connectors redact them.
5. A rate limit is an answer of its own: 403 or 429 with the time to wait. Nothing was done.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from tenure import clock
from tenure.clock import SECOND_US, Clock, HostClock
from tenure.errors import TenureError
from tenure.outbound.http import send_request
from tenure.outbound.responses import HttpResponse, RequestNotSent, ResponseLost
from tenure.outbound.urls import OutboundRoute
from tenure.secrets import note_resolved, resolve_own

BASE_URL = "https://api.github.com"
API_VERSION = "2022-11-28"
USER_AGENT = "tenure"
JWT_SECONDS = 540
"""GitHub accepts at most ten minutes."""
CLOCK_SKEW_SECONDS = 60
"""How far GitHub's clock may be behind this host's."""
RENEW_SECONDS = 300
"""A token is replaced when it is valid for less than this."""
TOKEN_SECONDS = 3_600
"""How long a token is valid if GitHub's answer does not say so."""
SECOND_LIMIT_SECONDS = 60.0
"""The pause after a secondary rate limit without Retry-After, as GitHub asks."""
LIMIT_SECONDS_MAX = 3_600.0
TOKEN_CHARS_MAX = 1_000


class GitHubRefused(Exception):
    """GitHub refused to issue a token."""

    def __init__(self, answer: HttpResponse, message: str) -> None:
        super().__init__(message)
        self.answer = answer


class _Token:
    """An installation's token, and when it has to be replaced, by `clock.boot_seconds()`."""

    def __init__(self, text: str, renew_at: float) -> None:
        self.text = text
        self.renew_at = renew_at


class GitHubApp:
    """A GitHub App: requests in the name of its installations; see the laws above."""

    def __init__(
        self,
        *,
        app_id: int,
        private_key: str,
        base_url: str = BASE_URL,
        way: OutboundRoute,
        host_clock: Clock | None = None,
    ) -> None:
        """`private_key` is a reference to the PEM file that GitHub issued."""
        self.app_id = app_id
        self.base_url = base_url.rstrip("/")
        self._key = private_key
        self._way = way
        self._clock = host_clock or HostClock()
        self._tokens: dict[int, _Token] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    async def request(
        self,
        installation: int,
        method: str,
        path: str,
        *,
        deadline: float,
        json: Any = msgspec.UNSET,
    ) -> HttpResponse:
        """Send a request as an installation and return the response, whatever its status (law 3)."""
        token = await self.token(installation, deadline=deadline)
        answer = await self._send(method, path, token, deadline, json)
        if answer.status != 401:
            return answer
        self.drop_token(installation, token)
        token = await self.token(installation, deadline=deadline)
        return await self._send(method, path, token, deadline, json)

    async def token(self, installation: int, *, deadline: float) -> str:
        """A token of an installation that is valid for some minutes (law 2)."""
        known = self._tokens.get(installation)
        if known is None or clock.boot_seconds() >= known.renew_at:
            async with self._locks.setdefault(installation, asyncio.Lock()):
                known = self._tokens.get(installation)
                if known is None or clock.boot_seconds() >= known.renew_at:
                    known = self._tokens[installation] = await self._issue(installation, deadline)
        note_resolved(known.text.encode())
        return known.text

    def drop_token(self, installation: int, token: str) -> None:
        """Forget a token that GitHub refused."""
        known = self._tokens.get(installation)
        if known is not None and known.text == token:
            del self._tokens[installation]

    async def _issue(self, installation: int, deadline: float) -> _Token:
        signed = await asyncio.to_thread(self._sign)
        began = clock.boot_seconds()
        where = f"/app/installations/{installation}/access_tokens"
        try:
            answer = await self._send("POST", where, signed, deadline, msgspec.UNSET)
        except (
            ResponseLost
        ) as lost:  # a token that nobody has changes nothing: the caller's request was not sent
            raise RequestNotSent(f"no token was issued: {lost}") from lost
        body = answer.json()
        token = body.get("token") if isinstance(body, dict) else None
        if answer.status != 201:
            raise GitHubRefused(
                answer, f"GitHub issued no token for installation {installation}: {describe(answer)}"
            )
        if not isinstance(token, str) or not 0 < len(token) <= TOKEN_CHARS_MAX or not token.isascii():
            raise GitHubRefused(answer, f"GitHub's answer for installation {installation} contains no token")
        note_resolved(token.encode())
        left = self._seconds_left(body.get("expires_at"))
        return _Token(token, began + max(left - RENEW_SECONDS, left / 2))

    def _seconds_left(self, expires_at: Any) -> float:
        try:
            moment = datetime.fromisoformat(str(expires_at)).timestamp()
        except (ValueError, OverflowError):
            return TOKEN_SECONDS
        left = moment - self._clock.now_us() / SECOND_US
        # A wrong clock of this host must not make every request ask for a token, nor keep one for too long.
        return left if 0 < left <= TOKEN_SECONDS else TOKEN_SECONDS / 2

    def _sign(self) -> str:
        """The App's own token: a JWT signed with RS256 (RFC 7519)."""
        # Late: most processes have no GitHub App.
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(resolve_own(self._key), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, RSAPrivateKey):
            raise TenureError(
                "SECRET_UNAVAILABLE",
                f"{self._key} is not the private key of a GitHub App: expected an unencrypted RSA key as PEM",
            )
        now = self._clock.now_us() // SECOND_US
        claims = {"iat": now - CLOCK_SKEW_SECONDS, "exp": now + JWT_SECONDS, "iss": str(self.app_id)}
        signed = b".".join(
            _base64(msgspec.json.encode(part)) for part in ({"alg": "RS256", "typ": "JWT"}, claims)
        )
        return b".".join((signed, _base64(key.sign(signed, PKCS1v15(), SHA256())))).decode()

    async def _send(self, method: str, path: str, token: str, deadline: float, json: Any) -> HttpResponse:
        content = b"" if json is msgspec.UNSET else msgspec.json.encode(json)
        return await send_request(
            method,
            f"{self.base_url}{path}",
            self._way,
            deadline=deadline,
            headers={
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {token}",
                "User-Agent": USER_AGENT,
                "X-GitHub-Api-Version": API_VERSION,
                **({"Content-Type": "application/json"} if content else {}),
            },
            content=content,
        )


def _base64(content: bytes) -> bytes:
    return urlsafe_b64encode(content).rstrip(b"=")


# ---- What an answer of GitHub means.


def describe(answer: HttpResponse) -> str:
    """The status of an answer and GitHub's message, in one short line."""
    body = answer.json()
    message = body.get("message") if isinstance(body, Mapping) else None
    text = f"HTTP {answer.status}"
    if isinstance(message, str) and message:
        text += f": {' '.join(message.split())[:200]}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def rate_limit_seconds(answer: HttpResponse, now_us: int | None = None) -> float | None:
    """How long GitHub asks to wait, or None if the answer is not a rate limit (law 5)."""
    if answer.status not in (403, 429):
        return None
    after = answer.headers.get("retry-after", "").strip()
    if after.isascii() and after.isdigit():
        return min(float(after[:9]), LIMIT_SECONDS_MAX)
    reset = answer.headers.get("x-ratelimit-reset", "")
    if answer.headers.get("x-ratelimit-remaining") == "0" and reset.isascii() and reset.isdigit():
        now = (HostClock().now_us() if now_us is None else now_us) / SECOND_US
        return min(max(float(reset[:12]) - now, 0.0), LIMIT_SECONDS_MAX)
    if answer.status == 429 or "rate limit" in describe(answer).lower():
        return SECOND_LIMIT_SECONDS
    return None
