"""How runs and their steps look in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table
from rich.text import Text

from tenure.cli.common.console import safe_text, say
from tenure.cli.common.tables import cell, format_time, make_table, show_table

if TYPE_CHECKING:
    from tenure.shapes.costs import RunCosts, StepCost
    from tenure.shapes.runs import Explanation, Run, RunSummary
    from tenure.shapes.steps import Step

_COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "timed_out": "red",
    "canceled": "yellow",
    "retry_wait": "yellow",
    "waiting_approval": "cyan",
    "waiting_external": "cyan",
}
_PLAIN_KINDS = {"work": "step", "checkpoint": "step"}
"""The words of users for kinds of steps."""
VALUE_CHARS_MAX = 200
SKIPPED = "skipped"
"""The state to show for a step that was skipped because its condition is false. In the kernel it has succeeded."""
REUSED = "{} (reused)"
"""Likewise for a step that has the result of an earlier one, with its state."""


def state_colour(state: str) -> str:
    return _COLOURS.get(state, "")


def state_text(state: str, word: str) -> Text:
    """A state in the kernel's word and, if it differs, in the profile's."""
    return Text(state if state == word else f"{state} ({word})", style=state_colour(state))


def format_seconds(seconds: float | None) -> str:
    """A duration for people: `12 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`."""
    if seconds is None:
        return ""
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_elapsed(step: Step, now_us: int | None = None) -> str:
    """How long a step took. For a running step: how long it has been running, if the time is given."""
    if step.seconds is None and now_us is not None and step.started_at is not None and not step.finished_at:
        return format_seconds(max(now_us / 1e6 - step.started_at.timestamp(), 0.0))
    return format_seconds(step.seconds)


def value_text(value: Any) -> str:
    """A payload on one line, cut to VALUE_CHARS_MAX."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = " / ".join(line.strip() for line in text.splitlines() if line.strip())
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 3] + "..."


def show_runs(runs: list[RunSummary], as_json: bool) -> None:
    columns = ("run", "workflow", "status", "reason", "steps", "took", "created", "labels")
    show_table(runs, as_json, "no runs", columns, _run_cells, whole_ids=True)


def _run_cells(run: RunSummary) -> tuple[object, ...]:
    status = state_text(run.status, run.shown)
    held = "parked" if run.parked is not None else "paused" if run.paused else ""
    if held:
        status.append(f" ({held})", style="yellow")
    return (
        run.id,
        run.workflow,
        status,
        "" if run.reason in (None, "done") else run.reason,
        steps_text(run),
        format_seconds(run.seconds),
        format_time(run.created_at),
        " ".join(f"{k}={v}" for k, v in run.labels.items()),
    )


def steps_text(line: RunSummary) -> str:
    """`done/total`. The body of a code-first run counts as a step that is never done: it would show `0/1` even after success, so
    nothing is shown for it."""
    return "-" if (line.steps_done, line.steps_total) == (0, 1) else f"{line.steps_done}/{line.steps_total}"


# ------------------------------------------------------------------------------------------------ steps


def tries_text(step: Step) -> str:
    """`2`, or `2 of 4` if the limit is known."""
    if not step.attempt:
        return ""
    return f"{step.attempt} of {step.attempts_max}" if step.attempts_max else str(step.attempt)


def question_text(step: Step) -> str:
    """The title of an approval's question, else its action."""
    from tenure.reads.steps import question_title

    return question_title(step.question) or step.tool


def shown_state(step: Step, word: str) -> str:
    """The state of a step in these words, and whether it was executed at all."""
    if step.skipped:
        return SKIPPED
    return word if step.reused_from is None else REUSED.format(word)


