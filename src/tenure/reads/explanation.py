"""Why a run is not moving, in one reason.

Law: the reason is the outermost one: what has to change first. It is read from committed rows, so it holds for the moment of
the read.
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
from tenure.reads.payloads import read_payload
from tenure.reads.steps import question_title, read_shown_steps, wait_label
from tenure.shapes.runs import Explanation
from tenure.store.port import ConcurrencyKeyHolder, LeaseUsage, Store
from tenure.store.transactions import read_rows

APPROVERS_LOOKED_AT_MAX = 1_000
"""With this many approvers or more, one is assumed to be left."""


async def explain_run(store: Store, run: RunRow, spec: RunSpecRow) -> Explanation:
    """The one reason why this run is not moving."""
    if run.status in CLOSED_RUN:
        return _explain("finished", f"It has ended: {run.status} ({run.reason}).")
    if run.cancel_at is not None:
        return await _explain_canceling(store, run)
    if run.paused:
        return _explain("paused", "It is paused: no step is claimed until it is unpaused.")
    if run.parked is not None:
        return _explain(
            "parked",
            f"It is parked, because no worker has this version: {run.parked.rstrip('.')}. Start a worker with code that fits it: the"
            " code it began with, or the new code with the change behind `tenure.patched(...)`, or, for a new version,"
            f" `accepts=[{run.code_version!r}]` on the workflow. Then: tenure runs unpause {ids.run_text(run.id)}",
        )
    if not run.planned:
        return await _explain_planning(store, run)
    if run.admitted_at is None:
        return await _explain_queued(store, run, spec)
    steps = await read_shown_steps(store, run.id)
    if run.steps_live:
        return await _explain_working(store, run, steps)
    if run.steps_ready:
        return await _explain_ready(store, run, steps)
    if run.waits_open:
        return await _explain_waiting(store, run, spec, steps)
    backoff = min(
        (s for s in steps if s.state == "retry_wait"), key=lambda s: s.eligible_at or 0, default=None
    )
    if backoff is not None:
        return _explain(
            "backoff",
            f"Step {backoff.name!r} failed with {backoff.last_error} and is tried again after a pause"
            f" (try {backoff.charged + 1} of {backoff.max_attempts}).",
            backoff.name,
            backoff.eligible_at,
        )
    unresolved = next((s for s in steps if is_unresolved(s)), None)
    if unresolved is not None:
        return _explain_unresolved(unresolved)
    return _explain("working", "Nothing holds it up.")


def _explain(reason: str, text: str, step: str | None = None, until_us: int | None = None) -> Explanation:
    return Explanation(reason=reason, text=text, step=step, until=to_optional_datetime(until_us))


def _explain_unresolved(step: StepRow) -> Explanation:
    what = "its input: the expressions of its workflow file are being evaluated"
    if step.template_ref is None:
        what = "the search for an earlier result that it can reuse"
    return _explain("input", f"Step {step.name!r} waits for {what}.", step.name)


async def _explain_canceling(store: Store, run: RunRow) -> Explanation:
    steps = await read_rows(store, StepRow, "steps_of", run.id)
    step = next((s for s in steps if s.state == "canceling"), None)
    text = f"It is being canceled ({run.cancel_reason})"
    if step is None:
        return _explain("canceling", text + ".")
    if step.kind == "plan":
        return _explain("canceling", f"{text}: its planner was asked to stop.", until_us=step.cancel_by)
    return _explain("canceling", f"{text}: step {step.name!r} was asked to stop.", step.name, step.cancel_by)


async def _explain_planning(store: Store, run: RunRow) -> Explanation:
    """Who plans the run and since when, or why nobody does. The plan step is not shown as a step."""
    steps = await read_rows(store, StepRow, "steps_of", run.id)
    planner = next(step for step in steps if step.kind == "plan")
    if planner.state == "ready":
        why = (await _explain_ready(store, run, [planner])).text
    elif planner.state == "retry_wait":
        why = (
            f"Its planner {planner.tool!r} failed with {planner.last_error} and is tried again after a pause"
            f" (try {planner.charged + 1} of {planner.max_attempts})."
        )
    else:
        attempts = await read_rows(store, AttemptRow, "attempts_of", run.id)
        held = max((a for a in attempts if a.idx == planner.idx), key=lambda a: a.n)
        since = to_datetime(held.granted_at).isoformat(timespec="seconds").replace("+00:00", "Z")
        progress = f" It says: {held.progress}" if held.progress else ""
        why = f"Worker {held.owner} plans it with {planner.tool!r} since {since} (try {held.n}).{progress}"
    return _explain("planning", why, until_us=run.wake_at)


async def _explain_queued(store: Store, run: RunRow, spec: RunSpecRow) -> Explanation:
    now = (await store.read("now"))[0].now_us
    if spec.not_before is not None and spec.not_before > now:
        return _explain("delayed", "Its start is delayed.", until_us=spec.not_before)
    key = run.concurrency_key
    if key is not None:
        others: list[ConcurrencyKeyHolder] = await store.read("live_keys", run.tenant, key, run.id)
        holder = next((o for o in others if o.admitted_at is not None), None)
        if holder is not None:
            return _explain("key", f"Its concurrency key {key!r} is held by {ids.run_text(holder.run_id)}.")
        if others:
            who = "1 other run waits" if len(others) == 1 else f"{len(others)} other runs wait"
            return _explain("key", f"{who} for the concurrency key {key!r}.")
    if run.rated:
        return _explain(
            "rate",
            "Its tenant or workflow has started as many runs this minute as it may.",
            until_us=run.wake_at,
        )
    return _explain("delayed", "It has not been admitted yet.", until_us=run.wake_at)


async def _explain_working(store: Store, run: RunRow, steps: list[StepRow]) -> Explanation:
    attempts = await read_rows(store, AttemptRow, "attempts_of", run.id)
    live = [a for a in attempts if a.lease in LIVE_LEASE]
    if not live:
        return _explain("working", "A step is being worked on.")
    first = min(live, key=lambda a: a.granted_at)
    step = next(s for s in steps if s.idx == first.idx)
    more = f" and {len(live) - 1} more" if len(live) > 1 else ""
    progress = f" It says: {first.progress}" if first.progress else ""
    text = f"{_subject(step)}{more} is being worked on by {first.owner} (try {first.n}).{progress}"
    return _explain("working", text, step.name, first.expires_at)


def _subject(step: StepRow) -> str:
    """The subject of a sentence about a step. The body of a code-first run is the run itself."""
    if step.kind == "plan":
        return f"Its planner {step.tool!r}"
    return "It" if step.kind == "body" else f"Step {step.name!r}"


async def _explain_ready(store: Store, run: RunRow, steps: list[StepRow]) -> Explanation:
    step = next(s for s in steps if s.state == "ready")
    if is_unresolved(step):
        return _explain_unresolved(step)
    tenants, workflows = headroom(
        {(c.tenant, c.scope): c for c in await read_rows(store, Cap, "all_caps")},
        {(u.tenant, u.workflow): u.leases for u in await read_rows(store, LeaseUsage, "live_usage")},
    )
    full = None
    if tenants.get(run.tenant, 1) <= 0:
        full = f"tenant {run.tenant!r}"
    elif workflows.get((run.tenant, run.workflow), 1) <= 0:
        full = f"workflow {run.workflow!r}"
    if full is not None:
        text = f"{_subject(step)} is ready; {full} has as many steps at work as its cap allows."
        return _explain("cap", text, step.name)
    return await _explain_unclaimed(store, step)


async def _explain_unclaimed(store: Store, step: StepRow) -> Explanation:
    """Why a step that is ready and allowed is not claimed: no worker serves its queue, or it is not its turn yet."""
    now = (await store.read("now"))[0].now_us
    since = now - us(WORKER_SILENT_SECONDS)
    able = [
        name
        for worker in await read_rows(store, WorkerRow, "workers_seen_since", since)
        if step.queue in msgspec.json.decode(worker.queues, type=list[str])
        and (name := worker.for_tenant(step.tenant)) is not None
    ]
    if able:
        who = f"worker {able[0]} serves" if len(able) == 1 else f"{len(able)} workers serve"
        text = f"{_subject(step)} is ready and waits for its turn: {who} the queue {step.queue!r}."
        return _explain("turn", text, step.name)
    text = f"{_subject(step)} is ready and waits for a worker that serves the queue {step.queue!r}: {_worker_advice(step)}"
    return _explain("worker", text, step.name)


def _worker_advice(step: StepRow) -> str:
    """Which worker to start, so that the step is claimed."""
    queue, what = split(step.queue)
    kind, _, name = what.partition(":")
    flow, _, version = name.rpartition("@")
    need = {
        "flow": f"that has version {version} of workflow {flow!r}",
        "tool": f"that has the tool {name!r}",
        "run": "that may run commands",
    }.get(kind, "for it")
    return f"there is none now; start one {need}, on the queue {queue!r}."


async def _explain_waiting(store: Store, run: RunRow, spec: RunSpecRow, steps: list[StepRow]) -> Explanation:
    waits = await read_rows(store, WaitRow, "waits_of", run.id)
    is_open = [w for w in waits if w.state == "open" and w.kind != "proposal"]
    wait = next((w for w in is_open if w.kind in ASKS_PEOPLE), is_open[0])
    step = next(s for s in steps if s.idx == wait.idx)
    # In a code-first run people know the wait, not the body around it.
    what, name = _subject(step), wait_label(wait.label) if step.kind == "body" else step.name
    until = wait.expires_at
    if wait.kind == "approval":
        approvals = await read_rows(store, ApprovalRow, "approvals_of", run.id)
        asked = next(a for a in approvals if a.no == wait.no)
        title = question_title(await read_payload(store, run.id, asked.question_ref)) or wait.name
        text = f"{what} waits for an approval of {title!r}: {len(asked.votes.split())} of {asked.people} people have approved."
        return _explain("approval", text + await _too_few_approvers(store, run, spec, asked), name, until)
    if wait.kind == "receipt":
        receipts = await read_rows(store, ReceiptRow, "receipts_of", run.id)
        receipt = next(r for r in receipts if r.wait_no == wait.no)
        text = (
            f"{what} waits for a person to settle {wait.name}: its answer was lost, and it is not known whether it happened."
            f" Look, then: tenure receipts settle {ids.receipt_text(run.id, receipt.no)} done (or not_done, or retry)"
        )
        return _explain("receipt", text, receipt.label if step.kind == "body" else name, until)
    if wait.kind == "event":
        return _explain("event", f"{what} waits for the event {wait.name!r}.", name, until)
    if wait.kind == "child":
        return _explain("child", f"{what} waits for its child {ids.run_text(int(wait.name))}.", name)
    checkpoint, again, tries = wait.label.rpartition("!")
    if again and tries.isdigit():
        text = f"Step {checkpoint!r} failed and is tried again after a pause (try {int(tries) + 1})."
        return _explain("backoff", text, checkpoint, until)
    return _explain("time", f"{what} waits until a set time.", name, until)


async def _too_few_approvers(store: Store, run: RunRow, spec: RunSpecRow, asked: ApprovalRow) -> str:
    """The sentence that too few people are left who may approve, or "". (If the tenant has no people, the local user approves.)"""
    involved = involved_people(spec)
    if (unknown := unknown_people_error(involved)) is not None:
        return f" Nobody can approve it: {unknown.message}. {unknown.spec.remedy}"
    people = await read_rows(store, PersonRow, "approvers_of", run.tenant, APPROVERS_LOOKED_AT_MAX)
    if len(people) == APPROVERS_LOOKED_AT_MAX or not await store.read("anybody", run.tenant):
        return ""
    ties = LinkedPeople(await store.read("people_unconfirmed", run.tenant))
    votes = asked.votes.split()
    able = [
        f"person:{one.id}"
        for one in people
        if may_approve(f"person:{one.id}", asked.people_in, {one.id: one})
    ]
    left = len(ties.apart([one for one in able if ties.among(one, [*involved, *votes]) is None]))
    if left >= asked.people - len(votes):
        return ""
    of = f" of the group {asked.people_in!r}" if asked.people_in else ""
    few = {0: "nobody is", 1: "only one person is"}.get(left, f"only {left} are") + " left who may approve"
    return f" Among the approvers{of} {few}: the others are involved in the run, count as one with a person who is, or have approved already."
