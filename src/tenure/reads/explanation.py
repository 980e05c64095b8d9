"""Why a run is not moving, in one reason.

Law: one reason, the outermost one: what would have to change first. It is read from committed rows, so it is
true of the moment it was read at.
"""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime, us
from tenure.kernel.act_rows import ReceiptRow
from tenure.kernel.capability import split
from tenure.kernel.decide.termination import is_unresolved
from tenure.kernel.fair_share import headroom
from tenure.kernel.identity_rows import PersonRow
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.registry_rows import WorkerRow
from tenure.kernel.run_rows import (
    ASKS_PEOPLE,
    CLOSED_RUN,
    ApprovalRow,
    AttemptRow,
    Cap,
    PayloadRow,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
)
from tenure.kernel.separation_of_duties import (
    LinkedPeople,
    involved_people,
    may_approve,
    unknown_people_error,
)
from tenure.limits import WORKER_SILENT_SECONDS
from tenure.reads.payloads import decode_payload
from tenure.reads.steps import question_title, wait_label
from tenure.shapes.runs import Explanation
from tenure.store.port import ConcurrencyKeyHolder, LeaseUsage, Store

APPROVERS_LOOKED_AT_MAX = 1_000
"""Above this many approvers, assume that one is left."""


async def explain_run(store: Store, run: RunRow, spec: RunSpecRow) -> Explanation:
    """The one reason why this run is where it is."""
    if run.status in CLOSED_RUN:
        return Explanation(reason="finished", text=f"It has ended: {run.status} ({run.reason}).")
    if run.cancel_at is not None:
        return await _canceling(store, run)
    if run.paused:
        return Explanation(
            reason="paused", text="It is paused: no step is given out until somebody unpauses it."
        )
    if run.parked is not None:
        return Explanation(reason="parked", text=_parked(run, run.parked))
    if not run.planned:
        return Explanation(
            reason="planning", text="It waits for its plan.", until=to_optional_datetime(run.wake_at)
        )
    if run.admitted_at is None:
        return await _held_back(store, run, spec)
    steps: list[StepRow] = await store.read("steps_of", run.id)
    if run.steps_live:
        return await _working(store, run, steps)
    if run.steps_ready:
        return await _ready(store, run, steps)
    if run.waits_open:
        return await _waiting(store, run, spec, steps)
    backoff = min(
        (s for s in steps if s.state == "retry_wait"), key=lambda s: s.eligible_at or 0, default=None
    )
    if backoff is not None:
        text = (
            f"Step {backoff.name!r} failed with {backoff.last_error} and is tried again after a pause"
            f" (try {backoff.charged + 1} of {backoff.max_attempts})."
        )
        return Explanation(
            reason="backoff", text=text, step=backoff.name, until=to_optional_datetime(backoff.eligible_at)
        )
    unmade = next((s for s in steps if is_unresolved(s)), None)
    if unmade is not None:
        return _unmade(unmade)
    return Explanation(reason="working", text="Nothing holds it up.")


def _unmade(step: StepRow) -> Explanation:
    """Its input is made by whichever process comes to it: soon, or as soon as one is there that can."""
    text = (
        f"Step {step.name!r} waits for its input: the expressions of its workflow file are being evaluated."
    )
    return Explanation(reason="input", text=text, step=step.name)


def _parked(run: RunRow, why: str) -> str:
    """A parked run goes on when code that fits it is there; nothing else is lost meanwhile."""
    return (
        f"It is parked, because no worker's code fits: {why.rstrip('.')}. Start a worker with code that fits it: the"
        " code it began with, or the new code with the change behind `tenure.patched(...)`, or, for a new version,"
        f" `accepts=[{run.code_version!r}]` on the workflow. Then: tenure runs unpause {ids.run_text(run.id)}"
    )


async def _canceling(store: Store, run: RunRow) -> Explanation:
    steps: list[StepRow] = await store.read("steps_of", run.id)
    step = next((s for s in steps if s.state == "canceling"), None)
    text = f"It is being canceled ({run.cancel_reason})"
    if step is None:
        return Explanation(reason="canceling", text=text + ".")
    text += f": step {step.name!r} was asked to stop."
    return Explanation(
        reason="canceling", text=text, step=step.name, until=to_optional_datetime(step.cancel_by)
    )


