"""What remote runners hold and what they upload, read and written.

Laws:
1. A lease's row is written by the claim that grants it, in its commit, and goes with its run; see
   `tenure.orchestrator.claims`. Of its token only the SHA-256 is there.
2. An artifact's row is written after its bytes are kept, under its run's lock: whether its lease still stands is decided in the
   commit that writes it (I56). The same name of the same attempt again replaces its row; nobody else's does.
"""

from __future__ import annotations

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import ArtifactState, over_since, state_of
from tenure.kernel.model import Attempt, Run
from tenure.kernel.service import Artifact, RemoteLease
from tenure.limits import ARTIFACTS_PER_RUN_MAX
from tenure.store.beside import settled
from tenure.store.port import Answer, Query, Store, Transaction


class Ticket(msgspec.Struct, gc=False, frozen=True):
    """What has to be known of a lease to believe a message of it. None of it changes."""

    run_id: int
    idx: int
    n: int
    tenant: str
    token_hash: bytes
    owner: str
    """The worker that it was granted to."""
    step: str
    claim: str
    """`<key id>/<claim id>`."""

    @property
    def key_id(self) -> str:
        """By which key it was claimed."""
        return self.claim.partition("/")[0]


class HeldLease(msgspec.Struct, gc=False):
    """A remote lease as it is now, with all that its holder is told."""

    run_id: int
    idx: int
    n: int
    tenant: str
    token_hash: bytes
    owner: str
    workflow: str
    code_version: str
    profile: str
    trace: str | None
    name: str
    kind: str
    tool: str
    idempotency_key: str
    lease_us: int
    recorded: bool
    newest: int
    """The step's newest attempt."""
    state: str
    """The attempt's."""
    lease: str
    expires_at: int
    timeout_at: int | None
    ended_at: int | None
    input: bytes | None
    now_us: int

    @property
    def over_since(self) -> int | None:
        """When it ended, if it did: whether somebody has swept it or not."""
        if self.ended_at is not None:
            return self.ended_at
        return self.expires_at if self.expires_at <= self.now_us else None


class ArtifactLine(Artifact, gc=False):
    """An artifact with what its state is derived from."""

    kind: str
    """Its step's."""
    step_state: str
    attempt_state: str

    @property
    def state(self) -> ArtifactState:
        """Accepted, pending, failed or late."""
        return state_of(late=self.late, kind=self.kind, step=self.step_state, attempt=self.attempt_state)


class ArtifactCount(msgspec.Struct, gc=False):
    """How many artifacts a run has."""

    count: int


READS: dict[str, Answer] = {
    "remote_leases_of": RemoteLease,  # () ; claim -> in key order
    "remote_tickets": Ticket,  # (run_id, idx, n)
    "remote_held": HeldLease,  # (run_id, idx, n) ; now
    "artifacts_of": ArtifactLine,  # () ; run_id, after name, idx, n and late, limit -> by name
    "artifacts_named": ArtifactLine,  # () ; run_id, name -> by step and attempt
    "artifact_rows_of": Artifact,  # () ; run_id -> all of them
    "artifact_count": ArtifactCount,  # () ; run_id
}
"""Queries used on their own; `remote.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "save_artifact": Artifact,
}
"""Statements of small transactions of their own."""


async def put_artifact(store: Store, row: Artifact, *, late_seconds: float) -> Artifact:
    """Write an artifact's row, and say in it whether its lease had ended (`late`, `at` and `events` are the store's).
    LEASE_STALE when that was more than `late_seconds` ago: nothing is written then."""

    def work() -> Transaction[Artifact]:
        runs: list[Run] = yield Query("lock_runs", [(row.run_id,)])
        attempts: list[Attempt] = yield Query("load_attempts", [(row.run_id, row.idx, row.n)])
        if not runs or not attempts:
            raise TenureError("LEASE_STALE", "the run of this lease is deleted")
        now: int = (yield Query("now"))[0].now_us
        ended = over_since(attempts[0], now)
        if ended is not None and now - ended > us(late_seconds):
            raise TenureError(
                "LEASE_STALE",
                f"the lease of attempt {row.n} ended over {late_seconds:g} s ago: its files are no longer taken",
            )
        if (yield Query("artifact_count", scalars=(row.run_id,)))[0].count >= ARTIFACTS_PER_RUN_MAX:
            raise TenureError("LIMIT_EXCEEDED", f"a run has at most {ARTIFACTS_PER_RUN_MAX} artifacts")
        filled = msgspec.structs.replace(row, late=ended is not None, at=now, events=runs[0].version)
        [written] = yield Query("save_artifact", scalars=msgspec.structs.astuple(filled))
        found: Artifact = written
        return found

    return await settled(store, work)
