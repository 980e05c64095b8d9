"""Payloads too large for the database, kept by digest in files or a bucket.

Laws:
1. What is stored in the database instead is a reference: digest, size and the run it belongs to.
2. An artifact is written before the reference that names it is committed, and never changed; writing it again is
   harmless. What is read back is checked against its digest.
3. A payload of the user's that looks like a reference is put among the artifacts too, so that none can be forged.
"""

from __future__ import annotations

import asyncio
import os
import re
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
"""Where evidence lies. No run is called like that."""
NO_PLACE_MESSAGE = (
    f"evidence needs a place: set {ARTIFACTS_VARIABLE} to a shared folder or s3://bucket/prefix"
)


class ArtifactReference(msgspec.Struct, frozen=True, kw_only=True):
    """What stands for an artifact in the database."""

    digest: str = msgspec.field(name="$tenure.artifact")
    size: int
    run: str


def is_reference(body: bytes) -> bool:
    """Whether a stored payload is a reference."""
    return body.startswith(PREFIX)


def artifact_place(url: str) -> str | None:
    """Where the artifacts of a database lie: TENURE_ARTIFACTS, else beside an SQLite file."""
    named = os.environ.get(ARTIFACTS_VARIABLE)
    if named:
        return named
    if url.startswith(("postgresql:", "postgres:")):
        return None
    file = Path(url.removeprefix("sqlite:")).absolute()
    return f"{file}.artifacts"


LARGE_BYTES = 1024 * 1024
"""From here on a digest is made in a thread."""


class ArtifactStore:
    """A place for artifacts: a folder, or `s3://bucket/prefix` with the usual AWS_* environment."""

    def __init__(self, place: str | None) -> None:
        self._place = place
        self._opened: Any = None
        if place is not None and "://" not in place:
            hide(place)

    def _open(self) -> Any:
        if self._opened is None:
            if self._place is None:
                raise TenureError(
                    "PAYLOAD_TOO_LARGE",
                    f"the payload is over the inline limit and there is no place for artifacts: set {ARTIFACTS_VARIABLE}"
                    " to a shared folder or s3://bucket/prefix",
                )
            if "://" in self._place:
                self._opened = from_url(self._place)
            else:
                folder = make_folder(self._place)
                self._opened = from_url(folder.absolute().as_uri())
        return self._opened

    async def put(self, body: bytes, run: str) -> bytes:
        """Keep a payload; the reference to store instead."""
        if len(body) > ARTIFACT_BYTES_MAX:
            raise TenureError(
                "PAYLOAD_TOO_LARGE",
                f"the payload has {len(body)} bytes; an artifact has at most {ARTIFACT_BYTES_MAX}",
            )
        digest = await _digest(body)
        try:
            await self._put(_path(run, digest), body, replace=False)
        except (BaseError, OSError) as fault:
            raise TenureError("STORE_UNAVAILABLE", f"the artifact could not be written: {fault}") from fault
        return msgspec.json.encode(ArtifactReference(digest=f"sha256:{digest}", size=len(body), run=run))

    @property
    def is_configured(self) -> bool:
        """Whether there is a place for artifacts at all."""
        return self._place is not None

    def _must_be_somewhere(self) -> None:
        if not self.is_configured:
            raise TenureError("INVALID_INPUT", NO_PLACE_MESSAGE)

    async def keep(self, path: str, body: bytes, *, replace: bool = False) -> bool:
        """Keep something for good below `EVIDENCE_FOLDER`, where deleting a run's artifacts does not reach. False: there was something
        already, and it was left as it is."""
        self._must_be_somewhere()
        try:
            return await self._put(f"{EVIDENCE_FOLDER}/{path}", body, replace=replace)
        except (BaseError, OSError) as fault:
            raise TenureError(
                "STORE_UNAVAILABLE", f"{EVIDENCE_FOLDER}/{path} could not be written: {fault}"
            ) from fault

    async def _put(self, path: str, body: bytes, *, replace: bool) -> bool:
        """Write a whole object; a file that is nobody else's where the place is a folder. False: there is one already."""
        store = await asyncio.to_thread(self._open)
        if self._place is not None and "://" not in self._place:
            return await asyncio.to_thread(partial(keep_file, Path(self._place, path), body, replace=replace))
        try:
            await obstore.put_async(store, path, body, mode="overwrite" if replace else "create")
        except AlreadyExistsError:
            return False
        return True

    async def kept(self, path: str) -> bytes:
        """What was kept under a path."""
        self._must_be_somewhere()
        try:
            store = await asyncio.to_thread(self._open)
            found = await obstore.get_async(store, f"{EVIDENCE_FOLDER}/{path}")
            return bytes(await found.bytes_async())
        except (NotFoundError, FileNotFoundError) as fault:
            raise TenureError("ARTIFACT_LOST", f"{EVIDENCE_FOLDER}/{path} is not there: {fault}") from fault
        except (BaseError, OSError) as fault:
            raise TenureError(
                "STORE_UNAVAILABLE", f"{EVIDENCE_FOLDER}/{path} cannot be read: {fault}"
            ) from fault

    async def delete(self, run: str) -> None:
        """Everything kept for a run that is no more. A place that was never used is left alone."""
        ids.run_int(run)  # a path is made from it
        place = self._place
        if place is None or ("://" not in place and not (Path(place) / run).exists()):
            return
        store = await asyncio.to_thread(self._open)
        try:
            paths = [each["path"] async for some in obstore.list(store, f"{run}/") for each in some]
            for path in paths:
                await obstore.delete_async(store, path)
        except (BaseError, OSError) as fault:
            raise TenureError(
                "STORE_UNAVAILABLE", f"artifacts of {run} could not be deleted: {fault}"
            ) from fault

    async def get(self, reference: bytes) -> bytes:
        """The payload behind a reference."""
        try:
            named = msgspec.json.decode(reference, type=ArtifactReference)
        except msgspec.DecodeError as fault:
            raise TenureError("INVALID_INPUT", f"this is no reference to an artifact: {fault}") from fault
        digest = named.digest.removeprefix("sha256:")
        ids.run_int(named.run)  # a path is made from it
        if not _DIGEST.fullmatch(digest):
            raise TenureError("INVALID_INPUT", f"{named.digest!r} is no digest")
        store = await asyncio.to_thread(self._open)
        try:
            found = await obstore.get_async(store, _path(named.run, digest))
            read = await found.bytes_async()
            body = await asyncio.to_thread(bytes, read) if len(read) > LARGE_BYTES else bytes(read)
        except (NotFoundError, FileNotFoundError) as fault:
            raise TenureError("ARTIFACT_LOST", f"artifact {named.digest} is not there: {fault}") from fault
        except (BaseError, OSError) as fault:
            raise TenureError(
                "STORE_UNAVAILABLE", f"artifact {named.digest} cannot be read: {fault}"
            ) from fault
        if await _digest(body) != digest:
            raise TenureError("ARTIFACT_LOST", f"artifact {named.digest} is not what it was")
        return body


async def _digest(body: bytes) -> str:
    """Of a large payload in a thread: the event loop turns meanwhile."""
    hashed = await asyncio.to_thread(sha256, body) if len(body) > LARGE_BYTES else sha256(body)
    return hashed.hexdigest()


def _path(run: str, digest: str) -> str:
    return f"{run}/sha256/{digest}"
