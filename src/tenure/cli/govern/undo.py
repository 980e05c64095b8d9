"""`tenure undo`: take back what a finished run did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.options import AsJson, ConnectorsFile, Db
from tenure.cli.common.session import By, RunArg, Tenant, call_backend, caller_id

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.receipts import UndoLine, UndoResult

_WORDS = {
    "to_undo": "would be undone by",
    "undone": "undone by",
    "conflict": "conflict: not touched;",
    "failed": "failed:",
    "cannot": "cannot be undone:",
    "unsettled": "not settled:",
}


def register(app: typer.Typer) -> None:
    """Add `tenure undo`."""
    app.command("undo")(undo)


def undo(
    run: RunArg,
    step: Annotated[
        str | None, typer.Option(help="Only what this step did: its name, or the label of an act.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Show what earlier undos of the run came to.")] = False,
    connectors: ConnectorsFile = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Take back what a finished run did to the world, as far as its receipts say how; prints the id of the run that does it.

    That run is governed and receipted like any other, and works newest action first; `tenure runs watch` follows it. A worker
    with the same connectors has to be there, beside the database. What is no longer as the run left it is a conflict and not
    touched; what cannot be undone is listed, with what a person should do.
    """
    if log:
        views = call_backend(db, tenant, lambda backend: backend.undos.list(run))
        if as_json:
            print_json(views)
            return
        for view in views:
            out().print(safe_text(f"{view.run}  {view.status}"), soft_wrap=True)
            _print(view.lines)
        return
    if dry_run:
        foreseen = call_backend(db, tenant, lambda backend: _foreseen(backend, run, step, connectors))
        if as_json:
            print_json(foreseen)
        elif foreseen.lines:
            _print(foreseen.lines)
        else:
            out().print("nothing to undo")
        return
    made = call_backend(
        db, tenant, lambda backend: backend.undos.start(run, step=step, actor=caller_id(by)), changes=True
    )
    if as_json:
        print_json({"run": made, "undo_of": run})
    else:
        print(made)


async def _foreseen(backend: Backend, run: str, step: str | None, connectors: str | None) -> UndoResult:
    """Beside a database it is the connectors named here that say how actions are taken back; a server has its own."""
    from tenure.engine import Engine
    from tenure.govern.connectors.settings import load_connectors

    if connectors is not None and isinstance(backend, Engine):
        return await backend.undos.preview(run, step=step, connectors=load_connectors(connectors))
    return await backend.undos.preview(run, step=step)


def _print(lines: tuple[UndoLine, ...]) -> None:
    for line in lines:
        told = " ".join(part for part in (_WORDS[line.outcome], line.by, line.note) if part)
        out().print(safe_text(f"  {line.receipt:>4}  {line.step}  {line.action}  {told}"), soft_wrap=True)
