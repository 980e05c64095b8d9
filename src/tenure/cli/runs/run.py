"""`tenure run`: start a workflow, be its worker, and watch it to its end.

Laws:
1. The run's output is printed as JSON on stdout; everything else goes to stderr.
2. Ctrl-C, SIGTERM and `--wait-for` stop this process, never the run. Recorded steps are kept, and stderr says how to continue.
3. A workflow with a step that this process cannot run is refused before it starts.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.common.arguments import parse_pairs, parse_seconds, parse_time
from tenure.cli.common.backend import CLI_REQUESTER, caller_id
from tenure.cli.common.console import show_result, warn
from tenure.cli.common.options import (
    AsJson,
    ConcurrencyKey,
    ConnectorsFile,
    Db,
    Key,
    Labels,
    NotBefore,
    PolicyFile,
    Priority,
    StartedBy,
    Supersede,
    Tenant,
    Timeout,
)
from tenure.cli.common.server_option import server_address
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.cli.runs.watch import EndedRun
    from tenure.declared import DeclaredWorkflow
    from tenure.engine import Engine
    from tenure.sdk.definitions import Workflow
    from tenure.worker import Worker

INTERRUPTED = 130
TERMINATED = 143
STILL_WAITS = 3
GRACE_SECONDS = 10.0
_EPILOG = """
Examples:

tenure run app.py --input name=Ada -- the workflow of a file, with an input

tenure run app:release --input '{"ref": "main"}' --label team=a

tenure run workflow.yaml --input @inputs.json --key build-17 -- the same key again returns the same run

tenure run app.py --no-watch | jq .total -- stdout has only the output

tenure run app.py --detach -- only submit it; `tenure worker app` runs it

tenure run release --server https://tenure.example.org --input ref=main -- the server's workers run it

tenure run app.py --wait-for 10m -- for scripts: stop waiting after 10 minutes; the run is kept

The worker of this command serves the whole database. It also executes runs of the same workflows and tools that others have
queued there. To execute just one run, use a separate database with --db.

