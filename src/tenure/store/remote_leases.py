"""The leases of remote runners.

Law: the commit of the claim that grants a lease writes its row (`tenure.orchestrator.claims`), and the row is deleted with its
run. Of the lease's token only the SHA-256 is stored.
"""

from __future__ import annotations

from typing import NamedTuple

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import lease_ended_at
from tenure.kernel.run_rows import AttemptRow, RunRow
from tenure.kernel.server_rows import RemoteLeaseRow
from tenure.store.port import Query, RowType, Transaction


class LeaseCredential(RemoteLeaseRow, gc=False):
    """What is needed to authenticate a message of a lease. None of it changes."""

    owner: str
    """The worker that the lease was granted to."""
    step: str

    @property
    def key_id(self) -> str:
        """The API key that claimed the lease."""
        return self.claim.partition("/")[0]


class RemoteLeaseDetail(RemoteLeaseRow, gc=False):
    """A remote lease as it is now, with everything that its holder needs."""

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
    """The attempt's state."""
    lease: str
    expires_at: int
    timeout_at: int | None
    ended_at: int | None
    input: bytes | None
    now_us: int

    @property
    def over_since(self) -> int | None:
        """When the lease ended, also if the sweeper has not expired it yet. None: it is live."""
        return self.expires_at if self.ended_at is None and self.expires_at <= self.now_us else self.ended_at


READS: dict[str, RowType] = {
    "remote_leases_of": RemoteLeaseRow,  # () ; claim -> in key order
    "lease_credentials": LeaseCredential,  # (run_id, idx, n)
    "remote_lease_details": RemoteLeaseDetail,  # (run_id, idx, n) ; now
}


class LockedLease(NamedTuple):
    """An attempt whose run is locked, so that its lease cannot end before the commit."""

    run: RunRow
    attempt: AttemptRow
    now_us: int
    late: bool
    """Whether the lease has ended."""


def lock_lease(run_id: int, idx: int, n: int, *, late_seconds: float) -> Transaction[LockedLease]:
    """Lock a lease's run. LEASE_STALE if the lease ended more than `late_seconds` ago, or the run is deleted."""
    runs: list[RunRow] = yield Query("lock_runs", [(run_id,)])
    attempts: list[AttemptRow] = yield Query("load_attempts", [(run_id, idx, n)])
    if not runs or not attempts:
        raise TenureError("LEASE_STALE", "the run of this lease is deleted")
    now: int = (yield Query("now"))[0].now_us
    ended = lease_ended_at(attempts[0], now)
    if ended is not None and now - ended > us(late_seconds):
        since = f" over {late_seconds:g} s ago" if late_seconds else ""
        raise TenureError(
            "LEASE_STALE",
            f"the lease of attempt {n} ended{since}: its files are no longer accepted",
        )
    return LockedLease(runs[0], attempts[0], now, ended is not None)
