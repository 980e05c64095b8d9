"""Copies checkpoints to a place outside of the database: a file, or an object in a bucket.

Laws:
1. A place has the newest checkpoint of a ledger. It never gets an older one, nor one that does not continue the stored one: in that case
   the database is wrong, and the copy stays as the proof.
2. An export on request is a line of the tenant's admin chain. Automatic copies are not: each line would need a checkpoint of its own, and that
   another copy.
3. Automatic copies are also stored under their size, so that the whole series of checkpoints is there.
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
from tenure.govern.ledger.tenant_ledger import TenantLedger
from tenure.kernel.governance_rows import SignedCheckpointRow
from tenure.private_files import make_folder, replace_file
from tenure.proof import signed_notes
from tenure.proof.signed_notes import NOTE_BYTES_MAX
from tenure.store.identity import AdminChange, append_admin_event
from tenure.store.port import Query, Store, Transaction
from tenure.store.transactions import run_transaction

PLACE_VARIABLE = "TENURE_CHECKPOINTS"
"""A folder or `s3://bucket/prefix` for automatic copies of checkpoints."""
NEWEST_NAME = "newest.checkpoint"
NOTHING_SIGNED = "no checkpoint has been signed yet: set TENURE_SIGNING_KEY, then run `tenure ledger sign`; see docs/ledger.md"


class GrowingLedger(Protocol):
    """A ledger that can prove that it has only grown: `TenantLedger`, or that of a server."""

    async def check_prefix(self, size: int, root: bytes, here: int) -> None: ...


class CheckpointStorage:
    """A folder, or `s3://bucket/prefix` with the usual AWS_* environment."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._opened: Any = None

    async def read(self, name: str) -> bytes | None:
        try:
            if self._is_folder:
                return await asyncio.to_thread(_read_file, Path(self._place) / name)
            body = bytes(await (await obstore.get_async(await self._open(), name)).bytes_async())
        except (FileNotFoundError, NotFoundError):
            return None
        except (BaseError, OSError) as fault:
            raise _unavailable("read", fault) from None
        return body[: NOTE_BYTES_MAX + 1]

    async def write(self, name: str, body: bytes, *, replace: bool) -> None:
        """Write atomically. Existing contents stay unless `replace` is set."""
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
            raise _unavailable("written", fault) from None

    @property
    def _is_folder(self) -> bool:
        return "://" not in self._place

    async def _open(self) -> Any:
        if self._opened is None:
            self._opened = await asyncio.to_thread(from_url, self._place)
        return self._opened


async def export_checkpoint(store: Store, tenant: str, to: str, actor: str) -> SignedCheckpointRow:
    """Write the newest checkpoint of a ledger to a file or to `s3://bucket/object` (laws 1 and 2)."""
    ledger = TenantLedger(store, tenant)
    newest = await ledger.newest()
    if newest is None:
        raise TenureError("NOT_READY", NOTHING_SIGNED)
    await write_checkpoint(ledger, to, newest)

    def work() -> Transaction[None]:
        about = {"size": newest.size, "root": newest.root.hex(), "to": "bucket" if "://" in to else "file"}
        change = AdminChange(tenant=tenant, kind="ledger.exported", actor=actor, about=about)
        yield from append_admin_event(change, (yield Query("now"))[0].now_us)

    await run_transaction(store, work)
    return newest


async def write_checkpoint(ledger: GrowingLedger, to: str, newest: SignedCheckpointRow) -> None:
    """Write a checkpoint to a file or to `s3://bucket/object` (law 1)."""
    storage, name = _split_place(to)
    await _put_newest(ledger, storage, name, newest)


async def copy_checkpoint(
    ledger: TenantLedger, storage: CheckpointStorage, signed: SignedCheckpointRow
) -> None:
    """Copy a checkpoint to the place for automatic copies, into a folder with the name of its origin (law 3)."""
    origin = signed_notes.parse_checkpoint(signed.note).origin
    folder = "/".join(quote(part, safe="") for part in origin.split("/"))
    await _put_newest(ledger, storage, f"{folder}/{NEWEST_NAME}", signed)
    await storage.write(f"{folder}/{signed.size:012d}.checkpoint", signed.note.encode(), replace=False)


async def _put_newest(
    ledger: GrowingLedger, storage: CheckpointStorage, name: str, signed: SignedCheckpointRow
) -> None:
    """Store a checkpoint; LEDGER_BROKEN unless it continues the stored one (law 1)."""
    there = await storage.read(name)
    if there == signed.note.encode():
        return
    if there is not None:
        stored = signed_notes.parse_checkpoint(there)
        if stored.origin != signed_notes.parse_checkpoint(signed.note).origin:
            raise TenureError(
                "LEDGER_CHECKPOINT_INVALID",
                f"the stored checkpoint belongs to another ledger: {stored.origin}",
            )
        await ledger.check_prefix(stored.size, stored.root, signed.size)
    await storage.write(name, signed.note.encode(), replace=True)


def _split_place(to: str) -> tuple[CheckpointStorage, str]:
    """A storage, and the name in it."""
    if "://" not in to:
        file = Path(to)
        return CheckpointStorage(str(file.parent)), file.name
    parts = urlsplit(to)
    folder, _, name = parts.path.rpartition("/")
    if not parts.netloc or not name:
        raise TenureError(
            "INVALID_INPUT", "an object in a bucket must have a URL such as s3://bucket/acme.checkpoint"
        )
    return CheckpointStorage(f"{parts.scheme}://{parts.netloc}{folder}"), name


def _read_file(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(NOTE_BYTES_MAX + 1)


def _write_file(file: Path, body: bytes, replace: bool) -> None:
    make_folder(file.parent)
    if not replace and file.exists():
        return
    with replace_file(file, mode=0o644) as opened:  # others should be able to read it
        opened.write(body)


def _unavailable(what: str, fault: Exception) -> TenureError:
    """An error without the message of the exception, which may contain credentials of the address."""
    return TenureError(
        "STORE_UNAVAILABLE", f"the place for checkpoints cannot be {what}: {type(fault).__name__}"
    )
