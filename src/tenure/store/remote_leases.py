"""The leases of remote runners.

Law: a lease's row is written by the claim that grants it, in its commit, and goes with its run; see
`tenure.orchestrator.claims`. Of its token only the SHA-256 is stored.
"""

from __future__ import annotations

import msgspec

from tenure.kernel.server_rows import RemoteLeaseRow
from tenure.store.port import RowType


class LeaseCredential(msgspec.Struct, gc=False, frozen=True):
    """What is needed to authenticate a message of a lease. None of it changes."""

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
        """The API key that claimed it."""
        return self.claim.partition("/")[0]


class RemoteLeaseDetail(msgspec.Struct, gc=False):
    """A remote lease as it is now, with all that its holder needs."""

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
        """When it ended, if it did, also where the sweeper has not come to it yet."""
        if self.ended_at is not None:
            return self.ended_at
        return self.expires_at if self.expires_at <= self.now_us else None


READS: dict[str, RowType] = {
    "remote_leases_of": RemoteLeaseRow,  # () ; claim -> in key order
    "lease_credentials": LeaseCredential,  # (run_id, idx, n)
    "remote_lease_details": RemoteLeaseDetail,  # (run_id, idx, n) ; now
}
WRITES: dict[str, RowType] = {}