async def _held_back(store: Store, run: RunRow, spec: RunSpecRow) -> Explanation:
    now = (await store.read("now"))[0].now_us
    if spec.not_before is not None and spec.not_before > now:
        return Explanation(reason="delayed", text="Its start is delayed.", until=to_datetime(spec.not_before))
    if run.concurrency_key is not None:
        others: list[ConcurrencyKeyHolder] = await store.read(
            "live_keys", run.tenant, run.concurrency_key, run.id
        )
        holder = next((o for o in others if o.admitted_at is not None), None)
        if holder is not None:
            text = f"Its concurrency key {run.concurrency_key!r} is held by {ids.run_text(holder.run_id)}."
            return Explanation(reason="key", text=text)
        if others:
            who = "1 other run waits" if len(others) == 1 else f"{len(others)} other runs wait"
            text = f"{who} for the concurrency key {run.concurrency_key!r}."
            return Explanation(reason="key", text=text)
    if run.rated:
        text = "Its tenant or workflow has started as many runs this minute as it may."
        return Explanation(reason="rate", text=text, until=to_optional_datetime(run.wake_at))
    return Explanation(
        reason="delayed", text="It has not been let in yet.", until=to_optional_datetime(run.wake_at)
    )


async def _working(store: Store, run: RunRow, steps: list[StepRow]) -> Explanation:
    attempts: list[AttemptRow] = await store.read("attempts_of", run.id)
    names = {step.idx: step.name for step in steps}
    live = [a for a in attempts if a.lease in LIVE_LEASE]
    if not live:
        return Explanation(reason="working", text="A step is being worked on.")
    first = min(live, key=lambda a: a.granted_at)
    more = f" and {len(live) - 1} more" if len(live) > 1 else ""
    what = _called(steps, first.idx)
    text = f"{what}{more} is being worked on by {first.owner} (try {first.n})."
    if first.progress:
        text += f" It says: {first.progress}"
    return Explanation(
        reason="working", text=text, step=names[first.idx], until=to_datetime(first.expires_at)
    )


def _called(steps: list[StepRow], idx: int) -> str:
    """How a sentence about a step begins; the body of a code-first run is the run itself."""
    step = next(s for s in steps if s.idx == idx)
    return "It" if step.kind == "body" else f"Step {step.name!r}"


async def _ready(store: Store, run: RunRow, steps: list[StepRow]) -> Explanation:
    step = next(s for s in steps if s.state == "ready")
    if is_unresolved(step):
        return _unmade(step)
    what = _called(steps, step.idx)
    caps: list[Cap] = await store.read("all_caps")
    used: list[LeaseUsage] = await store.read("live_usage")
    tenants, workflows = headroom(
        {(c.tenant, c.scope): c for c in caps}, {(u.tenant, u.workflow): u.leases for u in used}
    )
    if tenants.get(run.tenant, 1) <= 0:
        text = f"{what} is ready; tenant {run.tenant!r} has as many steps at work as its cap allows."
        return Explanation(reason="cap", text=text, step=step.name)
    if workflows.get((run.tenant, run.workflow), 1) <= 0:
        text = f"{what} is ready; workflow {run.workflow!r} has as many steps at work as its cap allows."
        return Explanation(reason="cap", text=text, step=step.name)
    return await _unclaimed(store, step, what)


async def _unclaimed(store: Store, step: StepRow, what: str) -> Explanation:
    """Ready, allowed, and not taken: is nobody there for it, or is it not its turn yet?"""
    now = (await store.read("now"))[0].now_us
    seen: list[WorkerRow] = await store.read("workers_seen_since", now - us(WORKER_SILENT_SECONDS))
    able = [
        name
        for worker in seen
        if step.queue in msgspec.json.decode(worker.queues, type=list[str])
        and (name := worker.for_tenant(step.tenant)) is not None
    ]
    if able:
        who = f"worker {able[0]} serves" if len(able) == 1 else f"{len(able)} workers serve"
        text = f"{what} is ready and waits for its turn: {who} the queue {step.queue!r}."
        return Explanation(reason="turn", text=text, step=step.name)
    text = f"{what} is ready and waits for a worker that serves the queue {step.queue!r}: {_start(step)}"
    return Explanation(reason="worker", text=text, step=step.name)


