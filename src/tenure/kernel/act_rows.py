"""The rows of governed effects: verdicts, receipts, and what a run has spent.
Laws:
1. They are history, like every row of a run: folding its events gives them again.
2. Target, fields, results and the state before are payloads, by reference. They can be erased.
3. A receipt is written before its call and later records the outcome. Under one key a tenant has at most one live
   receipt (intent, unknown, succeeded). A failed or reversed receipt frees the key.
"""

from __future__ import annotations

from tenure.kernel.row import NumberedRow, RunPartRow, table

KEY_HOLDING_RECEIPT = frozenset({"intent", "unknown", "succeeded"})
"""States in which a receipt holds its key."""
OPEN_RECEIPT = frozenset({"intent", "unknown"})
"""States in which the outcome of an act is not known."""


@table("verdict", key=("run_id", "no"), unlogged=("tenant",))
class VerdictRow(NumberedRow):
    """What a policy ruled about one proposed act."""

    tenant: str
    idx: int
    label: str
    """The act within its step: the scope of the code, the operation, and the number of the call there."""
    connector: str
    operation: str
    digest: bytes
    """The digest of the proposed act; see `kernel.act_commands`."""
    version: int
    """The version of the policy; 0 if the tenant has none."""
    outcome: str
    """allow, deny or needs_approval."""
    rules: str
    """The selected rules, as a JSON list of [name, outcome]."""
    at: int
    tier: str = ""
    people: int = 0
    people_in: str = ""
    within_us: int | None = None
    error: str | None = None
    """An error code, if the act was denied by something other than a rule."""
    request_ref: int | None = None
    """Target and fields, or the question that contains them. Only acts without a receipt (denied, or asked about)
    have this and the following columns, so that another policy can be tried on them."""
    name: str = ""
    """The idempotency key."""
    act_tier: str = ""
    """The operation's tier; `tier` is what the policy required."""
    relied: str | None = None
    """The facts that the ruling used, as JSON: `ReliedFacts` without the person."""


@table("receipt", key=("run_id", "no"), unlogged=("tenant",))
class ReceiptRow(NumberedRow):
    """One act and its outcome."""

    tenant: str
    idx: int
    label: str
    try_no: int
    """1 for the first receipt of an act. Another one may follow a failed one."""
    connector: str
    operation: str
    tier: str
    name: str
    """The idempotency key. It is sent to the service if the service supports keys."""
    digest: bytes
    repeats: str
    """native_key, sets_state, marker or none: how the call may be repeated."""
    reversible: bool
    verdict_no: int
    approval_no: int | None
    n: int
    """The attempt that intended the call last."""
    intent_at: int
    call_by: int
    """The call does not start after this moment, which is inside the lease."""
    request_ref: int | None
    """Target and fields."""
    before_ref: int | None
    """The state before, as far as an undo needs it."""
    reverses_run: int | None = None
    reverses_no: int | None = None
    """The receipt that this act undoes."""
    state: str = "intent"
    settled_at: int | None = None
    settled_by: str | None = None
    """The person who settled an unknown receipt."""
    result_ref: int | None = None
    error: str | None = None
    eligible_at: int | None = None
    """For a failed call: when to retry. None: never."""
    wait_no: int | None = None
    """For an unknown call: the wait for a person who settles it."""
    reversed_run: int | None = None
    reversed_no: int | None = None
    """The receipt that undid this one."""
    source_run: int | None = None
    source_no: int | None = None
    """For a reused effect: the receipt that it comes from."""


@table("run_spend", key=("run_id",))
class RunSpendRow(RunPartRow):
    """What a run has spent and written. Only runs that did either have this row."""

    spent: int = 0
    """In micro-units of the run's currency; see `kernel.costs`."""
    writes: int = 0


@table("cost_line", key=("run_id", "no"), unlogged=("tenant", "workflow"))
class CostLineRow(NumberedRow):
    """What a run has spent with one model of one provider, in one currency, on one day."""

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
