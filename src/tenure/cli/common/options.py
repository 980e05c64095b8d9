"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer


def not_empty(given: str | None) -> str | None:
    """An option that was given says something: an unset variable in a script must not pick a default."""
    if given is not None and not given.strip():
        raise typer.BadParameter("it is empty; leave the option out for its default")
    return given


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
        help="Where to listen for wake-ups, if the database is behind a pooler: PostgreSQL itself.",
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
        help="How long PostgreSQL may be away at the start; 0: not at all.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
ConnectorsFile = Annotated[
    str | None,
    typer.Option(
        "--connectors",
        envvar="TENURE_CONNECTORS",
        metavar="FILE",
        help="What runs can do to the world, as far as policies allow it: docs/connectors.md.",
        show_default=False,
    ),
]

PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="A policy that is made active first, where the tenant has no people: docs/policy.md.",
        show_default=False,
    ),
]

# Of whatever looks after a database for good.
SigningKey = Annotated[
    str | None,
    typer.Option(
        "--signing-key",
        envvar="TENURE_SIGNING_KEY",
        metavar="REF",
        help="The key that seals: file:PATH (mode 0600), env:NAME or command:ARGV.",
        show_default=False,
    ),
]
WithEvidence = Annotated[
    bool,
    typer.Option("--evidence", help="Seal runs that end also without a key: their evidence is not signed."),
]

# Of whatever starts a run.
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="May be repeated.")]
Key = Annotated[str | None, typer.Option("--key", help="Idempotency key: the same request, the same run.")]
Priority = Annotated[int, typer.Option("--priority", help="Higher goes first within a tenant.")]
ConcurrencyKey = Annotated[
    str | None, typer.Option("--concurrency-key", help="One run with this key at a time.")
]
Supersede = Annotated[bool, typer.Option("--supersede", help="Cancel earlier runs with the same key.")]
NotBefore = Annotated[str | None, typer.Option("--not-before", help="Start later: +5m, or a time.")]
Timeout = Annotated[str | None, typer.Option("--timeout", help="The run's deadline: 90s, 5m, 2h.")]
