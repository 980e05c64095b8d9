"""Leases as their holders see them."""

from __future__ import annotations

import msgspec


class Lease(msgspec.Struct, gc=False):
    """What a claimer gets."""

    run_id: int
    idx: int
    n: int
    tenant: str
    workflow: str
    code_version: str
    profile: str
    name: str
    kind: str
    tool: str
    idempotency_key: str
    expires_at: int
    timeout_at: int | None
    heartbeat_seconds: float
    lease_seconds: float
    """How long it holds after a heartbeat, where no timeout ends it before."""
    input_ref: int | None
    recorded: bool
    """Whether the step has checkpoints, to replay from."""
    input: bytes | None = None
    trace: str | None = None
    """The traceparent that the run was asked for with."""
    granted_at: int = 0
    """When it was granted, by the store's clock; over HTTP, when that was answered."""
    asked_at: float = 0.0
    """When its claimer asked for it, by the claimer's own `clock.boot_seconds`: the lease counts from there."""


class LeaseReply(msgspec.Struct, gc=False, omit_defaults=True):
    """The answer to a message."""

    state: str = "ok"
    """ok, go_on (a wait has settled already), suspended (a Complete: until its children have ended; nobody has to
    come back to it), refused (by a governed wait, or because the run has spent more than it may), ignored."""
    cancel: bool = False
    """Stop: cancellation has been requested."""
    expires_at: int | None = None
    no: int | None = None
    """The number of the wait."""
    outcome: str | None = None
    result_ref: int | None = None
    settled: tuple[int, ...] = ()
    late: bool = False
    """The result came after a cancel request: it was kept, and did not count."""


LeaseKey = tuple[int, int, int]
