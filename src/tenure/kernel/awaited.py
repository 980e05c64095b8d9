"""The rows of what a step waits for: people, events, times and children. Part of `kernel.model`, whose laws they keep."""

from __future__ import annotations

from typing import ClassVar

from tenure.kernel.row import Row


class Wait(Row, gc=False):
    """Something a step waits for: an approval, an event, a time, a child, or a person who says how an unknown action ended (kind
    `receipt`); or a proposal, which nobody waits for."""

    table: ClassVar[str] = "wait"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")
    beside: ClassVar[frozenset[str]] = frozenset({"run_id", "no", "wake_at"})

    run_id: int
    no: int
    idx: int
    kind: str
    name: str
    """The event's name, the approval's action, the child's id; its key at replay is `label`."""
    label: str
    gate: bool
    fatal: bool
    """Whether a refusal or an expiry fails the step instead of waking it."""
    opened_at: int
    expires_at: int | None
    state: str = "open"
    """open, settled or closed."""
    outcome: str | None = None
    """approved, rejected, received, elapsed, finished, expired, resumed."""
    settled_at: int | None = None
    result_ref: int | None = None
    wake_at: int | None = None


class Approval(Row, gc=False):
    """The question behind an approval or a proposal; it shares that wait's number."""

    table: ClassVar[str] = "approval"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")
    beside: ClassVar[frozenset[str]] = frozenset({"run_id", "no", "tenant"})

    run_id: int
    no: int
    tenant: str
    tier: str
    people: int
    requester: str
    digest: bytes
    """The digest of what is proposed; empty where nothing is bound."""
    revision: int
    requested_at: int
    expires_at: int | None
    question_ref: int | None
    status: str = "requested"
    votes: str = ""
    """Who said yes to this revision, as `id id`; opaque ids have no blanks."""
    decided_at: int | None = None
    decided_by: str | None = None
    reason_ref: int | None = None
    people_in: str = ""
    """The group that those who say yes must belong to; empty: anybody who may approve."""
    reminded_at: int | None = None
    used_no: int | None = None
    """The receipt that used it up: an approval is good for one action."""


class Inbox(Row, gc=False):
    """An event delivered to a run, until a wait takes it; afterwards its id is kept for deduplication."""

    table: ClassVar[str] = "inbox"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")
    beside: ClassVar[frozenset[str]] = frozenset({"run_id", "no"})

    run_id: int
    no: int
    name: str
    event_id: str
    source: str
    payload_ref: int | None
    received_at: int
    wait_no: int | None = None


class Child(Row, gc=False):
    """A run that another one started."""

    table: ClassVar[str] = "child"
    key: ClassVar[tuple[str, ...]] = ("run_id", "child_id")
    beside: ClassVar[frozenset[str]] = frozenset({"run_id", "child_id"})

    run_id: int
    child_id: int
    idx: int
    on_close: str
    """cancel, leave or wait: what the parent's end means to it."""
    wait_no: int
    state: str = "open"
    outcome: str | None = None
