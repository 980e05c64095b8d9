"""Commands that change runs: `tenure runs cancel`, `pause`, `resume`, `rerun` and so on, and `tenure signal`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tenure.cli.common.arguments import parse_code, parse_json, parse_pairs
from tenure.cli.common.backend import call_backend, caller_id, requester_for
from tenure.cli.common.console import show_result
from tenure.cli.common.options import AsJson, By, Db, RunArg, Tenant
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.runs import Run


app = typer.Typer()
T = TypeVar("T")


def _change(
    db: str | None, tenant: str, run: str, by: str | None, call: Callable[[Backend, str], Awaitable[T]]
) -> T:
    """Change a run. `call` gets the backend and the actor of the change."""

    async def with_actor(backend: Backend) -> T:
        return await call(backend, await requester_for(backend, db, run, by))

    return call_backend(db, tenant, with_actor, changes=True)


@app.command()
def cancel(
    run: RunArg,
    reason: Annotated[
        str, typer.Option(help="A code for the history: A-Z, 0-9 and _.", callback=parse_code)
    ] = "RUN_CANCELED",
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Request the cancellation of a run."""
    status = _change(
        db, tenant, run, by, lambda backend, actor: backend.cancel(run, reason=reason, actor=actor)
    )
    show_result({"run": run, "status": status}, as_json, f"{run} is {status}")


