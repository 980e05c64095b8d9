"""`tenure evidence`: what was sealed of runs, and files of it for those who were not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.console import count_noun, err, out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db, SigningKey
from tenure.cli.common.server_option import chosen_server
from tenure.cli.common.session import By, RunArg, Tenant, call_backend, caller_id, run_async
from tenure.cli.runs.run_tables import keep_ids_whole, make_table
from tenure.errors import TenureError
from tenure.private_files import make_folder, write_file

if TYPE_CHECKING:
    from tenure.shapes.evidence import ExportedEvidence

_app = typer.Typer(
    name="evidence",
    help="Evidence of runs: bundles that were sealed when they ended, and supplements of what came later.",
    epilog="""
    From a run to a file that an auditor checks without you:

    tenure evidence list RUN -- the bundle and its supplements

    tenure evidence export RUN --to audit/ -- the zip, its signed statement, and the ledger's proof

    tenure verify audit/*.zip --key seal.pub --checkpoint kept.checkpoint

    docs/evidence.md describes the files so that you can check them without Tenure.
    """,
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


@_app.command("list")
def list_evidence(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Of one run; else the newest.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="How many at most.")] = 50,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the parts of a run's evidence, or the newest bundles of all."""
    if run is None:
        found = call_backend(db, tenant, lambda e: e.evidence.newest(limit=limit))
    else:
        number = run
        found = call_backend(db, tenant, lambda e: e.evidence.list(number))
    if as_json:
        print_json({"evidence": found})
        return
    shows = make_table("run", "part", "events", "bytes", "sealed", "key", "sha256")
    keep_ids_whole(shows, (one.run_id for one in found))
    for one in found:
        key = "unsigned" if one.key_id is None else one.key_id[:12]
        sealed = f"{one.sealed_at:%Y-%m-%d %H:%M:%S}"
        cells = (one.run_id, one.part, one.events, one.size, sealed, key, one.sha256[:16])
        shows.add_row(*(safe_text(cell) for cell in cells))
    out().print(
        shows if found else safe_text("there is no evidence; it is made where a signing key is configured")
    )


@_app.command()
def export(
    run: RunArg,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the files are put.")] = Path(),
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="The checkpoint of the ledger that the proofs are to lead to.  \\[default: the newest]",
            show_default=False,
        ),
    ] = None,
    signing_key: SigningKey = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's evidence to files. What was not sealed yet is built on the spot."""
    note = None if checkpoint is None else _read(checkpoint)
    parts = run_async(_exported(run, note, signing_key, db, tenant, by))
    files = _written(parts, to)
    if as_json:
        print_json({"run": run, "files": [str(file) for file in files]})
        return
    for file in files:
        out().print(safe_text(file), soft_wrap=True)
    console = err()
    if not parts:
        console.print(safe_text(f"{run} has no evidence that is sealed; ask its database for it", "yellow"))
    if any(not part.sealed for part in parts):
        text = f"{count_noun(sum(not part.sealed for part in parts), 'part')} built just now: not sealed, and not in the ledger"
        console.print(safe_text(text, "yellow"), soft_wrap=True)
    if any(part.sealed and part.proof is None for part in parts):
        text = "no proof of the ledger: no checkpoint was signed over it yet; `tenure ledger sign`, then export it again"
        console.print(safe_text(text, "yellow"), soft_wrap=True)
    if parts:
        console.print("nothing was checked: `tenure verify` does that with these files alone")


async def _exported(
    run: str, checkpoint: bytes | None, signing_key: str | None, db: str | None, tenant: str, by: str | None
) -> list[ExportedEvidence]:
    if (server := chosen_server(db)) is not None:
        async with server as client:
            return await client.evidence.export(run, checkpoint=checkpoint)
    from tenure.config import choose_database
    from tenure.engine import Engine

    database = choose_database(db)
    address = database.address if database.kind == "postgres" else f"sqlite:{database.address}"
    async with Engine(address, tenant=tenant, migrate=False, sweep=False, signing_key=signing_key) as engine:
        return await engine.evidence.export(run, checkpoint=checkpoint, actor=caller_id(by))


def _written(parts: list[ExportedEvidence], folder: Path) -> list[Path]:
    """NAME, NAME.dsse.json, NAME.tlog-proof."""
    files: list[tuple[str, bytes]] = []
    for part in parts:
        files += [(part.name, part.zip), (f"{part.name}.dsse.json", part.envelope)]
        if part.proof is not None:
            files.append((f"{part.name}.tlog-proof", part.proof.encode()))
    try:
        make_folder(folder)
        for name, body in files:
            write_file(folder / name, body)
    except OSError as fault:
        raise TenureError("INVALID_INPUT", f"{folder} cannot be written: {fault.strerror}") from fault
    return [folder / name for name, _ in files]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as fault:
        raise TenureError("INVALID_INPUT", f"{file} cannot be read: {fault.strerror}") from fault
