"""The settings of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenure.status_server.listen_address import LOOPBACK

if TYPE_CHECKING:  # it loads httpx, and commands import this module for their defaults
    from tenure.publish.vcs_settings import VcsSettings

BURST_SECONDS = 5
"""The default burst of a key: the requests that it may send in so many seconds."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line and the environment configure."""

    host: str = "127.0.0.1"
    port: int = 8700
    behind_proxy: bool = False
    """A proxy in front of the server terminates TLS and reports the client addresses."""
    trusted_proxies: int = 1
    """How many proxies are between clients and this server. The client is that many entries from the right of the header."""
    forwarded_header: str = "x-forwarded-for"
    """The header to which the proxies append: `x-forwarded-for` or `forwarded`. The other one is ignored."""
    tls_cert: str | None = None
    tls_key: str | None = None
    request_id_is_key: bool = True
    """Whether X-Request-ID is the idempotency key of a request without a better one."""
    body_bytes_max: int = 1024 * 1024
    hook_body_bytes_max: int = 5 * 1024 * 1024
    """For deliveries to hooks. GitHub sends at most 25 MiB, and hardly ever more than a few hundred kB."""
    hook_answer_seconds: float = 0.8
    """How long the answer to a delivery waits for its run. After that it is 202, and the run is created later."""
    header_bytes_max: int = 32 * 1024
    requests_per_second: float = 2_000.0
    """Average rate of one credential at this process; requests beyond it are answered 429. It is below what a process can serve, and
    some fifty times what a busy worker sends (docs/server.md)."""
    requests_burst: int | None = None
    """Requests of one credential that may come at once; None: five times `requests_per_second`."""
    connections_max: int = 10_000
    """In total. The limit of open files of the process lowers it."""
    connections_per_address_max: int = 1_000
    """From one address; behind a proxy, requests under way."""
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
    """How long a request waits for an unreachable database before it is answered UPSTREAM_UNAVAILABLE."""
    grace_seconds: float = 10.0
    """How long requests under way may take when the server is stopped."""
    drain_seconds: float = 0.0
    """How long /readyz says NOT_READY before the server stops listening, so that a load balancer notices."""
    log_runs: bool = True
    """Whether events of runs are logged (docs/observability.md)."""
    log_requests: bool = False
    """Whether every request is logged. Internal errors are always logged."""
    session_seconds: float = 12 * 3600.0
    key_cache_seconds: float = 1.0
    """How long a key is cached: a revoked key works for that much longer at most."""

    status_listen: str | None = None
    """HOST:PORT of a status server in the same process, over what its engine publishes."""
    secrets_folder: str | None = None
    """The folder with the tenants' secrets, in a subfolder for each tenant."""
    secrets_shared: bool = False
    """Whether every tenant may refer to all secrets and variables TENURE_SECRET_..., not only to its own."""

    webhooks_to_loopback: bool = False
    """Whether outgoing webhooks may go to this machine, also without TLS: for development."""
    webhooks_to_private: bool = False
    """Whether outgoing webhooks may go to private networks."""

    public_url: str | None = None
    """The address of this server in messages to people."""
    slack_url: str = "https://slack.com/api"
    vcs: VcsSettings | None = None
    """The VCS that runs are reported to; see `publish.vcs_settings`."""

    firestore_project: str | None = None
    """The project whose Firestore database mirrors the runs of Git With Intent (docs/git-with-intent.md). None: there is no mirror."""
    firestore_database: str = "(default)"
    firestore_credentials: str | None = None
    """The reference of the service account's key file."""
    firestore_emulator: str | None = None
    """`host:port` of an emulator, which needs no credentials."""
    firestore_tenants: tuple[str, ...] = ("default",)
    """The tenants whose runs are mirrored."""

    @property
    def burst(self) -> float:
        return (
            BURST_SECONDS * self.requests_per_second if self.requests_burst is None else self.requests_burst
        )

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOOPBACK and not self.behind_proxy
