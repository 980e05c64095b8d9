"""Publications: where documents of runs are published, who publishes them, and what the documents are made from.

Laws:
1. One process at a time holds the lease of a publication. Every change of the holder raises the fence, and only the holder of the
   newest fence moves the position.
2. A deleted run leaves a row for each publication (a trigger writes it in the same transaction). The row stays until the documents were
   deleted twice, the second time after every older lease has ended.
3. The rows that documents are made from are read for many runs at once, and only those that have changed since a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from tenure.kernel.server_rows import PublicationDeletionRow, PublicationRow
from tenure.store.port import Query, RowType, Transaction
from tenure.store.transactions import Repository, read_rows, timed_transaction, write_rows


class PublishedRun(msgspec.Struct, gc=False):
    """The columns of a run that its documents need."""

    id: int
    tenant: str
    workflow: str
    profile: str
    status: str
    version: int
    event_at: int
    started_at: int | None
    finished_at: int | None
    reason: str | None
    planned: bool
    steps_total: int
    steps_done: int
    timeout_us: int | None
    output_ref: int | None
    error_ref: int | None
    trigger_type: str
    code_first: bool
    """Whether its steps are the checkpoints of a body, so that their number is not known before its end."""


class FinishedStep(msgspec.Struct, gc=False):
    """A step that has ended, or a checkpoint in any state."""

    run_id: int
    idx: int
    no: int
    """For a checkpoint: its place in the order of recording. For a step: 0."""
    name: str
    state: str
    at: int
    tries: int
    reason: str | None
    output_ref: int | None
    output: bytes | None
    """A short output that is stored with its checkpoint."""
    condition: str | None


class StepAttempt(msgspec.Struct, gc=False):
    """An attempt of a step, with the step's name."""

    run_id: int
    idx: int
    name: str
    granted_at: int
    ended_at: int | None


class RunQuestion(msgspec.Struct, gc=False):
    """An approval or a proposal of a run."""

    run_id: int
    no: int
    kind: str
    label: str
    requested_at: int
    decided_at: int | None


_RunPart = TypeVar("_RunPart", StepAttempt, RunQuestion)


class OpenStep(msgspec.Struct, gc=False):
    """The first step of a run that has not ended."""

    run_id: int
    idx: int
    name: str


class EventTime(msgspec.Struct, gc=False):
    run_id: int
    seq: int
    at: int


class PublishedKey(msgspec.Struct, gc=False):
    id: str
    tenant: str
    hash: bytes
    key_roles: str | None
    roles: str
    expires_at: int | None
    open: bool
    """Whether neither the key was revoked nor its owner or tenant closed."""


class TenantName(msgspec.Struct, gc=False):
    id: str


class TenantQuestions(msgspec.Struct, gc=False):
    """The open questions of a kind of a tenant. The last fields change whenever a question comes, goes or is revised."""

    tenant: str
    kind: str
    open: int
    oldest_at: int
    newest_at: int
    revisions: int


class TenantReceipts(msgspec.Struct, gc=False):
    """A tenant's receipts of unknown outcome."""

    tenant: str
    open: int
    oldest_at: int


READS: dict[str, RowType] = {
    "publication_deletions": PublicationDeletionRow,  # () -> all that are pending
    "published_runs": PublishedRun,  # (id) -> those that exist
    "published_run_ids": PublishedRun,  # () ; profile, after_id, limit -> in order
    "published_events": EventTime,  # (run_id, seq)
    "published_steps": FinishedStep,  # (run_id, since)
    "published_checkpoints": FinishedStep,  # (run_id, since)
    "published_attempts": StepAttempt,  # (run_id, since) -> live or ended since
    "published_questions": RunQuestion,  # (run_id)
    "published_open_steps": OpenStep,  # (run_id) -> at most one each
    "published_keys": PublishedKey,  # () ; tenant
    "published_tenants": TenantName,  # () -> open ones
    "changed_tenants": TenantName,  # () ; since -> those with changes of people or keys
    "tenant_questions": TenantQuestions,  # (tenant)
    "tenant_receipts": TenantReceipts,  # (tenant)
}
WRITES: dict[str, RowType] = {
    "claim_publication": PublicationRow,
    "keep_publication": PublicationRow,
    "take_deletions": PublicationDeletionRow,
    "put_deletion": PublicationDeletionRow,
    "drop_deletion": PublicationDeletionRow,
}


class RunRows(msgspec.Struct, frozen=True):
    """What the documents of some runs are made from."""

    runs: dict[int, PublishedRun]
    steps: dict[int, list[FinishedStep]]
    attempts: dict[int, list[StepAttempt]]
    questions: dict[int, list[RunQuestion]]
    open_steps: dict[int, OpenStep]


