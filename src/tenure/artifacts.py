"""Payloads that are too large for the database, stored by digest in files or a bucket.

Laws:
1. The database stores a reference instead: digest, size and run.
2. An artifact is written before its reference is committed, and never changed. Writing it again is harmless. A body that is read is
   checked against its digest.
3. A user's payload that looks like a reference is stored as an artifact too, so that references cannot be forged.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
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
        digest = await _digest(body)
        await self._put(_path(run, digest), body, replace=False)
        return msgspec.json.encode(ArtifactReference(digest=f"sha256:{digest}", size=len(body), run=run))

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
        if not self.is_configured or (self._folder is not None and not (self._folder / run).exists()):
            return
        with _store_errors(f"the artifacts of {run} cannot be deleted"):
            store = await asyncio.to_thread(self._open)
            paths = [each["path"] async for some in obstore.list(store, f"{run}/") for each in some]
            for path in paths:
                await obstore.delete_async(store, path)

    async def exists(self, reference: bytes) -> bool:
        """Whether the artifact of a reference is there. Its content is not read."""
        named = msgspec.json.decode(reference, type=ArtifactReference)
        path = _path(named.run, named.digest.removeprefix("sha256:"))
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
        body = await self._get(_path(named.run, digest))
        if await _digest(body) != digest:
            raise TenureError("ARTIFACT_LOST", f"artifact {named.digest} does not match its digest")
        return body


async def _digest(body: bytes) -> str:
    hashed = await asyncio.to_thread(sha256, body) if len(body) > LARGE_BYTES else sha256(body)
    return hashed.hexdigest()


def _path(run: str, digest: str) -> str:
    return f"{run}/sha256/{digest}"
