"""`tenure evidence`: the sealed evidence of runs, and files of it for auditors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.arguments import read_bytes
from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import count_noun, print_json, show_result, warn
from tenure.cli.common.options import AsJson, By, Db, RunArg, SigningKey, Tenant
from tenure.cli.common.tables import format_time, show_table
from tenure.errors import TenureError
from tenure.private_files import make_folder, write_file

if TYPE_CHECKING:
    from tenure.shapes.evidence import ExportedEvidence

app = typer.Typer(
    name="evidence",
    help="Evidence: bundles that are sealed when runs end, and supplements about what came later.",
    epilog="""
    From a run to files that an auditor verifies without you:

    tenure evidence list RUN -- the bundle and its supplements

    tenure evidence export RUN --to audit/ -- the zip, its signed statement, and the ledger's proof

    tenure verify audit/*.zip --key seal.pub --checkpoint kept.checkpoint

    docs/evidence.md describes the files so that you can check them without Tenure.
    """,
    no_args_is_help=True,
)


@app.command("list")
def list_evidence(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run.  \\[default: the newest evidence of all runs]"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="The most parts to show.")] = 50,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the parts of a run's evidence, or the newest bundles of all."""
    found = call_backend(
        db,
        tenant,
        lambda backend: backend.evidence.newest(limit=limit) if run is None else backend.evidence.list(run),
    )
    if as_json:
        print_json({"evidence": found})
        return
    show_table(
        found,
        False,
        "there is no evidence; configure a signing key to seal runs that end",
        ("run", "part", "events", "bytes", "sealed", "key", "sha256"),
        lambda one: (
            one.run_id,
            one.part,
            one.events,
            one.size,
            format_time(one.sealed_at),
            "unsigned" if one.key_id is None else one.key_id[:12],
            one.sha256[:16],
        ),
        whole_ids=True,
    )


@app.command()
def export(
    run: RunArg,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The folder to write the files to.")
    ] = Path(),
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="The checkpoint of the ledger to prove the evidence against.  \\[default: the newest]",
            show_default=False,
        ),
    ] = None,
    signing_key: SigningKey = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's evidence to files. On a database, parts that are not sealed yet are built now."""
    note = None if checkpoint is None else read_bytes(checkpoint)
    parts = call_backend(
        db,
        tenant,
        lambda backend: backend.evidence.export(run, checkpoint=note),
        changes=True,
        by=by,
        signing_key=signing_key,
    )
    files = [str(file) for file in _write_files(parts, to)]
    show_result({"run": run, "files": files}, as_json, *files)
    if as_json:
        return
    if not parts:
        warn(f"{run} has no sealed evidence; export it from its database with --db")
    if unsealed := sum(not part.sealed for part in parts):
        warn(f"{count_noun(unsealed, 'part')} built just now: not sealed, and not in the ledger")
    if any(part.sealed and part.proof is None for part in parts):
        warn(
            "no proof: no checkpoint of the ledger covers it yet; run `tenure ledger sign`, then export it again"
        )
    if parts:
        warn("nothing was verified: `tenure verify` does that with these files alone", "")


def _write_files(parts: list[ExportedEvidence], folder: Path) -> list[Path]:
    """Write NAME, NAME.dsse.json and NAME.tlog-proof for each part."""
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
