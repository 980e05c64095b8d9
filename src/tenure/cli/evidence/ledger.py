"""`tenure ledger`: what was sealed and signed for, taken out of the database and checked against it.

Laws:
1. `check` ends with 0 where nothing is wrong, with 1 where something is; what could not be checked is said.
2. Over a server `show`, `export` and `check` look at what is signed for and prove it; `sign` is for whoever has the database and the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tenure.cli.common.console import count_noun, err, out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db, SigningKey
from tenure.cli.common.server_option import refuse_server
from tenure.cli.common.session import By, call_engine, caller_id, run_async
from tenure.cli.identity.shared import call_local_or_server
from tenure.cli.runs.run_tables import make_table
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.client.transport import Transport
    from tenure.engine import Engine
    from tenure.govern.ledger.audit import LedgerAudit
    from tenure.kernel.governance_rows import SignedCheckpointRow
    from tenure.proof.signed_notes import LedgerCheckpoint
    from tenure.store.ledger import LedgerSize
    from tenure.store.port import Store

T = TypeVar("T")

_app = typer.Typer(
    name="ledger",
    help="A tenant's ledger: two leaves per run and its admin chain, under signed checkpoints.",
    epilog="""
    Keep a checkpoint where nobody who can write the database can write, and compare now and then:

    tenure ledger export --tenant acme --to /safe/acme.checkpoint

    tenure ledger check --checkpoint /safe/acme.checkpoint --trust trust.json

    With --server they ask a server instead, for the tenant whose key it is; `sign` needs the database and the signing key.

    A dropped run, a history or ledger that was cut off, a change, an old backup that was put back: each is named.
    docs/ledger.md explains the whole, and the formats.
    """,
    no_args_is_help=True,
)

_Whose = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        help="Whose.  \\[default: default; of `check`: the checkpoint's, else all]",
        show_default=False,
    ),
]
_Installation = Annotated[
    bool, typer.Option("--installation", help="The installation's own, which has the signing keys.")
]
LEAVES_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


def _on_either(
    db: str | None, here: Callable[[Store], Awaitable[T]], there: Callable[[Transport], Awaitable[T]]
) -> T:
    """One look at the ledgers of a database, or at a server's."""
    return call_local_or_server(db, lambda engine: here(engine.store), there)


def _no_installation(installation: bool) -> None:
    if installation:
        raise TenureError("INVALID_INPUT", "the installation's own ledger is in its database: use --db")


def _whose(tenant: str | None, installation: bool) -> str:
    if installation and tenant is not None:
        raise typer.BadParameter("name a --tenant or say --installation")
    return "" if installation else tenant or "default"


