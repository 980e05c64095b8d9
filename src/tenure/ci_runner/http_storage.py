"""The storage of a job on a server, over the runner protocol.

Laws:
1. A request without a response is sent again, the same one. After LEASE_STALE nothing is sent any more.
2. The bytes of a log are sent in order, by one task. At most `BUFFER_BYTES_MAX` wait; whoever writes more waits, too.
3. An archive is made in a thread, and sent part by part while it is made. At most two parts wait in memory.
4. A download goes to a file first and continues where it broke. Then it is unpacked (`archive`).
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec

from tenure.ci_runner.archive import (
    ArchiveEntry,
    entries_below,
    entries_of_files,
    unpack_archive,
    write_archive,
)
from tenure.ci_runner.job_storage import JobFile, JobStorage
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import UploadKind, digest_of_parts
from tenure.limits import ARTIFACT_PART_BYTES_MAX, LOG_CHUNK_BYTES_MAX, TEST_REPORT_BYTES_MAX, TESTS_ASKED_MAX
from tenure.shapes.test_reports import TestHistory, TestReport
from tenure.worker import storage_protocol as p
from tenure.worker.connection import RunnerConnection

T = TypeVar("T")

BUFFER_BYTES_MAX = 8 * 1024 * 1024
FLUSH_SECONDS = 0.2
"""The pause after a small chunk, so that a job that writes line by line does not make a chunk of each."""
FLUSH_SECONDS_PER_CHUNK = 1 / 20_000
"""What each chunk adds to that pause, so that the chunks of a long job do not run out."""
SMALL_BYTES = 64 * 1024
PARTS_WAITING_MAX = 2
GIVE_UP_SECONDS = 300.0


class HttpJobStorage(JobStorage):
    """The storage of one lease; see the laws above."""

    def __init__(
        self,
        connection: RunnerConnection,
        lease_id: str,
        token: str,
        *,
        folder: Path | None = None,
        part_bytes: int = ARTIFACT_PART_BYTES_MAX,
    ) -> None:
        """`folder`: where archives are kept while they are downloaded; by default the system's temporary folder."""
        self._connection = connection
        self._token = token
        self._path = f"/runner/leases/{quote(lease_id, safe='')}"
        self._folder = folder
        self._part_bytes = part_bytes
        self._stale: TenureError | None = None
        self._log = _LogSender(self._send_chunk)

    # ---------------------------------------------------------------------------------------------- requests

    async def _request(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        if self._stale is not None:
            raise self._stale
        try:
            return await self._connection.request(
                method,
                self._path + path,
                content,
                token=self._token,
                headers=headers,
                content_type="application/octet-stream" if method == "PUT" else "application/json",
                give_up_seconds=GIVE_UP_SECONDS,
            )
        except TenureError as refused:
            if refused.code == "LEASE_STALE":
                self._stale = refused
            raise

    async def _post(self, path: str, message: Any, answer: type[T]) -> T:
        body = await self._request("POST", path, msgspec.json.encode(message))
        return msgspec.json.decode(body, type=answer)

    # -------------------------------------------------------------------------------------------------- logs

    async def append_log(self, data: bytes) -> None:
        await self._log.append(data)

    async def close_log(self) -> None:
        await self._log.close()

    async def _send_chunk(self, seq: int, offset: int, body: bytes) -> None:
        digest = (await asyncio.to_thread(sha256, body)).hexdigest()
        headers = {p.DIGEST_HEADER: f"sha256:{digest}"}
        await self._request("PUT", f"/log-chunks/{seq}?offset={offset}", body, headers=headers)

    # ----------------------------------------------------------------------------------------------- uploads

    async def upload(self, name: str, files: Sequence[JobFile], retention_seconds: int | None) -> str:
        entries = await asyncio.to_thread(entries_of_files, files)
        return await self._upload("artifact", name, entries, retention_seconds)

    async def save_cache(self, key: str, paths: Sequence[Path], root: Path) -> None:
        await self._upload("cache", key, await asyncio.to_thread(entries_below, paths, root), None)

    async def _upload(
        self, kind: UploadKind, name: str, entries: Sequence[ArchiveEntry], retention_seconds: int | None
    ) -> str:
        """Returns the digest of the archive; an empty text if a cache has its key already."""
        begin = p.UploadBegin(
            kind=kind, name=name, nonce=secrets.token_hex(16), retention_seconds=retention_seconds
        )
        begun = await self._post("/uploads", begin, p.UploadBegun)
        if begun.exists:
            return ""
        digests: list[str] = []
        size = 0

        async def send(body: bytes) -> None:
            nonlocal size
            if len(digests) >= begun.parts_max:
                raise TenureError(
                    "LIMIT_EXCEEDED",
                    f"{kind} {name!r} has more than {begun.parts_max * begun.part_bytes_max} bytes, which is the limit",
                )
            digest = f"sha256:{(await asyncio.to_thread(sha256, body)).hexdigest()}"
            digests.append(digest)
            size += len(body)
            path = f"/uploads/{begun.upload}/parts/{len(digests)}"
            await self._request("PUT", path, body, headers={p.DIGEST_HEADER: digest})

        await _send_archive(entries, send, min(self._part_bytes, begun.part_bytes_max))
        done = p.UploadComplete(
            kind=kind, name=name, parts=len(digests), size=size, digest=digest_of_parts(digests)
        )
        await self._post(f"/uploads/{begun.upload}/complete", done, p.UploadCompleted)
        return done.digest

    # --------------------------------------------------------------------------------------------- downloads

    async def download(self, job: str, artifact: str, into: Path) -> None:
        path = f"/needs/{quote(job, safe='')}/artifacts/{quote(artifact, safe='')}"
        await self._fetch(path, into)

    async def restore_cache(self, key: str, fallback: Sequence[str], into: Path) -> str | None:
        asked = urlencode([("key", key), *(("fallback", prefix) for prefix in fallback)])
        try:
            headers = await self._fetch(f"/caches?{asked}", into)
        except TenureError as refused:
            if refused.code in ("CACHE_NOT_FOUND", "ARTIFACT_LOST"):
                return None
            raise
        return unquote(headers.get(p.CACHE_KEY_HEADER.lower(), ""))

    async def _fetch(self, path: str, into: Path) -> dict[str, str]:
        """Download an archive and unpack it. Returns the headers of the response."""
        if self._stale is not None:
            raise self._stale
        with await asyncio.to_thread(_open_temporary, self._folder) as file:
            headers = await self._connection.download(
                self._path + path, file, token=self._token, give_up_seconds=GIVE_UP_SECONDS
            )
            await asyncio.to_thread(file.seek, 0)
            await asyncio.to_thread(unpack_archive, file, into)
        return headers

    # ------------------------------------------------------------------------------------------------- tests

    async def send_report(self, report: TestReport) -> None:
        body = msgspec.json.encode(report)
        if len(body) > TEST_REPORT_BYTES_MAX:  # the names of passed tests are the part that may be missing
            body = msgspec.json.encode(msgspec.structs.replace(report, passed_tests=()))
        await self._request("POST", "/report", body)

    async def failed_before(self, tests: Sequence[str]) -> dict[str, TestHistory]:
        found: dict[str, TestHistory] = {}
        unique = list(dict.fromkeys(tests))
        for at in range(0, len(unique), TESTS_ASKED_MAX):
            asked = p.HistoryRequest(tests=tuple(unique[at : at + TESTS_ASKED_MAX]))
            found |= (await self._post("/test-history", asked, p.HistoryReply)).tests
        return found


class _LogSender:
    """Sends the bytes of a log in chunks (law 2)."""

    def __init__(self, send: Callable[[int, int, bytes], Coroutine[Any, Any, None]]) -> None:
        self._send = send
        self._waiting = bytearray()
        self._seq = self._sent = 0
        self._changed = asyncio.Condition()
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._fault: Exception | None = None
        """What ended the sender. Nothing is sent after it."""

    async def append(self, data: bytes) -> None:
        for at in range(0, len(data), BUFFER_BYTES_MAX):
            piece = data[at : at + BUFFER_BYTES_MAX]
            async with self._changed:
                if self._task is None:
                    self._task = asyncio.create_task(self._run(), name="tenure-job-log")
                await self._changed.wait_for(partial(self._has_room, len(piece)))
                if self._fault is not None:
                    raise self._fault
                self._waiting += piece
                self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return self._fault is not None or len(self._waiting) + size <= BUFFER_BYTES_MAX

    async def close(self) -> None:
        async with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._fault is not None:
            raise self._fault

    async def _run(self) -> None:
        try:
            while chunk := await self._next():
                await self._send(self._seq + 1, self._sent, chunk)
                self._seq, self._sent = self._seq + 1, self._sent + len(chunk)
                if len(chunk) < SMALL_BYTES:
                    await self._pause(FLUSH_SECONDS + self._seq * FLUSH_SECONDS_PER_CHUNK)
        except Exception as fault:
            self._fault = fault
            async with self._changed:
                self._changed.notify_all()

    async def _next(self) -> bytes:
        """The next chunk; empty when the log is closed and everything is sent."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            chunk = bytes(self._waiting[:LOG_CHUNK_BYTES_MAX])
            del self._waiting[:LOG_CHUNK_BYTES_MAX]
            self._changed.notify_all()
            return chunk

    async def _pause(self, seconds: float) -> None:
        """Wait for more bytes, unless there are many or the log is closed."""
        async with self._changed:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait_for(lambda: self._closed or len(self._waiting) >= SMALL_BYTES)
            except TimeoutError:
                return


class _PartWriter:
    """A file for a thread to write to: hands full parts to the event loop, and waits while enough of them wait there."""

    def __init__(self, part_bytes: int, put: Callable[[bytes], None]) -> None:
        self._part = bytearray()
        self._part_bytes = part_bytes
        self._put = put

    def write(self, data: bytes) -> int:
        self._part += data
        while len(self._part) >= self._part_bytes:
            self._put(bytes(self._part[: self._part_bytes]))
            del self._part[: self._part_bytes]
        return len(data)

    def flush(self) -> None:
        """Nothing to do: parts are handed over when they are full."""

    def close(self) -> None:
        if self._part:
            self._put(bytes(self._part))
            self._part.clear()


async def _send_archive(
    entries: Sequence[ArchiveEntry], send: Callable[[bytes], Coroutine[Any, Any, None]], part_bytes: int
) -> None:
    """Make an archive in a thread and send its parts while it is made (law 3)."""
    loop = asyncio.get_running_loop()
    parts: asyncio.Queue[bytes | None] = asyncio.Queue(PARTS_WAITING_MAX)
    given_up = False

    def put(part: bytes) -> None:
        if given_up:
            raise TenureError("UPSTREAM_UNAVAILABLE", "the upload was given up")
        asyncio.run_coroutine_threadsafe(parts.put(part), loop).result()

    def make() -> None:
        writer = _PartWriter(part_bytes, put)
        write_archive(entries, _as_file(writer))
        writer.close()

    async def make_all() -> None:
        try:
            await asyncio.to_thread(make)
        finally:
            await parts.put(None)

    making = asyncio.create_task(make_all())
    try:
        while (part := await parts.get()) is not None:
            await send(part)
    finally:
        given_up = True
        while not making.done():  # the thread may wait for room
            while not parts.empty():
                parts.get_nowait()
            await asyncio.wait([making], timeout=0.01)
    await making


def _as_file(writer: _PartWriter) -> IO[bytes]:
    file: Any = writer  # gzip needs no more of a file than these methods
    return file  # type: ignore[no-any-return]  # see above


def _open_temporary(folder: Path | None) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)
