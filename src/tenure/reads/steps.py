"""The steps of a run as people see them.

Laws:
1. Users see one kind of step: leased steps, gates, checkpoints, waits and children are lines of one list, in the
   order in which they began. The body of a code-first run and the plan step are hidden.
2. One set of states: pending, ready, running, retry_wait, waiting_approval, waiting_external, succeeded, failed, …;
   a checkpoint that is done has succeeded, a wait that was refused has failed (`reason` says how).
3. What was reported with a result (agent, duration, tokens, costs) is shown with its step and summed up for the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.kernel.act_rows import CostLineRow
from tenure.kernel.decide.validation import ACT_LABEL_PREFIX
from tenure.kernel.run_rows import (
    CONDITION_FALSE,
    ApprovalRow,
    AttemptRow,
    CheckpointRow,
    ChildRow,
    StepRow,
    WaitRow,
)
from tenure.reads.payloads import decode_payload
from tenure.shapes.costs import StepCost
from tenure.shapes.steps import ReusedResult, Step
from tenure.store.port import Store
from tenure.store.transactions import read_rows

_VALUES = ("now", "uuid", "random", "patched")
_WAIT_KINDS = {"approval": "approval", "proposal": "proposal", "event": "wait", "child": "child"}
_GOOD = frozenset({"approved", "received", "elapsed", "resumed", "finished"})


class _Cost(msgspec.Struct, frozen=True):
    provider: str = ""
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    micros: int = 0
    currency: str = "USD"
    calls: int = 1


class _Meta(msgspec.Struct, frozen=True):
    """What a worker reported with a result."""

    us: int | None = None
    agent: str | None = None
    costs: list[_Cost] = []
    tokens_in: int = 0
    tokens_out: int = 0


# ------------------------------------------------------------------------------------------- plain values


def question_title(question: Any) -> str | None:
    """The title of a question, if it has one."""
    title = question.get("title") if isinstance(question, dict) else None
    return str(title) if title else None


def wait_label(wait: str) -> str:
    """The label of a wait as people know it. The approval of an act has the label of the act, like its receipt (with a number
    behind it if people were asked again). The label of a pause contains `!`."""
    return wait if "!" in wait else wait.removeprefix(ACT_LABEL_PREFIX)


def _between(begun: int | None, ended: int | None) -> float | None:
    return None if begun is None or ended is None else max(ended - begun, 0) / 1e6


def parse_meta(text: str | None) -> _Meta:
    """What was reported with a result; empty if it cannot be read."""
    try:
        return _Meta() if not text else msgspec.json.decode(text, type=_Meta)
    except msgspec.DecodeError:
        return _Meta()


def total_step_costs(costs: Iterable[_Cost | CostLineRow]) -> tuple[StepCost, ...]:
    """Total costs by provider, model and currency."""
    groups: dict[tuple[str, str, str], list[_Cost | CostLineRow]] = {}
    for cost in costs:
        groups.setdefault((cost.provider, cost.model, cost.currency), []).append(cost)
    return tuple(
        StepCost(
            provider=provider,
            model=model,
            calls=sum(cost.calls for cost in group),
            tokens_in=sum(cost.tokens_in for cost in group),
            tokens_out=sum(cost.tokens_out for cost in group),
            money=sum(cost.micros for cost in group) / 1e6,
            currency=currency,
            micros=sum(cost.micros for cost in group),
        )
        for (provider, model, currency), group in sorted(groups.items())
    )


# ------------------------------------------------------------------------------------------------- rows


async def read_shown_steps(store: Store, run_id: int) -> list[StepRow]:
    """The steps of a run, without its plan step: that one is only in the history."""
    return [step for step in await read_rows(store, StepRow, "steps_of", run_id) if step.kind != "plan"]


class StepRows(msgspec.Struct, frozen=True, kw_only=True):
    now_us: int
    steps: list[StepRow]
    attempts: list[AttemptRow]
    checkpoints: list[CheckpointRow]
    waits: list[WaitRow]
    approvals: list[ApprovalRow]
    children: list[ChildRow]
    bodies: dict[int, bytes]


def build_steps(rows: StepRows, words: dict[int, str]) -> list[Step]:
    """The list of steps; see the laws above. `words` are the states of the leased steps in the profile's words, by index."""
    needs = needs_by_step(rows.steps)
    shown: list[Step] = []
    for step in rows.steps:
        of_step = [a for a in rows.attempts if a.idx == step.idx]
        is_body = step.kind == "body"
        if not is_body:
            shown.append(_step(rows, step, of_step, words[step.idx], needs[step.idx]))
        within = None if is_body else step.name
        inner = [_checkpoint(rows, c, within) for c in rows.checkpoints if c.idx == step.idx]
        # The pause between two tries of a checkpoint (`!`) has no line: the checkpoint has one.
        inner += [
            _wait(rows, w, within)
            for w in rows.waits
            if w.idx == step.idx and not w.gate and (w.kind in _WAIT_KINDS or "!" not in w.label)
        ]
        shown += [view for _, _, view in sorted(inner, key=lambda each: each[:2])]
    return shown


