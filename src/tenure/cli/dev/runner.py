"""`tenure runner conformance -- CMD`: test a runner against the protocol."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.console import out, print_json, safe_text, say
from tenure.cli.common.options import AsJson

if TYPE_CHECKING:
    from tenure.runner_conformance.suite import SituationResult

app = typer.Typer(
    name="runner", help="Runners in any language: test one against the protocol.", no_args_is_help=True
)


@app.command("conformance")
def conformance(
    command: Annotated[list[str], typer.Argument(help="The command that starts your runner, after `--`.")],
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Play only this situation; may be repeated.")
    ] = None,
    commands: Annotated[
        bool, typer.Option("--commands", help="The runner also runs commands of workflow files.")
    ] = False,
    patience: Annotated[float, typer.Option(min=1, help="Seconds to wait for each expected event.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Put your runner into every situation of docs/runner-protocol.md.

    Your command is started with TENURE_SERVER, TENURE_KEY, TENURE_CAPABILITIES and TENURE_WORKER in its environment, against a
    server that the suite starts on loopback. Its tool `conformance` must do what docs/runner-protocol.md says. Ends with 1 if a
    situation failed.

    tenure runner conformance -- python examples/plain_runner.py
    """
    import structlog

    from tenure.cli.common.server_extra import require_server_extra

    require_server_extra()
    from tenure.runner_conformance.suite import SITUATIONS, RunnerNotStarted

    unknown = sorted(set(only or ()) - {one.name for one in SITUATIONS})
    if unknown:
        names = ", ".join(one.name for one in SITUATIONS)
        raise typer.BadParameter(
            f"there is no situation {unknown[0]!r}; there are: {names}", param_hint="--only"
        )
    # Log only warnings of the suite's own server.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        results = asyncio.run(_play(command, only or [], commands, patience, quiet=as_json))
    except RunnerNotStarted as fault:
        raise typer.BadParameter(str(fault), param_hint="COMMAND") from fault
    failed = [one for one in results if not one.passed]
    if as_json:
        print_json(
            [
                {
                    "situation": one.name,
                    "expected": one.expected,
                    "passed": one.passed,
                    "seen": one.seen or None,
                }
                for one in results
            ]
        )
    else:
        say(f"{len(results) - len(failed)} of {len(results)} situations passed")
    if failed:
        raise typer.Exit(1)


async def _play(
    command: list[str], only: list[str], commands: bool, patience: float, *, quiet: bool
) -> list[SituationResult]:
    from tenure.runner_conformance.suite import run_suite

    results = []
    async for result in run_suite(command, only=only, commands=commands, patience=patience):
        results.append(result)
        if not quiet:
            mark = "[green]pass[/]" if result.passed else "[red]FAIL[/]"
            out().print(f"{mark}  {result.name:<16}", safe_text(result.expected), soft_wrap=True)
            if not result.passed:
                out().print("      seen:", safe_text(result.seen), soft_wrap=True)
    return results
