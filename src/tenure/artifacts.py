"""Payloads that are too large for the database, and files of jobs, stored by digest in files or a bucket.

Laws:
1. The database stores a reference instead: digest, size and run.
2. An artifact is written before its reference is committed, and never changed. Writing it again is harmless. A body that is read is
   checked against its digest.
3. Files of jobs (logs, parts of artifacts and caches) are named by path. `kernel.artifact_rules` makes the paths; each has the digest of
   its bytes.
4. A user's payload that looks like a reference is stored as an artifact too, so that references cannot be forged.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import from_url

from tenure import ids
from tenure.errors import TenureError
from tenure.limits import ARTIFACT_BYTES_MAX
from tenure.private_files import hide, keep_file, make_folder

_DIGEST = re.compile("[0-9a-f]{64}")
PREFIX = b'{"$tenure.artifact":'
ARTIFACTS_VARIABLE = "TENURE_ARTIFACTS"
EVIDENCE_FOLDER = "evidence"
"""The folder of evidence. No run id looks like it."""
NO_PLACE_MESSAGE = (
    f"evidence needs an artifact store: set {ARTIFACTS_VARIABLE} to a shared folder or s3://bucket/prefix"
)
NO_JOB_PLACE_MESSAGE = f"logs and files of jobs need an artifact store: set {ARTIFACTS_VARIABLE} to a shared folder or s3://bucket/prefix"


class ArtifactReference(msgspec.Struct, frozen=True, kw_only=True):
    """What the database stores instead of an artifact."""

    digest: str = msgspec.field(name="$tenure.artifact")
    size: int
    run: str


def is_reference(body: bytes) -> bool:
    return body.startswith(PREFIX)


def artifact_place(url: str) -> str | None:
    """The folder or bucket for the artifacts of a database: TENURE_ARTIFACTS, or a folder next to an SQLite file."""
    if named := os.environ.get(ARTIFACTS_VARIABLE):
        return named
    if url.startswith(("postgresql:", "postgres:")):
        return None
    return f"{Path(url.removeprefix('sqlite:')).absolute()}.artifacts"


LARGE_BYTES = 1024 * 1024
"""A larger body is hashed in a thread."""


@contextmanager
def _store_errors(what_failed: str) -> Iterator[None]:
    """Raise the errors of a folder or bucket as STORE_UNAVAILABLE."""
    try:
        yield
    except (BaseError, OSError) as fault:
        raise TenureError("STORE_UNAVAILABLE", f"{what_failed}: {fault}") from fault


class ArtifactStore:
    """A folder, or `s3://bucket/prefix` with the usual AWS_* environment."""

    def __init__(self, place: str | None) -> None:
        self._place = place
        self._opened: Any = None
        self._folder = None if place is None or "://" in place else Path(place)
        if self._folder is not None:
            hide(self._folder)

    def _open(self) -> Any:
        if self._opened is None:
            if self._place is None:
                raise TenureError(
                    "PAYLOAD_TOO_LARGE",
                    f"the payload is over the inline limit and there is no artifact store: set {ARTIFACTS_VARIABLE}"
                    " to a shared folder or s3://bucket/prefix",
                )
            folder = self._folder
            self._opened = from_url(
                self._place if folder is None else make_folder(folder).absolute().as_uri()
            )
        return self._opened

    async def put(self, body: bytes, run: str) -> bytes:
        """Store a payload, and return its reference."""
        if len(body) > ARTIFACT_BYTES_MAX:
            raise TenureError(
                "PAYLOAD_TOO_LARGE",
                f"the payload has {len(body)} bytes; an artifact has at most {ARTIFACT_BYTES_MAX}",
            )
        digest = await digest_body(body)
        await self._put(body_path(run, digest), body, replace=False)
        return msgspec.json.encode(ArtifactReference(digest=digest, size=len(body), run=run))

    @property
    def is_configured(self) -> bool:
        return self._place is not None

    def _check_configured(self) -> None:
        if not self.is_configured:
            raise TenureError("INVALID_INPUT", NO_PLACE_MESSAGE)

    async def keep(self, path: str, body: bytes, *, replace: bool = False) -> bool:
        """Store a body permanently below `EVIDENCE_FOLDER`, where `delete` does not reach. False: the path exists and was not changed."""
        self._check_configured()
        return await self._put(f"{EVIDENCE_FOLDER}/{path}", body, replace=replace)

    async def _put(self, path: str, body: bytes, *, replace: bool) -> bool:
        """Write a whole object. False: the path exists and was not changed."""
        with _store_errors(f"{path} cannot be written"):
            store = await asyncio.to_thread(self._open)
            if self._folder is not None:
                return await asyncio.to_thread(partial(keep_file, self._folder / path, body, replace=replace))
            try:
                await obstore.put_async(store, path, body, mode="overwrite" if replace else "create")
            except AlreadyExistsError:
                return False
            return True

    async def kept(self, path: str) -> bytes:
        """The body that `keep` stored under a path."""
        self._check_configured()
        return await self._get(f"{EVIDENCE_FOLDER}/{path}")

    async def _get(self, path: str) -> bytes:
        with _store_errors(f"{path} cannot be read"):
            store = await asyncio.to_thread(self._open)
            try:
                read = await (await obstore.get_async(store, path)).bytes_async()
            except (NotFoundError, FileNotFoundError) as fault:
                raise TenureError("ARTIFACT_LOST", f"{path} is missing: {fault}") from fault
            return await asyncio.to_thread(bytes, read) if len(read) > LARGE_BYTES else bytes(read)

    async def delete(self, run: str) -> None:
        """Delete all artifacts of a run. A folder that was never used is not created."""
        ids.run_int(run)  # checked, because it becomes part of a path
        await self.delete_files(f"{run}/")

    # ------------------------------------------------------------------------------------ files by path

    async def put_file(self, path: str, body: bytes) -> None:
        """Store a file of a job. Its path has the digest of its bytes, so an existing file is the same one.
        ARTIFACT_STORE_REFUSED if we may not write: waiting for that would only hold up the job."""
        if not self.is_configured:
            raise TenureError("INVALID_INPUT", NO_JOB_PLACE_MESSAGE)
        try:
            await self._put(path, body, replace=False)
        except TenureError as fault:
            if isinstance(fault.__cause__, PermissionDeniedError | UnauthenticatedError | PermissionError):
                raise TenureError("ARTIFACT_STORE_REFUSED") from fault
            raise

    async def get_file(self, path: str, digest: str) -> bytes:
        """The bytes of a file, checked against its digest (ARTIFACT_LOST)."""
        body = await self._get(path)
        if await digest_body(body) != digest:
            raise TenureError("ARTIFACT_LOST", f"{path} does not match its digest {digest}")
        return body

    async def delete_files(self, path: str) -> None:
        """Delete a file, or with a slash at the end of its path a folder. A missing one is no error."""
        folder = self._folder
        if not self.is_configured or (folder is not None and not (folder / path).exists()):
            return
        with _store_errors(f"{path} cannot be deleted"):
            if folder is not None:
                await asyncio.to_thread(_delete_tree, folder / path)
                return
            store = await asyncio.to_thread(self._open)
            paths = [path] if not path.endswith("/") else list(await self.list_sizes(path))
            for each in paths:
                with suppress(NotFoundError, FileNotFoundError):
                    await obstore.delete_async(store, each)

    async def list_sizes(self, folder: str) -> dict[str, int]:
        """The files below a folder, with their sizes."""
        if not self.is_configured or (self._folder is not None and not (self._folder / folder).exists()):
            return {}
        with _store_errors(f"{folder} cannot be listed"):
            store = await asyncio.to_thread(self._open)
            return {each["path"]: each["size"] async for some in obstore.list(store, folder) for each in some}

    async def exists(self, reference: bytes) -> bool:
        """Whether the artifact of a reference is there. Its content is not read."""
        named = msgspec.json.decode(reference, type=ArtifactReference)
        path = body_path(named.run, named.digest)
        with _store_errors(f"{path} cannot be found"):
            store = await asyncio.to_thread(self._open)
            try:
                await obstore.head_async(store, path)
            except (NotFoundError, FileNotFoundError):
                return False
            return True

    async def get(self, reference: bytes) -> bytes:
        try:
            named = msgspec.json.decode(reference, type=ArtifactReference)
        except msgspec.DecodeError as fault:
            raise TenureError("INVALID_INPUT", f"this is not a reference to an artifact: {fault}") from fault
        digest = named.digest.removeprefix("sha256:")
        ids.run_int(named.run)  # checked, because it becomes part of a path
        if not _DIGEST.fullmatch(digest):
            raise TenureError("INVALID_INPUT", f"{named.digest!r} is not a digest")
        body = await self._get(body_path(named.run, digest))
        if await digest_body(body) != f"sha256:{digest}":
            raise TenureError("ARTIFACT_LOST", f"artifact {named.digest} does not match its digest")
        return body


async def digest_body(body: bytes) -> str:
    """The digest of a body, as `sha256:HEX`."""
    hashed = await asyncio.to_thread(sha256, body) if len(body) > LARGE_BYTES else sha256(body)
    return f"sha256:{hashed.hexdigest()}"


def body_path(run: str, digest: str) -> str:
    """The path of a body that is stored by its digest."""
    return f"{run}/sha256/{digest.removeprefix('sha256:')}"


def _delete_tree(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