def needs_by_step(steps: Iterable[StepRow]) -> dict[int, tuple[str, ...]]:
    """The names of the steps that each step needs, by its index."""
    needs: dict[int, list[str]] = {step.idx: [] for step in steps}
    for step in steps:
        for idx in step.dependents.split(",") if step.dependents else ():
            needs[int(idx)].append(step.name)
    return {idx: tuple(names) for idx, names in needs.items()}


def _step(
    rows: StepRows, step: StepRow, attempts: list[AttemptRow], word: str, needs: tuple[str, ...]
) -> Step:
    attempt = next((a for a in attempts if a.n == step.attempt), None)
    live = attempt if attempt is not None and attempt.ended_at is None else None
    wait = next((w for w in rows.waits if w.gate and w.idx == step.idx), None)
    begun = attempt.granted_at if attempt is not None else None if wait is None else wait.opened_at
    ended = step.finished_at or (None if attempt is None else attempt.ended_at)
    meta = parse_meta(None if attempt is None else attempt.cost)
    asked = _asked(rows, wait)
    return Step(
        name=step.name,
        kind=step.kind,
        tool=step.tool if wait is None else wait.name,
        state=step.state,
        shown=word,
        required=step.required,
        needs=needs,
        attempt=step.attempt,
        attempts_max=step.max_attempts,
        worker=attempt.owner if attempt is not None else None if asked is None else asked.decided_by,
        progress=attempt.progress if attempt is not None else _votes(rows, wait),
        lease_until=None if live is None else to_datetime(live.expires_at),
        retry_at=to_optional_datetime(step.eligible_at),
        until=None if wait is None or wait.state != "open" else to_optional_datetime(wait.expires_at),
        reason=step.reason,
        skipped=step.reason == CONDITION_FALSE,
        condition=step.condition,
        reused_from=reused_result(step),
        last_error=step.last_error,
        started_at=to_optional_datetime(begun),
        finished_at=to_optional_datetime(step.finished_at),
        seconds=_between(begun, ended),
        costs=total_step_costs(meta.costs),
        question=None if asked is None else decode_payload(rows.bodies.get(asked.question_ref or 0)),
        note=None if asked is None else decode_payload(rows.bodies.get(asked.reason_ref or 0)),
        output=decode_payload(rows.bodies.get(step.output_ref or 0)),
        error=decode_payload(rows.bodies.get(step.error_ref or 0)),
    )


def reused_result(step: StepRow) -> ReusedResult | None:
    """The step whose result this one has."""
    if step.reused_run is None or step.reused_step is None:
        return None
    return ReusedResult(run=ids.run_text(step.reused_run), step=step.reused_step)


