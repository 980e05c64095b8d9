"""`tenure workflows`: list registered workflows, register them, and check YAML files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tenure.cli.common.backend import call_backend, call_either
from tenure.cli.common.console import (
    count_noun,
    error_fields,
    print_json,
    say,
    show_error,
    show_fields,
    show_result,
)
from tenure.cli.common.options import AsJson, Db, Tenant
from tenure.cli.common.tables import format_time, show_table
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.engine import Engine
    from tenure.shapes.workflows import RegisteredWorkflow

app = typer.Typer(
    name="workflows",
    help="List registered workflows; check YAML files, with line numbers.",
    epilog="""
    Examples:

    tenure workflows check workflow.yaml -- every problem with its line and column

    tenure workflows register app.py -- add its workflows to the list; `run` and `worker` do that automatically

    tenure workflows show release

    tenure workflows schema > workflow.schema.json -- for your editor
    """,
    no_args_is_help=True,
)


@app.command("list")
def list_workflows(db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """List the workflows that workers, runs or `tenure workflows register` have registered."""
    found = call_backend(db, tenant, lambda backend: backend.workflows.list())
    columns = ("workflow", "version", "kind", "profile", "queue", "registered", "about")
    show_table(found, as_json, "no workflows are registered", columns, _workflow_cells)


def _workflow_cells(row: RegisteredWorkflow) -> tuple[object, ...]:
    about = _definition(row)
    doc = str(about.get("doc", "")).partition("\n")[0]
    return (
        row.name,
        row.version,
        row.kind,
        about.get("profile", ""),
        about.get("queue", ""),
        format_time(row.registered_at),
        count_noun(len(about["steps"]), "step") if "steps" in about else doc,
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The workflow's name.")],
    version: Annotated[str | None, typer.Option(help="The version.  \\[default: the newest]")] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show a registered workflow: its versions, and its whole definition, with the commands of its steps."""
    found = call_backend(db, tenant, lambda backend: backend.workflows.versions(name))
    chosen = next((row for row in found if version in (None, row.version)), None)
    if chosen is None:
        known = f"; its versions: {', '.join(row.version for row in found)}" if found else ""
        raise TenureError(
            "INVALID_INPUT",
            f"no workflow {name!r}{f' of version {version!r}' if version else ''} is registered{known};"
            " see `tenure workflows list`",
        )
    if as_json:
        print_json({**msgspec.structs.asdict(chosen), "versions": [row.version for row in found]})
        return
    about = _definition(chosen)
    fields = {
        "workflow": chosen.name,
        "version": chosen.version,
        "versions": ", ".join(row.version for row in found),
        "kind": chosen.kind,
        "profile": about.get("profile", ""),
        "queue": about.get("queue", ""),
        "about": about.get("doc", ""),
        "inputs": ", ".join(_inputs(about)),
        "steps": ", ".join(f"{step['id']} ({step['kind']})" for step in about.get("steps", ())),
        "digest": chosen.digest,
        "registered": f"{format_time(chosen.registered_at)} by {chosen.registered_by or 'unknown'}",
        "unconfirmed": " ".join(chosen.unconfirmed),
    }
    # People confirm the whole definition: the document of a file, else all that was registered.
    whole = about.get("document") or chosen.definition
    show_fields({word: value for word, value in fields.items() if value} | {"definition": whole}, 13)


@app.command("register")
def register_target(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="FILE.yaml, file.py or module.")],
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Register the workflows of a module or a file. A version cannot be registered again with another definition."""
    from tenure.cli.workflows import registration
    from tenure.cli.workflows.targets import YAML, load_target_definitions, load_target_workflow

    if target.partition(":")[0].endswith(YAML):
        workflows: list[Any] = [load_target_workflow(target)]
    else:
        workflows = list(registration.select_workflows(load_target_definitions(target)))

    async def local(engine: Engine) -> list[RegisteredWorkflow]:
        from tenure.services.catalog import show_workflow

        return [
            show_workflow(await registration.register_workflow(engine, workflow)) for workflow in workflows
        ]

    async def remote(client: Client) -> list[RegisteredWorkflow]:
        if not target.endswith(YAML):
            raise TenureError(
                "INVALID_INPUT",
                "workflows in Python are registered by their workers: tenure worker MODULE --server URL",
            )
        text = await asyncio.to_thread(Path(target).read_text, encoding="utf-8")
        return [await client.workflows.register(workflow.name, text) for workflow in workflows]

    rows = call_either(db, tenant, local, remote, make=True)
    show_result(rows, as_json, *(f"registered {row.name} version {row.version}" for row in rows))


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files.")],
    as_json: AsJson = False,
) -> None:
    """Check workflow files and print every problem with its line and column. Ends with 1 if there is one."""
    from tenure.declared import load_workflow_file

    checked: list[dict[str, Any]] = []
    for file in files:
        try:
            found = load_workflow_file(file)
        except TenureError as error:
            checked.append({"file": str(file), "valid": False, "error": error_fields(error)})
            if not as_json:
                show_error(error)
            continue
        summary = {
            "name": found.name,
            "version": found.version,
            "profile": found.profile,
            "inputs": list(found.inputs),
            "steps": [step.id for step in found.steps],
            **({} if found.planner is None else {"planner": found.planner.tool}),
        }
        checked.append({"file": str(file), "valid": True, **summary})
        if not as_json:
            steps = count_noun(len(found.steps), "step")
            if found.planner is not None:
                steps = f"planned by {found.planner.tool}"
            say(f"{file}: {found.name} version {found.version}, {steps}, profile {found.profile}: fine")
    if as_json:
        print_json(checked)
    if not all(one["valid"] for one in checked):
        raise typer.Exit(1)


@app.command()
def schema() -> None:
    """Print the JSON Schema of workflow files, for editors and other programs."""
    from tenure.declared import json_schema

    print_json(json_schema())


def _definition(row: RegisteredWorkflow) -> dict[str, Any]:
    """The definition, if it is an object: other programs may register other forms."""
    return row.definition if isinstance(row.definition, dict) else {}


def _inputs(about: dict[str, Any]) -> list[str]:
    from tenure.cli.workflows.targets import schema_properties

    inputs = about.get("inputs", {})
    return list(schema_properties(inputs) or inputs) if about.get("kind") == "code" else list(inputs)
