"""What the holders of remote leases store and read: logs, artifacts in parts, caches, test reports.

Laws:
1. Every request names a lease, and concerns only its attempt. Of a lease that has ended, logs, artifacts and reports are accepted for
   `LATE_UPLOAD_SECONDS` and marked late; caches are not.
2. Bytes are stored before the commit that makes them visible, and are checked against the digest that the runner states. Before they are
   stored, the same checks are made without a lock, so that a runner cannot fill the store with bytes that nobody counts.
3. The scope of caches and test histories comes from the job's input; see `tenure.ci.storage_scope`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from tenure import ids
from tenure.artifacts import is_reference
from tenure.ci.storage_scope import StorageScope, read_storage_scope
from tenure.clock import to_datetime, us
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import (
    UploadKind,
    artifact_name_problem,
    log_chunk_path,
    part_path,
    upload_folder,
)
from tenure.kernel.ci_rows import CacheEntryRow, LogChunkRow, TestReportRow, UploadPartRow, UploadRow
from tenure.kernel.run_rows import StepRow
from tenure.kernel.server_rows import ArtifactRow
from tenure.limits import (
    ARTIFACT_PART_BYTES_MAX,
    ARTIFACT_PARTS_MAX,
    CACHE_FALLBACKS_MAX,
    CACHE_KEY_CHARS_MAX,
    LATE_UPLOAD_SECONDS,
    LOG_CHUNK_BYTES_MAX,
    TESTS_ASKED_MAX,
)
from tenure.reads.artifacts import find_artifact
from tenure.reads.file_stream import StoredFile, open_artifact, open_cache
from tenure.services.runners.credentials import LeaseCredential
from tenure.services.runners.leases import RunnerLeases
from tenure.services.scope import Runtime
from tenure.shapes.test_reports import TestHistory, TestReport
from tenure.store.caches import complete_cache, touch_cache
from tenure.store.log_chunks import append_log_chunk
from tenure.store.test_reports import SeenTests, read_test_histories, save_test_report
from tenure.store.uploads import (
    UploadSummary,
    begin_upload,
    complete_artifact,
    save_part,
    upload_not_found,
)
from tenure.work_pool import run_in_pool

__all__ = ["RunnerStorage", "UploadSummary"]

ARCHIVE_TYPE = "application/gzip"
"""The type of artifacts that are uploaded in parts: a tar archive, compressed."""
SCOPES_CACHED_MAX = 10_000
RETENTION_SECONDS_MAX = 366 * 86_400
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_NONCE = re.compile("[0-9A-Za-z_-]{16,64}")


class BegunUpload(NamedTuple):
    id: str
    exists: bool
    """For a cache: the key has one already. There is nothing to upload."""


class CompletedUpload(NamedTuple):
    late: bool
    kept: bool
    """False: another cache of the key was complete before, or there is no room."""


class FoundCache(NamedTuple):
    key: str
    file: StoredFile


class RunnerStorage:
    """The storage of the leases of all tenants; see the laws above."""

    def __init__(self, runtime: Runtime, leases: RunnerLeases) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._leases = leases
        self._scopes: dict[tuple[int, int], StorageScope] = {}

    # --------------------------------------------------------------------------------------------- logs

    async def append_log(
        self, credential: LeaseCredential, seq: int, offset: int, body: bytes, digest: str
    ) -> LogChunkRow:
        """Store the next bytes of the attempt's log."""
        run_id, idx, n = attempt = (credential.run_id, credential.idx, credential.n)
        last: list[LogChunkRow]
        _, _, last = await asyncio.gather(
            _check_body(body, digest, LOG_CHUNK_BYTES_MAX),
            self._leases.check_late(credential),
            self._store.read("log_chunk_last", *attempt),
        )
        next_seq = last[0].seq + 1 if last else 1
        if seq > next_seq:
            raise TenureError(
                "MESSAGE_OUT_OF_ORDER",
                f"chunk {seq} was sent, but the chunk before it is missing: send chunk {next_seq}",
            )
        path = log_chunk_path(ids.run_text(run_id), idx, n, seq, digest)
        await self._runtime.artifacts.put_file(path, body)
        row = LogChunkRow(
            run_id=run_id,
            idx=idx,
            n=n,
            seq=seq,
            late=False,
            first_byte=offset,
            size=len(body),
            lines=body.count(b"\n"),
            digest=digest,
            at=0,
            events=0,
        )
        return await append_log_chunk(self._store, row, late_seconds=LATE_UPLOAD_SECONDS)

    # ------------------------------------------------------------------------------------------- uploads

    async def begin_upload(
        self,
        credential: LeaseCredential,
        kind: UploadKind,
        name: str,
        nonce: str,
        retention_seconds: int | None,
    ) -> BegunUpload:
        """Begin an upload in parts. The same nonce again finds the same upload; another one replaces it."""
        if not _NONCE.fullmatch(nonce):
            raise TenureError(
                "INVALID_INPUT", "`nonce` must be 16 to 64 letters, digits, `-` or `_`, new for each upload"
            )
        late = await self._leases.check_late(credential)
        if kind == "cache":
            scope = await self._scope(credential)
            _check_key(name)
            if late:
                raise TenureError("LEASE_STALE", "the lease has ended: its caches are not kept")
            if await self._store.read("cache_named", credential.tenant, scope.name, name):
                return BegunUpload("", exists=True)
        elif problem := artifact_name_problem(name):
            raise TenureError("INVALID_INPUT", f"{problem}; {name[:80]!r} was given")
        if retention_seconds is not None and not 1 <= retention_seconds <= RETENTION_SECONDS_MAX:
            raise TenureError(
                "INVALID_INPUT", f"`retention_seconds` must be from 1 to {RETENTION_SECONDS_MAX}"
            )
        run_id, idx, n = credential.run_id, credential.idx, credential.n
        # A runner chooses the nonce, so the id must not be one that another lease can have.
        named = f"{credential.tenant}/{run_id}.{idx}.{n}/{kind}/{name}/{nonce}"
        upload_id = sha256(named.encode()).hexdigest()[:32]
        row = UploadRow(
            run_id=run_id,
            idx=idx,
            n=n,
            kind=kind,
            name=name,
            id=upload_id,
            tenant=credential.tenant,
            retention_us=None if retention_seconds is None else us(retention_seconds),
            begun_at=0,
        )
        begun = await begin_upload(self._store, row, late_seconds=LATE_UPLOAD_SECONDS)
        return BegunUpload(begun.id, exists=False)

    async def put_part(
        self, credential: LeaseCredential, upload: str, no: int, body: bytes, digest: str
    ) -> None:
        """Store a part of an upload. The same part again changes nothing."""
        if not 1 <= no <= ARTIFACT_PARTS_MAX:
            raise TenureError("LIMIT_EXCEEDED", f"an upload has at most {ARTIFACT_PARTS_MAX} parts")
        await _check_body(body, digest, ARTIFACT_PART_BYTES_MAX)
        await self._leases.check_late(credential)
        found = await self._upload(credential, upload)
        parts: list[UploadPartRow] = await self._store.read("upload_parts_of", found.run_id, found.id)
        known = next((part for part in parts if part.no == no), None)
        if known is None:
            folder = upload_folder(found.kind, ids.run_text(found.run_id), found.id)
            await self._runtime.artifacts.put_file(part_path(folder, no, digest), body)
        row = UploadPartRow(run_id=found.run_id, upload=found.id, no=no, size=len(body), digest=digest)
        await save_part(self._store, found, row, late_seconds=LATE_UPLOAD_SECONDS)

    async def _upload(self, credential: LeaseCredential, upload: str) -> UploadRow:
        attempt = (credential.run_id, credential.idx, credential.n)
        found: list[UploadRow] = await self._store.read("upload_of", *attempt, upload[:64])
        if not found:
            raise upload_not_found(upload)
        return found[0]

    async def complete_upload(
        self, credential: LeaseCredential, upload: str, kind: UploadKind, name: str, summary: UploadSummary
    ) -> CompletedUpload:
        """Make an upload visible, in one commit. To complete it again returns the same."""
        run_id, idx, n = credential.run_id, credential.idx, credential.n
        if kind == "artifact":
            row = ArtifactRow(
                run_id=run_id,
                name=name,
                idx=idx,
                n=n,
                late=False,
                tenant=credential.tenant,
                step=credential.step,
                worker=credential.owner,
                size=summary.size,
                digest=summary.digest,
                content_type=ARCHIVE_TYPE,
                at=0,
                events=0,
            )
            stored = await complete_artifact(
                self._store, upload, row, summary, late_seconds=LATE_UPLOAD_SECONDS
            )
            return CompletedUpload(stored.late, kept=True)
        scope = await self._scope(credential)
        entry = CacheEntryRow(
            tenant=credential.tenant,
            scope=scope.name,
            name=name,
            repository=scope.repository,
            trusted=scope.trusted,
            upload=upload,
            parts="[]",
            size=0,
            digest="",
            run_id=run_id,
            created_at=0,
            used_at=0,
        )
        kept = await complete_cache(self._store, (run_id, idx, n, upload), entry, summary)
        return CompletedUpload(late=False, kept=kept)

    # ----------------------------------------------------------------------------------------- downloads

    async def find_needed(self, credential: LeaseCredential, job: str, name: str) -> StoredFile:
        """An artifact of a step that the lease's step needs."""
        await self._leases.check_held(credential)
        needed: list[StepRow] = await self._store.read("load_named_steps", rows=[(credential.run_id, job)])
        if not needed or str(credential.idx) not in needed[0].dependents.split(","):
            raise TenureError("ARTIFACT_NOT_FOUND", f"step {credential.step!r} does not need {job[:80]!r}")
        row = await find_artifact(self._store, credential.run_id, name, step=job)
        return await open_artifact(self._store, row)

    async def find_cache(self, credential: LeaseCredential, key: str, fallback: Sequence[str]) -> FoundCache:
        """The cache of a key, or the newest whose key begins with the first prefix that has one."""
        _check_key(key)
        if len(fallback) > CACHE_FALLBACKS_MAX:
            raise TenureError("INVALID_INPUT", f"at most {CACHE_FALLBACKS_MAX} prefixes can be given")
        await self._leases.check_held(credential)
        scope, tenant = await self._scope(credential), credential.tenant
        asked = [("cache_named", key), *(("cache_newest", prefix) for prefix in fallback)]
        for query, text in asked:
            _check_key(text)
            found: list[CacheEntryRow] = []
            for name in scope.readable:
                found += await self._store.read(query, tenant, name, text)
            if query == "cache_newest":
                found.sort(key=lambda row: -row.created_at)
            if found:
                await touch_cache(self._store, found[0], await self._leases.now_us())
                return FoundCache(found[0].name, open_cache(found[0]))
        raise TenureError("CACHE_NOT_FOUND", f"{scope.repository} has no cache for {key[:80]!r}")

    # --------------------------------------------------------------------------------------------- tests

    async def save_report(self, credential: LeaseCredential, report: TestReport) -> bool:
        """Store the test report of an attempt. Returns whether it is late."""
        seen = None
        if (scope := await self._find_scope(credential)) is not None:
            seen = SeenTests(
                credential.tenant,
                scope.name,
                scope.commit,
                credential.step,
                tuple(case.test for case in report.failed_cases),
                report.passed_tests,
                report.complete,
            )
        stored = msgspec.structs.replace(report, passed_tests=())
        whole, body = await run_in_pool(lambda: (msgspec.json.encode(report), msgspec.json.encode(stored)))
        row = TestReportRow(
            run_id=credential.run_id,
            idx=credential.idx,
            n=credential.n,
            late=False,
            digest=f"sha256:{sha256(whole).hexdigest()}",
            body=body,
            at=0,
        )
        return (await save_test_report(self._store, row, seen, late_seconds=LATE_UPLOAD_SECONDS)).late

    async def read_histories(
        self, credential: LeaseCredential, tests: Sequence[str]
    ) -> dict[str, TestHistory]:
        """The histories of those of these tests that have failed before."""
        if len(tests) > TESTS_ASKED_MAX:
            raise TenureError("INVALID_INPUT", f"at most {TESTS_ASKED_MAX} tests can be asked for at once")
        await self._leases.check_held(credential)
        scope = await self._scope(credential)
        found = await read_test_histories(self._store, credential.tenant, scope.readable, tests)
        return {
            test: TestHistory(
                passed=sum(row.passed for row in rows),
                failed=sum(row.failed for row in rows),
                flips=sum(row.same_commit for row in rows),
                changes=sum(row.changes for row in rows),
                last_failed_at=to_datetime(max(row.last_failed_at for row in rows)),
            )
            for test, rows in found.items()
        }

    # --------------------------------------------------------------------------------------------- scopes

    async def _scope(self, credential: LeaseCredential) -> StorageScope:
        """The scope of the lease's job (law 3)."""
        key = (credential.run_id, credential.idx)
        if (known := self._scopes.get(key)) is not None:
            return known
        body = await self._leases.read_input(credential)
        if body is not None and is_reference(body):
            body = await self._runtime.artifacts.get(body)
        scope = await run_in_pool(read_storage_scope, body or b"null")
        while len(self._scopes) >= SCOPES_CACHED_MAX:
            del self._scopes[next(iter(self._scopes))]
        self._scopes[key] = scope
        return scope

    async def _find_scope(self, credential: LeaseCredential) -> StorageScope | None:
        """The scope of the lease's job; None if the step is not a CI job."""
        try:
            return await self._scope(credential)
        except TenureError as refused:
            if refused.code != "INVALID_INPUT":
                raise
            return None


async def _check_body(body: bytes, digest: str, bytes_max: int) -> None:
    """Refuse bytes that are not those that the runner states."""
    if not _DIGEST.fullmatch(digest):
        raise TenureError("INVALID_INPUT", "the stated digest must be `sha256:` and 64 hexadecimal digits")
    if not 1 <= len(body) <= bytes_max:
        raise TenureError("INVALID_INPUT", f"the body must have 1 to {bytes_max} bytes; it has {len(body)}")
    found = f"sha256:{(await run_in_pool(sha256, body)).hexdigest()}"
    if found != digest:
        raise TenureError("INVALID_INPUT", f"the body has the digest {found}; the request states {digest}")


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= CACHE_KEY_CHARS_MAX or not key.isprintable():
        raise TenureError(
            "INVALID_INPUT", f"a cache's key has 1 to {CACHE_KEY_CHARS_MAX} printable characters"
        )
