"""`tenure ci runner`: execute the jobs of a server on this machine.

Law: the key is never an argument, because other users of the machine can read arguments.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli.common.arguments import parse_seconds
from tenure.errors import TenureError

_EPILOG = """
Examples:

tenure ci runner --server https://tenure.example.com --key-file runner.key

tenure ci runner --labels linux,gpu --slots 8 --secrets secrets.txt -- jobs that need these labels, or some of them

tenure ci runner --tool-path /srv/toolchains -- jobs see this folder, read-only

Each job runs in a sandbox: its own processes, files and user, no network but the hosts that it names, and limits on memory, processes and disk. A
machine that cannot start a sandbox is refused. Start as many runners as you like. Ctrl-C lets jobs finish; press it twice to stop at once.
"""

app = typer.Typer()


@app.command(epilog=_EPILOG)
def runner(
    server: Annotated[
        str | None,
        typer.Option(
            "--server", metavar="URL", envvar="TENURE_SERVER", help="The server whose jobs it executes."
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            envvar="TENURE_KEY_FILE",
            help="The file with a runner's key.  \\[default: $TENURE_KEY itself]",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str, typer.Option("--labels", metavar="A,B", help="What this machine is or has, at most 6 labels.")
    ] = "",
    slots: Annotated[
        int, typer.Option("--slots", min=1, max=1_000, help="How many jobs it executes at once.")
    ] = 4,
    secrets: Annotated[
        Path | None,
        typer.Option(
            "--secrets",
            metavar="FILE",
            help="Names of secrets: NAME: env:VARIABLE or NAME: file:/PATH on each line.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="PATH",
            help="Where it keeps mirrors and workspaces.  \\[default: ~/.cache/tenure-ci-runner]",
            show_default=False,
        ),
    ] = None,
    tool_path: Annotated[
        list[Path] | None,
        typer.Option(
            "--tool-path", metavar="PATH", help="A folder that jobs see, read-only; may be repeated."
        ),
    ] = None,
    git_config: Annotated[
        Path | None,
        typer.Option(
            "--git-config", metavar="FILE", help="Git's configuration for fetching, with its credentials."
        ),
    ] = None,
    git_protocol: Annotated[
        list[str] | None,
        typer.Option(
            "--git-protocol",
            help="A protocol that plans and jobs may fetch with; may be repeated.  \\[default: https, ssh]",
            show_default=False,
        ),
    ] = None,
    reach: Annotated[
        list[str] | None,
        typer.Option(
            "--reach",
            metavar="NETWORK",
            help="A private network that jobs may reach if they name its hosts: fd12:3456::/32.",
        ),
    ] = None,
    uid_base: Annotated[
        int,
        typer.Option(
            "--uid-base",
            min=1,
            max=2_147_000_000,
            help="Where root starts it: the user id of jobs in the first slot; the next slots have the next ids.",
        ),
    ] = 1_900_000_000,
    isolation: Annotated[
        str,
        typer.Option("--isolation", help="bubblewrap, or none: then jobs can read and change what you can."),
    ] = "bubblewrap",
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="The name of this runner.  \\[default: host-pid-random]", show_default=False
        ),
    ] = None,
    grace: Annotated[
        str, typer.Option("--grace", help="How long jobs may take to finish when it is stopped.")
    ] = "30s",
) -> None:
    """Execute CI jobs on this machine: claim them from a server, run them in sandboxes, stream their logs and upload their artifacts."""
    if isolation not in ("bubblewrap", "none"):
        raise typer.BadParameter(f"{isolation!r} is not bubblewrap or none", param_hint="--isolation")
    if server is None:
        raise typer.BadParameter("name a server, or set TENURE_SERVER", param_hint="--server")
    from ipaddress import ip_network

    from tenure.ci.mirror import DEFAULT_PROTOCOLS, GitSettings
    from tenure.ci.settings import PROTOCOLS
    from tenure.ci_runner.job_host import RunnerSettings
    from tenure.ci_runner.runner_process import run_ci_runner
    from tenure.ci_runner.secrets_file import read_secrets_file
    from tenure.engine.entry_point import run_in_loop
    from tenure.outbound.address_rules import AllowedNetworks

    for network in reach or ():
        try:
            ip_network(network)
        except ValueError as wrong:
            raise typer.BadParameter(str(wrong), param_hint="--reach") from wrong
    for protocol in git_protocol or ():
        if protocol not in PROTOCOLS:
            raise typer.BadParameter(
                f"{protocol!r} is not one of {', '.join(PROTOCOLS)}", param_hint="--git-protocol"
            )
    known = {} if secrets is None else read_secrets_file(secrets)
    settings = RunnerSettings(
        folder=(folder or Path.home() / ".cache" / "tenure-ci-runner").absolute(),
        slots=slots,
        labels=tuple(label.strip() for label in labels.split(",") if label.strip()),
        secrets=known,
        git=GitSettings(
            protocols=tuple(git_protocol or DEFAULT_PROTOCOLS),
            config_file="" if git_config is None else str(git_config.absolute()),
            credentials=tuple(known.values()),
        ),
        reach=AllowedNetworks(networks=tuple(reach or ())),
        uid_base=uid_base,
        tools=tuple(str(each.resolve()) for each in tool_path or ()),
    )
    run_in_loop(
        run_ci_runner(
            server,
            _read_key(key_file),
            settings,
            isolation="none" if isolation == "none" else "bubblewrap",
            name=name,
            grace=parse_seconds(grace),
        )
    )


def _read_key(file: Path | None) -> str:
    from tenure.private_files import hide

    if file is None:
        key = os.environ.get("TENURE_KEY", "")
    else:
        hide(file)
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as fault:
            raise TenureError("INVALID_INPUT", f"the key file cannot be read: {fault}") from fault
    if not key:
        raise TenureError(
            "UNAUTHENTICATED", "a CI runner needs a runner's key: --key-file FILE, or TENURE_KEY"
        )
    return key