Ends with 0 if the run succeeded, 1 if it did not, 3 if --wait-for is over, 130 after Ctrl-C and 143 after SIGTERM. After 3, 130
and 143 the next worker continues the run.
"""


app = typer.Typer()


@app.command(epilog=_EPILOG)
def run(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="FILE.yaml, file.py, file.py:workflow or module:workflow."),
    ],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="KEY=VALUE|JSON|@FILE", help="The workflow's input; may be repeated."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch/--no-watch", help="Show progress.")] = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Only submit it and print its id; a worker runs it.")
    ] = False,
    patience: Annotated[
        str | None,
        typer.Option(
            "--wait-for",
            metavar="DURATION",
            help="Stop after this time (90s, 5m) with exit code 3; the run is kept.  \\[default: wait forever]",
        ),
    ] = None,
    key: Key = None,
    label: Labels = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", help="The lifecycle instead of the workflow's own, see `tenure lifecycle list`."
        ),
    ] = None,
    priority: Priority = 0,
    concurrency_key: ConcurrencyKey = None,
    supersede: Supersede = False,
    not_before: NotBefore = None,
    timeout: Timeout = None,
    repo: Annotated[
        str | None, typer.Option(help="The repository of the run, see `tenure runs list --repo`.")
    ] = None,
    app: Annotated[
        list[str] | None,
        typer.Option(
            "--app", metavar="MODULE", help="A module with tools or workflows that it uses; may be repeated."
        ),
    ] = None,
    connectors: ConnectorsFile = None,
    policy: PolicyFile = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: StartedBy = None,
    as_json: AsJson = False,
) -> None:
    """Run a workflow in this process and watch its steps, attempts and waits.

    On a terminal you can answer its approvals right there. Creates the database file if it does not exist.
    """
    from tenure.cli.workflows.targets import load_module, load_target_workflow, parse_inputs
    from tenure.shapes.runs import RunTrigger

    if supersede and concurrency_key is None:
        raise typer.BadParameter("--supersede needs --concurrency-key")
    options: dict[str, Any] = {
        "key": key,
        "labels": parse_pairs(label),
        "profile": profile,
        "priority": priority,
        "concurrency_key": concurrency_key,
        "supersede": supersede,
        "not_before": None if not_before is None else parse_time(not_before),
        "timeout": None if timeout is None else parse_seconds(timeout),
        "trigger": RunTrigger(type="cli", repo=repo),
        "source": "cli",
        "actor": by,
    }
    limit = None if patience is None else parse_seconds(patience)
    if (server := server_address(db)) is not None:
        from tenure.cli.runs.run_remote import run_on_server

        run_on_server(
            server,
            target,
            given,
            options,
            detach=detach,
            quiet=as_json or not watch,
            patience=limit,
            as_json=as_json,
        )
        return
    for module in app or ():
        load_module(module.partition(":")[0])
    workflow = load_target_workflow(target)
    governed = {"connectors": connectors, "policy": policy}
    session = _Session(workflow, parse_inputs(workflow, given), options, db, tenant, caller_id(), governed)
    if detach:
        _submit(session, _worker_command(target, workflow), as_json)
        return
    _check_served(workflow, connectors)
    try:
        ended = asyncio.run(session.run(quiet=as_json or not watch, patience=limit))
    except (KeyboardInterrupt, asyncio.CancelledError) as stopped:
        _show_interrupted(session.run_id, _worker_command(target, workflow))
        raise typer.Exit(INTERRUPTED if isinstance(stopped, KeyboardInterrupt) else TERMINATED) from None
    except TimeoutError:
        _show_interrupted(
            session.run_id, _worker_command(target, workflow), f"it has not ended within {patience}; "
        )
        raise typer.Exit(STILL_WAITS) from None
    from tenure.cli.runs.watch import print_outcome

    print_outcome(ended, as_json=as_json)


class _Session:
    """One run, from its submission to its end."""

    def __init__(
        self,
        workflow: Workflow[..., Any] | DeclaredWorkflow,
        inputs: dict[str, Any],
        options: dict[str, Any],
        db: str | None,
        tenant: str,
        approver: str,
        governed: dict[str, Any],
    ) -> None:
        self._workflow = workflow
        self._inputs = inputs
        self._options = options
        self._db = db
        self._tenant = tenant
        self._approver = approver
        self._governed = governed
        """The connectors and the policy, as options of the engine."""
        self.run_id: str | None = None

    def engine(self, *, sweep: bool) -> Engine:
        from tenure.config import choose_database
        from tenure.engine import Engine

        sqlite = choose_database(self._db).kind == "sqlite"
        if self._options["actor"] is None:
            # In a file, the program is the requester, so that the person at the terminal may approve. In a shared
            # database, the person who starts a run cannot approve it.
            self._options["actor"] = CLI_REQUESTER if sqlite else self._approver
        return Engine(self._db, tenant=self._tenant, migrate=sqlite, sweep=sweep, **self._governed)

    async def submit(self, engine: Engine) -> str:
        self.run_id = (await engine.submit(self._workflow, self._inputs, **self._options)).id
        return self.run_id

    def worker(self, engine: Engine) -> Worker:
        """A worker for everything that is registered, and for the commands of a workflow file."""
        from tenure.declared import DeclaredWorkflow

        if not isinstance(self._workflow, DeclaredWorkflow):
            return engine.worker()
        queues = tuple(dict.fromkeys(("default", *(step.queue for step in self._workflow.steps))))
        return engine.worker(
            commands=True,
            queues=queues,
            allow_unconfined_commands=True,  # the person who names the file owns the database
        )

    async def run(self, *, quiet: bool, patience: float | None) -> EndedRun:
        """Submit the run, work on it and watch it, for at most `patience` seconds."""
        with _terminable():
            async with self.engine(sweep=True) as engine:
                worker = self.worker(engine)
                await worker.start()
                grace = 0.0
                try:
                    async with asyncio.timeout(patience):
                        ended = await self._watched(engine, quiet)
                    grace = GRACE_SECONDS
                finally:
                    await worker.stop(grace)
                return ended

    async def _watched(self, engine: Engine, quiet: bool) -> EndedRun:
        from tenure.cli.runs.watch import watch_run
        from tenure.cli.workflows.registration import register_workflows

        run_id = await self.submit(engine)
        for line in await register_workflows(engine, (self._workflow,)):
            if not quiet:
                warn(line)
        return await watch_run(engine, run_id, quiet=quiet, approver=self._approver)

    async def detached(self) -> str:
        async with self.engine(sweep=False) as engine:
            run_id = await self.submit(engine)
            await engine.settle()
            return run_id


@contextmanager
def _terminable() -> Iterator[None]:
    """Cancel the task on SIGTERM, as asyncio does on Ctrl-C. Only the main thread can handle signals."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    try:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    except (ValueError, RuntimeError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _check_served(workflow: Workflow[..., Any] | DeclaredWorkflow, connectors: str | None) -> None:
    """Refuse a workflow file with a step that this process cannot run; see law 3."""
    from tenure.cli.common.lazy_group import suggest_names
    from tenure.declared import DeclaredWorkflow
    from tenure.govern.connectors.registry import choose_connectors
    from tenure.sdk.definitions import registry

    if not isinstance(workflow, DeclaredWorkflow):
        return
    for step in workflow.steps:
        if step.kind == "uses":
            actions = (action for action, _ in choose_connectors(connectors).actions())
            what, known = "tool", [*registry.tools, *actions]
        elif step.kind == "workflow":
            what, known = "workflow", [*registry.workflows]
        else:
            continue
        if step.target not in known:
            raise TenureError(
                "INVALID_INPUT",
                f"step {step.id!r} needs the {what} {step.target!r}, which is not here.{suggest_names(step.target, known)} Name"
                f" the module that has it: --app MODULE; or leave the run to workers that have it: --detach",
            )


def _worker_command(target: str, workflow: Workflow[..., Any] | DeclaredWorkflow) -> str:
    """The command that starts a worker for a target."""
    from tenure.declared import DeclaredWorkflow

    if not isinstance(workflow, DeclaredWorkflow):
        return f"tenure worker {target.partition(':')[0]}"
    queues = dict.fromkeys(step.queue for step in workflow.steps)
    chosen = "" if list(queues) == ["default"] else "".join(f" --queue {queue}" for queue in queues)
    tools = " MODULE" if any(step.kind in ("uses", "workflow") for step in workflow.steps) else ""
    return f"tenure worker{tools} --commands{chosen}"


def _submit(session: _Session, worker_command: str, as_json: bool) -> None:
    run_id = asyncio.run(session.detached())
    show_result({"run": run_id}, as_json, run_id)
    if not as_json:
        warn(f"submitted; `{worker_command}` runs it, `tenure runs watch {run_id}` shows it", "")


def _show_interrupted(run_id: str | None, worker_command: str, why: str = "") -> None:
    if run_id is None:
        warn("stopped before the run was submitted", "")
        return
    warn(f"{why}stopped; {run_id} is not canceled, and its recorded steps are kept.", "")
    warn(f"  {worker_command}            # continue it", "")
    warn(f"  tenure runs watch {run_id}    # watch it", "")
    warn(f"  tenure runs cancel {run_id}   # cancel it", "")
