"""The log of a job: everything that its programs print, masked, in the order in which they print it.

Laws:
1. Nothing is dropped below the job's limit. A storage that is slow makes the job's programs wait.
2. A log that cannot be stored does not stop the job. `fault` says why, and the job's outcome repeats it.
3. The end of the log is kept for the rules that classify a failure.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from tenure.ci.failure_rules import TAIL_BYTES_MAX
from tenure.ci_runner.job_storage import JobStorage
from tenure.ci_runner.secret_masker import SecretMasker
from tenure.errors import TenureError
from tenure.limits import JOB_OUTPUT_BYTES_MAX
from tenure.logs import get_logger

log = get_logger(__name__)

READ_BYTES = 256 * 1024


class JobOutput:
    def __init__(self, storage: JobStorage, bytes_max: int) -> None:
        self._storage = storage
        self._bytes_max = min(bytes_max, JOB_OUTPUT_BYTES_MAX)  # a server refuses more
        self._bytes = 0
        self._masker = SecretMasker(())
        self.tail = b""
        self.fault: TenureError | None = None
        self.abandoned = False
        """Whether the lease is lost: nothing more is stored."""

    def mask_secrets(self, secrets: Iterable[bytes]) -> None:
        self._masker = SecretMasker(secrets)

    def mask_text(self, text: str) -> str:
        return self._masker.mask_text(text)

    async def read_from(self, source: int) -> None:
        """Take everything from a pipe until it ends, and close it."""
        reader = asyncio.StreamReader(limit=READ_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0)
        )
        try:
            while data := await reader.read(READ_BYTES):
                await self._append(self._masker.feed(data))
            await self._append(self._masker.flush())
        finally:
            transport.close()

    async def note(self, text: str) -> None:
        """Add a line of the runner's own."""
        await self._append(f"# {self.mask_text(text)}\n".encode())

    async def _append(self, data: bytes) -> None:
        if not data:
            return
        self.tail = (self.tail + data)[-TAIL_BYTES_MAX:]
        room = self._bytes_max - self._bytes
        if room <= 0 or self.fault is not None or self.abandoned:
            return
        self._bytes += len(data)
        if len(data) > room:
            data = data[:room] + f"\n# the log ends here: it has {self._bytes_max} bytes\n".encode()
        try:
            await self._storage.append_log(data)
        except TenureError as refused:
            log.warning("job_log_failed", error=refused.code)
            self.fault = refused

    async def close(self) -> None:
        if self.fault is None and not self.abandoned:
            await self._storage.close_log()
