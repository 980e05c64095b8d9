"""Runs that a run starts: children, and the run that a restart continues as.
Law: a run that cannot be created (unknown profile, invalid plan, too large) is refused when it is asked for, while
the caller can still get the error.
"""

from __future__ import annotations

import msgspec

from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import Complete, RunRequest, StartChild, Trigger
from tenure.kernel.costs import Cost
from tenure.kernel.decide import leases
from tenure.kernel.decide.budget import budget_left, sum_in_run_currency
from tenure.kernel.decide.checkpoints import write_checkpoint
from tenure.kernel.decide.plan_completion import complete_plan
from tenure.kernel.decide.plans import check_new_plan
from tenure.kernel.decide.validation import check_command
from tenure.kernel.draft import Decision, Draft, check_payload_size
from tenure.kernel.new_run import build_create_run
from tenure.kernel.run_terms import RunTerms


def owe_run(
    d: Draft,
    asked: StartChild,
    *,
    parent_id: int | None,
    parent_no: int | None,
    again: bool = False,
    spent: tuple[Cost, ...] = (),
) -> None:
    """Owe the creation of another run of the same tenant and workspace, for the same requester. A restart
    (`again`) may spend what is left of the budget after `spent`."""
    run, spec = d.run, d.spec()
    terms = asked.terms
    trigger = Trigger("child")
    if again:
        left = budget_left(d)
        budget = None if left is None else max(0, left - sum_in_run_currency(d, spent))
        terms = RunTerms(budget=budget, currency=spec.currency, compensate=spec.compensate)
        trigger = msgspec.convert(
            {"type": spec.trigger_type, "ref": spec.trigger_ref, "repo": run.repo}, Trigger
        )
    check_new_plan(asked.plan, profiles.get(asked.profile or run.profile))
    check_payload_size(asked.input)
    request = RunRequest(
        workflow=asked.workflow,
        code_version=asked.code_version,
        profile=asked.profile or run.profile,
        plan=asked.plan,
        input=asked.input,
        trigger=trigger,
        source="child",
        over_rate="delay",
        timeout_seconds=asked.timeout_seconds,
        requester=spec.requester,
        involved=spec.involved,
        priority=spec.priority if again else 0,
        concurrency_key=run.concurrency_key if again else None,
        concurrency_mode="supersede" if again and spec.concurrency_mode == "supersede" else "queue",
        labels=spec.labels if again else "{}",
        metadata=spec.metadata if again else "{}",
        parent_id=parent_id,
        parent_no=parent_no,
        trace=run.trace,
        undo_of=spec.undo_of if again else None,
    )
    command = build_create_run(
        request, run_id=asked.run_id, tenant=run.tenant, workspace=run.workspace, terms=terms
    )
    check_command(command)
    d.owe("create", asked.run_id, command)


def complete(d: Draft, c: Complete) -> Decision:
    """The step succeeded, perhaps with a last checkpoint or (a plan step) with the run's plan. With `restart`, its run
    ends and continues as another run, which takes its place at the parent and holds its concurrency key."""
    spent = c.spent
    if c.plan is not None or d.step(c.idx).kind == "plan":
        return complete_plan(d, c)
    if c.last is not None:
        if (c.last.run_id, c.last.idx, c.last.n) != (c.run_id, c.idx, c.n):
            raise TenureError("INVALID_INPUT", "`last` is the checkpoint of another lease")
        check_command(c.last)
        if write_checkpoint(d, c.last):
            spent += c.last.spent
    if (
        c.restart is not None
        and d.step(c.idx).state != "canceling"
        and not (spent and (left := budget_left(d)) is not None and sum_in_run_currency(d, spent) > left)
    ):
        run, spec = d.run, d.spec()
        if run.steps_total != 1 or c.restart.run_id == run.id:
            raise TenureError(
                "INVALID_INPUT",
                "only a run with a single body can restart, and the new run needs an id of its own",
            )
        if any(child.on_close == "wait" for child in (d.snap.open_children() if run.children_open else ())):
            raise TenureError("INVALID_INPUT", "a run with children that it must wait for cannot restart yet")
        owe_run(
            d,
            c.restart,
            parent_id=spec.parent_id,
            parent_no=spec.parent_no,
            again=True,
            spent=spent,
        )
        d.notes["restarted_as"] = c.restart.run_id
    return leases.complete(d, c, spent)
