"""The rows of what a run does to the world: what the policy said, what was done, and what it has spent.

Laws:
1. They are history, like everything beneath a run: folding its events gives them again.
2. Target, fields, results and the state before are payloads, by reference: they can be erased, and no name is here.
3. A receipt is written before the call it is for, and says afterwards what became of it. At most one receipt of a tenant's
   is live (intent, unknown, succeeded) under one key; one that failed or was reversed satisfies nobody.
"""

from __future__ import annotations

from typing import ClassVar

from tenure.kernel.row import Row

HELD_RECEIPT = frozenset({"intent", "unknown", "succeeded"})
"""States in which a receipt holds its key."""
OPEN_RECEIPT = frozenset({"intent", "unknown"})
"""States in which nobody knows how an action ended."""


class Verdict(Row, gc=False):
    """What a policy said of one proposed action."""

    table: ClassVar[str] = "verdict"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")
    beside: ClassVar[frozenset[str]] = frozenset({"run_id", "no", "tenant"})

    run_id: int
    no: int
    tenant: str
    idx: int
    label: str
    """The act, within its step: the scope of the code, the operation and the n-th call of it there."""
    connector: str
    operation: str
    digest: bytes
    """Of the proposed action, in full; see `kernel.actions`."""
    version: int
    """Of the policy; 0 where the tenant has none."""
    outcome: str
    """allow, deny or needs_approval."""
    rules: str
    """The rules that were selected and what each said, as a JSON list of [name, outcome]."""
    at: int
    tier: str = ""
    people: int = 0
    people_in: str = ""
    within_us: int | None = None
    error: str | None = None
    """Why it was denied where no rule said so: a code."""
    request_ref: int | None = None
    """Target and fields, or the question to people in which they are. This and what follows is kept of actions that did not come to
    a receipt (denied, or asked about), so that another policy can judge them too; else the receipt has it."""
    name: str = ""
    """The idempotency key."""
    act_tier: str = ""
    """The operation's own; `tier` is what the policy asked for."""
    relied: str | None = None
    """What the ruling relied on and this commit found unchanged, as JSON: `kernel.actions.Relied` without its person."""


class Receipt(Row, gc=False):
    """One action on the world: intended, and what became of it."""

    table: ClassVar[str] = "receipt"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")
    beside: ClassVar[frozenset[str]] = frozenset({"run_id", "no", "tenant"})

    run_id: int
    no: int
    tenant: str
    idx: int
    label: str
    """As in its verdict."""
    try_no: int
    """1 for the first receipt of an act; a failed one may be followed by another."""
    connector: str
    operation: str
    tier: str
    name: str
    """The idempotency key, which is passed on to the other side where it takes one."""
    digest: bytes
    repeats: str
    """native_key, sets_state, marker or none: how it may be done again."""
    reversible: bool
    verdict_no: int
    approval_no: int | None
    """The approval that it used up."""
    n: int
    """The attempt under whose lease the call was last intended."""
    intent_at: int
    call_by: int
    """The call is not begun after this moment, which lies inside the lease."""
    request_ref: int | None
    """Target and fields."""
    before_ref: int | None
    """The state before, as far as a reversal needs it."""
    reverses_run: int | None = None
    reverses_no: int | None = None
    """The receipt that this action takes back."""
    state: str = "intent"
    settled_at: int | None = None
    settled_by: str | None = None
    """The person who said how an unknown one ended."""
    result_ref: int | None = None
    error: str | None = None
    eligible_at: int | None = None
    """Of a failed one: when it may be tried again; None: never."""
    wait_no: int | None = None
    """Of an unknown one: the wait for a person who says how it ended."""
    reversed_run: int | None = None
    reversed_no: int | None = None
    """The receipt that took this one back."""
    source_run: int | None = None
    source_no: int | None = None
    """Of one that was reused: the receipt whose effect it is."""


class Purse(Row, gc=False):
    """What a run has spent and written so far. Only runs that did either have one."""

    table: ClassVar[str] = "purse"
    key: ClassVar[tuple[str, ...]] = ("run_id",)
    beside: ClassVar[frozenset[str]] = frozenset({"run_id"})

    run_id: int
    spent: int = 0
    """In micro-units of the run's currency; see `kernel.costs`."""
    writes: int = 0


class CostLine(Row, gc=False):
    """What a run has spent with one model of one provider, in one currency, on one day."""

    table: ClassVar[str] = "cost_line"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")
    beside: ClassVar[frozenset[str]] = frozenset({"run_id", "no", "tenant", "workflow"})

    run_id: int
    no: int
    tenant: str
    workflow: str
    day: int
    """UTC days since 1970."""
    provider: str
    model: str
    currency: str
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    micros: int = 0
