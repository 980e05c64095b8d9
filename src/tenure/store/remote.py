"""What remote runners hold and what they upload, read and written.

Laws:
1. A lease's row is written by the claim that grants it, in its commit, and goes with its run; see
   `tenure.orchestrator.claims`. Of its token only the SHA-256 is there.
2. An artifact's row is written after its bytes are kept; the same name again replaces it.
"""

from __future__ import annotations

import msgspec

from tenure.kernel.service import Artifact, RemoteLease
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


READS: dict[str, Answer] = {
    "remote_leases_of": RemoteLease,  # () ; claim -> in key order
    "remote_tickets": Ticket,  # (run_id, idx, n)
    "remote_held": HeldLease,  # (run_id, idx, n) ; now
    "artifacts_of": Artifact,  # () ; run_id, after_name, limit -> by name
    "artifact_named": Artifact,  # () ; run_id, name
}
"""Queries used on their own; `remote.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "save_artifact": Artifact,
}
"""Statements of small transactions of their own."""


async def put_artifact(store: Store, row: Artifact) -> Artifact:
    """Write an artifact's row (`at` is the store's), or replace the one of its name."""

    def work() -> Transaction[Artifact]:
        now = (yield Query("now"))[0].now_us
        values = msgspec.structs.astuple(msgspec.structs.replace(row, at=now))
        [written] = yield Query("save_artifact", scalars=values)
        found: Artifact = written
        return found

    return await settled(store, work)
