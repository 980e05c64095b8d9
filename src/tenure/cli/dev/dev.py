"""`tenure dev`: work on an app: a server and a worker (with sweeper and scheduler) in a process that is made anew on changes.

Law: the process that watches imports nothing of the app, so that a mistake in it never ends the watching.
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

from tenure.cli.common.console import err, safe_text
from tenure.cli.common.options import (
    ConnectorsFile,
    Db,
    PolicyFile,
    SigningKey,
    WaitForDatabase,
    WithEvidence,
)
from tenure.cli.common.session import parse_seconds
from tenure.cli.dev.dev_server import NO_DATABASE, DevOptions
from tenure.cli.ops.serve import DEFAULT_SETTINGS, Host, Port, require_server_extra
from tenure.cli.ops.worker import Grace, Queues, Slots, Target
from tenure.errors import TenureError

LOOK_SECONDS = 0.4
STOP_SECONDS = 15.0
SUFFIXES = (".py", ".yaml", ".yml")
"""What an app is made of; data that it writes does not start it anew."""
IGNORED = frozenset({".venv", "venv", "node_modules", "__pycache__", "build", "dist"})
FILES_MAX = 5_000
INTERRUPTED = 130
_EPILOG = """
Examples:

tenure dev app -- then, elsewhere: tenure run app.py --detach, or over HTTP:

curl -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" http://127.0.0.1:8700/runs -d '{"workflow": "hello"}'

The first start makes the tenant `default` and shows two keys, once: one for you, who may approve, and one for programs.
"""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=_EPILOG)(dev)


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
    reload: Annotated[bool, typer.Option("--reload/--no-reload", help="Anew when a file changes.")] = True,
    host: Host = DEFAULT_SETTINGS.host,
    port: Port = DEFAULT_SETTINGS.port,
    server: Annotated[bool, typer.Option("--api/--no-api", help="Whether to serve the HTTP API too.")] = True,
    connectors: ConnectorsFile = None,
    policy: PolicyFile = None,
    evidence: WithEvidence = False,
    signing_key: SigningKey = None,
    db: Db = None,
    wait_for_database: WaitForDatabase = "60s",
) -> None:
    """Serve an app while you work on it: the HTTP API, a worker, the sweeper and the scheduler; anew whenever a file changes.

    Runs survive every restart: what was recorded is kept, the rest is taken up again.
    """
    if server:
        try:
            require_server_extra()
        except TenureError as missing:
            err().print(safe_text(f"{missing.message}; without it there is only the worker", "yellow"))
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
    parse_seconds(wait_for_database)  # refused here, and not by what is started
    watched = _Watched(Path.cwd())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us ends what we started
    child, first = _start(wanted), True
    try:
        while True:
            time.sleep(LOOK_SECONDS)
            ended = child.poll()
            changed = watched.changed() if reload else None
            if changed is not None:
                err().print(safe_text(f"{changed} changed: starting anew", "cyan"))
                _stop(child)
                child, first = _start(wanted), False
            elif ended is not None and (not reload or (first and ended == NO_DATABASE)):
                raise typer.Exit(1 if ended == NO_DATABASE else ended)
            elif ended is not None:
                err().print(safe_text("it has ended; waiting for a change", "yellow"))
                err().print(safe_text(f"{watched.wait()} changed: starting anew", "cyan"))
                _stop(child)
                child, first = _start(wanted), False
    except KeyboardInterrupt:
        _stop(child)
        raise typer.Exit(INTERRUPTED) from None


_held: dict[int, int] = {}
"""Our ends of the pipes of those we have started, by process."""


def _start(wanted: DevOptions) -> subprocess.Popen[bytes]:
    # In a group of its own: Ctrl-C is ours to pass on. Its end of the pipe tells it that we are gone, whichever way.
    theirs, ours = os.pipe()
    told = msgspec.json.encode(msgspec.structs.replace(wanted, owner=theirs)).decode()
    command = [sys.executable, "-m", "tenure.cli.dev.dev_server", told]
    try:
        child = subprocess.Popen(command, start_new_session=True, pass_fds=(theirs,))
    finally:
        os.close(theirs)
    _held[child.pid] = ours
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
        _held.pop(child.pid)
    )  # now: the end of the pipe is a signal, too, and a second one would not be in peace


class _Watched:
    """The files of a folder, and when they were changed."""

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

    def changed(self) -> str | None:
        """A file that was changed, made or removed since the last look."""
        now = dict(self._look())
        before, self._known = self._known, now
        return next((name for name in {**before, **now} if before.get(name) != now.get(name)), None)

    def wait(self) -> str:
        """Wait for a change."""
        while (found := self.changed()) is None:
            time.sleep(LOOK_SECONDS)
        return found
