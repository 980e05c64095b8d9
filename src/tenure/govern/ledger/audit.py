"""Audits a database's ledger against a checkpoint that was stored elsewhere: finds what was dropped, truncated, changed or restored.

Laws:
1. Everything is recomputed (`doctor.ledger_check`), with every history and admin chain of the tenant. Then the root is compared with the
   checkpoint. The rows of each run are compared with its folded history, and its payloads with the salted digests in its history; payloads among
   the artifacts, with the digest in their reference.
2. A checkpoint counts only if a trusted key has signed it. Without a trust file the database's own keys are used, and the report says that
   an attacker who changed the database may have changed them too.
3. The report says what was not checked as clearly as what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from tenure import ids
from tenure.artifacts import ArtifactStore, is_reference
from tenure.doctor.checked_run import CheckedRun
from tenure.doctor.examination import RunKeptChanging, load_run_dump
from tenure.doctor.history import (
    chain_recomputes,
    events_without_gaps,
    missing_payloads,
    payloads_equal_their_digests,
    rows_equal_their_history,
)
from tenure.doctor.invariants import Finding
from tenure.doctor.ledger_check import NEWEST, PAGE_LEAVES, LedgerFlaw, RecomputedLedger, recompute_ledger
from tenure.doctor.tenant_checks import find_broken_chain
from tenure.errors import TenureError
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.ledger.tenant_ledger import TenantLedger
from tenure.kernel.run_rows import PayloadRow, RunRow
from tenure.proof import signed_notes
from tenure.proof.signatures import TrustedKeys
from tenure.proof.signed_notes import LedgerCheckpoint
from tenure.store.ledger import ledger_name
from tenure.store.port import Store

NO_CHECKPOINT = "whether runs were dropped with their leaves, the ledger rewritten or an old backup restored: give --checkpoint"
NOT_IN_LEDGER = "data without history: log lines, schedules, caps, workers, answers to requests, artifacts that steps uploaded"
NO_TRUST = "whether the keys are the right ones: they come from the database itself; give --trust"


class LedgerAudit(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    size: int
    root: str
    runs: int | None
    """None: neither runs nor payloads were checked."""
    deleted: int | None
    """Runs that retention deleted after they were sealed. Their leaves stay."""
    checkpoints: int
    payloads: int | None = None
    erased: int | None = None
    """How many payloads of the histories no longer exist, so that nothing is left to compare."""
    checked: list[str] = []
    flaws: list[LedgerFlaw]
    unchecked: list[str]


async def audit_ledger(
    store: Store,
    tenant: str,
    checkpoint: LedgerCheckpoint | None = None,
    trust: TrustedKeys | None = None,
    artifacts: ArtifactStore | None = None,
) -> LedgerAudit:
    """Audit a tenant's ledger. Without `artifacts`, payloads stored there are not compared, and the report says so."""
    looked = await recompute_ledger(store, tenant, [] if checkpoint is None else [checkpoint.size])
    flaws = list(looked.flaws)
    runs = _Runs(store, tenant, artifacts)
    await runs.check_all()
    flaws += runs.flaws
    chain = f"the admin chain of {tenant or 'the installation'}"
    flaws += [
        _flaw("ADMIN_CHANGED", chain, f"it is inconsistent at line {seq}")
        for _, seq in await find_broken_chain(store, tenant)
    ]
    trusted = await SigningKeys(store).trust() if trust is None else trust
    count, newest, unsigned = await _check_own_checkpoints(store, tenant, trusted)
    flaws += unsigned
    unchecked = [*([NO_TRUST] if trust is None else []), *runs.unchecked(), NOT_IN_LEDGER]
    checked = [
        f"{_counted(looked.size, 'leaf', 'leaves')}, all subtrees and {_counted(count, 'checkpoint', 'checkpoints')} are consistent",
        "1 history is consistent, and its rows match it"
        if runs.count == 1
        else f"{runs.count} histories are consistent, and their rows match them",
        "1 payload matches the digest in its history"
        if runs.payloads == 1
        else f"{runs.payloads} payloads match the digests in their histories",
        "the admin chain is consistent",
    ]
    if checkpoint is None:
        unchecked.insert(0, NO_CHECKPOINT)
    else:
        checked.append(f"the checkpoint was signed over the first {checkpoint.size} leaves")
        flaws += await _compare_checkpoint(TenantLedger(store, tenant), looked, newest, checkpoint, trusted)
    root = looked.roots.get(looked.size)
    return LedgerAudit(
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
    """The runs of a tenant, each compared with its own history (law 1)."""

    def __init__(self, store: Store, tenant: str, artifacts: ArtifactStore | None) -> None:
        self._store = store
        self._tenant = tenant
        self._artifacts = artifacts
        self.count = self.payloads = self.erased = 0
        self._unreachable = self._changing = 0
        self.flaws: list[LedgerFlaw] = []

    async def check_all(self) -> None:
        after = 0
        while page := await self._store.read("run_ids_after", after, PAGE_LEAVES):
            after = page[-1].run_id
            for each in page:
                run: list[RunRow] = await self._store.read("get_run", each.run_id)
                if run and run[0].tenant == self._tenant:
                    await self._one(each.run_id)

    def unchecked(self) -> list[str]:
        found = (
            (self.erased, "erased payloads: nothing is left to compare with their digests"),
            (self._unreachable, "payloads among the artifacts, which this process cannot reach"),
            (self._changing, "runs that changed every time they were read: try again"),
        )
        return [f"{count} {what}" for count, what in found if count]

    async def _one(self, run_id: int) -> None:
        try:
            bundle = await load_run_dump(self._store, run_id)
        except RunKeptChanging:
            self._changing += 1
            return
        if bundle is None:
            return  # deleted meanwhile
        self.count += 1
        view = CheckedRun(bundle, settled=False, now=None)
        place = ids.run_text(run_id)
        for code, compare in _COMPARED:
            try:
                found = [f"{row}: {text}" for row, text in compare(view)]
            except Exception as fault:  # rows that are too broken to compare
                found = [f"cannot be compared ({type(fault).__name__})"]
            self.flaws += [_flaw(code, place, text) for text in found]
        self.erased += missing_payloads(bundle)
        for payload in bundle.payloads:
            await self._payload(place, payload)

    async def _payload(self, place: str, payload: PayloadRow) -> None:
        self.payloads += 1
        if not is_reference(payload.body):
            return  # already compared with its digest
        if self._artifacts is None:
            self._unreachable += 1
            return
        try:
            await self._artifacts.get(payload.body)
        except TenureError as refused:
            if refused.code == "STORE_UNAVAILABLE":
                self._unreachable += 1
            else:
                self.flaws.append(
                    _flaw("PAYLOAD_CHANGED", place, f"payload {payload.ref}: {refused.message}")
                )


_COMPARED: tuple[tuple[str, Callable[[CheckedRun], Iterable[Finding]]], ...] = (
    ("RUN_CHANGED", chain_recomputes),
    ("RUN_CHANGED", events_without_gaps),
    ("ROWS_CHANGED", rows_equal_their_history),
    ("PAYLOAD_CHANGED", payloads_equal_their_digests),
)
"""The comparisons of a run, and the code of a difference."""


async def _check_own_checkpoints(
    store: Store, tenant: str, trust: TrustedKeys
) -> tuple[int, int, list[LedgerFlaw]]:
    """The database's own checkpoints: their number, the size of the newest, and those without a trusted signature."""
    count, newest, flaws = 0, 0, []
    before = NEWEST
    while page := await store.read("ledger_checkpoints_before", tenant, before, PAGE_LEAVES):
        before = page[-1].size
        for row in page:
            count, newest = count + 1, max(newest, row.size)
            text = None
            try:
                read = signed_notes.parse_checkpoint(row.note)
                signer = signed_notes.find_signer(read, trust)
                if (read.size, read.root, signer) != (row.size, row.root, row.key_id):
                    text = "its note differs from its row"
            except TenureError as refused:
                text = refused.message
            if text is not None:
                flaws.append(_flaw("SIGNATURE_WRONG", f"checkpoint of {row.size} leaves", text))
    return count, newest, flaws


async def _compare_checkpoint(
    ledger: TenantLedger,
    looked: RecomputedLedger,
    newest: int,
    checkpoint: LedgerCheckpoint,
    trust: TrustedKeys,
) -> list[LedgerFlaw]:
    name, size = ledger_name(ledger.tenant), checkpoint.size
    origin = await ledger.origin()
    if checkpoint.origin != origin:
        text = f"the checkpoint is of {checkpoint.origin}, but this ledger is {origin}: it is another ledger, or its beginning was changed"
        return [_flaw("OTHER_LEDGER", name, text)]
    try:
        signed_notes.find_signer(checkpoint, trust)
    except TenureError as refused:
        return [_flaw("SIGNATURE_WRONG", "the checkpoint", refused.message)]
    root = looked.roots.get(size)
    if root == checkpoint.root:
        return []
    if root is not None:
        code = "REWRITTEN"
        text = (
            f"its first {size} leaves differ from those of the checkpoint: a leaf was changed, dropped, inserted or"
            " moved, or an older backup was restored and continued"
        )
    elif newest < size:
        code = "RESTORED"
        text = (
            f"it has {looked.size} leaves and does not know the checkpoint, which was signed over {size}: an older backup was"
            " restored, or the end was truncated"
        )
    else:
        code = "TRUNCATED"
        text = (
            f"it has {looked.size} leaves, but the checkpoint was signed over {size}: the end was truncated"
        )
    return [_flaw(code, name, text)]


def _flaw(code: str, place: str, text: str) -> LedgerFlaw:
    return LedgerFlaw(code=code, place=place, text=text)


def _counted(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"
