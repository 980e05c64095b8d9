"""The runner protocol, its other part: acts, and all that a lease's holder goes on from. The laws are those of `worker.protocol`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from tenure.worker.protocol import LeaseInfo

ACT_SECONDS_MAX = 60.0
"""How long an act may take before it is answered."""


class _Asked(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a runner sends."""


class _Told(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What it is told."""


class Act(_Asked, kw_only=True, frozen=True):
    """`POST /runner/leases/{id}/act`: have the server do something to the world, as the tenant's policy allows it."""

    label: str
    """Which act of its step this is: the same again is the same act."""
    action: str
    """`connector.operation`."""
    target: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    key: str = ""
    """Its idempotency key; empty: made from run, step and label."""
    why: str = ""
    """In words, for the people who are asked."""
    retries: int | None = None
    """How often it is tried again where it is known not to have happened; left out: you count."""
    fresh: bool = False
    """Nothing was asked under this label before."""
    reverses: tuple[str, int] | None = None
    """The receipt that it takes back: run and number."""
    expects: dict[str, Any] | None = None
    """What the target must look like for that."""


class ActAnswer(_Told, kw_only=True, frozen=True):
    """What became of an act."""

    state: Literal["done", "wait", "failed", "conflict", "refused", "misfit", "cancel"]
    """`done`: `result` is what the service answered. `wait`: suspend on `wait`, and ask again when it has settled. `failed`: it
    was not done; from `retry_at` on it may be asked for again, without one never. `conflict`: what was to be taken back is no
    longer what was written. `refused`: the step has ended. `misfit`: something else was asked under this label. `cancel`: stop."""
    result: Any = None
    wait: int | None = None
    code: str = ""
    message: str = ""
    retry_at: datetime | None = None
    tried: bool = False
    """Of a failed one: it was tried now, and not before."""
    receipt: int | None = None


class Actions(_Told, kw_only=True, frozen=True):
    """`GET /runner/actions`: what the server can do for its runners."""

    actions: list[str]


class RecordedCheckpoint(_Told, kw_only=True, frozen=True):
    """A checkpoint of the step."""

    name: str
    no: int
    state: str
    attempt: int
    resumable: bool
    idempotent: bool
    arguments: str
    at: datetime
    tries: int
    next_at: datetime | None = None
    error: str | None = None
    meta: Any = None
    output: Any = UNSET
    erased: bool = False
    """It had an output, which is no more."""


class OpenedWait(_Told, kw_only=True, frozen=True):
    """A wait of the step, with its answer."""

    no: int
    label: str
    kind: str
    name: str
    state: str
    outcome: str | None = None
    opened_at: datetime
    expires_at: datetime | None = None
    settled_at: datetime | None = None
    result: Any = UNSET
    """What the event brought."""
    revision: int | None = None
    decided_by: str | None = None
    reason: Any = UNSET
    child_id: str | None = None
    child_outcome: str | None = None
    child_code: str | None = None
    child_output: Any = UNSET
    child_error: Any = UNSET


class ActReceipt(_Told, kw_only=True, frozen=True):
    """An act of the step, and what became of it."""

    label: str
    no: int
    tries: int
    own: bool = True
    """Else of a run that this one resumes."""
    action: str
    key: str
    state: str
    """`intent`, `unknown`, `succeeded`, `failed`, `reversed`, or `reused` (another run's effect)."""
    attempt: int
    intent_at: datetime
    settled_at: datetime | None = None
    eligible_at: datetime | None = None
    error: str | None = None
    wait: int | None = None
    request: Any = UNSET
    """Target and fields."""
    result: Any = UNSET
    """What the service answered; of a failed one its message."""


class BufferedEvent(_Told, kw_only=True, frozen=True):
    """An event that was delivered to the run and that no wait has taken yet."""

    name: str
    event_id: str
    source: str
    received_at: datetime
    payload: Any = UNSET


class RunFacts(_Told, kw_only=True, frozen=True):
    """What steps of a workflow file are made from."""

    input: Any = UNSET
    outputs: dict[str, Any] = {}
    """Of the steps that have succeeded; null for those that have none."""
    version: str
    repo: str | None = None
    trigger: dict[str, Any] = {}


class LeaseState(_Told, kw_only=True, frozen=True):
    """`GET /runner/leases/{id}`: all that its holder goes on from."""

    lease: LeaseInfo
    cancel: bool
    checkpoints: list[RecordedCheckpoint]
    waits: list[OpenedWait]
    events: list[BufferedEvent]
    acts: list[ActReceipt] = []
    run: RunFacts | None = None
    """With `?run=true`."""
    now: datetime