def _asked(rows: StepRows, wait: WaitRow | None) -> ApprovalRow | None:
    return None if wait is None else next((a for a in rows.approvals if a.no == wait.no), None)


def _votes(rows: StepRows, wait: WaitRow | None) -> str:
    """The votes on an open question, as text."""
    asked = None if wait is None or wait.state != "open" else _asked(rows, wait)
    return "" if asked is None else f"{len(asked.votes.split())} of {asked.people} approved"


def _checkpoint(rows: StepRows, row: CheckpointRow, within: str | None) -> tuple[int, int, Step]:
    meta = parse_meta(row.meta)
    name = row.name.rpartition("/")[2].partition("#")[0]
    kind = "value" if name.partition(":")[0] in _VALUES and not meta.us else "checkpoint"
    state = {"started": "running", "done": "succeeded"}.get(row.state, "failed")
    if state == "failed" and row.next_at is not None:
        state = "retry_wait"
    elif state == "failed" and not row.tries:
        state = "canceled"  # stopped by its own workflow: the other branch was done first
    output = decode_payload(rows.bodies.get(row.output_ref or 0))
    begun = row.at - (meta.us or 0)
    until: datetime | None = None
    seconds = None if meta.us is None else meta.us / 1e6
    if name == "sleep" and meta.us is None and isinstance(output, int):
        # A short sleep is kept in memory; what was recorded is the moment at which it ends.
        state = "succeeded" if rows.now_us >= output else "waiting_external"
        kind, until, seconds, output = "sleep", to_datetime(output), _between(row.at, output), None
    failed = row.state == "failed"
    view = Step(
        name=row.name,
        kind=kind,
        state=state,
        shown=state,
        within=within,
        attempt=row.tries,
        worker=next((a.owner for a in rows.attempts if (a.idx, a.n) == (row.idx, row.n)), None),
        retry_at=to_optional_datetime(row.next_at),
        until=until,
        reason="done" if row.state == "done" else row.error,
        last_error=row.error,
        started_at=to_datetime(begun),
        finished_at=to_datetime(row.at) if state in ("succeeded", "failed") else None,
        seconds=seconds,
        agent=meta.agent,
        costs=total_step_costs(meta.costs),
        output=None if failed else output,
        error=output if failed else None,
    )
    return begun, row.no, view


def _wait(rows: StepRows, row: WaitRow, within: str | None) -> tuple[int, int, Step]:
    outcome, child = row.outcome, None
    if row.kind == "child":
        child = ids.run_text(int(row.name))
        known = next((c for c in rows.children if c.wait_no == row.no), None)
        outcome = None if known is None else known.outcome
        state = "running" if row.state == "open" else "succeeded" if outcome == "succeeded" else "failed"
    elif row.state == "open":
        state = "waiting_approval" if row.kind in ("approval", "proposal") else "waiting_external"
    else:
        state = "canceled" if outcome is None else "succeeded" if outcome in _GOOD else "failed"
    asked = _asked(rows, row)
    view = Step(
        name=wait_label(row.label),
        kind=_WAIT_KINDS.get(row.kind, "sleep"),
        tool="" if row.kind == "child" else row.name,
        state=state,
        shown=state,
        within=within,
        worker=None if asked is None else asked.decided_by,
        progress=_votes(rows, row),
        until=to_optional_datetime(row.expires_at) if row.state == "open" else None,
        reason=outcome,
        started_at=to_datetime(row.opened_at),
        finished_at=to_optional_datetime(row.settled_at),
        seconds=_between(row.opened_at, row.settled_at),
        child=child,
        question=None if asked is None else decode_payload(rows.bodies.get(asked.question_ref or 0)),
        note=None if asked is None else decode_payload(rows.bodies.get(asked.reason_ref or 0)),
        output=decode_payload(rows.bodies.get(row.result_ref or 0)),
    )
    return row.opened_at, row.no, view
