"""`tenure run`: start a workflow, be its worker, and watch it to its end.

Laws:
1. What the run came to is printed as JSON on stdout; everything else goes to stderr.
2. Ctrl-C, SIGTERM and `--wait-for` stop this process, never the run: what was done is kept, and how to go on is said.
3. A step that nobody here could do is refused before anything is begun.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.common.console import err, print_json, safe_text
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
    Supersede,
    Timeout,
)
from tenure.cli.common.server_option import chosen_server
from tenure.cli.common.session import (
    CLI_REQUESTER,
    StartedBy,
    Tenant,
    caller_id,
    parse_pairs,
    parse_seconds,
    parse_time,
    run_async,
)
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

tenure run workflow.yaml --input @inputs.json --key build-17 -- twice the same key is one run

tenure run app.py --no-watch | jq .total -- stdout has just the output

tenure run app.py --detach -- only submit it; `tenure worker app` runs it

tenure run release --server https://tenure.example.org --input ref=main -- the server's workers run it

tenure run app.py --wait-for 10m -- in a script: no longer than that; the run is kept

The worker of this command serves the whole database: runs of the same workflows and tools that others have queued there
are executed too. For a run alone, choose a database of its own with --db.

Ends with 0 when the run succeeded, 1 when it did not, 3 when --wait-for is over, 130 after Ctrl-C and 143 after SIGTERM
(in these the run goes on with the next worker).
"""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=_EPILOG)(run)


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
    watch: Annotated[bool, typer.Option("--watch/--no-watch", help="Whether to show progress.")] = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Only submit it and print its id; a worker runs it.")
    ] = False,
    patience: Annotated[
        str | None,
        typer.Option(
            "--wait-for",
            metavar="DURATION",
            help="Stop after so long (90s, 5m) with exit code 3; the run is kept.  \\[default: wait for ever]",
        ),
    ] = None,
    key: Key = None,
    label: Labels = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Another lifecycle, see `tenure lifecycle list`.")
    ] = None,
    priority: Priority = 0,
    concurrency_key: ConcurrencyKey = None,
    supersede: Supersede = False,
    not_before: NotBefore = None,
    timeout: Timeout = None,
    repo: Annotated[str | None, typer.Option(help="The repository it is for.")] = None,
    app: Annotated[
        list[str] | None,
        typer.Option("--app", metavar="MODULE", help="Modules with tools and workflows it uses; repeatable."),
    ] = None,
    connectors: ConnectorsFile = None,
    policy: PolicyFile = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: StartedBy = None,
    as_json: AsJson = False,
) -> None:
    """Run a workflow in this process and watch it: each step, its tries, what it waits for.

    On a terminal an approval can be answered right there. Makes the database file if there is none.
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
    if (client := chosen_server(db)) is not None:
        from tenure.cli.runs.run_remote import run_on_server

        run_on_server(
            client,
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
    session = _Session(
        workflow, parse_inputs(workflow, given), options, db, tenant, caller_id(None), governed
    )
    if detach:
        _detached(session, _serving(target, workflow), as_json)
        return
    _check_served(workflow, connectors)
    try:
        ended = run_async(session.run(quiet=as_json or not watch, patience=limit))
    except (KeyboardInterrupt, asyncio.CancelledError) as stopped:
        _interrupted(session.run_id, _serving(target, workflow))
        raise typer.Exit(INTERRUPTED if isinstance(stopped, KeyboardInterrupt) else TERMINATED) from None
    except TimeoutError:
        _interrupted(session.run_id, _serving(target, workflow), f"it has not ended within {patience}; ")
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
        """What it can do to the world, and may."""
        self.run_id: str | None = None

    def engine(self, *, sweep: bool) -> Engine:
        """An engine for it; a database file is made where there is none."""
        from tenure.config import choose_database
        from tenure.engine import Engine

        database = choose_database(self._db)
        sqlite = database.kind == "sqlite"
        address = f"sqlite:{database.address}" if sqlite else database.address
        if self._options["actor"] is None:
            # In a file of one's own nobody but the program asks, so that the person at the terminal may answer;
            # in a database that is shared, whoever starts a run is the one who does not approve it.
            self._options["actor"] = CLI_REQUESTER if sqlite else self._approver
        return Engine(address, tenant=self._tenant, migrate=sqlite, sweep=sweep, **self._governed)

    async def submit(self, engine: Engine) -> str:
        """Start it; its id."""
        started = await engine.submit(self._workflow, self._inputs, **self._options)
        self.run_id = started.id
        return self.run_id

    def worker(self, engine: Engine) -> Worker:
        """A worker for everything that is registered, and for the commands of a declared workflow."""
        from tenure.declared import DeclaredWorkflow

        if not isinstance(self._workflow, DeclaredWorkflow):
            return engine.worker()
        queues = tuple(dict.fromkeys(("default", *(step.queue for step in self._workflow.steps))))
        return engine.worker(
            commands=True,
            queues=queues,
            allow_unconfined_commands=True,  # whoever names the file owns the database
        )

    async def run(self, *, quiet: bool, patience: float | None) -> EndedRun:
        """Submit it, work on it, watch it, for as long as there is patience."""
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
                err().print(safe_text(line, "yellow"), soft_wrap=True)
        return await watch_run(engine, run_id, quiet=quiet, approver=self._approver)

    async def detached(self) -> str:
        """Submit it only."""
        async with self.engine(sweep=False) as engine:
            run_id = await self.submit(engine)
            await engine.settle()
            return run_id


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: in peace. Only the main thread hears signals."""
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
    """Refuse a file whose steps nobody here could do; see law 3."""
    from tenure.cli.common.lazy_group import suggest_commands
    from tenure.declared import DeclaredWorkflow
    from tenure.govern.connectors.registry import choose_connectors
    from tenure.sdk.definitions import registry

    if not isinstance(workflow, DeclaredWorkflow):
        return
    for step in workflow.steps:
        if step.kind not in ("uses", "workflow"):
            continue
        known: list[str] = [*(registry.tools if step.kind == "uses" else registry.workflows)]
        if step.kind == "uses":
            known += [action for action, _ in choose_connectors(connectors).actions()]
        if step.target in known:
            continue
        what = "tool" if step.kind == "uses" else "workflow"
        raise TenureError(
            "INVALID_INPUT",
            f"step {step.id!r} needs the {what} {step.target!r}, which is not here.{suggest_commands(step.target, known)} Name"
            f" the module that has it: --app MODULE; or leave the run to workers that have it: --detach",
        )


