"""How a server is set up."""

from __future__ import annotations

import msgspec

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line and the environment say."""

    host: str = "127.0.0.1"
    port: int = 8700
    behind_proxy: bool = False
    """Something in front of us speaks TLS; its X-Forwarded-* headers are believed."""
    tls_cert: str | None = None
    tls_key: str | None = None
    request_id_is_key: bool = True
    """Whether X-Request-ID is an idempotency key where no better one is given."""
    body_bytes_max: int = 1024 * 1024
    header_bytes_max: int = 32 * 1024
    requests_per_second: float = 5_000.0
    """Of one credential, on average; more are answered 429."""
    requests_burst: int = 10_000
    session_seconds: float = 12 * 3600.0
    key_cache_seconds: float = 1.0
    """How long a key that was looked up is believed: a revoked one works so much longer at most."""

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK and not self.behind_proxy
