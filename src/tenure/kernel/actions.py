"""Actions on the world as the kernel knows them: what is proposed, what a policy said, and what is asked of a run about them.

Laws:
1. An act is known by (step, label). Its digest covers everything that was shown to people: tenant, run, step, label, connector,
   operation, target, fields, key and tier. Another digest at the same place is another action.
2. The messages of an act carry the fence (step and attempt) like every message of a lease, but no number: each is recognised by
   what it says, so that a server can act for a runner whose messages have numbers of their own.
3. Nothing is called without a receipt in the state `intent` under the caller's own attempt, before its `call_by`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal

import msgspec

from tenure.canonical import canonical
from tenure.kernel.commands import RunCommand

Repeats = Literal["native_key", "sets_state", "marker", "none"]
SAFE_TO_REPEAT = frozenset({"native_key", "sets_state"})
"""The other side makes one effect of two calls, so that a call whose answer was lost may be made again."""
Outcome = Literal["allow", "deny", "needs_approval"]


def action_digest(
    *,
    tenant: str,
    run: str,
    step: str,
    ordinal: str,
    connector: str,
    operation: str,
    target: Any,
    fields: Any,
    key: str,
    tier: str,
) -> bytes:
    """What an approval binds to; see law 1. `ordinal` is the act's label, `run` the run's id as text."""
    return sha256(
        canonical(
            {
                "tenant": tenant,
                "run": run,
                "step": step,
                "ordinal": ordinal,
                "connector": connector,
                "operation": operation,
                "target": target,
                "fields": fields,
                "key": key,
                "tier": tier,
            }
        )
    ).digest()


class Proposed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One action as it is proposed."""

    label: str
    connector: str
    operation: str
    tier: Literal["low", "med", "high"] = "low"
    name: str
    """The idempotency key."""
    digest: bytes
    repeats: Repeats
    reversible: bool
    reverses: tuple[int, int] | None = None
    """The receipt it takes back: (run, no)."""


FIXED_COLUMNS: dict[str, tuple[str, ...]] = {
    "run": ("tenant", "workflow", "code_version", "profile", "workspace", "repo", "created_at"),
    "run_spec": ("requester", "trigger_type", "trigger_ref", "attempt_no", "budget", "currency"),
}
"""Columns that a policy may read and no commit checks again, because only the commit that creates the run writes them."""


