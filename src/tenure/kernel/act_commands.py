"""Acts as the kernel knows them: what is proposed, what a policy ruled, and the commands about them.
Laws:
1. An act is known by (step, label). Its digest covers everything that people were shown: tenant, run, step, label,
   connector, operation, target, fields, key and tier. Another digest at the same place is another act.
2. The commands of an act carry the fence (step and attempt) like every message of a lease, but no sequence number.
   Each is recognised by its contents, so that a server can act for a runner that numbers its own messages.
3. Nothing is called without a receipt in the state `intent` under the caller's attempt, before its `call_by`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal

import msgspec

from tenure.canonical import canonical
from tenure.kernel.commands import AttemptCommand, RunCommand

RepeatSafety = Literal["native_key", "sets_state", "marker", "none"]
SAFE_TO_REPEAT = frozenset({"native_key", "sets_state"})
"""The service makes one effect of two calls, so a call whose answer was lost may be repeated."""
RulingOutcome = Literal["allow", "deny", "needs_approval"]


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
    """What an approval binds to (law 1). `ordinal` is the act's label, `run` the run's id as text."""
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


class ProposedAct(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    label: str
    connector: str
    operation: str
    tier: Literal["low", "med", "high"] = "low"
    name: str
    """The idempotency key."""
    digest: bytes
    repeats: RepeatSafety
    reversible: bool
    reverses: tuple[int, int] | None = None
    """The receipt that the act undoes: (run, no)."""


FIXED_COLUMNS: dict[str, tuple[str, ...]] = {
    "run": ("tenant", "workflow", "code_version", "profile", "workspace", "repo", "created_at"),
    "run_spec": ("requester", "trigger_type", "trigger_ref", "attempt_no", "budget", "currency"),
}
"""Columns that a policy may read and that need no second check: only the commit that creates the run writes them."""


class ReliedFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The facts that a ruling used and that other commits can change. The ruling counts only in a commit that
    finds them unchanged. None: no rule about the act read the fact."""

    writes: tuple[int, int] | None = None
    """The lowest and the highest `run.writes` for which the policy's answer is the same."""
    spent: int | None = None
    since: int | None = None
    until: int | None = None
    """The policy's answer is the same from `since` until just before `until`."""
    person: tuple[str, str, str] | None = None
    """The requester's id, roles and groups as stored. `[]`: the person is closed or unknown."""

    def verdict_fields(self) -> str | None:
        """The part that the verdict's row stores. A person's roles and groups are not stored."""
        kept = msgspec.structs.replace(self, person=None)
        return None if kept == ReliedFacts() else msgspec.json.encode(kept).decode()


class Ruling(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    version: int
    """The version of the policy; 0 without a policy."""
    outcome: RulingOutcome
    rules: str = "[]"
    """The selected rules, as a JSON list of [name, outcome]."""
    tier: str = ""
    people: int = 0
    people_in: str = ""
    """The group of the approvers. Empty: any approver."""
    within_seconds: float | None = None
    error: str | None = None
    """An error code, if the act was denied because something is broken, frozen or unknown."""
    why: str = ""
    """The reason in words. It is not stored."""
    relied: ReliedFacts | None = None
    """None: the ruling depends on nothing that another commit can change."""


class ActCommand(AttemptCommand, frozen=True, gc=False, kw_only=True):
    """A command about an act, from the holder of the step's lease or from a server that acts for it."""


class ProposeAct(ActCommand, frozen=True, gc=False, kw_only=True):
    """Record a ruling that does not allow the act. A denial ends the step and cannot be caught. `needs_approval`
    asks people, once per digest, for what the ruling requires."""

    act: ProposedAct
    ruling: Ruling
    question: bytes | None = None
    """What people are shown, as a JSON object."""
    request: bytes | None = None
    """For a denial: target and fields as a JSON object, so that another policy can be tried on it."""


class IntendAct(ActCommand, frozen=True, gc=False, kw_only=True):
    """Intend a call. One commit uses the approval, counts the write and writes the receipt. It checks again
    everything that was decided before: policy version, the facts it used, freezes, caps, budget, approvers,
    expiry."""

    act: ProposedAct
    ruling: Ruling
    """`allow`, or `needs_approval` with the approval that satisfies it."""
    approval_no: int | None = None
    request: bytes | None = None
    """Target and fields, as a JSON object."""
    before: bytes | None = None
    call_seconds: float
    """How long the call may take. It also ends before the lease does."""


class RepeatAct(ActCommand, frozen=True, gc=False, kw_only=True):
    """Intend the call of a receipt again under this lease: its answer was lost and it is safe to repeat, or a
    person chose `retry` (an intended receipt with `settled_by` allows one call)."""

    no: int
    call_seconds: float


class SettleAct(ActCommand, frozen=True, gc=False, kw_only=True):
    """Record the outcome of a call. For a call of an earlier attempt it is `succeeded` (it was found) or
    `unknown`."""

    no: int
    state: Literal["succeeded", "failed", "unknown"]
    result: bytes | None = None
    """The answer; for a failed call the message."""
    error: str | None = None
    retry_after_seconds: float | None = None
    """For a failed call: when to retry. None: never."""
    settle_within_seconds: float | None = None
    """For an unknown call: how long a person has to settle it."""
    question: bytes | None = None
    """For an unknown call: what is known, for people."""


class SettleReceipt(RunCommand, frozen=True, gc=False, kw_only=True):
    """A person settles an unknown receipt: done, not_done, or retry (call again). The caller checks who may do
    that; the kernel checks that the person is not involved in the run."""

    no: int
    how: Literal["done", "not_done", "retry"]
    person: str
    result: bytes | None = None
    reason: bytes | None = None


class WithdrawApproval(RunCommand, frozen=True, gc=False, kw_only=True):
    """A person withdraws an approval before it is used."""

    no: int
    approver: str


class MarkReversed(RunCommand, frozen=True, gc=False, kw_only=True):
    """Another run has undone the effect of a receipt of this run."""

    no: int
    by_run: int
    by_no: int


class ActReply(msgspec.Struct, gc=False, omit_defaults=True):
    state: str
    """What the caller does next:

    - call: the call is intended; make it before `call_by`.
    - done: the act was done before; its result is `result_ref` of this run, or `source`.
    - open: there is a receipt whose outcome is not known (`receipt_state`).
    - failed: the act failed finally, or may be retried from `eligible_at` on.
    - wait: a question is open; suspend on the wait `no`.
    - go_on: the act is approved (`approval_no`); intend it.
    - ask: the approval does not suffice; propose the act.
    - again: the policy, or a fact that the ruling used, has changed; evaluate the policy again.
    - busy: another receipt holds the key, and its outcome is not known.
    - refused: the act was denied, rejected, expired or frozen; the step has ended.
    - settled: the outcome is recorded.
    - cancel: the run is being canceled; do nothing new."""
    no: int | None = None
    """The number of the receipt; with `wait`, of the wait."""
    receipt_state: str | None = None
    call_by: int | None = None
    call_seconds: float | None = None
    """How long after the commit `call_by` is. The caller has at least this time by its own clock."""
    eligible_at: int | None = None
    result_ref: int | None = None
    source: tuple[int, int] | None = None
    """The receipt of another run whose effect counts: (run, no)."""
    approval_no: int | None = None
    error: str | None = None
