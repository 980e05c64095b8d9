"""What people do to runs: `tenure runs cancel`, `pause`, `resume`, `rerun` and so on, and `tenure signal`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.session import (
    By,
    RunArg,
    Tenant,
    call_backend,
    caller_id,
    parse_code,
    parse_json,
    parse_pairs,
    requester_for,
)
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.runs import Run, SignalResult


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `tenure runs`."""
    for command in (cancel, pause, unpause, resume, rerun, signal, revoke, label, reported, delete):
        app.command()(command)
    app.command("cancel-step")(cancel_step)


def _said(as_json: bool, run: str, fields: dict[str, object], text: str) -> None:
    if as_json:
        print_json({"run": run, **fields})
    else:
        out().print(safe_text(text), soft_wrap=True)


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

    async def call(backend: Backend) -> str:
        return await backend.cancel(run, reason=reason, actor=await requester_for(backend, db, run, by))

    status = call_backend(db, tenant, call, changes=True)
    _said(as_json, run, {"status": status}, f"{run} is {status}")


def cancel_step(
    run: RunArg,
    name: Annotated[str, typer.Argument(help="The step's name, see `tenure runs show`.")],
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Cancel one step of a run. A required step that is canceled fails its run."""

    async def call(backend: Backend) -> str:
        return await backend.runs.cancel_step(run, name, actor=await requester_for(backend, db, run, by))

    state = call_backend(db, tenant, call, changes=True)
    _said(as_json, run, {"step": name, "state": state}, f"step {name} of {run} is {state}")


def pause(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Give out no step of a run until it is unpaused; deadlines go on."""
    call_backend(db, tenant, lambda e: e.runs.pause(run, actor=caller_id(by)), changes=True)
    _said(as_json, run, {"paused": True}, f"{run} is paused")


def unpause(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Give out steps again, also of a run that was parked."""
    call_backend(db, tenant, lambda e: e.runs.unpause(run, actor=caller_id(by)), changes=True)
    _said(as_json, run, {"paused": False}, f"{run} goes on")


def _again(
    db: str | None, tenant: str, run: str, by: str | None, call: Callable[[Backend, str], Awaitable[str]]
) -> Run:
    """The run that a call answered the id of."""

    async def both(backend: Backend) -> Run:
        return await backend.get(await call(backend, await requester_for(backend, db, run, by)))

    return call_backend(db, tenant, both, changes=True)


def resume(
    run: RunArg,
    happened: Annotated[
        list[str] | None,
        typer.Option(
            "--happened", metavar="STEP[=JSON]", help="A step that was begun did happen, and returned this."
        ),
    ] = None,
    repeat: Annotated[
        list[str] | None,
        typer.Option("--repeat", metavar="STEP", help="A step that was begun did not happen: do it again."),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Go on: a finished run as a new one that keeps what was done; a waiting one by ending its wait.

    Ends a wait for an event or a time, never an approval. After RUN_RESUME_FAILED nobody knows whether a step has
    happened: find out, and say so with --happened or --repeat.
    """
    split = [text.partition("=") for text in happened or ()]
    known = {name: parse_json(said, f"--happened {name}") if eq else None for name, eq, said in split}
    again = tuple(repeat or ())
    view = _again(
        db,
        tenant,
        run,
        by,
        lambda e, actor: e.runs.resume(run, actor=actor, happened=known, repeat=again),
    )
    if as_json:
        print_json(view)
    elif view.id == run:
        _said(False, run, {}, f"{run} waits no longer; it is {view.status}")
    else:
        print(view.id)


def rerun(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Start a finished run afresh, as a new run linked to it; prints its id. A worker has to serve it."""
    view = _again(db, tenant, run, by, lambda e, actor: e.runs.rerun(run, actor=actor))
    if as_json:
        print_json(view)
    else:
        print(view.id)


def revoke(
    run: RunArg,
    step: Annotated[
        str | None, typer.Argument(help="The step's name; needed where several are worked on.")
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Take a step from the worker that has it, so that another can do it: for one that hangs and still sends heartbeats.

    A worker that is gone needs nothing: its lease expires. The try counts; when it was the last, the step fails. What the
    worker still says is refused, but what it does outside goes on until it hears of that: look before you do it twice.
    """

    async def call(backend: Backend) -> str:
        return await backend.runs.revoke_lease(run, step, actor=await requester_for(backend, db, run, by))

    state = call_backend(db, tenant, call, changes=True)
    taken = "the step" if step is None else f"step {step}"
    _said(as_json, run, {"step": step, "state": state}, f"{taken} of {run} is {state}")


def label(
    run: RunArg,
    given: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Labels to be set.")
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="KEY", help="A label to take away; may be repeated."),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option("--metadata", help="A JSON object, or @FILE: its names are set, null takes one away."),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Set or take away labels of a run, also of one that has ended; without any, show them.

    Whoever changes them stands behind the run: they decide none of its questions from then on.

    Example: tenure runs label run_2026-02-14_080000_abc123 team=a --remove stage
    """
    labels: dict[str, str | None] = {**parse_pairs(given), **dict.fromkeys(remove or ())}
    about = parse_json(metadata, "--metadata")
    if not (about is None or isinstance(about, dict)):
        raise TenureError("INVALID_INPUT", "--metadata is no JSON object")

    async def call(backend: Backend) -> Run:
        if labels or about:
            actor = await requester_for(backend, db, run, by)
            await backend.runs.update(run, labels=labels or None, metadata=about, actor=actor)
        return await backend.get(run)

    view = call_backend(db, tenant, call, changes=bool(labels or about))
    shown_labels = " ".join(f"{name}={value}" for name, value in view.labels.items()) or "no labels"
    _said(as_json, run, {"labels": view.labels, "metadata": view.metadata}, shown_labels)


def reported(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Record your word that the world has been told how a finished run ended.

    The history and `tenure runs show` name you; the first statement counts. The status does not change: only the status reporter
    makes a run REPORTED.
    """
    said = call_backend(db, tenant, lambda e: e.runs.mark_reported(run, actor=caller_id(by)), changes=True)
    words = f"{run}: {said.by} says that its end was reported"
    _said(as_json, run, {"statement": {"by": said.by, "at": said.at}}, words)


def delete(
    run: RunArg,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Delete a finished run with its history and payloads, for good. Its idempotency key stays used."""
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to be asked: add --yes", param_hint="--yes")
    if not yes:
        typer.confirm(f"Delete {run} with its whole history?", abort=True, err=True)

    call_backend(db, tenant, lambda e: e.runs.delete(run, actor=caller_id(by)), changes=True)
    _said(as_json, run, {"deleted": True}, f"{run} is deleted")


def signal(
    run: RunArg,
    event: Annotated[str, typer.Argument(help="The event's name.")],
    data: Annotated[str | None, typer.Option("--data", help="JSON, or @FILE with JSON.")] = None,
    event_id: Annotated[str | None, typer.Option("--id", help="The same id never counts twice.")] = None,
    source: Annotated[str, typer.Option(help="Where it comes from.")] = "cli",
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Deliver an event to a run; one that nobody waits for yet is kept. Whoever sends what a run takes stands behind it.

    Example: tenure signal run_2026-02-14_080000_abc123 payment --data '{"amount": 12}'
    """
    if not event:
        raise TenureError("INVALID_INPUT", "an event has a name")
    value = parse_json(data, "--data")

    async def call(backend: Backend) -> SignalResult:
        actor = await requester_for(backend, db, run, by)
        return await backend.signal(run, event, value, event_id=event_id, source=source, actor=actor)

    told = call_backend(db, tenant, call, changes=True)
    text = "taken" if told.taken else "kept until somebody waits for it"
    if told.again:
        text = f"already delivered: {text}"
    if told.awaited and not told.taken:
        text += f" (it waits for {' and '.join(repr(name) for name in told.awaited)} now)"
    _said(as_json, run, {"event": event, "taken": told.taken, "again": told.again}, text)
