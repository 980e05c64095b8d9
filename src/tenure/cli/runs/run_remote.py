"""`tenure run --server`: start a workflow on a server, and watch it.

Laws:
1. The server's workers run the workflow. A YAML file is first registered on the server, under its own version.
2. A target that is neither a file nor a module is the name of a workflow that is registered on the server.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import typer

from tenure.cli.common.arguments import parse_json_or_text, parse_pairs
from tenure.cli.common.console import show_result, warn
from tenure.cli.common.server_option import server_key
from tenure.cli.runs.run import INTERRUPTED, STILL_WAITS
from tenure.cli.runs.watch import EndedRun, print_outcome, watch_run
from tenure.cli.workflows.targets import YAML, load_target_workflow, parse_inputs, parse_object
from tenure.client import Client

_OPTIONS = (
    "labels", "profile", "priority", "concurrency_key", "supersede", "not_before", "timeout", "trigger",
)  # fmt: skip
"""The options of `tenure run` that POST /runs takes."""


def run_on_server(
    server: str,
    target: str,
    given: list[str] | None,
    options: dict[str, Any],
    *,
    detach: bool,
    quiet: bool,
    patience: float | None,
    as_json: bool,
) -> None:
    """Start the workflow and, unless `detach`, watch the run."""
    place = target.partition(":")[0]
    is_file, is_code = place.endswith(YAML), place.endswith(".py") or ":" in target
    workflow = load_target_workflow(target) if is_file or is_code else None
    text = Path(place).read_text(encoding="utf-8") if is_file else None
    inputs = _parse_unknown_inputs(given) if workflow is None else parse_inputs(workflow, given)
    sent = {name: options[name] for name in _OPTIONS if options.get(name)}
    sent["trigger"] = {
        name: value for name, value in msgspec.structs.asdict(options["trigger"]).items() if value
    }
    if workflow is not None:
        sent["version"] = workflow.version

    async def call() -> EndedRun | str:
        async with Client(server, server_key()) as client:
            if text is not None and workflow is not None:
                await client.workflows.register(workflow.name, text)
            name = target if workflow is None else workflow.name
            run_id = await client.submit(name, inputs, key=options["key"], **sent)
            if detach:
                return run_id
            warn(f"{run_id} at {client.server}", "dim")
            try:
                async with asyncio.timeout(patience):
                    return await watch_run(client, run_id, quiet=quiet, approver="")
            except TimeoutError:
                warn(f"{run_id} continues there; tenure runs watch {run_id}", "")
                raise typer.Exit(STILL_WAITS) from None

    try:
        result = asyncio.run(call())
    except KeyboardInterrupt:
        warn("stopped watching; the run continues there", "")
        raise typer.Exit(INTERRUPTED) from None
    if isinstance(result, str):
        show_result({"run": result}, as_json, result)
    else:
        print_outcome(result, as_json=as_json)


def _parse_unknown_inputs(given: list[str] | None) -> dict[str, Any]:
    """The input of a workflow whose parameters only the server knows: values that are not JSON are strings."""
    found: dict[str, Any] = {}
    for text in given or ():
        if text.startswith(("@", "{")):
            found |= parse_object(text)
        else:
            for name, value in parse_pairs([text]).items():
                found[name] = parse_json_or_text(value, f"--input {name}: ")
    return found
