"""`tenure workflows`: what is registered, and YAML files checked with line numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.console import counted, error_fields, out, print_json, show_error, show_fields, shown
from tenure.cli.options import AsJson, Db
from tenure.cli.runs_show import table, when
from tenure.cli.servers import chosen_server
from tenure.cli.session import Tenant, ask, on_engine, wait_for
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.declared import Declared
    from tenure.embedded import Engine
    from tenure.embedded.looking import WorkflowView

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
    found = ask(db, tenant, lambda desk: desk.workflows())
    if as_json:
        print_json(found)
        return
    if not found:
        out().print("no workflows are registered")
        return
    made = table("workflow", "version", "kind", "profile", "queue", "registered", "about")
    for row in found:
        about = _definition(row)
        doc = str(about.get("doc", "")).partition("\n")[0]
        steps = counted(len(about["steps"]), "step") if "steps" in about else doc
        made.add_row(
            shown(row.name),
            shown(row.version),
            row.kind,
            shown(about.get("profile", "")),
            shown(about.get("queue", "")),
            when(row.registered_at),
            shown(steps),
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
    found = ask(db, tenant, lambda desk: desk.workflow(name))
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
        "registered": f"{when(chosen.registered_at)} by {chosen.registered_by or 'nobody known'}",
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
    from tenure.cli import registering
    from tenure.cli.targets import YAML, definitions_of, workflow_of

    if target.partition(":")[0].endswith(YAML):
        workflows: list[Any] = [workflow_of(target)]
    else:
        workflows = list(registering.workflows_in(definitions_of(target)))

    if (client := chosen_server(db)) is not None:
        _shown_rows(wait_for(_there(client, target, workflows)), as_json)
        return

    async def call(engine: Engine) -> list[WorkflowView]:
        from tenure.embedded.looking import workflow_view

        return [workflow_view(await registering.put(engine, workflow)) for workflow in workflows]

    _shown_rows(wait_for(on_engine(db, tenant, call, make=True)), as_json)


async def _there(client: Client, target: str, workflows: list[Any]) -> list[WorkflowView]:
    """Register a YAML file at a server. Of code the server is told by the workers that have it."""
    if not target.endswith((".yaml", ".yml")):
        raise TenureError(
            "INVALID_INPUT",
            "workflows in Python are registered by their workers: tenure worker MODULE --server URL",
        )
    text = await asyncio.to_thread(Path(target).read_text, encoding="utf-8")
    async with client as desk:
        return [await desk.register(workflow.name, text) for workflow in workflows]


def _shown_rows(rows: list[WorkflowView], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    for row in rows:
        out().print(shown(f"registered {row.name} version {row.version}"))


@_app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files.")],
    as_json: AsJson = False,
) -> None:
    """Check workflow files: every problem with its line and column. Ends with 1 when one is not as it must be."""
    from tenure.declared import load_file

    answers: list[dict[str, Any]] = []
    bad = False
    for file in files:
        try:
            found = load_file(file)
        except TenureError as error:
            bad = True
            answers.append({"file": str(file), "valid": False, "error": error_fields(error)})
            if not as_json:
                show_error(error)
            continue
        answers.append({"file": str(file), "valid": True, **_checked(found)})
        if not as_json:
            steps = counted(len(found.steps), "step")
            text = f"{file}: {found.name} version {found.version}, {steps}, profile {found.profile}: fine"
            out().print(shown(text), soft_wrap=True)
    if as_json:
        print_json(answers)
    if bad:
        raise typer.Exit(1)


@_app.command()
def schema() -> None:
    """Print the JSON Schema of workflow files, for editors and other programs."""
    from tenure.declared import json_schema

    print_json(json_schema())


def _checked(found: Declared) -> dict[str, Any]:
    return {
        "name": found.name,
        "version": found.version,
        "profile": found.profile,
        "inputs": list(found.inputs),
        "steps": [step.id for step in found.steps],
    }


def _definition(row: WorkflowView) -> dict[str, Any]:
    """What is known of it; others may register documents of another form."""
    return row.definition if isinstance(row.definition, dict) else {}


def _inputs(about: dict[str, Any]) -> list[str]:
    from tenure.cli.targets import properties

    inputs = about.get("inputs", {})
    return list(properties(inputs) or inputs) if about.get("kind") == "code" else list(inputs)
