"""`tenure runner conformance -- CMD`: try a runner that somebody has written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.options import AsJson

if TYPE_CHECKING:
    from tenure.runner_conformance.suite import SituationResult

app = typer.Typer(help="Runners in any language: try one against the protocol.", no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="runner")


@app.callback()
def _group() -> None:
    """Runners in any language: try one against the protocol."""


@app.command("conformance")
def conformance(
    command: Annotated[list[str], typer.Argument(help="The command that starts your runner, after `--`.")],
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Play just this situation; may be repeated.")
    ] = None,
    commands: Annotated[
        bool, typer.Option("--commands", help="The runner does commands of workflow files, too.")
    ] = False,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for something that is bound to come.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Play every situation of docs/runner-protocol.md to a runner of yours.

    Your command is started with TENURE_SERVER, TENURE_KEY, TENURE_CAPABILITIES and TENURE_WORKER in its environment, against a
    server of the suite's own on loopback. Its tool `conformance` does what docs/runner-protocol.md says. The command ends
    with 1 where a situation failed.

    tenure runner conformance -- python examples/plain_runner.py
    """
    from tenure.cli.ops.serve import require_server_extra

    require_server_extra()
    from tenure.runner_conformance.suite import SITUATIONS, RunnerNotStarted

    unknown = sorted(set(only or ()) - {one.name for one in SITUATIONS})
    if unknown:
        names = ", ".join(one.name for one in SITUATIONS)
        raise typer.BadParameter(
            f"there is no situation {unknown[0]!r}; there are: {names}", param_hint="--only"
        )
    _quieten()
    try:
        verdicts = asyncio.run(_played(command, only or [], commands, patience, quiet=as_json))
    except RunnerNotStarted as fault:
        raise typer.BadParameter(str(fault), param_hint="COMMAND") from fault
    failed = [one for one in verdicts if not one.passed]
    if as_json:
        print_json([_json(one) for one in verdicts])
    else:
        out().print(f"{len(verdicts) - len(failed)} of {len(verdicts)} situations passed")
    if failed:
        raise typer.Exit(1)


def _quieten() -> None:
    """What the suite's own server has to say is nobody's business here, unless it is a warning."""
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


async def _played(
    command: list[str], only: list[str], commands: bool, patience: float, *, quiet: bool
) -> list[SituationResult]:
    from tenure.runner_conformance.suite import run_suite

    verdicts = []
    async for verdict in run_suite(command, only=only, commands=commands, patience=patience):
        verdicts.append(verdict)
        if not quiet:
            mark = "[green]pass[/]" if verdict.passed else "[red]FAIL[/]"
            out().print(f"{mark}  {verdict.name:<16}", safe_text(verdict.expected), soft_wrap=True)
            if not verdict.passed:
                out().print("      seen:", safe_text(verdict.seen), soft_wrap=True)
    return verdicts


def _json(verdict: SituationResult) -> dict[str, Any]:
    return {
        "situation": verdict.name,
        "expected": verdict.expected,
        "passed": verdict.passed,
        "seen": verdict.seen or None,
    }