class Relied(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The facts behind a ruling that other commits can change. A ruling counts only in a commit that finds them unchanged.

    A fact that is None was not read by any rule about the action."""

    writes: tuple[int, int] | None = None
    """The lowest and the highest `run.writes` for which the policy says the same."""
    spent: int | None = None
    since: int | None = None
    until: int | None = None
    """The policy says the same at every moment from `since` up to, and without, `until`."""
    person: tuple[str, str, str] | None = None
    """The requester's id, and their roles and groups as they are kept; `[]` where the person is closed or unknown."""

    def as_kept(self) -> str | None:
        """What the verdict's row keeps of it. Roles and groups of a person are not kept."""
        kept = msgspec.structs.replace(self, person=None)
        return None if kept == Relied() else msgspec.json.encode(kept).decode()


class Ruling(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a policy said of an action."""

    version: int
    """Of the policy; 0 where there is none."""
    outcome: Outcome
    rules: str = "[]"
    """The rules that were selected, as a JSON list of [name, what it said]."""
    tier: str = ""
    people: int = 0
    people_in: str = ""
    """The group that whoever says yes belongs to; empty: any approver."""
    within_seconds: float | None = None
    error: str | None = None
    """A code, where it was denied because something is broken, frozen or unknown."""
    why: str = ""
    """In words, for people; not kept."""
    relied: Relied | None = None
    """None: it relies on nothing that another commit can change."""


class ActMessage(RunCommand, frozen=True, gc=False, kw_only=True):
    """A message about an act, from whoever holds the step's lease or acts for them."""

    idx: int
    n: int


class ProposeAct(ActMessage, frozen=True, gc=False, kw_only=True):
    """Record a ruling that does not allow: a denial ends the step (it cannot be caught); `needs_approval` asks people, once per
    digest. The ruling's requirements are what the approval asks for."""

    act: Proposed
    ruling: Ruling
    question: bytes | None = None
    """What people are shown, as a JSON object."""
    request: bytes | None = None
    """Of a denial: target and fields, as a JSON object, so that another policy can judge it too."""


class IntendAct(ActMessage, frozen=True, gc=False, kw_only=True):
    """Intend a call: in one commit the approval is used up, the write counted and the receipt written. Everything that was
    decided before is looked at again here: policy version, the facts it relied on, freezes, caps, budget, approvers, expiry."""

    act: Proposed
    ruling: Ruling
    """`allow`, or `needs_approval` together with the approval that satisfies it."""
    approval_no: int | None = None
    request: bytes | None = None
    """Target and fields, as a JSON object."""
    before: bytes | None = None
    call_seconds: float
    """How long the call may take; it also ends before the lease does."""


class RepeatAct(ActMessage, frozen=True, gc=False, kw_only=True):
    """Intend the call of a receipt again, under this lease: its answer was lost and it is safe to repeat, or a person said `retry`
    (a receipt that is intended and has `settled_by`: good for one call)."""

    no: int
    call_seconds: float


class SettleAct(ActMessage, frozen=True, gc=False, kw_only=True):
    """What became of a call. Of one that an earlier attempt intended only `succeeded` (it was found) and `unknown` can be said."""

    no: int
    state: Literal["succeeded", "failed", "unknown"]
    result: bytes | None = None
    """What was answered; of a failed one the message."""
    error: str | None = None
    retry_after_seconds: float | None = None
    """Of a failed one: when it may be tried again; None: never."""
    settle_within_seconds: float | None = None
    """Of an unknown one: how long a person has to say how it ended."""
    question: bytes | None = None
    """Of an unknown one: what is known, for people."""


class SettleReceipt(RunCommand, frozen=True, gc=False, kw_only=True):
    """A person says how an unknown receipt ended: done, not_done, or retry (call again). Who may say it is checked before;
    that it is none of those behind the run, here."""

    no: int
    how: Literal["done", "not_done", "retry"]
    person: str
    result: bytes | None = None
    reason: bytes | None = None


class WithdrawApproval(RunCommand, frozen=True, gc=False, kw_only=True):
    """A person takes their yes back, before it was used."""

    no: int
    approver: str


class MarkReversed(RunCommand, frozen=True, gc=False, kw_only=True):
    """Another run has taken back what a receipt of this one did."""

    no: int
    by_run: int
    by_no: int


class ActReply(msgspec.Struct, gc=False, omit_defaults=True):
    """The answer to a message about an act."""

    state: str
    """call: intended, make the call before `call_by`. done: it was done (result_ref of this run, or `source`). open: there is a
    receipt whose end is not known (`receipt_state`). failed: it failed for good, or may be tried again from `eligible_at` on. wait:
    a question is open (`no` is the wait to suspend on). go_on: it is approved (`approval_no`), intend it. ask: the approval does not
    suffice, propose it. again: the policy or a fact it relied on has changed, ask it again. busy: another receipt holds the key and its end is not known.
    refused: denied, rejected, expired or frozen; the step has ended. settled: recorded. cancel: the run is being canceled, nothing
    new is done."""
    no: int | None = None
    """Of the receipt, or with `wait` of the wait."""
    receipt_state: str | None = None
    call_by: int | None = None
    call_seconds: float | None = None
    """How long after the commit that is: whoever asked for it before has at least so much time by its own clock."""
    eligible_at: int | None = None
    result_ref: int | None = None
    source: tuple[int, int] | None = None
    """The receipt of another run whose effect it is: (run, no)."""
    approval_no: int | None = None
    error: str | None = None
