"""`tenure serve`: the HTTP API, with a sweeper and a scheduler, until it is stopped.

Law: SIGINT and SIGTERM stop it gracefully: it accepts no new connections, ends its streams, lets requests finish for the grace period, and
ends with 0. A second signal ends it at once.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from tenure.cli.common.arguments import parse_seconds
from tenure.cli.common.backend import wait_for_database as database_wait
from tenure.cli.common.options import (
    ConnectorsFile,
    Db,
    ExternalQueueUrl,
    ListenDb,
    SigningKey,
    TlsCert,
    TlsKey,
    WaitForDatabase,
    WithEvidence,
)
from tenure.cli.common.server_extra import require_server_extra
from tenure.server.settings import BURST_SECONDS, Settings

_EPILOG = """
Examples:

tenure serve -- the API on http://127.0.0.1:8700, for this machine only

tenure serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem -- for others, over TLS

tenure serve --host 0.0.0.0 --behind-proxy -- behind a proxy that terminates TLS

Start as many servers as you like on one database. Create a tenant and its first person with `tenure tenants create` and
`tenure people create`. docs/server.md explains the next steps.
"""


DEFAULT_SETTINGS = Settings()
_MIB = 1024 * 1024

Host = Annotated[str, typer.Option("--host", envvar="TENURE_HOST", help="The address to listen on.")]
Port = Annotated[
    int,
    typer.Option(
        "--port",
        envvar="TENURE_PORT",
        min=0,
        max=65535,
        help="The port to listen on; 0: any free port, which the log names.",
    ),
]

Secrets = Annotated[
    str | None,
    typer.Option(
        "--secrets",
        envvar="TENURE_SECRETS",
        metavar="FOLDER",
        help="The folder with the secrets of hooks and webhooks, in a subfolder for each tenant.",
    ),
]
SharedSecrets = Annotated[
    bool,
    typer.Option(
        "--shared-secrets",
        envvar="TENURE_SHARED_SECRETS",
        help="Let every tenant use all secrets instead of just its own: env:TENURE_SECRET_{tenant}_..., FOLDER/{tenant}/...",
    ),
]


Publish = Annotated[
    str | None,
    typer.Option(
        "--publish",
        envvar="TENURE_PUBLISH",
        metavar="DIR|s3://BUCKET/PREFIX",
        help="Publish the status of agent runs there, for readers without a database. One process at a time publishes.",
    ),
]


app = typer.Typer()


@app.command(epilog=_EPILOG)
def serve(
    host: Host = DEFAULT_SETTINGS.host,
    port: Port = DEFAULT_SETTINGS.port,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy",
            help="A proxy terminates TLS and sends the address of the client in X-Forwarded-For.",
        ),
    ] = DEFAULT_SETTINGS.behind_proxy,
    trusted_proxies: Annotated[
        int | None,
        typer.Option(
            "--trusted-proxies",
            metavar="N",
            min=1,
            help="With --behind-proxy: how many proxies append to that header. The client is the N-th entry from the right.  \\[default: 1]",
            show_default=False,
        ),
    ] = None,
    forwarded_header: Annotated[
        Literal["x-forwarded-for", "forwarded"] | None,
        typer.Option(
            "--forwarded-header",
            help="With --behind-proxy: the header that proxies append to.  \\[default: x-forwarded-for]",
            show_default=False,
        ),
    ] = None,
    max_connections: Annotated[
        int, typer.Option("--max-connections", min=1, help="The most connections.")
    ] = DEFAULT_SETTINGS.connections_max,
    max_connections_per_address: Annotated[
        int,
        typer.Option(
            "--max-connections-per-address",
            min=1,
            help="The most connections from one address; behind a proxy, concurrent requests.",
        ),
    ] = DEFAULT_SETTINGS.connections_per_address_max,
    max_body_memory: Annotated[
        int,
        typer.Option(
            "--max-body-memory",
            min=64,
            metavar="MIB",
            help="MiB that the headers and bodies of all concurrent requests may use.",
        ),
    ] = DEFAULT_SETTINGS.body_bytes_total_max // _MIB,
    max_bodies_per_address: Annotated[
        int,
        typer.Option(
            "--max-bodies-per-address", min=1, help="The most incomplete request bodies from one address."
        ),
    ] = DEFAULT_SETTINGS.bodies_per_address_max,
    max_streams_per_key: Annotated[
        int, typer.Option("--max-streams-per-key", min=1, help="The most event streams of one credential.")
    ] = DEFAULT_SETTINGS.streams_per_key_max,
    max_streams_per_tenant: Annotated[
        int, typer.Option("--max-streams-per-tenant", min=1, help="The most event streams of one tenant.")
    ] = DEFAULT_SETTINGS.streams_per_tenant_max,
    requests_per_second: Annotated[
        int,
        typer.Option(
            "--requests-per-second",
            min=1,
            help=f"Requests per second of one credential, on average; bursts may have {BURST_SECONDS} times as many.",
        ),
    ] = int(DEFAULT_SETTINGS.requests_per_second),
    request_id_keys: Annotated[
        bool,
        typer.Option(
            "--request-id-keys/--no-request-id-keys",
            help="Use X-Request-ID as the idempotency key of requests without a better one.",
        ),
    ] = DEFAULT_SETTINGS.request_id_is_key,
    grace: Annotated[
        str, typer.Option("--grace", help="How long requests may take to finish when it is stopped.")
    ] = f"{DEFAULT_SETTINGS.grace_seconds:g}s",
    drain: Annotated[
        str, typer.Option("--drain", help="How long it responds NOT_READY before it stops listening.")
    ] = f"{DEFAULT_SETTINGS.drain_seconds:g}s",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option("--log-level", help="The lowest level to log."),
    ] = "info",
    log_format: Annotated[
        Literal["json", "text"], typer.Option("--log-format", help="JSON lines, or text for people.")
    ] = "json",
    log_runs: Annotated[
        bool, typer.Option("--log-runs/--no-log-runs", help="Log the events of runs.")
    ] = DEFAULT_SETTINGS.log_runs,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="Log every request.")
    ] = DEFAULT_SETTINGS.log_requests,
    webhooks_to_private: Annotated[
        bool,
        typer.Option("--webhooks-to-private", help="Allow outgoing webhooks to private networks."),
    ] = DEFAULT_SETTINGS.webhooks_to_private,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url",
            metavar="URL",
            help="The URL at which people reach this server, for links in Slack.",
        ),
    ] = None,
    ci: Annotated[
        str | None,
        typer.Option(
            "--ci",
            envvar="TENURE_CI",
            metavar="FILE",
            help="Run CI for the repositories in this settings file (docs/ci.md).",
        ),
    ] = None,
    vcs: Annotated[
        str | None,
        typer.Option(
            "--vcs",
            envvar="TENURE_VCS",
            metavar="FILE",
            help="Report runs to GitHub, by this settings file (docs/vcs-reports.md).",
        ),
    ] = None,
    publish: Publish = None,
    status_listen: Annotated[
        str | None,
        typer.Option(
            "--status-listen",
            metavar="HOST:PORT",
            help="With --publish: also serve what was published, as `tenure status-server` does.",
        ),
    ] = None,
    firestore_project: Annotated[
        str | None,
        typer.Option(
            "--firestore-project",
            envvar="TENURE_FIRESTORE_PROJECT",
            metavar="PROJECT",
            help="Mirror the runs of Git With Intent to the Firestore database of this project.",
        ),
    ] = None,
    firestore_database: Annotated[
        str, typer.Option("--firestore-database", metavar="NAME", help="The database of that project.")
    ] = DEFAULT_SETTINGS.firestore_database,
    firestore_credentials: Annotated[
        str | None,
        typer.Option(
            "--firestore-credentials",
            envvar="TENURE_FIRESTORE_CREDENTIALS",
            metavar="REFERENCE",
            help="The key file of a service account: file:/PATH or env:NAME. FIRESTORE_EMULATOR_HOST makes it unnecessary.",
        ),
    ] = None,
    firestore_tenants: Annotated[
        list[str] | None,
        typer.Option(
            "--firestore-tenant",
            metavar="TENANT",
            help="A tenant whose runs are mirrored; may be repeated.  \\[default: default]",
            show_default=False,
        ),
    ] = None,
    secrets: Secrets = None,
    shared_secrets: SharedSecrets = False,
    connectors: ConnectorsFile = None,
    evidence: WithEvidence = False,
    signing_key: SigningKey = None,
    migrate: Annotated[
        bool, typer.Option("--migrate/--no-migrate", help="Bring the database up to date first.")
    ] = True,
    wait_for_database: WaitForDatabase = "60s",
    listen_db: ListenDb = None,
    external_queue: ExternalQueueUrl = None,
    db: Db = None,
) -> None:
    """Serve the HTTP API: runs, approvals, hooks, schedules, remote workers and live status. Logs go to stdout.

    Any number of servers can share one database: an SQLite file on one machine, or PostgreSQL.
    """
    if not behind_proxy and (trusted_proxies is not None or forwarded_header is not None):
        raise typer.BadParameter("--trusted-proxies and --forwarded-header need --behind-proxy")
    if status_listen is not None and publish is None:
        raise typer.BadParameter("--status-listen needs --publish")
    emulator = os.environ.get("FIRESTORE_EMULATOR_HOST") or None
    if firestore_project is not None and firestore_credentials is None and emulator is None:
        raise typer.BadParameter("--firestore-project needs --firestore-credentials")
    require_server_extra()
    from tenure.config import choose_database
    from tenure.engine import Engine
    from tenure.engine.entry_point import run_in_loop
    from tenure.govern.connectors.registry import choose_connectors
    from tenure.publish.vcs_settings import load_vcs_settings
    from tenure.secrets import Secrets as KnownSecrets
    from tenure.server.http_server import check_address
    from tenure.server.http_server import serve as serve_engine
    from tenure.server.observe.structured_logs import configure_logging

    settings = Settings(
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        behind_proxy=behind_proxy,
        trusted_proxies=trusted_proxies or DEFAULT_SETTINGS.trusted_proxies,
        forwarded_header=forwarded_header or DEFAULT_SETTINGS.forwarded_header,
        connections_max=max_connections,
        connections_per_address_max=max_connections_per_address,
        body_bytes_total_max=max_body_memory * _MIB,
        bodies_per_address_max=max_bodies_per_address,
        streams_per_key_max=max_streams_per_key,
        streams_per_tenant_max=max_streams_per_tenant,
        requests_per_second=float(requests_per_second),
        request_id_is_key=request_id_keys,
        grace_seconds=parse_seconds(grace),
        drain_seconds=parse_seconds(drain),
        log_runs=log_runs,
        log_requests=log_requests,
        webhooks_to_private=webhooks_to_private,
        public_url=public_url,
        vcs=None if vcs is None else load_vcs_settings(vcs),
        status_listen=status_listen,
        secrets_folder=secrets,
        secrets_shared=shared_secrets,
        firestore_project=firestore_project,
        firestore_database=firestore_database,
        firestore_credentials=firestore_credentials,
        firestore_emulator=emulator,
        firestore_tenants=tuple(firestore_tenants or DEFAULT_SETTINGS.firestore_tenants),
    )
    check_address(settings)
    known = choose_connectors(
        connectors, secrets=KnownSecrets(folder=settings.secrets_folder, shared=settings.secrets_shared)
    )
    configure_logging(level=log_level, form=log_format)
    database_wait(choose_database(db), wait_for_database)
    engine = Engine(
        db,
        listen_url=listen_db,
        queue=external_queue,
        wait_for_database=wait_for_database,
        actor="server",
        migrate=migrate,
        connectors=known,
        evidence=evidence,
        signing_key=signing_key,
        ci=ci,
        publish=publish,
    )
    _ = engine.runtime.ci  # a file with problems ends the command now
    run_in_loop(serve_engine(engine, settings))
