"""Runs as the documents that profiles define."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class TriggerDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What triggered the run."""

    source: str
    user_id: str | None = None
    webhook_event_id: str | None = None


class CancellationDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The request to cancel the run."""

    requested_at: datetime
    requested_by: str | None = None
    reason: str | None = None


class CompensationDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One entry of a run's compensation log: what became of one of its actions when the run was undone."""

    receipt: str
    """The id of the action's receipt."""
    step: str
    action: str
    outcome: str
    """undone; undoing (the reversal is under way); unsettled (its outcome is unknown); failed; conflict (the target has changed since);
    cannot (a person has to do it)."""
    undo_run: str
    """The run that undoes it."""
    requested_by: str
    compensated_by: str | None = None
    """The action that reverses it."""
    compensation_receipt: str | None = None
    at: datetime
    """When the outcome was recorded."""
    note: str | None = None


class RunDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """`gwi_runs/{runId}`."""

    id: str
    schema_version: int
    tenant_id: str
    repo_id: str
    pr_id: str
    pr_url: str
    type: str
    status: str
    current_step: str | None = None
    trigger: TriggerDocument
    idempotency_key: str | None = None
    a2a_correlation_id: str | None = None
    last_heartbeat_at: datetime | None = None
    result: Any = None
    error: str | None = None
    cancellation: CancellationDocument | None = None
    compensation_log: list[CompensationDocument] | None = None
    resumed_from: str | None = None
    resume_count: int | None = None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None = None
    duration_ms: int | None = None


class StepDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """`gwi_runs/{runId}/steps/{stepId}`."""

    id: str
    run_id: str
    type: str
    status: str
    attempt: int
    max_attempts: int
    input: Any = None
    output: Any = None
    error: str | None = None
    skip_reason: str | None = None
    """For a step that its condition skipped: CONDITION_FALSE, and the condition."""
    reused_from: str | None = None
    """For a step that has the result of an earlier one: that step's run and name, as `RUN/NAME`."""
    started_at: datetime | None = None
    completed_at: datetime | None = None


class TokensDocument(msgspec.Struct):
    """The tokens that a step used."""

    input: int
    output: int


class CheckpointDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """`gwi_runs/{runId}/checkpoints/{cpId}`, in the format of section 5.2 of the git-with-intent document."""

    step_id: str
    agent: str
    status: str
    input: Any = None
    output: Any = None
    error: str | None = None
    timestamp: datetime
    resumable: bool
    idempotent: bool
    tokens_used: TokensDocument | None = None
    duration_ms: float | None = None


class IdempotencyDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """`gwi_idempotency/{key}` of the request that created the run. The run keeps its key permanently. If the record has expired or
    never existed, the document contains what the run itself knows."""

    key: str
    source: str
    tenant_id: str
    run_id: str
    status: str
    request_hash: str
    response: Any = None
    error: str | None = None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    lock_expires_at: datetime | None = None
    attempts: int


DocumentPart = StepDocument | CheckpointDocument | IdempotencyDocument
"""A document below a run's document."""


class StatusDocument(msgspec.Struct, frozen=True, kw_only=True):
    """status.json."""

    run_id: str
    agent_slug: str
    status: str
    trigger: str
    started_at: datetime | None
    finished_at: datetime | None
    current_step: str | None
    steps_total: int | None
    """None: not known, because there is no plan."""
    steps_completed: int
    proposals_created: list[str]
    error: str | None
