"""A database's ledger against a checkpoint that was kept elsewhere: what was dropped, cut off, changed or put back shows here.

Laws:
1. Everything is recomputed (`store.ledger_check`), and every history and admin chain of the tenant too; then the root is
   compared with the checkpoint's.
2. A checkpoint counts as far as a trusted key has signed it. Without a trust file the keys are the database's own, and it is said
   that whoever wrote the database may have written them too.
3. What was not checked is said as plainly as what is wrong.
"""

from __future__ import annotations

import msgspec

from tenure.errors import TenureError
from tenure.govern.ledger import notes
from tenure.govern.ledger.book import Book
from tenure.govern.ledger.keys import Keys
from tenure.govern.ledger.notes import Checkpoint
from tenure.govern.signing import Trust
from tenure.store.identity import broken_chain
from tenure.store.ledger import ledger_name
from tenure.store.ledger_check import NEWEST, PAGE_LEAVES, Flaw, Looked, histories, look
from tenure.store.port import Store

NO_CHECKPOINT = "whether runs were dropped with their leaves, the ledger rewritten or an old backup put back: give --checkpoint"
NO_TRUST = "whether the keys are the right ones: they are the database's own; give --trust"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has found."""

    tenant: str
    size: int
    root: str
    runs: int | None
    """None: they were not looked at, nor what follows."""
    deleted: int | None
    """Runs that retention has deleted after they were sealed: their leaves stay."""
    checkpoints: int
    """How many of its own it has."""
    flaws: list[Flaw]
    unchecked: list[str]


async def check(
    store: Store, tenant: str, checkpoint: Checkpoint | None = None, trust: Trust | None = None
) -> Checked:
    """See the laws above."""
    looked = await look(store, tenant, [] if checkpoint is None else [checkpoint.size])
    flaws = list(looked.flaws)
    flaws += await histories(store, tenant)
    for _, seq in await broken_chain(store, tenant):
        whose = tenant or "the installation"
        flaws.append(
            Flaw(
                code="ADMIN_CHANGED",
                place=f"the admin chain of {whose}",
                text=f"it does not recompute at line {seq}",
            )
        )
    believed = await Keys(store).trust() if trust is None else trust
    count, newest, unsigned = await _own(store, tenant, believed)
    flaws += unsigned
    unchecked = [NO_TRUST] if trust is None else []
    if checkpoint is None:
        unchecked.insert(0, NO_CHECKPOINT)
    else:
        flaws += await _against(Book(store, tenant), looked, newest, checkpoint, believed)
    root = looked.roots.get(looked.size)
    return Checked(
        tenant=tenant,
        size=looked.size,
        root="" if root is None else root.hex(),
        runs=looked.runs,
        deleted=looked.deleted,
        checkpoints=count,
        flaws=flaws,
        unchecked=unchecked,
    )


async def _own(store: Store, tenant: str, trust: Trust) -> tuple[int, int, list[Flaw]]:
    """The checkpoints that the database has: how many, of which size the newest is, and those that nobody trusted signed."""
    count, newest, flaws = 0, 0, []
    before = NEWEST
    while page := await store.read("signed_before", tenant, before, PAGE_LEAVES):
        before = page[-1].size
        for row in page:
            count, newest = count + 1, max(newest, row.size)
            try:
                read = notes.parse(row.note)
                signer = notes.signer_of(read, trust)
            except TenureError as refused:
                flaws.append(_flaw("SIGNATURE_WRONG", f"checkpoint of {row.size} leaves", refused.message))
            else:
                if (read.size, read.root, signer) != (row.size, row.root, row.key_id):
                    text = "its note says something else than its row"
                    flaws.append(_flaw("SIGNATURE_WRONG", f"checkpoint of {row.size} leaves", text))
    return count, newest, flaws


async def _against(
    book: Book, looked: Looked, newest: int, checkpoint: Checkpoint, trust: Trust
) -> list[Flaw]:
    """The ledger against a checkpoint from elsewhere."""
    name, size = ledger_name(book.tenant), checkpoint.size
    origin = await book.origin()
    if checkpoint.origin != origin:
        text = f"the checkpoint is of {checkpoint.origin}, and this is {origin}: it is another, or its beginning was changed"
        return [_flaw("OTHER_LEDGER", name, text)]
    try:
        notes.signer_of(checkpoint, trust)
    except TenureError as refused:
        return [_flaw("SIGNATURE_WRONG", "the checkpoint", refused.message)]
    root = looked.roots.get(size)
    if root is None and newest < size:
        text = (
            f"it has {looked.size} leaves and knows nothing of the checkpoint, which was signed over {size}: an older backup was"
            " put back, or the end was cut off"
        )
        return [_flaw("RESTORED", name, text)]
    if root is None:
        text = f"it has {looked.size} leaves, and the checkpoint was signed over {size}: the end was cut off"
        return [_flaw("TRUNCATED", name, text)]
    if root != checkpoint.root:
        text = (
            f"its first {size} leaves are not those that the checkpoint was signed over: a leaf was changed, dropped, put in or"
            " moved, or an older backup was put back and went on"
        )
        return [_flaw("REWRITTEN", name, text)]
    return []


def _flaw(code: str, place: str, text: str) -> Flaw:
    return Flaw(code=code, place=place, text=text)
