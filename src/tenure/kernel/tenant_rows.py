"""Rows of a tenant that decisions about runs read: its caps, and the records of idempotency keys."""

from __future__ import annotations

from typing import ClassVar

from tenure.kernel.row import Row


class Cap(Row, gc=False):
    """Limits and weight of a tenant (scope ''), a workspace ('ws:NAME') or a workflow ('wf:NAME')."""

    table: ClassVar[str] = "cap"
    key: ClassVar[tuple[str, ...]] = ("tenant", "scope")

    tenant: str
    scope: str
    weight: int = 1
    max_concurrency: int | None = None
    max_runs_per_min: int | None = None
    max_writes_per_run: int | None = None


class IdempotencyRow(Row, gc=False):
    """The record of an idempotency key: what was answered, until it expires."""

    table: ClassVar[str] = "idempotency"
    key: ClassVar[tuple[str, ...]] = ("tenant", "source", "name")

    tenant: str
    source: str
    name: str
    run_id: int | None
    status: str
    request_hash: bytes
    response: bytes | None
    error: str | None
    created_at: int
    updated_at: int
    expires_at: int
    lock_expires_at: int | None
    attempts: int = 1
    holder: str | None = None
    """The server that processes the request, by its name among the workers. None: a process without such a name."""
