"""Runs a throw-away server for tests, and ends it together with the process that started it.

`SupervisedServer` starts this file as a plain script, which imports only the standard library. The script's arguments are the server's
directory, the server's account (`uid:gid`, or `-` for the current one) and its command line. The script is the parent of the server, so it
can never signal another process. It reads its standard input:

- a line with the name of a signal ends the server with that signal;
- the end of the input means that the owner has died: the script ends the server and removes its directory.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

STOP_SECONDS_MAX = 20.0


class SupervisedServer:
    """A server in a temporary directory. A context manager."""

    close_signal = "SIGINT"

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None

    def _open(self) -> None:
        """Make the directory and start the server."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The directory of data, log and socket, while the server is open."""
        if self._directory is None:
            raise RuntimeError(f"This {type(self).__name__} is not open: use it as a context manager.")
        return self._directory

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _spawn(
        self, command: list[str], environment: Mapping[str, str], account: str = "-"
    ) -> "subprocess.Popen[bytes]":
        """Start the server under a supervisor."""
        script = [sys.executable, "-I", "-S", __file__, str(self.directory), account]
        self._supervisor = subprocess.Popen(
            [*script, *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, cwd="/"
        )
        return self._supervisor

    def _end(self, signal_name: str) -> None:
        """End the server, and keep its directory."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        assert supervisor.stdin is not None
        with suppress(BrokenPipeError):  # the server ended by itself, and its supervisor with it
            supervisor.stdin.write(f"{signal_name}\n".encode())
            supervisor.stdin.close()
        supervisor.wait(STOP_SECONDS_MAX + 10)

    def close(self) -> None:
        """End the server, and remove its directory."""
        self._end(self.close_signal)
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    directory, account, *command = sys.argv[1:]
    uid, gid = (int(part) for part in account.split(":")) if account != "-" else (None, None)
    with Path(directory, "server.log").open("ab") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
        )
    orphaned = threading.Event()
    threading.Thread(target=_obey, args=(server, orphaned), daemon=True).start()
    code = server.wait()
    if orphaned.is_set():
        shutil.rmtree(directory, ignore_errors=True)
    return code


def _obey(server: "subprocess.Popen[bytes]", orphaned: threading.Event) -> None:
    order = sys.stdin.readline().strip()
    if not order:
        orphaned.set()
    server.send_signal(signal.Signals[order] if order else signal.SIGINT)
    threading.Event().wait(STOP_SECONDS_MAX)
    server.kill()


if __name__ == "__main__":
    os.setsid()  # so that Ctrl-C reaches only the owner, which decides when the server ends
    sys.exit(main())
