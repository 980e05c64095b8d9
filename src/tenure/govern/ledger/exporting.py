"""Checkpoints outside of the database, where whoever writes the database does not write: a file, or an object in a bucket.

Laws:
1. A place has the newest checkpoint of a ledger and never gets an older one, nor one that does not go on from the one that is
   there: then the database is the one that is wrong, and the copy stays as the proof of it.
2. An export that somebody asks for is a line of the tenant's admin chain. Copies that are made by themselves are not: each
   line would need a checkpoint of its own, and that a copy.
3. What is copied by itself stays under its size, besides being the newest: the whole row of checkpoints is there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import from_url

from tenure.errors import TenureError
from tenure.govern.ledger import notes
from tenure.govern.ledger.book import Book
from tenure.govern.ledger.notes import NOTE_BYTES_MAX, Checkpoint
from tenure.kernel.governance import Signed
from tenure.private_files import make_folder, replace_file
from tenure.store.beside import settled
from tenure.store.identity import Change, told
from tenure.store.port import Query, Store, Transaction

PLACE_VARIABLE = "TENURE_CHECKPOINTS"
"""A folder or `s3://bucket/prefix` where checkpoints are copied to by themselves."""
NEWEST_NAME = "newest.checkpoint"
NOTHING_SIGNED = "no checkpoint was signed yet: set TENURE_SIGNING_KEY, then `tenure ledger sign`; docs/ledger.md explains it"


class Grows(Protocol):
    """A ledger that can show that it has only grown: `Book`, or a server's."""

    async def check_prefix(self, size: int, root: bytes, here: int) -> None:
        """LEDGER_BROKEN unless it begins with what a checkpoint of this size and root was signed over."""
        ...


class Shelf:
    """A folder, or `s3://bucket/prefix` with the usual AWS_* environment."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._opened: Any = None

    async def read(self, name: str) -> bytes | None:
        """What is there; None: nothing."""
        try:
            if self._is_folder:
                return await asyncio.to_thread(_read_file, Path(self._place) / name)
            found = await obstore.get_async(await self._open(), name)
            body = bytes(await found.bytes_async())
        except (FileNotFoundError, NotFoundError):
            return None
        except (BaseError, OSError) as fault:
            raise _unreachable("read", fault) from None
        return body[: NOTE_BYTES_MAX + 1]

    async def write(self, name: str, body: bytes, *, replace: bool) -> None:
        """Put it there, whole or not at all; what is there already stays unless it is to be replaced."""
        try:
            if self._is_folder:
                await asyncio.to_thread(_write_file, Path(self._place) / name, body, replace)
            else:
                await obstore.put_async(
                    await self._open(), name, body, mode="overwrite" if replace else "create"
                )
        except (FileExistsError, AlreadyExistsError):
            pass
        except (BaseError, OSError) as fault:
            raise _unreachable("written", fault) from None

    @property
    def _is_folder(self) -> bool:
        return "://" not in self._place

    async def _open(self) -> Any:
        if self._opened is None:
            self._opened = await asyncio.to_thread(from_url, self._place)
        return self._opened


async def export(store: Store, tenant: str, to: str, actor: str) -> Signed:
    """Write the newest checkpoint of a ledger to a file or to `s3://bucket/object` (laws 1 and 2)."""
    book = Book(store, tenant)
    newest = await book.newest()
    if newest is None:
        raise TenureError("NOT_READY", NOTHING_SIGNED)
    await put(book, to, newest)

    def work() -> Transaction[None]:
        now = (yield Query("now"))[0].now_us
        about = {"size": newest.size, "root": newest.root.hex(), "to": "bucket" if "://" in to else "file"}
        yield from told(Change(tenant=tenant, kind="ledger.exported", actor=actor, about=about), now)

    await settled(store, work)
    return newest


async def put(book: Grows, to: str, newest: Signed) -> None:
    """Write a checkpoint to a file or to `s3://bucket/object` (law 1)."""
    shelf, name = _divided(to)
    await _put_newest(book, shelf, name, newest)


async def copy(book: Book, shelf: Shelf, signed: Signed) -> None:
    """Copy a checkpoint to where they are kept by themselves (law 3)."""
    folder = folder_of(notes.parse(signed.note))
    await _put_newest(book, shelf, f"{folder}/{NEWEST_NAME}", signed)
    name = f"{folder}/{signed.size:012d}.checkpoint"
    await shelf.write(name, signed.note.encode(), replace=False)


def folder_of(checkpoint: Checkpoint) -> str:
    """Where the copies of a ledger lie: its origin, below the place for all."""
    return "/".join(quote(part, safe="") for part in checkpoint.origin.split("/"))


async def _put_newest(book: Grows, shelf: Shelf, name: str, signed: Signed) -> None:
    there = await shelf.read(name)
    if there == signed.note.encode():
        return
    if there is not None:
        await _goes_on(book, notes.parse(there), signed)
    await shelf.write(name, signed.note.encode(), replace=True)


async def _goes_on(book: Grows, there: Checkpoint, signed: Signed) -> None:
    """LEDGER_BROKEN unless a checkpoint goes on from the one that is kept (law 1)."""
    if there.origin != notes.parse(signed.note).origin:
        raise TenureError(
            "LEDGER_CHECKPOINT_INVALID", f"what is there is a checkpoint of another ledger: {there.origin}"
        )
    await book.check_prefix(there.size, there.root, signed.size)


def _divided(to: str) -> tuple[Shelf, str]:
    """A place, and the name there."""
    if "://" not in to:
        file = Path(to)
        return Shelf(str(file.parent)), file.name
    parts = urlsplit(to)
    folder, _, name = parts.path.rpartition("/")
    if not parts.netloc or not name:
        raise TenureError("INVALID_INPUT", "an object of a bucket is named like s3://bucket/acme.checkpoint")
    return Shelf(f"{parts.scheme}://{parts.netloc}{folder}"), name


def _read_file(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(NOTE_BYTES_MAX + 1)


def _write_file(file: Path, body: bytes, replace: bool) -> None:
    make_folder(file.parent)
    if not replace and file.exists():
        return
    with replace_file(file, mode=0o644) as opened:  # it is for others to read
        opened.write(body)


def _unreachable(what: str, fault: Exception) -> TenureError:
    """Without the fault's own words: they may have the address with what stands in it."""
    return TenureError(
        "STORE_UNAVAILABLE", f"the place for checkpoints cannot be {what}: {type(fault).__name__}"
    )
