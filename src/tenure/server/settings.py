"""How a server is set up."""

from __future__ import annotations

import msgspec

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
BURST_SECONDS = 5
"""A credential may ask at once what it may ask in so many seconds."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line and the environment say."""

    host: str = "127.0.0.1"
    port: int = 8700
    behind_proxy: bool = False
    """Something in front of us speaks TLS, and says where requests come from."""
    trusted_proxies: int = 1
    """How many proxies are between clients and us. The client is so many entries from the right of the header."""
    forwarded_header: str = "x-forwarded-for"
    """The header to which the proxies append: `x-forwarded-for` or `forwarded`. The other one is not looked at."""
    tls_cert: str | None = None
    tls_key: str | None = None
    request_id_is_key: bool = True
    """Whether X-Request-ID is an idempotency key where no better one is given."""
    body_bytes_max: int = 1024 * 1024
    hook_body_bytes_max: int = 5 * 1024 * 1024
    """Of what hooks are told. GitHub sends at most 25 MiB, and hardly ever more than a few hundred kB."""
    hook_answer_seconds: float = 0.8
    """How long a delivery's answer waits for its run; after that it is 202, and the run is made all the same."""
    header_bytes_max: int = 32 * 1024
    requests_per_second: float = 2_000.0
    """Of one credential, on average, at this process; more are answered 429. Less than a process can do, and some fifty times
    what a busy worker sends (docs/server.md)."""
    requests_burst: int | None = None
    """How many of them may come at once; None: five times `requests_per_second`."""
    connections_max: int = 10_000
    """In all; no more than the process may have files, less some."""
    connections_per_address_max: int = 1_000
    """From one address; behind a proxy requests under way."""
    body_bytes_total_max: int = 256 * 1024 * 1024
    """Bytes that the headers and bodies of all requests under way hold."""
    bodies_per_address_max: int = 100
    """Bodies from one address that have begun and are not complete."""
    streams_per_key_max: int = 100
    """Streams of events of one credential, at this process."""
    streams_per_tenant_max: int = 2_000
    body_seconds: float = 30.0
    """How long a body may take to arrive, from its first byte to its last."""
    header_seconds: float = 10.0
    """How long a request's line and headers may take."""
    unread_seconds: float = 60.0
    """How long answers may wait for a client that does not read them."""
    depth_max: int = 64
    """Lists and objects inside each other in a body."""
    store_seconds: float = 5.0
    """How long a request waits for a database that is gone before it says UPSTREAM_UNAVAILABLE."""
    grace_seconds: float = 10.0
    """How long requests under way may take when the server is told to end."""
    drain_seconds: float = 0.0
    """How long it says NOT_READY before it stops listening: time for a load balancer to look elsewhere."""
    log_runs: bool = True
    """Whether what happens to runs has lines in the log (docs/observability.md)."""
    log_requests: bool = False
    """Whether every request has a line in the log; those that fail inside always have one."""
    session_seconds: float = 12 * 3600.0
    key_cache_seconds: float = 1.0
    """How long a key that was looked up is believed: a revoked one works so much longer at most."""

    secrets_folder: str | None = None
    """Where files with the tenants' secrets are, in a folder for each."""
    secrets_shared: bool = False
    """Whether every tenant may name all of them, and every variable TENURE_SECRET_...; else its own only."""

    webhooks_to_loopback: bool = False
    """Whether outgoing webhooks may go to this machine, also without TLS: for development."""
    webhooks_to_private: bool = False
    """Whether they may go to private networks."""

    public_url: str | None = None
    """Where people reach this server: what messages to them link to."""
    slack_url: str = "https://slack.com/api"

    @property
    def burst(self) -> float:
        """How many requests of one credential may come at once."""
        return (
            BURST_SECONDS * self.requests_per_second if self.requests_burst is None else self.requests_burst
        )

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK and not self.behind_proxy
