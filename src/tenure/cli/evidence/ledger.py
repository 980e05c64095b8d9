"""`tenure ledger`: ledgers and their signed checkpoints, exported and checked.

Laws:
1. `check` ends with 0 if nothing is wrong, else with 1. It names what it could not check.
2. On a server, `show`, `export` and `check` work on what is signed, and prove it. `sign` needs the database and the signing key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.common.arguments import read_bytes
from tenure.cli.common.backend import call_either, call_engine, caller_id
from tenure.cli.common.console import count_noun, print_json, say, warn
from tenure.cli.common.options import AsJson, By, Db, SigningKey
from tenure.cli.common.tables import show_table
from tenure.cli.evidence.verify import show_checks
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.client.ledger import RemoteLedger
    from tenure.engine import Engine
    from tenure.govern.ledger.audit import LedgerAudit

app = typer.Typer(
    name="ledger",
    help="Ledgers: for each tenant, two leaves per run and the audit chain, under signed checkpoints.",
    epilog="""
    Keep a checkpoint out of reach of people who can write to the database, and compare from time to time:

    tenure ledger export --tenant acme --to /safe/acme.checkpoint

    tenure ledger check --checkpoint /safe/acme.checkpoint --trust trust.json

    With --server these commands work on a server, for the key's tenant. `sign` needs the database and the signing key.

    The check reports dropped runs, changed or truncated histories and ledgers, and restored old backups. docs/ledger.md explains
    ledgers and their formats.
    """,
    no_args_is_help=True,
)

_Whose = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        help="The tenant.  \\[default: default; for `check`: the checkpoint's, else all]",
        show_default=False,
    ),
]
_Installation = Annotated[
    bool, typer.Option("--installation", help="The installation's own ledger, which has the signing keys.")
]
LEAVES_SHOWN = 20


def _remote_ledger(client: Client, tenant: str | None, installation: bool) -> RemoteLedger:
    from tenure.client.ledger import RemoteLedger

    if installation:
        raise TenureError("INVALID_INPUT", "the installation's own ledger is in its database: use --db")
    return RemoteLedger(client.transport, tenant)


def _tenant_name(tenant: str | None, installation: bool) -> str:
    """The tenant whose ledger is meant; the installation's own ledger has an empty name."""
    if installation and tenant is not None:
        raise typer.BadParameter("give --tenant or --installation, not both")
    return "" if installation else tenant or "default"


