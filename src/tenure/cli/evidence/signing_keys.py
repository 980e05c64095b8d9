"""`tenure signing-keys`: the keys that seal runs and sign for ledgers.

Law: a private key is named by a reference and never printed; what is printed is its public half.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tenure.cli.common.console import err, out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.server_option import refuse_server
from tenure.cli.common.session import By, call_engine, caller_id, parse_time, run_async
from tenure.cli.runs.run_tables import keep_ids_whole, make_table
from tenure.clock import us
from tenure.private_files import write_file

if TYPE_CHECKING:
    from tenure.govern.ledger.signing_keys import SigningKeys
    from tenure.govern.signing import Signer
    from tenure.kernel.governance_rows import SigningKeyRow

T = TypeVar("T")

_app = typer.Typer(
    name="signing-keys",
    help="The keys that seal: made, rotated so that the old one vouches for the new one, revoked.",
    epilog="""
    From the first key to the second:

    tenure signing-keys new --to seal.key > seal.pub

    TENURE_SIGNING_KEY=file:seal.key tenure serve -- seals runs and signs for ledgers; the first key is entered by itself

    tenure signing-keys new --to next.key > next.pub

    tenure signing-keys rotate --old file:seal.key --new file:next.key

    tenure signing-keys export-trust --to trust.json -- for whoever verifies

    tenure signing-keys revoke KEY --from 2026-02-14T08:00Z -- what it signed since counts for nothing

    They stay with the operator's database: no server adds, rotates or revokes them for anybody. Which keys sign is at a server's
    GET /ledger/trust. docs/ledger.md explains the whole.
    """,
    no_args_is_help=True,
)

_REFERENCE = "file:PATH (mode 0600), env:NAME or command:ARGV."
Public = Annotated[
    str | None,
    typer.Option("--public", help="Of a command: its public key, a file or base64.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


def call_signing_keys(
    db: str | None, call: Callable[[SigningKeys], Awaitable[T]], *, make: bool = False
) -> T:
    """One call about the keys of a database."""
    from tenure.govern.ledger.signing_keys import SigningKeys

    refuse_server("signing keys stay with the operator's database: use --db instead of --server")
    return run_async(call_engine(db, "default", lambda engine: call(SigningKeys(engine.store)), make=make))


@_app.command()
def new(
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="Where the private key is written, mode 0600.")
    ],
    as_json: AsJson = False,
) -> None:
    """Make a key: the private half goes to a new file that only you can read, the public one to stdout."""
    from tenure.govern.signing import make_key
    from tenure.proof.ed25519 import public_pem

    made = make_key(to)
    if as_json:
        print_json({"id": made.id, "file": str(to), "public": public_pem(made.public)})
        return
    print(public_pem(made.public), end="")
    err().print(
        safe_text(f"key {made.id} is in {to}; use it with TENURE_SIGNING_KEY=file:{to}"), soft_wrap=True
    )


@_app.command()
def add(
    key: Annotated[str, typer.Argument(metavar="REF", help=_REFERENCE)],
    public: Public = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Believe a key because you say so: the first one, or where the one before is lost. Else: rotate."""
    signer = _signer(key, public)
    made = call_signing_keys(db, lambda keys: keys.add(signer, caller_id(by)), make=True)
    _tell(made, "is believed from now on", as_json)


@_app.command("list")
def list_keys(db: Db = None, as_json: AsJson = False) -> None:
    """List the keys, oldest first."""
    found = call_signing_keys(db, lambda keys: keys.all())
    if as_json:
        print_json([_view(key) for key in found])
        return
    shows = make_table("key", "since (UTC)", "endorsed by", "revoked from (UTC)")
    keep_ids_whole(shows, (key.id for key in found))
    for key in found:
        until = "" if key.revoked_from is None else _time(key.revoked_from)
        shows.add_row(key.id, _time(key.created_at), (key.endorsed_by or "")[:12], until)
    out().print(
        shows if found else safe_text("there is no signing key; docs/ledger.md explains how to make one")
    )


@_app.command()
def rotate(
    old: Annotated[
        str, typer.Option("--old", metavar="REF", help=f"The key that signs by now: {_REFERENCE}")
    ],
    new: Annotated[str, typer.Option("--new", metavar="REF", help="The one that is to sign, likewise.")],
    public: Public = None,
    old_public: Annotated[
        str | None, typer.Option("--old-public", help="Likewise of the old one.", show_default=False)
    ] = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Let the old key endorse the new one; then configure the new one. What the old one has signed stays good."""
    before, after = _signer(old, old_public), _signer(new, public)
    made = call_signing_keys(db, lambda keys: keys.rotate(before, after, caller_id(by)))
    _tell(made, f"is endorsed by {before.id[:12]}", as_json)


@_app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its id, or how that begins.")],
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="From when on nothing it signs is believed.  \\[default: now]",
            show_default=False,
        ),
    ] = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Believe nothing that a key signs from a moment on; for good. Export the trust file anew for whoever verifies."""
    revoke_key(key, since, db, by, as_json)


def revoke_key(key: str, since: str | None, db: str | None, by: str | None, as_json: bool) -> None:
    """The same, also for `tenure keys revoke --from`."""
    from_us = None if since is None else us(parse_time(since).timestamp())
    made = call_signing_keys(db, lambda keys: keys.revoke(key, from_us, caller_id(by)))
    assert made.revoked_from is not None
    _tell(made, f"is revoked from {_time(made.revoked_from)} UTC on", as_json)


@_app.command("export-trust")
def export_trust(
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FILE", help="Where it is written.  \\[default: stdout]", show_default=False
        ),
    ] = None,
    db: Db = None,
) -> None:
    """Write the trust file: public keys, endorsements and revocations, for `tenure verify --trust`."""
    trust = call_signing_keys(db, lambda keys: keys.trust())
    body = trust.dump().decode()
    if to is None:
        print(body, end="")
    else:
        write_file(to, body)
        err().print(safe_text(f"{len(trust.keys)} keys are in {to}"), soft_wrap=True)


def _signer(reference: str, public: str | None) -> Signer:
    from tenure.govern.signing import Signer

    return Signer.open(reference, public)


def _tell(key: SigningKeyRow, what: str, as_json: bool) -> None:
    if as_json:
        print_json(_view(key))
    else:
        out().print(safe_text(f"key {key.id} {what}"), soft_wrap=True)


def _view(key: SigningKeyRow) -> dict[str, object]:
    from tenure.govern.ledger.signing_keys import as_trusted_key

    seen = as_trusted_key(key)
    return {
        "id": seen.id,
        "public": seen.public,
        "created_at": _time(key.created_at),
        "endorsed_by": seen.endorsed_by,
        "revoked_from": None if key.revoked_from is None else _time(key.revoked_from),
    }


def _time(at: int) -> str:
    from tenure.clock import to_datetime

    return f"{to_datetime(at):%Y-%m-%d %H:%M:%S}"
