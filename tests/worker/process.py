"""Workers in their own processes, for tests that stop, kill and disconnect them.

    with WorkerProcess(url) as worker:
        worker.signal(signal.SIGKILL)

Run as a script, this module is such a worker: `python -m tests.worker.process URL TARGET [OPTION=VALUE …]`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
END_SECONDS = 15.0


class WorkerProcess:
    """One `tenure worker`. Its output goes to a file, and `text` returns it."""

    def __init__(self, url: str, target: str = "tests.worker.flows", **options: Any) -> None:
        self._command = [sys.executable, "-m", "tests.worker.process", url, target]
        self._command += [f"{key}={value}" for key, value in options.items()]
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed with the process
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()

    def restart(self) -> None:
        """Start the worker again after its end. Its earlier output is dropped."""
        self.process.wait()
        self._log.seek(0)
        self._log.truncate()
        self.process = self._start()

    @property
    def text(self) -> str:
        """The output so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Wait for the end. The result is the exit code."""
        return self.process.wait(seconds)


def main(url: str, target: str, *options: str) -> None:
    """Run a worker."""
    from tenure.cli.workflows.targets import load_target_definitions
    from tenure.engine.entry_point import run_in_loop
    from tenure.engine.worker_process import run_worker

    given: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key in ("slots", "wait_for_database"):
            given[key] = int(value)
        elif key == "grace":
            given[key] = float(value)
        elif key == "queues":
            given[key] = value.split(",")
        else:
            given[key] = value
    run_in_loop(run_worker(url, load_target_definitions(target), **given))


if __name__ == "__main__":
    main(*sys.argv[1:])