def _start(step: StepRow) -> str:
    """What to start, so that the step is taken."""
    queue, what = split(step.queue)
    kind, _, name = what.partition(":")
    if kind == "flow":
        flow, _, version = name.rpartition("@")
        need = f"that has version {version} of workflow {flow!r}"
    elif kind == "tool":
        need = f"that has the tool {name!r}"
    elif kind == "run":
        need = "that may run commands"
    else:
        need = "for it"
    return f"none is there now; start one {need}, on the queue {queue!r}."


async def _waiting(store: Store, run: RunRow, spec: RunSpecRow, steps: list[StepRow]) -> Explanation:
    waits: list[WaitRow] = await store.read("waits_of", run.id)
    is_open = [w for w in waits if w.state == "open" and w.kind != "proposal"]
    wait = next((w for w in is_open if w.kind in ASKS_PEOPLE), is_open[0])
    # Of a code-first run people know the line it waits at, not the body around it.
    what = _called(steps, wait.idx)
    name = wait_label(wait.label) if what == "It" else next(s.name for s in steps if s.idx == wait.idx)
    until = to_optional_datetime(wait.expires_at)
    if wait.kind == "approval":
        approvals: list[ApprovalRow] = await store.read("approvals_of", run.id)
        asked = next(a for a in approvals if a.no == wait.no)
        votes = len(asked.votes.split())
        title = await _title(store, asked) or wait.name
        text = f"{what} waits for an approval of {title!r}: {votes} of {asked.people} people said yes."
        text += await _nobody_left(store, run, spec, asked)
        return Explanation(reason="approval", text=text, step=name, until=until)
    if wait.kind == "receipt":
        receipts: list[ReceiptRow] = await store.read("receipts_of", run.id)
        receipt = next(r for r in receipts if r.wait_no == wait.no)
        text = (
            f"{what} waits for a person who says how {wait.name} ended: its answer was lost, and nobody knows whether it happened."
            f" Look, then: tenure receipts settle {ids.receipt_text(run.id, receipt.no)} done (or not_done, or retry)"
        )
        return Explanation(
            reason="receipt", text=text, step=receipt.label if what == "It" else name, until=until
        )
    if wait.kind == "event":
        return Explanation(
            reason="event", text=f"{what} waits for the event {wait.name!r}.", step=name, until=until
        )
    if wait.kind == "child":
        text = f"{what} waits for its child {ids.run_text(int(wait.name))}."
        return Explanation(reason="child", text=text, step=name)
    step, again, tries = wait.label.rpartition("!")
    if again and tries.isdigit():
        text = f"Step {step!r} failed and is tried again after a pause (try {int(tries) + 1})."
        return Explanation(reason="backoff", text=text, step=step, until=until)
    return Explanation(reason="time", text=f"{what} waits for a moment to come.", step=name, until=until)


async def _nobody_left(store: Store, run: RunRow, spec: RunSpecRow, asked: ApprovalRow) -> str:
    """What to add where too few of the tenant's people may still say yes. (Where it has none, the local person answers.)"""
    behind = involved_people(spec)
    if (unknown := unknown_people_error(behind)) is not None:
        return f" Nobody can approve it: {unknown.message}. {unknown.spec.remedy}"
    people: list[PersonRow] = await store.read("approvers_of", run.tenant, APPROVERS_LOOKED_AT_MAX)
    if len(people) == APPROVERS_LOOKED_AT_MAX or not await store.read("anybody", run.tenant):
        return ""
    ties = LinkedPeople(await store.read("people_unconfirmed", run.tenant))
    votes = asked.votes.split()
    able = [
        f"person:{one.id}"
        for one in people
        if may_approve(f"person:{one.id}", asked.people_in, {one.id: one})
    ]
    free = [one for one in able if ties.among(one, [*behind, *votes]) is None]
    left = len(ties.apart(free))
    if left >= asked.people - len(votes):
        return ""
    of = f" of the group {asked.people_in!r}" if asked.people_in else ""
    few = f"only {left} are left who may say yes"
    if left < 2:
        few = f"{'only one person' if left else 'nobody'} is left who may say yes"
    return f" Among the approvers{of} {few}: the others stand behind the run, count as one with somebody who does, or have said yes."


async def _title(store: Store, asked: ApprovalRow) -> str | None:
    """The title of a question that has one."""
    if asked.question_ref is None:
        return None
    found: list[PayloadRow] = await store.read("payload", asked.run_id, asked.question_ref)
    return question_title(decode_payload(found[0].body)) if found else None
