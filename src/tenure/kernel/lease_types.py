"""Leases as their holders see them."""

from __future__ import annotations

import msgspec


class Lease(msgspec.Struct, gc=False):
    """A lease, as its holder gets it."""

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
    """How long it lasts after a heartbeat, unless a timeout ends it earlier."""
    input_ref: int | None
    recorded: bool
    """Whether the step has checkpoints, to replay from."""
    input: bytes | None = None
    trace: str | None = None
    """The traceparent of the request that created the run."""
    granted_at: int = 0
    """When it was granted, by the store's clock; over HTTP, when the server answered."""
    asked_at: float = 0.0
    """When the claim was sent, by the worker's own `clock.boot_seconds`. The worker counts the lease from there."""


class LeaseReply(msgspec.Struct, gc=False, omit_defaults=True):
    state: str = "ok"
    """ok; go_on (a wait has settled already); suspended (after a Complete: until its children have ended, without another
    attempt); refused (by a governed wait, or because the run exceeds its budget); ignored."""
    cancel: bool = False
    """Stop: cancellation has been requested."""
    expires_at: int | None = None
    no: int | None = None
    """The number of the wait."""
    outcome: str | None = None
    result_ref: int | None = None
    settled: tuple[int, ...] = ()
    late: bool = False
    """The result came after a cancel request. It was stored as evidence and does not count."""


LeaseKey = tuple[int, int, int]
