"""`tenure dev`: work on an app: its worker (with sweeper and scheduler) in a process that is made anew on changes.

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

import typer

from tenure.cli.console import err, shown
from tenure.cli.options import Db
from tenure.cli.worker import Commands, Grace, Queues, Slots

LOOK_SECONDS = 0.4
STOP_SECONDS = 15.0
SUFFIXES = (".py", ".yaml", ".yml", ".toml", ".json")
IGNORED = frozenset({".venv", "venv", "node_modules", "__pycache__", "build", "dist"})
FILES_MAX = 5_000
INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog="Example:\n\ntenure dev app -- then, elsewhere: tenure run app.py --detach")(dev)


def dev(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="module, module:name or file.py.")],
    slots: Slots = 100,
    queue: Queues = None,
    grace: Grace = "2s",
    commands: Commands = True,
    reload: Annotated[bool, typer.Option("--reload/--no-reload", help="Anew when a file changes.")] = True,
    db: Db = None,
) -> None:
    """Serve an app while you work on it: a worker, the sweeper and the scheduler; anew whenever a file changes.

    Runs survive every restart: what was recorded is kept, the rest is taken up again.
    """
    words = ["worker", target, "--slots", str(slots), "--grace", grace]
    for each in queue or ():
        words += ["--queue", each]
    words += ["--commands"] if commands else []
    words += ["--db", db] if db else []
    watched = _Watched(Path.cwd())
    child = _start(words)
    try:
        while True:
            time.sleep(LOOK_SECONDS)
            ended = child.poll()
            changed = watched.changed() if reload else None
            if changed is not None:
                err().print(shown(f"{changed} changed: starting anew", "cyan"))
                _stop(child)
                child = _start(words)
            elif ended is not None and not reload:
                raise typer.Exit(ended)
            elif ended is not None:
                err().print(shown("it has ended; waiting for a change", "yellow"))
                err().print(shown(f"{watched.wait()} changed: starting anew", "cyan"))
                child = _start(words)
    except KeyboardInterrupt:
        _stop(child)
        raise typer.Exit(INTERRUPTED) from None


def _start(words: list[str]) -> subprocess.Popen[bytes]:
    # In a group of its own: Ctrl-C is ours to pass on.
    return subprocess.Popen([sys.executable, "-m", "tenure.cli", *words], start_new_session=True)


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


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