@app.command()
def show(
    tenant: _Whose = None,
    installation: _Installation = False,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Show a ledger: its size and root, its newest checkpoint, and its last leaves."""
    name = _tenant_name(tenant, installation)

    async def local(engine: Engine) -> dict[str, Any]:
        from tenure.govern.ledger.tenant_ledger import TenantLedger
        from tenure.proof.ledger_leaves import leaf_facts, leaf_problem

        ledger = TenantLedger(engine.store, name)
        size, newest = await ledger.size(), await ledger.newest()
        found = await engine.store.read("leaves_after", name, size - 1 - LEAVES_SHOWN, LEAVES_SHOWN)
        return {
            "origin": await ledger.origin(),
            "size": size,
            "root": (await ledger.root(size)).hex(),
            "checkpoint": None if newest is None else {"size": newest.size, "note": newest.note},
            "leaves": [
                {
                    "pos": leaf.pos,
                    **({"problem": wrong} if (wrong := leaf_problem(leaf)) else leaf_facts(leaf)),
                }
                for leaf in found
            ],
        }

    async def remote(client: Client) -> dict[str, Any]:
        ledger = _remote_ledger(client, tenant, installation)
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

    found = call_either(db, "default", local, remote)
    if as_json:
        print_json(found)
        return
    if found["leaves"]:
        columns = ("leaf", "kind", "of", "events", "says")
        show_table(found["leaves"], False, "", columns, _leaf_cells)
    say(found["origin"] or "no name yet: no signing key was ever used here")
    leaves = "1 leaf" if found["size"] == 1 else f"{found['size']} leaves"
    say(f"{leaves}, root {found['root']}")
    if newest := found["checkpoint"]:
        say(f"newest checkpoint, over the first {newest['size']} leaves:\n\n{newest['note']}".rstrip("\n"))
    else:
        say("nothing is signed yet")


def _leaf_cells(leaf: dict[str, Any]) -> tuple[object, ...]:
    of = leaf.get("run") or leaf.get("key", "")[:12] or f"line {leaf.get('seq', '?')}"
    says = leaf.get("problem") or leaf.get("outcome") or leaf.get("action") or ""
    return leaf["pos"], leaf.get("kind", "?"), of, leaf.get("events", ""), says


@app.command()
def sign(
    signing_key: SigningKey = None,
    db: Db = None,
) -> None:
    """Append new runs and audit entries to all ledgers and sign them now, as a server does every minute. Needs the database."""

    async def sign_all(engine: Engine) -> int:
        from tenure.govern.ledger.keeper import RUNS_AT_ONCE, LedgerKeeper
        from tenure.govern.ledger.signing_keys import SigningKeys
        from tenure.govern.signing import configured_signer

        signer = configured_signer(signing_key)
        if signer is None:
            raise TenureError(
                "SIGNING_KEY_UNAVAILABLE", "no signing key is named: --signing-key or TENURE_SIGNING_KEY"
            )
        await SigningKeys(engine.store).ready(signer)
        keeper = LedgerKeeper(engine.store, signer=lambda: signer)
        while await keeper.append_new_runs() == RUNS_AT_ONCE:
            pass
        await keeper.seal_admin_chains()
        count = await keeper.sign_due(now=True)
        await keeper.copy_pending_checkpoints()
        return count

    refusal = "signing for ledgers takes the database and the signing key: use --db instead of --server"
    say(f"signed {count_noun(call_engine(db, 'default', sign_all, refusal=refusal), 'checkpoint')}")


@app.command()
def export(
    to: Annotated[
        str, typer.Option("--to", metavar="FILE|s3://BUCKET/NAME", help="Where to write the checkpoint.")
    ],
    tenant: _Whose = None,
    installation: _Installation = False,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Write the newest checkpoint to a file or an object. A newer checkpoint is never overwritten by an older one."""
    from tenure.govern.ledger.checkpoint_export import export_checkpoint

    name = _tenant_name(tenant, installation)
    made = call_either(
        db,
        "default",
        lambda engine: export_checkpoint(engine.store, name, to, caller_id(by)),
        lambda client: _remote_ledger(client, tenant, installation).export(to),
    )
    if as_json:
        print_json(
            {"tenant": made.tenant, "size": made.size, "root": made.root.hex(), "key": made.key_id, "to": to}
        )
    else:
        warn(f"the checkpoint of {made.size} leaves is in {to}", "")


@app.command()
def check(
    tenant: _Whose = None,
    installation: _Installation = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="FILE", help="A checkpoint that was kept elsewhere.", show_default=False
        ),
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option(
            "--trust", metavar="FILE", help="A trust file with the keys to trust.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FILE", help="The public key to trust.", show_default=False),
    ] = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a ledger, its runs and its audit chain, and compare it with a checkpoint."""
    from tenure.proof import signed_notes
    from tenure.proof.signatures import TrustedKeys

    kept = None
    if checkpoint is not None:
        kept = signed_notes.parse_checkpoint(read_bytes(checkpoint, signed_notes.NOTE_BYTES_MAX))
    trusted = TrustedKeys.given(key, trust)

    async def local(engine: Engine) -> list[LedgerAudit]:
        from tenure.client.ledger import tenant_of_checkpoint
        from tenure.govern.ledger.audit import audit_ledger

        if tenant is not None or installation:
            names = [_tenant_name(tenant, installation)]
        elif kept is not None:
            names = [tenant_of_checkpoint(kept)]
        else:
            names = [each.tenant for each in await engine.store.read("ledger_sizes")]
        reachable = engine.artifacts if engine.artifacts.is_configured else None
        return [await audit_ledger(engine.store, name, kept, trusted, reachable) for name in names]

    async def remote(client: Client) -> list[LedgerAudit]:
        return [await _remote_ledger(client, tenant, installation).check(kept, trusted)]

    found = call_either(db, "default", local, remote)
    is_clean = not any(each.flaws for each in found)
    if as_json:
        print_json({"clean": is_clean, "ledgers": found})
    elif not found:
        say("there is no ledger: nothing was sealed here")
    else:
        for each in found:
            _show_audit(each)
    if not is_clean:
        raise typer.Exit(1)


def _show_audit(audit: LedgerAudit) -> None:
    name = f"tenant {audit.tenant}" if audit.tenant else "the installation"
    what = f"the first {audit.size} leaves are signed"
    if audit.runs is not None:
        what = (
            f"{audit.size} leaves, {count_noun(audit.runs, 'run')}, {audit.deleted} of them deleted,"
            f" {count_noun(audit.checkpoints, 'checkpoint')}"
        )
    say(f"{name}: {what}")
    wrong = [f"{flaw.code} {flaw.place}: {flaw.text}" for flaw in audit.flaws]
    show_checks(audit.checked, audit.unchecked, wrong)
