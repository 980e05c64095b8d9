"""`tenure dev`: a server and a worker in a process that restarts when a file changes.

Law: the process that watches files does not import the app, so that an error in the app never ends the watching.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tenure.cli.common.arguments import parse_seconds
from tenure.cli.common.console import warn
from tenure.cli.common.options import (
    ConnectorsFile,
    Db,
    PolicyFile,
    SigningKey,
    WaitForDatabase,
    WithEvidence,
)
from tenure.cli.common.server_extra import require_server_extra
from tenure.cli.dev.dev_server import NO_DATABASE, DevOptions
from tenure.cli.ops.serve import DEFAULT_SETTINGS, Host, Port
from tenure.cli.ops.worker import Grace, Queues, Slots, Target
from tenure.errors import TenureError

LOOK_SECONDS = 0.4
STOP_SECONDS = 15.0
SUFFIXES = (".py", ".yaml", ".yml")
"""The files of an app. Changes of other files, such as data, do not restart it."""
IGNORED = frozenset({".venv", "venv", "node_modules", "__pycache__", "build", "dist"})
FILES_MAX = 5_000
INTERRUPTED = 130
_EPILOG = """
Examples:

tenure dev app -- then, elsewhere: tenure run app.py --detach, or over HTTP:

curl -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" http://127.0.0.1:8700/runs -d '{"workflow": "hello"}'

The first start creates the tenant `default` and shows two keys, once: one for you, which may approve, and one for programs.
"""


app = typer.Typer()


@app.command(epilog=_EPILOG)
def dev(
    target: Target = None,
    slots: Slots = 100,
    queue: Queues = None,
    grace: Grace = "2s",
    commands: Annotated[
        bool,
        typer.Option(
            "--commands/--no-commands", help="Execute the commands of YAML workflows on this machine."
        ),
    ] = True,
    reload: Annotated[bool, typer.Option("--reload/--no-reload", help="Restart when a file changes.")] = True,
    host: Host = DEFAULT_SETTINGS.host,
    port: Port = DEFAULT_SETTINGS.port,
    server: Annotated[bool, typer.Option("--api/--no-api", help="Also serve the HTTP API.")] = True,
    connectors: ConnectorsFile = None,
    policy: PolicyFile = None,
    evidence: WithEvidence = False,
    signing_key: SigningKey = None,
    db: Db = None,
    wait_for_database: WaitForDatabase = "60s",
) -> None:
    """Serve an app while you work on it: the HTTP API, a worker, the sweeper and the scheduler. Restarts when a file changes.

    Runs survive every restart: recorded steps are kept, the others run again.
    """
    if server:
        try:
            require_server_extra()
        except TenureError as missing:
            warn(f"{missing.message}; without it there is only the worker")
            server = False
    if target is None and not commands and not server:
        raise typer.BadParameter("name a module to serve, or --commands", param_hint="TARGET")
    wanted = DevOptions(
        target=target,
        slots=slots,
        queues=queue,
        grace=parse_seconds(grace),
        commands=commands,
        db=db,
        host=host,
        port=port,
        wait_for_database=wait_for_database,
        server=server,
        connectors=connectors,
        policy=policy,
        evidence=evidence,
        signing_key=signing_key,
    )
    parse_seconds(wait_for_database)  # refuse it here, not in the child process
    files = _WatchedFiles(Path.cwd())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the child, too
    child, first = _start(wanted), True
    try:
        while True:
            time.sleep(LOOK_SECONDS)
            ended = child.poll()
            changed = files.find_change() if reload else None
            if changed is None and ended is not None:
                if not reload or (first and ended == NO_DATABASE):
                    raise typer.Exit(1 if ended == NO_DATABASE else ended)
                warn("the server process exited; waiting for a file change")
                changed = files.wait()
            if changed is not None:
                warn(f"{changed} changed: restarting", "cyan")
                _stop(child)
                child, first = _start(wanted), False
    except KeyboardInterrupt:
        _stop(child)
        raise typer.Exit(INTERRUPTED) from None


_pipes: dict[int, int] = {}
"""Our ends of the pipes to children, by process id."""


def _start(wanted: DevOptions) -> subprocess.Popen[bytes]:
    # The child is in its own process group, so that we pass on Ctrl-C. Its end of the pipe tells it when we are gone.
    theirs, ours = os.pipe()
    options = msgspec.json.encode(msgspec.structs.replace(wanted, parent_pipe=theirs)).decode()
    command = [sys.executable, "-m", "tenure.cli.dev.dev_server", options]
    try:
        child = subprocess.Popen(command, start_new_session=True, pass_fds=(theirs,))
    finally:
        os.close(theirs)
    _pipes[child.pid] = ours
    return child


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    os.close(
        _pipes.pop(child.pid)
    )  # not earlier: a closed pipe is a second signal, and would end the child at once


class _WatchedFiles:
    """The files of a folder, with the times of their last changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = dict(self._look())

    def _look(self) -> Iterator[tuple[str, int]]:
        count = 0
        for place, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if name not in IGNORED and not name.startswith(".")]
            for name in names:
                if not name.endswith(SUFFIXES):
                    continue
                count += 1
                if count > FILES_MAX:
                    return
                path = Path(place) / name
                try:
                    yield str(path.relative_to(self._folder)), path.stat().st_mtime_ns
                except OSError:
                    continue

    def find_change(self) -> str | None:
        """A file that was changed, created or removed since the last call."""
        now = dict(self._look())
        before, self._known = self._known, now
        return next((name for name in {**before, **now} if before.get(name) != now.get(name)), None)

    def wait(self) -> str:
        while (found := self.find_change()) is None:
            time.sleep(LOOK_SECONDS)
        return found
