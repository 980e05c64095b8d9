"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenure.limits import NAME_CHARS_MAX

RUN_IDS_OFFERED = 30


def not_empty(given: str | None) -> str | None:
    """Refuse an empty value: an unset variable in a script must not choose the default."""
    if given is not None and not given.strip():
        raise typer.BadParameter("it is empty; leave the option out for its default")
    return given


def _opaque(given: str | None) -> str | None:
    text = not_empty(given)
    if text is not None and (len(text) > NAME_CHARS_MAX or not text.isprintable() or " " in text):
        raise typer.BadParameter(f"an id has 1 to {NAME_CHARS_MAX} characters and no blanks")
    return text


def complete_run_ids(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest runs of the database that the command line names, for the shell to offer."""
    from tenure.cli.common.backend import call_backend
    from tenure.errors import TenureError

    given = context.params
    try:
        runs = call_backend(
            given.get("db"),
            given.get("tenant") or "default",
            lambda backend: backend.runs.list(limit=RUN_IDS_OFFERED),
        )
    except TenureError:
        return []
    return [(run.id, f"{run.workflow} {run.status}") for run in runs if run.id.startswith(incomplete)]


def _by(default: str) -> Any:
    help_text = f"Who asks, as an opaque id without blanks.  \\[default: {default}]"
    return typer.Option("--by", metavar="ID", help=help_text, show_default=False, callback=_opaque)


TlsCert = Annotated[
    str | None,
    typer.Option(
        "--tls-cert", envvar="TENURE_TLS_CERT", metavar="FILE", help="The certificate chain, as PEM."
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(
        "--tls-key",
        envvar="TENURE_TLS_KEY",
        metavar="FILE",
        help="The private key of the certificate, as PEM.",
    ),
]
RunArg = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run's id, see `tenure runs list`.", autocompletion=complete_run_ids
    ),
]
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant's id, see `tenure tenants list`.")]
By = Annotated[str | None, _by("uid:N of this account")]
StartedBy = Annotated[str | None, _by("`cli` in a file, uid:N in PostgreSQL")]
Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|DSN",
        help="The database: a path, sqlite:PATH or postgresql://...  \\[default: $TENURE_DB, else tenure.db]",
        show_default=False,
        callback=not_empty,
    ),
]
ListenDb = Annotated[
    str | None,
    typer.Option(
        "--listen-db",
        envvar="TENURE_LISTEN_DB",
        metavar="DSN",
        help="Where to listen for wake-ups if the database is behind a pooler: the DSN of PostgreSQL itself.",
        show_default=False,
        callback=not_empty,
    ),
]
ExternalQueueUrl = Annotated[
    str | None,
    typer.Option(
        "--external-queue",
        envvar="TENURE_QUEUE",
        metavar="URL",
        help="NATS, whose messages wake workers: nats://host:4222. Without it the database does.",
        show_default=False,
        callback=not_empty,
    ),
]
WaitForDatabase = Annotated[
    str,
    typer.Option(
        "--wait-for-database",
        envvar="TENURE_WAIT_FOR_DATABASE",
        metavar="DURATION",
        help="How long to wait for PostgreSQL at the start; 0: do not wait.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
ConnectorsFile = Annotated[
    str | None,
    typer.Option(
        "--connectors",
        envvar="TENURE_CONNECTORS",
        metavar="FILE",
        help="The file that configures connectors, the actions that policies can allow: docs/connectors.md.",
        show_default=False,
    ),
]

PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="A policy to make active first, if the tenant has no people: docs/policy.md.",
        show_default=False,
    ),
]

# For processes that serve a database.
SigningKey = Annotated[
    str | None,
    typer.Option(
        "--signing-key",
        envvar="TENURE_SIGNING_KEY",
        metavar="REF",
        help="The key that signs evidence: file:PATH (mode 0600), env:NAME or command:ARGV.",
        show_default=False,
    ),
]
WithEvidence = Annotated[
    bool,
    typer.Option(
        "--evidence", help="Seal finished runs even without a signing key; their evidence is then unsigned."
    ),
]

# For commands that start a run.
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="A label of the run; may be repeated."),
]
Key = Annotated[
    str | None, typer.Option("--key", help="Idempotency key: the same request again returns the same run.")
]
Priority = Annotated[
    int, typer.Option("--priority", help="Runs with a higher priority go first within a tenant.")
]
ConcurrencyKey = Annotated[
    str | None, typer.Option("--concurrency-key", help="Only one run with this key runs at a time.")
]
Supersede = Annotated[
    bool, typer.Option("--supersede", help="Cancel earlier runs with the same concurrency key.")
]
NotBefore = Annotated[
    str | None, typer.Option("--not-before", help="Do not start before this time: +5m, or 2026-02-14T08:00Z.")
]
Timeout = Annotated[str | None, typer.Option("--timeout", help="The run's deadline: 90s, 5m, 2h.")]