class PublicationRepository(Repository):
    """The publications of a database; see the laws above."""

    # ----------------------------------------------------------------------------------------------- lease

    @timed_transaction
    def claim(self, now: int, id_: str, holder: str, for_us: int) -> Transaction[PublicationRow | None]:
        """Take or keep the lease of a publication. None: another process holds it."""
        rows = yield Query("claim_publication", scalars=(id_, holder, now, now + for_us))
        return rows[0] if rows else None

    @timed_transaction
    def keep(self, now: int, id_: str, fence: int, pos: int, for_us: int) -> Transaction[bool]:
        """Record a position and extend the lease; with `for_us` 0, end it. False: the fence is no longer the newest."""
        return bool((yield Query("keep_publication", scalars=(id_, fence, pos, now + for_us))))

    # ------------------------------------------------------------------------------------------- deletions

    @timed_transaction
    def take_deletions(
        self, now: int, id_: str, limit: int, for_us: int
    ) -> Transaction[list[PublicationDeletionRow]]:
        """Deletions that are due; each is due again after `for_us` unless it is put or dropped."""
        taken: list[PublicationDeletionRow] = yield Query(
            "take_deletions", scalars=(id_, now, now + for_us, limit)
        )
        return taken

    @timed_transaction
    def put_deletion(
        self, now: int, row: PublicationDeletionRow, rounds: int, again_us: int, error: str | None
    ) -> Transaction[None]:
        yield Query("put_deletion", scalars=(row.publication, row.run_id, now + again_us, rounds, error))

    async def list_deletions(self) -> list[PublicationDeletionRow]:
        """The deletions that are pending, of every publication."""
        return await self._store.read("publication_deletions")

    async def drop_deletion(self, row: PublicationDeletionRow) -> None:
        await write_rows(self._store, "drop_deletion", row.publication, row.run_id)

    # ------------------------------------------------------------------------------------------------ rows

    async def list_runs(self, profile: str, after_id: int, limit: int) -> list[PublishedRun]:
        return await read_rows(self._store, PublishedRun, "published_run_ids", profile, after_id, limit)

    async def read_rows(self, since: dict[int, int]) -> RunRows:
        """The rows of runs: those that have changed since the time of each."""
        ids = [(run_id,) for run_id in since]
        moments = list(since.items())
        store = self._store
        # The reads are not one snapshot: a step that ends meanwhile must not be missing from both lists.
        open_steps: list[OpenStep] = await store.read("published_open_steps", rows=ids)
        runs: list[PublishedRun] = await store.read("published_runs", rows=ids)
        steps: dict[int, list[FinishedStep]] = {}
        for name in ("published_steps", "published_checkpoints"):
            for step in await store.read(name, rows=moments):
                steps.setdefault(step.run_id, []).append(step)
        attempts: list[StepAttempt] = await store.read("published_attempts", rows=moments)
        questions: list[RunQuestion] = await store.read("published_questions", rows=ids)
        return RunRows(
            {run.id: run for run in runs},
            steps,
            _by_run(attempts),
            _by_run(questions),
            {step.run_id: step for step in open_steps},
        )

    async def event_times(self, events: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """When events happened, by run and number."""
        rows: list[EventTime] = await self._store.read("published_events", rows=sorted(set(events)))
        return {(row.run_id, row.seq): row.at for row in rows}

    # --------------------------------------------------------------------------------------------- tenants

    async def list_tenants(self) -> list[str]:
        return [row.id for row in await read_rows(self._store, TenantName, "published_tenants")]

    async def list_changed_tenants(self, since_us: int) -> list[str]:
        return [row.id for row in await read_rows(self._store, TenantName, "changed_tenants", since_us)]

    async def list_keys(self, tenant: str) -> list[PublishedKey]:
        return await read_rows(self._store, PublishedKey, "published_keys", tenant)

    async def count_questions(self, tenants: list[str]) -> list[TenantQuestions]:
        rows = [(tenant,) for tenant in tenants]
        return await self._store.read("tenant_questions", rows=rows) if rows else []

    async def count_receipts(self, tenants: list[str]) -> list[TenantReceipts]:
        rows = [(tenant,) for tenant in tenants]
        return await self._store.read("tenant_receipts", rows=rows) if rows else []


def _by_run(rows: Sequence[_RunPart]) -> dict[int, list[_RunPart]]:
    found: dict[int, list[_RunPart]] = {}
    for row in rows:
        found.setdefault(row.run_id, []).append(row)
    return found
