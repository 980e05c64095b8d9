"""`tenure workflows`: what is registered, and YAML files checked with line numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.common.console import (
    count_noun,
    error_fields,
    out,
    print_json,
    safe_text,
    show_error,
    show_fields,
)
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.server_option import chosen_server
from tenure.cli.common.session import Tenant, call_backend, call_engine, run_async
from tenure.cli.runs.run_tables import format_time, make_table
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.declared import DeclaredWorkflow
    from tenure.engine import Engine
    from tenure.shapes.workflows import RegisteredWorkflow

_app = typer.Typer(
    name="workflows",
    help="What is registered; check YAML files, with line numbers.",
    epilog="""
    Examples:

    tenure workflows check workflow.yaml -- every problem with its line and column

    tenure workflows register app.py -- tell the database what there is; `run` and `worker` do it by themselves

    tenure workflows show release

    tenure workflows schema > workflow.schema.json -- for your editor
    """,
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


@_app.command("list")
def list_workflows(db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """List the registered workflows: those that a worker, a run or `register` has told of."""
    found = call_backend(db, tenant, lambda backend: backend.workflows.list())
    if as_json:
        print_json(found)
        return
    if not found:
        out().print("no workflows are registered")
        return
    made = make_table("workflow", "version", "kind", "profile", "queue", "registered", "about")
    for row in found:
        about = _definition(row)
        doc = str(about.get("doc", "")).partition("\n")[0]
        steps = count_noun(len(about["steps"]), "step") if "steps" in about else doc
        made.add_row(
            safe_text(row.name),
            safe_text(row.version),
            row.kind,
            safe_text(about.get("profile", "")),
            safe_text(about.get("queue", "")),
            format_time(row.registered_at),
            safe_text(steps),
        )
    out().print(made)


@_app.command()
def show(
    name: Annotated[str, typer.Argument(help="The workflow's name.")],
    version: Annotated[str | None, typer.Option(help="Which version; the newest without it.")] = None,
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
        import msgspec

        print_json({**msgspec.structs.asdict(chosen), "versions": [row.version for row in found]})
        return
    about = _definition(chosen)
    lines: dict[str, Any] = {
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
        "registered": f"{format_time(chosen.registered_at)} by {chosen.registered_by or 'nobody known'}",
        "unconfirmed": " ".join(chosen.unconfirmed),
    }
    # What is confirmed is the whole definition: of a file its document, of everything else all that was registered.
    whole = about.get("document") or chosen.definition
    show_fields({word: value for word, value in lines.items() if value} | {"definition": whole}, 13)


@_app.command("register")
def register_target(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="FILE.yaml, file.py or module.")],
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Register the workflows of a module or a file. The same version as something else is refused."""
    from tenure.cli.workflows import registration
    from tenure.cli.workflows.targets import YAML, load_target_definitions, load_target_workflow

    if target.partition(":")[0].endswith(YAML):
        workflows: list[Any] = [load_target_workflow(target)]
    else:
        workflows = list(registration.select_workflows(load_target_definitions(target)))

    if (client := chosen_server(db)) is not None:
        _shown_rows(run_async(_there(client, target, workflows)), as_json)
        return

    async def call(engine: Engine) -> list[RegisteredWorkflow]:
        from tenure.services.catalog import show_workflow

        return [
            show_workflow(await registration.register_workflow(engine, workflow)) for workflow in workflows
        ]

    _shown_rows(run_async(call_engine(db, tenant, call, make=True)), as_json)


async def _there(client: Client, target: str, workflows: list[Any]) -> list[RegisteredWorkflow]:
    """Register a YAML file at a server. Of code the server is told by the workers that have it."""
    if not target.endswith((".yaml", ".yml")):
        raise TenureError(
            "INVALID_INPUT",
            "workflows in Python are registered by their workers: tenure worker MODULE --server URL",
        )
    text = await asyncio.to_thread(Path(target).read_text, encoding="utf-8")
    async with client as backend:
        return [await backend.workflows.register(workflow.name, text) for workflow in workflows]


def _shown_rows(rows: list[RegisteredWorkflow], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    for row in rows:
        out().print(safe_text(f"registered {row.name} version {row.version}"))


@_app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files.")],
    as_json: AsJson = False,
) -> None:
    """Check workflow files: every problem with its line and column. Ends with 1 when one is not as it must be."""
    from tenure.declared import load_workflow_file

    answers: list[dict[str, Any]] = []
    bad = False
    for file in files:
        try:
            found = load_workflow_file(file)
        except TenureError as error:
            bad = True
            answers.append({"file": str(file), "valid": False, "error": error_fields(error)})
            if not as_json:
                show_error(error)
            continue
        answers.append({"file": str(file), "valid": True, **_checked(found)})
        if not as_json:
            steps = count_noun(len(found.steps), "step")
            text = f"{file}: {found.name} version {found.version}, {steps}, profile {found.profile}: fine"
            out().print(safe_text(text), soft_wrap=True)
    if as_json:
        print_json(answers)
    if bad:
        raise typer.Exit(1)


@_app.command()
def schema() -> None:
    """Print the JSON Schema of workflow files, for editors and other programs."""
    from tenure.declared import json_schema

    print_json(json_schema())


def _checked(found: DeclaredWorkflow) -> dict[str, Any]:
    return {
        "name": found.name,
        "version": found.version,
        "profile": found.profile,
        "inputs": list(found.inputs),
        "steps": [step.id for step in found.steps],
    }


def _definition(row: RegisteredWorkflow) -> dict[str, Any]:
    """What is known of it; others may register documents of another form."""
    return row.definition if isinstance(row.definition, dict) else {}


def _inputs(about: dict[str, Any]) -> list[str]:
    from tenure.cli.workflows.targets import schema_properties

    inputs = about.get("inputs", {})
    return list(schema_properties(inputs) or inputs) if about.get("kind") == "code" else list(inputs)
