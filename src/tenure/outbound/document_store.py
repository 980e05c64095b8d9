"""Documents in a folder or a bucket, replaced only by writers that know what they replace.

Laws:
1. A conditional write names the version that it replaces, or that there is none. If the document has another version, nothing is written.
   A bucket compares ETags; a folder compares under a lock and renames.
2. A document may carry a mark, a number of its writer's. Document and mark change together.
3. A folder or bucket that cannot be reached, or that refuses, is UPSTREAM_UNAVAILABLE. No call waits longer than `CALL_SECONDS_MAX`.
4. Paths are made by `tenure.shapes.published`: no part of them comes from a request unchecked.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import from_url

from tenure.errors import TenureError
from tenure.private_files import hide, lock_file, make_folder, replace_file

T = TypeVar("T")

CALL_SECONDS_MAX = 10.0
CONNECT_SECONDS_MAX = 3.0
RETRIES_MAX = 1
"""Of the client of a bucket: a publisher tries again by itself, and a reader is told quickly."""
MARK = "tenure-mark"
"""The metadata of an object that has the mark."""
DOCUMENT_BYTES_MAX = 8 * 1024 * 1024


class VersionedDocument(msgspec.Struct, frozen=True):
    body: bytes
    version: str
    mark: int


class DocumentChanged(Exception):
    """The document has another version than the writer expected."""


def check_place(place: str) -> None:
    """Refuse an address that is neither a folder nor a bucket."""
    if "://" in place and not place.startswith("s3://"):
        raise TenureError(
            "INVALID_INPUT", f"{place!r} is not a place for documents: name a folder or s3://bucket/prefix"
        )


class DocumentStore:
    """A folder, or `s3://bucket/prefix` with the usual AWS_* environment."""

    def __init__(self, place: str) -> None:
        check_place(place)
        self._folder = None if "://" in place else Path(place).absolute()
        self._place = place
        self._opened: Any = None
        if self._folder is not None:
            hide(self._folder)

    @property
    def name(self) -> str:
        """The address, for people and as the key of the publication."""
        return self._place if self._folder is None else str(self._folder)

    # ----------------------------------------------------------------------------------------------- reading

    async def read(self, path: str) -> VersionedDocument | None:
        """A document with its version and mark; None if there is none."""
        if self._folder is not None:
            return await self._in_thread(path, _read_file, self._folder / path)
        with _place_errors(path):
            async with asyncio.timeout(CALL_SECONDS_MAX):
                try:
                    found = await obstore.get_async(await self._bucket(), path)
                except (NotFoundError, FileNotFoundError):
                    return None
                if found.meta["size"] > DOCUMENT_BYTES_MAX:
                    raise TenureError(
                        "UPSTREAM_UNAVAILABLE", f"{path} has more than {DOCUMENT_BYTES_MAX} bytes"
                    )
                body = bytes(await found.bytes_async())
        mark: Any = found.attributes.get(MARK, "0")
        return VersionedDocument(body, found.meta["e_tag"] or "", int(mark) if mark.isdigit() else 0)

    async def version(self, path: str) -> str | None:
        """The version of a document, without its body."""
        if self._folder is not None:
            return await self._in_thread(path, _file_version, self._folder / path)
        with _place_errors(path):
            async with asyncio.timeout(CALL_SECONDS_MAX):
                try:
                    return (await obstore.head_async(await self._bucket(), path))["e_tag"] or ""
                except (NotFoundError, FileNotFoundError):
                    return None

    async def names(self, folder: str) -> AsyncIterator[str]:
        """The names of the documents directly in a folder."""
        if self._folder is not None:
            for name in await self._in_thread(folder, _file_names, self._folder / folder):
                yield name
            return
        with _place_errors(folder):
            async for some in obstore.list(await self._bucket(), f"{folder}/"):
                for each in some:
                    yield each["path"].removeprefix(f"{folder}/")

    # ----------------------------------------------------------------------------------------------- writing

    async def put(self, path: str, body: bytes) -> None:
        """Write a document, whatever is there. For documents whose content does not depend on who writes them."""
        if self._folder is not None:
            await self._in_thread(path, _put_file, self._folder / path, body)
            return
        with _place_errors(path):
            async with asyncio.timeout(CALL_SECONDS_MAX):
                await obstore.put_async(await self._bucket(), path, body)

    async def replace(self, path: str, body: bytes, *, expected: str | None, mark: int = 0) -> str:
        """Write a document if it has the version `expected` (None: if there is none); its new version. Otherwise DocumentChanged."""
        if self._folder is not None:
            return await self._in_thread(path, _replace_file, self._folder / path, body, expected, mark)
        attributes: Any = {MARK: str(mark), "Content-Type": "application/json"}
        with _place_errors(path):
            async with asyncio.timeout(CALL_SECONDS_MAX):
                try:
                    written = await obstore.put_async(
                        await self._bucket(),
                        path,
                        body,
                        mode="create" if expected is None else {"e_tag": expected},
                        attributes=attributes,
                    )
                except (AlreadyExistsError, PreconditionError, NotFoundError) as changed:
                    raise DocumentChanged(path) from changed
        return written["e_tag"] or ""

    async def delete(self, path: str) -> None:
        """Delete a document, if it is there."""
        if self._folder is not None:
            await self._in_thread(path, _delete_file, self._folder / path)
            return
        with _place_errors(path):
            async with asyncio.timeout(CALL_SECONDS_MAX):
                with suppress(NotFoundError, FileNotFoundError):
                    await obstore.delete_async(await self._bucket(), path)

    async def delete_folder(self, folder: str) -> None:
        """Delete every document below a folder."""
        if self._folder is not None:
            await self._in_thread(folder, _delete_files, self._folder / folder)
            return
        with _place_errors(folder):
            bucket = await self._bucket()
            async for some in obstore.list(bucket, f"{folder}/"):
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    await obstore.delete_async(bucket, [each["path"] for each in some])

    # ------------------------------------------------------------------------------------------------ inside

    async def _bucket(self) -> Any:
        if self._opened is None:
            self._opened = await asyncio.to_thread(_open_bucket, self._place)
        return self._opened

    async def _in_thread(self, path: str, call: Callable[..., T], *args: Any) -> T:
        with _place_errors(path):
            return await asyncio.to_thread(call, *args)


def _open_bucket(place: str) -> Any:
    return from_url(
        place,
        client_options={  # they replace those of the environment
            "timeout": f"{CALL_SECONDS_MAX:g}s",
            "connect_timeout": f"{CONNECT_SECONDS_MAX:g}s",
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"),
        },
        retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=CALL_SECONDS_MAX)},
    )


@contextmanager
def _place_errors(path: str) -> Iterator[None]:
    """Raise the errors of a folder or bucket as UPSTREAM_UNAVAILABLE (law 3)."""
    try:
        yield
    except TimeoutError as late:
        raise TenureError(
            "UPSTREAM_UNAVAILABLE", f"{path}: no answer within {CALL_SECONDS_MAX:g} s"
        ) from late
    except (BaseError, OSError, ValueError) as fault:
        raise TenureError("UPSTREAM_UNAVAILABLE", f"{path}: {str(fault)[:300]}") from fault


# ---- Files. A version is the file's inode, time and size: every write makes a new file. The lock file of a document has the version that the
# newest write has replaced, the mark of that version, and the mark of the newest write; so the mark is right even after a crash between
# its write and the renaming.


def _read_file(path: Path) -> VersionedDocument | None:
    try:
        with path.open("rb") as opened:
            body = opened.read(DOCUMENT_BYTES_MAX + 1)
            version = _stat_version(os.fstat(opened.fileno()))
    except FileNotFoundError:
        if not path.parent.exists():
            _check_reachable(path)
        return None
    return VersionedDocument(body, version, _read_mark(path, version))


def _check_reachable(path: Path) -> None:
    """A missing folder is an empty folder. A parent that is no folder, or closed to us, is an error."""
    for folder in path.parents:
        if folder.exists():
            if not os.access(folder, os.R_OK | os.X_OK) or not folder.is_dir():
                raise NotADirectoryError(20, "is not a folder that can be read", str(folder))
            return


def _file_version(path: Path) -> str | None:
    try:
        return _stat_version(path.stat())
    except FileNotFoundError:
        _check_reachable(path)
        return None


def _stat_version(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _read_mark(path: Path, version: str) -> int:
    try:
        before, old, new = _lock_path(path).read_text().split()
    except (FileNotFoundError, ValueError):
        return 0
    return int(old) if before == version else int(new)


def _put_file(path: Path, body: bytes) -> None:
    make_folder(path.parent)
    with replace_file(path) as opened:
        opened.write(body)


def _replace_file(path: Path, body: bytes, expected: str | None, mark: int) -> str:
    make_folder(path.parent)
    with lock_file(_lock_path(path)) as handle:
        current = _file_version(path)
        if current != expected:
            raise DocumentChanged(str(path))
        old = 0 if current is None else _read_mark(path, current)
        line = f"{current or '-'} {old} {mark}".encode()
        os.pwrite(handle, line, 0)
        os.ftruncate(handle, len(line))
        with replace_file(path) as opened:
            opened.write(body)
        return _file_version(path) or ""


def _delete_file(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()


def _file_names(folder: Path) -> list[str]:
    try:
        return [each.name for each in folder.iterdir() if not each.name.startswith(".")]
    except FileNotFoundError:
        return []


def _delete_files(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
