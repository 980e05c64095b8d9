"""`tenure undo`: undo the actions of a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.backend import call_backend, call_either, caller_id
from tenure.cli.common.console import show_result
from tenure.cli.common.options import AsJson, By, ConnectorsFile, Db, RunArg, Tenant

if TYPE_CHECKING:
    from tenure.govern.connectors.registry import Connectors
    from tenure.shapes.receipts import UndoLine

_WORDS = {
    "to_undo": "would be undone by",
    "undone": "undone by",
    "conflict": "conflict: not touched;",
    "failed": "failed:",
    "cannot": "cannot be undone:",
    "unsettled": "not settled:",
}


app = typer.Typer()


@app.command()
def undo(
    run: RunArg,
    step: Annotated[
        str | None, typer.Option(help="Only the actions of this step: its name, or the label of an action.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be undone.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Show the results of earlier undos of the run.")] = False,
    connectors: ConnectorsFile = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Undo the actions of a finished run, as far as its receipts say how. Prints the id of the run that does it.

    That run is governed like any other and undoes the newest action first; `tenure runs watch` follows it. It needs a worker with
    the same connectors. An object that has changed since is a conflict and is not touched. Actions that cannot be undone are
    listed, with what a person should do.
    """
    if log:
        views = call_backend(db, tenant, lambda backend: backend.undos.list(run))
        lines = [line for view in views for line in (f"{view.run}  {view.status}", *_undo_lines(view.lines))]
        show_result(views, as_json, *lines)
    elif dry_run:
        preview = call_either(
            db,
            tenant,
            lambda engine: engine.undos.preview(run, step=step, connectors=_load_connectors(connectors)),
            lambda client: client.undos.preview(run, step=step),
            changes=False,
        )
        show_result(preview, as_json, *(_undo_lines(preview.lines) or ["nothing to undo"]))
    else:
        made = call_backend(
            db, tenant, lambda backend: backend.undos.start(run, step=step, actor=caller_id(by)), changes=True
        )
        show_result({"run": made, "undo_of": run}, as_json, made)


def _load_connectors(file: str | None) -> Connectors | None:
    from tenure.govern.connectors.settings import load_connectors

    return None if file is None else load_connectors(file)


def _undo_lines(lines: tuple[UndoLine, ...]) -> list[str]:
    return [
        f"  {line.receipt:>4}  {line.step}  {line.action}  "
        + " ".join(part for part in (_WORDS[line.outcome], line.by, line.note) if part)
        for line in lines
    ]