def about(step: Step) -> str:
    """The most important fact about a step: what it waits for, what went wrong, or its result."""
    if step.skipped:
        return f"{step.reason}: {step.condition}"
    if step.reused_from is not None:
        return f"reused from {step.reused_from.run} step {step.reused_from.step}"
    if step.state == "waiting_approval":
        return ": ".join(part for part in (question_text(step), step.progress) if part)
    if step.state == "waiting_external":
        until = f" until {format_time(step.until)}" if step.until is not None else ""
        return f"for {step.tool}{until}" if step.kind == "wait" and step.tool else until.strip()
    if step.state == "retry_wait":
        return f"{step.last_error}: again at {format_time(step.retry_at)}"
    if step.child is not None:
        return f"{step.child} {step.reason or ''}".strip()
    if step.state == "running":
        return step.progress
    if step.state == "succeeded" and step.kind == "approval" and step.worker is not None:
        text = "" if step.note is None else f": {value_text(step.note)}"
        return f"by {step.worker}{text}"
    if step.state not in ("pending", "ready", "succeeded") and (
        step.error is not None or step.note is not None
    ):
        problem = step.error if step.error is not None else step.note
        return f"{step.reason or step.last_error or 'failed'}: {value_text(problem)}"
    text = "" if step.reason in (None, "done") else str(step.reason)
    if step.output is not None:
        text = value_text(step.output)
    if step.state == "succeeded" and step.last_failure is not None:
        text = f"{text} (failed before: {value_text(step.last_failure)})".strip()
    return text


def steps_table(steps: Iterable[Step], *, everything: bool = False) -> Table:
    """The steps of a run. Recorded values (times, uuids) are included only with `everything`."""
    made = make_table("step", "kind", "state", "try", "took", "worker", "about")
    for step in steps:
        if step.kind == "value" and not everything:
            continue
        indent = "  " if step.within else ""
        made.add_row(
            safe_text(indent + step.name),
            _PLAIN_KINDS.get(step.kind, step.kind),
            state_text(step.state, shown_state(step, step.shown)),
            tries_text(step),
            format_seconds(step.seconds),
            safe_text("" if step.kind == "approval" else step.worker or ""),
            safe_text(about(step)),
        )
    return made


def costs_text(costs: Iterable[StepCost]) -> str:
    """`0.02 USD, 20 tokens in, 10 out (acme m1)`."""
    return "; ".join(
        f"{format(c.money, '.6f').rstrip('0').rstrip('.')} {c.currency}, {c.tokens_in} tokens in, {c.tokens_out} out"
        f" ({c.provider} {c.model})"
        for c in costs
    )


def show_run(
    run: Run,
    steps: list[Step],
    why: Explanation,
    costs: RunCosts,
    *,
    everything: bool = False,
    words: str | None = None,
) -> None:
    """Print a run and its steps, in the words of its own profile unless `words` names another."""
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    word = run.status if run.shown == run.status else f"{run.shown} in {words or run.profile}"
    rows: dict[str, Any] = {
        "run": run.id,
        "workflow": f"{run.workflow} (version {run.code_version})",
        "status": state_text(run.status, word),
        "why": why.text,
        "paused": "yes" if run.paused else None,
        "parked": run.parked,
        "labels": ", ".join(f"{k}={v}" for k, v in run.labels.items()) or None,
        "key": run.concurrency_key,
        "child of": run.parent,
        "resumed from": run.resumed_from and f"{run.resumed_from} (resumption {run.resume_count})",
        "rerun of": run.rerun_of and f"{run.rerun_of} (attempt {run.attempt_no})",
        "requested by": f"{run.requester} ({run.trigger})",
        "repository": run.repo,
        "skipped": ", ".join(f"{one.step} ({one.condition})" for one in run.skipped) or None,
        "created": format_time(run.created_at),
        "started": format_time(run.started_at),
        "finished": run.finished and f"{format_time(run.finished_at)} (took {format_seconds(run.seconds)})",
        "reported": format_time(run.reported_at),
        "said to be reported": _stated(run),
        "deadline": "" if run.finished else format_time(run.deadline_at),
        "budget": None if costs.budget is None else f"spent {costs.text}",
        "costs": costs_text(costs.lines),
        "input": None if run.input is None else value_text(run.input),
        "output": None if run.output is None else value_text(run.output),
        "error": failure_text(run) if run.finished and run.status != "succeeded" else None,
    }
    for name, value in rows.items():
        if value:
            facts.add_row(name, cell(value))
    say(facts)
    say("")
    say(steps_table(steps, everything=everything))


def _stated(run: Run) -> str | None:
    """The statement of a person that the run's end was reported."""
    if (text := run.reported_statement) is None:
        return None
    return f"by {text.by} at {format_time(text.at)} (their word; the status reporter has the say)"


def failure_text(run: Run) -> str:
    """The reason and the error of a run that did not succeed."""
    return f"{run.reason}" + ("" if run.error is None else f": {value_text(run.error)}")
