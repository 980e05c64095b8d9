"""The bytes of stored files, part by part.

Law: a part is checked against its digest before any of its bytes are handed out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from tenure import ids
from tenure.artifacts import ArtifactStore, body_path
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import part_path, upload_folder
from tenure.kernel.ci_rows import CacheEntryRow
from tenure.kernel.server_rows import ArtifactRow
from tenure.store.port import Store

PIECE_BYTES = 256 * 1024
"""Bytes that are handed out at once."""


class FilePart(NamedTuple):
    path: str
    size: int
    digest: str


class StoredFile(NamedTuple):
    digest: str
    size: int
    parts: tuple[FilePart, ...]


async def open_artifact(store: Store, row: ArtifactRow) -> StoredFile:
    """The file of an artifact. ARTIFACT_EXPIRED if its retention has ended."""
    run = ids.run_text(row.run_id)
    if row.deleted_at is not None:
        raise TenureError(
            "ARTIFACT_EXPIRED", f"artifact {row.name!r} of {run} was deleted after its retention"
        )
    if not row.upload:
        part = FilePart(body_path(run, row.digest), row.size, row.digest)
        return StoredFile(row.digest, row.size, (part,))
    folder = upload_folder("artifact", run, row.upload)
    parts = await store.read("upload_parts_of", row.run_id, row.upload)
    if sum(part.size for part in parts) != row.size:
        raise TenureError("ARTIFACT_LOST", f"the parts of artifact {row.name!r} of {run} are missing")
    return StoredFile(
        row.digest,
        row.size,
        tuple(FilePart(part_path(folder, part.no, part.digest), part.size, part.digest) for part in parts),
    )


def open_cache(row: CacheEntryRow) -> StoredFile:
    """The file of a cache."""
    folder = upload_folder("cache", "", row.upload)
    parts = msgspec.json.decode(row.parts, type=list[tuple[int, str]])
    return StoredFile(
        row.digest,
        row.size,
        tuple(
            FilePart(part_path(folder, no, digest), size, digest)
            for no, (size, digest) in enumerate(parts, start=1)
        ),
    )


async def stream_file(
    artifacts: ArtifactStore, file: StoredFile, first: int = 0, last: int | None = None
) -> AsyncIterator[bytes]:
    """The bytes of a file from number `first` to `last`."""
    begin, end = 0, file.size if last is None else min(last + 1, file.size)
    for part in file.parts:
        if begin >= end:
            return
        if begin + part.size > first:
            body = memoryview(await artifacts.get_file(part.path, part.digest))
            stop = min(end - begin, part.size)
            for at in range(max(first - begin, 0), stop, PIECE_BYTES):
                yield bytes(body[at : min(at + PIECE_BYTES, stop)])
        begin += part.size