def _serving(target: str, workflow: Workflow[..., Any] | DeclaredWorkflow) -> str:
    """The command that would serve a target."""
    from tenure.declared import DeclaredWorkflow

    if not isinstance(workflow, DeclaredWorkflow):
        return f"tenure worker {target.partition(':')[0]}"
    queues = dict.fromkeys(step.queue for step in workflow.steps)
    chosen = "" if list(queues) == ["default"] else "".join(f" --queue {queue}" for queue in queues)
    tools = " MODULE" if any(step.kind in ("uses", "workflow") for step in workflow.steps) else ""
    return f"tenure worker{tools} --commands{chosen}"


def _detached(session: _Session, serving: str, as_json: bool) -> None:
    run_id = run_async(session.detached())
    if as_json:
        print_json({"run": run_id})
        return
    print(run_id)
    err().print(
        safe_text(f"submitted; `{serving}` runs it, `tenure runs watch {run_id}` shows it"),
        soft_wrap=True,
    )


def _interrupted(run_id: str | None, serving: str, why: str = "") -> None:
    console = err()
    if run_id is None:
        console.print(safe_text("stopped before the run was submitted"))
        return
    console.print(safe_text(f"{why}stopped; {run_id} is not canceled, and what it has done is kept."))
    console.print(safe_text(f"  {serving}            # go on with it"), soft_wrap=True)
    console.print(safe_text(f"  tenure runs watch {run_id}    # watch it"), soft_wrap=True)
    console.print(safe_text(f"  tenure runs cancel {run_id}   # end it"), soft_wrap=True)