@app.command("cancel-step")
def cancel_step(
    run: RunArg,
    name: Annotated[str, typer.Argument(help="The step's name, see `tenure runs show`.")],
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Cancel one step of a run. A required step that is canceled fails its run."""
    state = _change(
        db, tenant, run, by, lambda backend, actor: backend.runs.cancel_step(run, name, actor=actor)
    )
    text = f"step {name} of {run} is {state}"
    show_result({"run": run, "step": name, "state": state}, as_json, text)


@app.command()
def pause(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Start no more steps of a run until it is unpaused. Deadlines keep running."""
    call_backend(db, tenant, lambda backend: backend.runs.pause(run, actor=caller_id(by)), changes=True)
    show_result({"run": run, "paused": True}, as_json, f"{run} is paused")


@app.command()
def unpause(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Continue a run that was paused or parked."""
    call_backend(db, tenant, lambda backend: backend.runs.unpause(run, actor=caller_id(by)), changes=True)
    show_result({"run": run, "paused": False}, as_json, f"{run} is unpaused")


@app.command()
def resume(
    run: RunArg,
    happened: Annotated[
        list[str] | None,
        typer.Option(
            "--happened",
            metavar="STEP[=JSON]",
            help="This step, which was started, did complete, with this result.",
        ),
    ] = None,
    repeat: Annotated[
        list[str] | None,
        typer.Option(
            "--repeat", metavar="STEP", help="This step, which was started, did not complete: run it again."
        ),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Resume a run: a finished one as a new run that keeps its recorded steps; a waiting one by ending its wait.

    Ends a wait for an event or a time, never an approval. After RUN_RESUME_FAILED it is unknown whether a step completed: find
    out, and use --happened or --repeat.
    """
    split = [text.partition("=") for text in happened or ()]
    known = {
        name: parse_json(statement, f"--happened {name}") if eq else None for name, eq, statement in split
    }

    async def call(backend: Backend, actor: str) -> Run:
        resumed = await backend.runs.resume(run, actor=actor, happened=known, repeat=tuple(repeat or ()))
        return await backend.get(resumed)

    view = _change(db, tenant, run, by, call)
    show_result(view, as_json, f"{run} waits no longer; it is {view.status}" if view.id == run else view.id)


@app.command()
def rerun(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Start a finished run from the beginning, as a new run linked to it, and print its id. It needs a worker."""

    async def call(backend: Backend, actor: str) -> Run:
        return await backend.get(await backend.runs.rerun(run, actor=actor))

    view = _change(db, tenant, run, by, call)
    show_result(view, as_json, view.id)


@app.command()
def revoke(
    run: RunArg,
    step: Annotated[
        str | None, typer.Argument(help="The step's name; needed if several are running.")
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Revoke the lease of a step, so that another worker can run it. For a worker that hangs but still sends heartbeats.

    A worker that is gone needs no command: its lease expires. The attempt counts; if it was the last, the step fails. Messages of
    the old worker are refused, but its effects outside of Tenure continue until it learns of that: check before they happen twice.
    """
    state = _change(
        db, tenant, run, by, lambda backend, actor: backend.runs.revoke_lease(run, step, actor=actor)
    )
    text = f"{'the step' if step is None else f'step {step}'} of {run} is {state}"
    show_result({"run": run, "step": step, "state": state}, as_json, text)


@app.command()
def label(
    run: RunArg,
    given: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Labels to set.")
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="KEY", help="A label to remove; may be repeated."),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option("--metadata", help="A JSON object, or @FILE: sets its names; null removes one."),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Set or remove labels of a run, even of one that has ended. Without labels, show them.

    People who change them are involved in the run and cannot decide its approvals from then on.

    Example: tenure runs label run_2026-02-14_080000_abc123 team=a --remove stage
    """
    labels: dict[str, str | None] = {**parse_pairs(given), **dict.fromkeys(remove or ())}
    about = parse_json(metadata, "--metadata")
    if not (about is None or isinstance(about, dict)):
        raise TenureError("INVALID_INPUT", "--metadata must be a JSON object")

    async def update(backend: Backend, actor: str) -> Run:
        await backend.runs.update(run, labels=labels or None, metadata=about, actor=actor)
        return await backend.get(run)

    if labels or about:
        view = _change(db, tenant, run, by, update)
    else:
        view = call_backend(db, tenant, lambda backend: backend.get(run))
    show_result(
        {"run": run, "labels": view.labels, "metadata": view.metadata},
        as_json,
        " ".join(f"{name}={value}" for name, value in view.labels.items()) or "no labels",
    )


@app.command()
def reported(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Record your statement that the outcome of a finished run was reported.

    The history and `tenure runs show` name you; the first statement counts. The status does not change: only the status reporter
    makes a run REPORTED.
    """
    statement = call_backend(
        db, tenant, lambda backend: backend.runs.mark_reported(run, actor=caller_id(by)), changes=True
    )
    text = f"{run}: marked as reported by {statement.by}"
    show_result({"run": run, "statement": {"by": statement.by, "at": statement.at}}, as_json, text)


@app.command()
def delete(
    run: RunArg,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Permanently delete a finished run with its history and payloads. Its idempotency key cannot be used again."""
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter(
                "there is no terminal to ask for confirmation: add --yes", param_hint="--yes"
            )
        typer.confirm(f"Delete {run} with its whole history?", abort=True, err=True)
    call_backend(db, tenant, lambda backend: backend.runs.delete(run, actor=caller_id(by)), changes=True)
    show_result({"run": run, "deleted": True}, as_json, f"{run} is deleted")


@app.command()
def signal(
    run: RunArg,
    event: Annotated[str, typer.Argument(help="The event's name.")],
    data: Annotated[str | None, typer.Option("--data", help="JSON, or @FILE with JSON.")] = None,
    event_id: Annotated[
        str | None, typer.Option("--id", help="The event's id: events with the same id count once.")
    ] = None,
    source: Annotated[str, typer.Option(help="Where the event comes from.")] = "cli",
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Deliver an event to a run. If the run does not wait for it yet, it is kept. Its sender is involved in a run that takes it.

    Example: tenure signal run_2026-02-14_080000_abc123 payment --data '{"amount": 12}'
    """
    if not event:
        raise TenureError("INVALID_INPUT", "the event's name must not be empty")
    value = parse_json(data, "--data")

    sent = _change(
        db,
        tenant,
        run,
        by,
        lambda backend, actor: backend.signal(
            run, event, value, event_id=event_id, source=source, actor=actor
        ),
    )
    text = "taken" if sent.taken else "kept until the run waits for it"
    if sent.again:
        text = f"already delivered: {text}"
    if sent.awaited and not sent.taken:
        text += f" (it waits for {' and '.join(repr(name) for name in sent.awaited)} now)"
    result = {"run": run, "event": event, "taken": sent.taken, "again": sent.again}
    show_result(result, as_json, text)
