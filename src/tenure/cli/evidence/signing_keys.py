"""`tenure signing-keys`: the keys that sign evidence and ledgers.

Law: commands name a private key by a reference and never print it; they print its public half.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tenure.cli.common.arguments import parse_time
from tenure.cli.common.backend import call_engine, caller_id
from tenure.cli.common.console import print_json, show_result, warn
from tenure.cli.common.options import AsJson, By, Db
from tenure.cli.common.tables import format_time, show_table
from tenure.clock import to_datetime, us
from tenure.private_files import write_file

if TYPE_CHECKING:
    from tenure.govern.ledger.signing_keys import SigningKeys
    from tenure.govern.signing import Signer
    from tenure.kernel.governance_rows import SigningKeyRow

T = TypeVar("T")

app = typer.Typer(
    name="signing-keys",
    help="Keys that sign evidence and ledgers. Rotate them, so that the old key endorses the new one.",
    epilog="""
    From the first key to the second:

    tenure signing-keys new --to seal.key > seal.pub

    TENURE_SIGNING_KEY=file:seal.key tenure serve -- seals runs and signs ledgers; the first key is trusted automatically

    tenure signing-keys new --to next.key > next.pub

    tenure signing-keys rotate --old file:seal.key --new file:next.key

    tenure signing-keys export-trust --to trust.json -- for those who verify evidence

    tenure signing-keys revoke KEY --from 2026-02-14T08:00Z -- signatures since then are not trusted

    These commands need the operator's database: servers do not add, rotate or revoke signing keys. A server shows its keys at
    GET /ledger/trust. docs/ledger.md explains signing keys.
    """,
    no_args_is_help=True,
)

_REFERENCE = "file:PATH (mode 0600), env:NAME or command:ARGV."
Public = Annotated[
    str | None,
    typer.Option("--public", help="For command:ARGV: its public key, a file or base64.", show_default=False),
]


def _call(db: str | None, call: Callable[[SigningKeys], Awaitable[T]], *, make: bool = False) -> T:
    from tenure.govern.ledger.signing_keys import SigningKeys

    refusal = "signing keys stay with the operator's database: use --db instead of --server"
    return call_engine(
        db, "default", lambda engine: call(SigningKeys(engine.store)), make=make, refusal=refusal
    )


@app.command()
def new(
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="The new file for the private key, mode 0600.")
    ],
    as_json: AsJson = False,
) -> None:
    """Create a key. The private half goes to a new file that only you can read, the public half to stdout."""
    from tenure.govern.signing import make_key
    from tenure.proof.ed25519 import public_pem

    made = make_key(to)
    if as_json:
        print_json({"id": made.id, "file": str(to), "public": public_pem(made.public)})
        return
    print(public_pem(made.public), end="")
    warn(f"key {made.id} is in {to}; use it with TENURE_SIGNING_KEY=file:{to}", "")


@app.command()
def add(
    key: Annotated[str, typer.Argument(metavar="REF", help=_REFERENCE)],
    public: Public = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Trust a key without an endorsement: the first one, or if the one before is lost. Otherwise use `rotate`."""
    signer = _signer(key, public)
    made = _call(db, lambda keys: keys.add(signer, caller_id(by)), make=True)
    _show_key(made, "is trusted from now on", as_json)


@app.command("list")
def list_keys(db: Db = None, as_json: AsJson = False) -> None:
    """List the keys, oldest first."""
    found = _call(db, lambda keys: keys.all())
    if as_json:
        print_json([_view(key) for key in found])
        return
    show_table(
        found,
        False,
        "there is no signing key; `tenure signing-keys new` creates one",
        ("key", "since (UTC)", "endorsed by", "revoked from (UTC)"),
        lambda key: (
            key.id,
            _time(key.created_at),
            (key.endorsed_by or "")[:12],
            "" if key.revoked_from is None else _time(key.revoked_from),
        ),
        whole_ids=True,
    )


@app.command()
def rotate(
    old: Annotated[str, typer.Option("--old", metavar="REF", help=f"The current key: {_REFERENCE}")],
    new: Annotated[
        str, typer.Option("--new", metavar="REF", help="The next key, as a reference like the old one.")
    ],
    public: Public = None,
    old_public: Annotated[
        str | None, typer.Option("--old-public", help="The same for the old key.", show_default=False)
    ] = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Let the old key endorse the new one, then configure the new one. Signatures of the old key stay valid."""
    before, after = _signer(old, old_public), _signer(new, public)
    made = _call(db, lambda keys: keys.rotate(before, after, caller_id(by)))
    _show_key(made, f"is endorsed by {before.id[:12]}", as_json)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, or its first characters.")],
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Signatures from this time on are not trusted.  \\[default: now]",
            show_default=False,
        ),
    ] = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key permanently: its signatures from a time on are not trusted. Then export the trust file again."""
    revoke_key(key, since, db, by, as_json)


def revoke_key(key: str, since: str | None, db: str | None, by: str | None, as_json: bool) -> None:
    """Revoke a signing key, also for `tenure keys revoke --from`."""
    from_us = None if since is None else us(parse_time(since).timestamp())
    made = _call(db, lambda keys: keys.revoke(key, from_us, caller_id(by)))
    assert made.revoked_from is not None
    _show_key(made, f"is revoked from {_time(made.revoked_from)} UTC on", as_json)


@app.command("export-trust")
def export_trust(
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FILE", help="The file to write.  \\[default: stdout]", show_default=False
        ),
    ] = None,
    db: Db = None,
) -> None:
    """Write the trust file: public keys, endorsements and revocations, for `tenure verify --trust`."""
    trust = _call(db, lambda keys: keys.trust())
    body = trust.dump().decode()
    if to is None:
        print(body, end="")
    else:
        write_file(to, body)
        warn(f"{len(trust.keys)} keys are in {to}", "")


def _signer(reference: str, public: str | None) -> Signer:
    from tenure.govern.signing import Signer

    return Signer.open(reference, public)


def _show_key(key: SigningKeyRow, what: str, as_json: bool) -> None:
    show_result(_view(key), as_json, f"key {key.id} {what}")


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
    return format_time(to_datetime(at))