@_app.command()
def show(
    tenant: _Whose = None,
    installation: _Installation = False,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Show a ledger: its size and root, its newest checkpoint, and its last leaves."""
    whose = _whose(tenant, installation)

    async def look(store: Store) -> dict[str, object]:
        from tenure.govern.ledger.tenant_ledger import TenantLedger
        from tenure.proof.ledger_leaves import leaf_facts, leaf_problem

        book = TenantLedger(store, whose)
        size, newest = await book.size(), await book.newest()
        found = await store.read("leaves_after", whose, size - 1 - LEAVES_SHOWN, LEAVES_SHOWN)
        return {
            "origin": await book.origin(),
            "size": size,
            "root": (await book.root(size)).hex(),
            "checkpoint": None if newest is None else {"size": newest.size, "note": newest.note},
            "leaves": [
                {
                    "pos": leaf.pos,
                    **({"problem": wrong} if (wrong := leaf_problem(leaf)) else leaf_facts(leaf)),
                }
                for leaf in found
            ],
        }

    async def look_there(to: Transport) -> dict[str, object]:
        from tenure.client.ledger import RemoteLedger

        _no_installation(installation)
        ledger = RemoteLedger(to, tenant)
        newest = await ledger.newest()
        if newest is None:
            return {"origin": None, "size": 0, "root": "", "checkpoint": None, "leaves": []}
        return {
            "origin": newest.origin,
            "size": newest.size,
            "root": newest.root.hex(),
            "checkpoint": {"size": newest.size, "note": newest.note},
            "leaves": await ledger.leaves(newest, LEAVES_SHOWN),
        }

    _show(_on_either(db, look, look_there), as_json)


def _show(seen: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(seen)
        return
    console = out()
    shows = make_table("leaf", "kind", "of", "events", "says")
    leaves = seen["leaves"]
    assert isinstance(leaves, list)
    for leaf in leaves:
        of = leaf.get("run") or leaf.get("key", "")[:12] or f"line {leaf.get('seq', '?')}"
        says = leaf.get("problem") or leaf.get("outcome") or leaf.get("action") or ""
        shows.add_row(
            str(leaf["pos"]),
            safe_text(leaf.get("kind", "?")),
            safe_text(of),
            safe_text(leaf.get("events", "")),
            safe_text(says),
        )
    if leaves:
        console.print(shows)
    console.print(safe_text(f"{seen['origin'] or 'no name yet: no signing key was ever used here'}"))
    console.print(
        f"{count_noun(int(str(seen['size'])), 'leaf').replace('leafs', 'leaves')}, root {seen['root']}"
    )
    newest = seen["checkpoint"]
    if isinstance(newest, dict):
        console.print(safe_text(f"signed for up to {newest['size']}:\n\n{newest['note']}"), end="")
    else:
        console.print("nothing is signed for yet")


@_app.command()
def sign(
    signing_key: SigningKey = None,
    db: Db = None,
) -> None:
    """Enter new runs and admin lines and sign for all ledgers now, as a server does by itself every minute. Needs the database."""

    async def work(store: Store) -> int:
        from tenure.govern.ledger.keeper import RUNS_AT_ONCE, LedgerKeeper
        from tenure.govern.ledger.signing_keys import SigningKeys
        from tenure.govern.signing import configured_signer

        signer = configured_signer(signing_key)
        if signer is None:
            raise TenureError(
                "SIGNING_KEY_UNAVAILABLE", "no signing key is named: --signing-key or TENURE_SIGNING_KEY"
            )
        await SigningKeys(store).ready(signer)
        keeper = LedgerKeeper(store, signer=lambda: signer)
        while await keeper.append_new_runs() == RUNS_AT_ONCE:
            pass
        await keeper.seal_admin_chains()
        count = await keeper.sign_due(now=True)
        await keeper.copy_pending_checkpoints()
        return count

    refuse_server("signing for ledgers takes the database and the signing key: use --db instead of --server")
    count = run_async(call_engine(db, "default", lambda engine: work(engine.store)))
    out().print(f"signed {count_noun(count, 'checkpoint')}")


@_app.command()
def export(
    to: Annotated[str, typer.Option("--to", metavar="FILE|s3://BUCKET/NAME", help="Where it is written.")],
    tenant: _Whose = None,
    installation: _Installation = False,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Write the newest checkpoint to a file or an object. An older ledger never takes the place of a newer one."""
    from tenure.govern.ledger.checkpoint_export import export_checkpoint as written

    whose = _whose(tenant, installation)

    async def from_there(transport: Transport) -> SignedCheckpointRow:
        from tenure.client.ledger import RemoteLedger

        _no_installation(installation)
        return await RemoteLedger(transport, tenant).export(to)

    made = _on_either(db, lambda store: written(store, whose, to, caller_id(by)), from_there)
    if as_json:
        print_json(
            {"tenant": made.tenant, "size": made.size, "root": made.root.hex(), "key": made.key_id, "to": to}
        )
    else:
        err().print(safe_text(f"the checkpoint of {made.size} leaves is in {to}"), soft_wrap=True)


@_app.command()
def check(
    tenant: _Whose = None,
    installation: _Installation = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="FILE", help="One that was kept elsewhere.", show_default=False),
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option("--trust", metavar="FILE", help="The keys to believe.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FILE", help="The public key to believe.", show_default=False),
    ] = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a ledger, the runs and the admin chain that it tells of, and compare it with a checkpoint."""
    from tenure.proof.signatures import TrustedKeys

    kept = None if checkpoint is None else _note(checkpoint)
    trusted = TrustedKeys.given(key, trust)

    async def look(engine: Engine) -> list[LedgerAudit]:
        from tenure.client.ledger import tenant_of_checkpoint
        from tenure.govern.ledger.audit import audit_ledger as checked

        store = engine.store
        if kept is not None and tenant is None and not installation:
            whose = [tenant_of_checkpoint(kept)]
        elif tenant is None and not installation:
            sizes: list[LedgerSize] = await store.read("ledger_sizes")
            whose = [each.tenant for each in sizes]
        else:
            whose = [_whose(tenant, installation)]
        reachable = engine.artifacts if engine.artifacts.is_configured else None
        return [await checked(store, each, kept, trusted, reachable) for each in whose]

    async def look_there(to: Transport) -> list[LedgerAudit]:
        from tenure.client.ledger import RemoteLedger

        _no_installation(installation)
        return [await RemoteLedger(to, tenant).check(kept, trusted)]

    found = call_local_or_server(db, look, look_there)
    wrong = any(each.flaws for each in found)
    if as_json:
        print_json({"clean": not wrong, "ledgers": found})
    else:
        for each in found:
            _tell(each)
        if not found:
            out().print("there is no ledger: nothing was sealed here")
    if wrong:
        raise typer.Exit(1)


def _tell(checked: LedgerAudit) -> None:
    console = out()
    name = f"tenant {checked.tenant}" if checked.tenant else "the installation"
    what = f"signed for up to {checked.size} leaves"
    if checked.runs is not None:
        what = (
            f"{checked.size} leaves, {count_noun(checked.runs, 'run')}, {checked.deleted} of them deleted,"
            f" {count_noun(checked.checkpoints, 'checkpoint')}"
        )
    console.print(safe_text(f"{name}: {what}"), soft_wrap=True)
    for line in checked.checked:
        console.print(safe_text(f"  ok           {line}", "green"), soft_wrap=True)
    for line in checked.unchecked:
        console.print(safe_text(f"  not checked  {line}", "yellow"), soft_wrap=True)
    for flaw in checked.flaws:
        console.print(
            safe_text(f"  WRONG        {flaw.code} {flaw.place}: {flaw.text}", "bold red"), soft_wrap=True
        )


def _note(file: Path) -> LedgerCheckpoint:
    from tenure.proof import signed_notes

    try:
        with file.open("rb") as opened:
            return signed_notes.parse_checkpoint(opened.read(signed_notes.NOTE_BYTES_MAX + 1))
    except OSError as fault:
        raise TenureError("INVALID_INPUT", f"{file} cannot be read: {fault.strerror}") from fault
