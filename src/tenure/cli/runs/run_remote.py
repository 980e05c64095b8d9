"""`tenure run --server`: start a workflow at a server, and watch it there.

Laws:
1. Nothing is run here: the server's workers do it. A YAML file is registered there first, under its own version.
2. A target that is neither a file nor a module is the name of a workflow that is registered there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from tenure.canonical import DuplicateName, decode_json
from tenure.cli.common.console import err, print_json, safe_text
from tenure.cli.common.session import run_async
from tenure.cli.runs.run import INTERRUPTED, STILL_WAITS
from tenure.cli.workflows.targets import YAML, load_target_workflow, parse_inputs, split_target
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.cli.runs.watch import EndedRun
    from tenure.client import Client
    from tenure.declared import DeclaredWorkflow
    from tenure.sdk.definitions import Workflow

_OPTIONS = (
    "labels", "profile", "priority", "concurrency_key", "supersede", "not_before", "timeout", "trigger",
)  # fmt: skip
"""Of those `tenure run` has, what POST /runs takes."""


def run_on_server(
    client: Client,
    target: str,
    given: list[str] | None,
    options: dict[str, Any],
    *,
    detach: bool,
    quiet: bool,
    patience: float | None,
    as_json: bool,
) -> None:
    """Start it, and watch it unless it is to go on alone."""
    place, _ = split_target(target)
    is_file, is_code = place.endswith(YAML), place.endswith(".py") or ":" in target
    workflow = load_target_workflow(target) if is_file or is_code else None
    text = Path(place).read_text(encoding="utf-8") if is_file else None
    inputs = _inputs(given) if workflow is None else parse_inputs(workflow, given)

    async def call() -> EndedRun | str:
        async with client as backend:
            if text is not None and workflow is not None:
                await backend.workflows.register(workflow.name, text)
            name = target if workflow is None else workflow.name
            run_id = await backend.submit(name, inputs, key=options["key"], **_said(options, workflow))
            if detach:
                return run_id
            from tenure.cli.runs.watch import watch_run

            err().print(safe_text(f"{run_id} at {backend.server}", "dim"), soft_wrap=True)
            try:
                async with asyncio.timeout(patience):
                    return await watch_run(backend, run_id, quiet=quiet, approver="")
            except TimeoutError:
                err().print(safe_text(f"{run_id} goes on there; tenure runs watch {run_id}"), soft_wrap=True)
                raise typer.Exit(STILL_WAITS) from None

    try:
        came = run_async(call())
    except KeyboardInterrupt:
        err().print(safe_text("stopped watching; the run goes on there"))
        raise typer.Exit(INTERRUPTED) from None
    if isinstance(came, str):
        if as_json:
            print_json({"run": came})
        else:
            print(came)
        return
    from tenure.cli.runs.watch import print_outcome

    print_outcome(came, as_json=as_json)


def _said(options: dict[str, Any], workflow: Workflow[..., Any] | DeclaredWorkflow | None) -> dict[str, Any]:
    said = {name: options[name] for name in _OPTIONS if options.get(name)}
    said["trigger"] = {
        name: value for name, value in msgspec.structs.asdict(options["trigger"]).items() if value
    }
    if workflow is not None:
        said["version"] = workflow.version
    return said


def _inputs(given: list[str] | None) -> dict[str, Any]:
    """Inputs of a workflow that is only known there: JSON where it is JSON, else a text."""
    from tenure.cli.common.session import parse_json, parse_pairs

    found: dict[str, Any] = {}
    for text in given or ():
        if text.startswith(("@", "{")):
            value = parse_json(text, "--input")
            if not isinstance(value, dict):
                raise TenureError("INVALID_INPUT", f"--input {text} must be a JSON object: names and values")
            found |= value
            continue
        for name, said in parse_pairs([text]).items():
            try:
                found[name] = decode_json(said)
            except DuplicateName as twice:
                raise TenureError("INVALID_INPUT", f"--input {name}: {twice}") from twice
            except msgspec.DecodeError:
                found[name] = said
    return found
