"""A database's ledger against a checkpoint that was kept elsewhere: what was dropped, cut off, changed or put back shows here.

Laws:
1. Everything is recomputed (`store.ledger_check`), and every history and admin chain of the tenant too; then the root is
   compared with the checkpoint's. Of every run its rows are compared with what its history folds to, and its payloads with the
   salted digests in its history; those that lie among the artifacts, with the digest in their reference.
2. A checkpoint counts as far as a trusted key has signed it. Without a trust file the keys are the database's own, and it is said
   that whoever wrote the database may have written them too.
3. What was not checked is said as plainly as what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from tenure import ids
from tenure.artifacts import Artifacts, is_reference
from tenure.doctor.history import (
    chain_recomputes,
    events_without_gaps,
    missing_payloads,
    payloads_equal_their_digests,
    rows_equal_their_history,
)
from tenure.doctor.table import Finding
from tenure.doctor.view import View
from tenure.errors import TenureError
from tenure.govern.ledger import notes
from tenure.govern.ledger.book import Book
from tenure.govern.ledger.keys import Keys
from tenure.govern.ledger.notes import Checkpoint
from tenure.govern.signing import Trust
from tenure.kernel.model import Payload, Run
from tenure.store.bundles import Unsteady, load_bundle
from tenure.store.identity import broken_chain
from tenure.store.ledger import ledger_name
from tenure.store.ledger_check import NEWEST, PAGE_LEAVES, Flaw, Looked, look
from tenure.store.port import Store

NO_CHECKPOINT = "whether runs were dropped with their leaves, the ledger rewritten or an old backup put back: give --checkpoint"
BESIDE = "what has no history: log lines, schedules, caps, workers, answers to requests, artifacts that steps uploaded"
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
    payloads: int | None = None
    """How many were compared with their digests."""
    erased: int | None = None
    """How many payloads the histories name that are not there any more: nothing is left to compare."""
    checked: list[str] = []
    """In words, what was compared."""
    flaws: list[Flaw]
    unchecked: list[str]
    """In words, what was not."""


async def check(
    store: Store,
    tenant: str,
    checkpoint: Checkpoint | None = None,
    trust: Trust | None = None,
    artifacts: Artifacts | None = None,
) -> Checked:
    """See the laws above. Without `artifacts` payloads that lie there are not compared, and that is said."""
    looked = await look(store, tenant, [] if checkpoint is None else [checkpoint.size])
    flaws = list(looked.flaws)
    runs = _Runs(store, tenant, artifacts)
    await runs.look()
    flaws += runs.flaws
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
    unchecked += [*runs.unchecked(), BESIDE]
    checked = [
        f"{_counted(looked.size, 'leaf', 'leaves')}, all subtrees and {_counted(count, 'checkpoint', 'checkpoints')} recompute",
        "1 history recomputes, and its rows are what it folds to"
        if runs.count == 1
        else f"{runs.count} histories recompute, and their rows are what they fold to",
        "1 payload has the digest that its history names"
        if runs.payloads == 1
        else f"{runs.payloads} payloads have the digests that their histories name",
        "the admin chain recomputes",
    ]
    if checkpoint is not None:
        checked.append(f"the first {checkpoint.size} leaves are those that the checkpoint was signed over")
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
        payloads=runs.payloads,
        erased=runs.erased,
        checked=[] if flaws else checked,
        flaws=flaws,
        unchecked=unchecked,
    )


class _Runs:
    """The runs of a tenant, each against its own history (law 1)."""

    def __init__(self, store: Store, tenant: str, artifacts: Artifacts | None) -> None:
        self._store = store
        self._tenant = tenant
        self._artifacts = artifacts
        self.count = self.payloads = self.erased = 0
        self._elsewhere = self._unsteady = 0
        self.flaws: list[Flaw] = []

    async def look(self) -> None:
        """Through all of them, a page at a time."""
        after = 0
        while page := await self._store.read("run_ids_after", after, PAGE_LEAVES):
            after = page[-1].run_id
            for each in page:
                run: list[Run] = await self._store.read("get_run", each.run_id)
                if run and run[0].tenant == self._tenant:
                    await self._one(each.run_id)

    def unchecked(self) -> list[str]:
        """What could not be compared, in words."""
        found = []
        if self.erased:
            found.append(
                f"{self.erased} payloads that were erased: nothing is left to compare with their digests"
            )
        if self._elsewhere:
            found.append(f"{self._elsewhere} payloads among the artifacts, which cannot be reached from here")
        if self._unsteady:
            found.append(f"{self._unsteady} runs that changed every time they were read: try again")
        return found

    async def _one(self, run_id: int) -> None:
        try:
            bundle = await load_bundle(self._store, run_id)
        except Unsteady:
            self._unsteady += 1
            return
        if bundle is None:
            return  # deleted meanwhile
        self.count += 1
        view = View(bundle, settled=False, now=None)
        place = ids.run_text(run_id)
        for code, compare in _COMPARED:
            try:
                found = [f"{row}: {text}" for row, text in compare(view)]
            except Exception as fault:  # rows so broken that they cannot even be looked at
                found = [f"cannot be compared ({type(fault).__name__})"]
            self.flaws += [_flaw(code, place, text) for text in found]
        self.erased += missing_payloads(bundle)
        for payload in bundle.payloads:
            await self._payload(place, payload)

    async def _payload(self, place: str, payload: Payload) -> None:
        self.payloads += 1
        if not is_reference(payload.body):
            return  # it was compared with its digest already
        if self._artifacts is None:
            self._elsewhere += 1
            return
        try:
            await self._artifacts.get(payload.body)
        except TenureError as refused:
            if refused.code == "STORE_UNAVAILABLE":
                self._elsewhere += 1
            else:
                self.flaws.append(
                    _flaw("PAYLOAD_CHANGED", place, f"payload {payload.ref}: {refused.message}")
                )


_COMPARED: tuple[tuple[str, Callable[[View], Iterable[Finding]]], ...] = (
    ("RUN_CHANGED", chain_recomputes),
    ("RUN_CHANGED", events_without_gaps),
    ("ROWS_CHANGED", rows_equal_their_history),
    ("PAYLOAD_CHANGED", payloads_equal_their_digests),
)
"""What is compared of a run, and the code where it differs."""


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


def _counted(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"
