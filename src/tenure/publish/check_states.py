"""What the checks of a commit should show of a run: one check for the run, one for each job, and a commit status.

Laws:
1. A state is made from rows alone: the same rows give the same state, and its digest says whether anything has to be written.
2. A state has a phase: queued, in progress, completed. A job that waits for its next attempt stays in progress, so that a phase never
   falls (I62).
3. A timeout is a failure: the conclusion `timed_out`, and the commit status `failure` (DCI-06).
4. Texts of users (messages, names, paths) are cut and escaped. Nothing in them becomes a link, a mention or markup.
5. Titles are made from the run's and the steps' rows alone, because they are compared when a state is read back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal

import msgspec

from tenure import ids
from tenure.clock import to_datetime
from tenure.kernel.run_rows import CLOSED_RUN, CLOSED_STEP, CONDITION_FALSE, AttemptRow, RunRow, StepRow
from tenure.shapes.reports import CheckAnnotation, VcsTarget
from tenure.shapes.test_reports import FailedCase, TestReport

QUEUED, IN_PROGRESS, COMPLETED = 0, 1, 2
STATUSES = ("queued", "in_progress", "completed")
RUN_PART = "run"
STATUS_PART = "status"
JOB_PREFIX = "job:"
CANCEL_ACTION = "cancel"

NAME_CHARS_MAX = 200
MESSAGE_CHARS_MAX = 4_000
SUMMARY_CHARS_MAX = 60_000
DESCRIPTION_CHARS_MAX = 140
ANNOTATIONS_MAX = 50
"""GitHub takes so many with one request."""
TESTS_LISTED_MAX = 50
"""Failed tests in the summary of a job, of those whose place is not known."""
JOBS_LISTED_MAX = 200
JOBS_MAX = 1_000
"""Jobs of a run that have checks of their own. GitHub allows no more check runs in a suite."""
EXTERNAL_CHARS_MAX = 120

_CONCLUSIONS = {
    "succeeded": "success",
    "failed": "failure",
    "canceled": "cancelled",
    "timed_out": "timed_out",
    "skipped": "skipped",
}
_STATUS_STATES = {
    "succeeded": "success",
    "failed": "failure",
    "timed_out": "failure",
    "canceled": "error",
}
_WORDS = {
    "succeeded": "succeeded",
    "failed": "failed",
    "canceled": "was canceled",
    "timed_out": "timed out",
    "skipped": "was skipped",
}
_RUN_TITLES = {
    "created": "Planning",
    "planning": "Planning",
    "queued": "Waiting for a runner",
    "canceling": "Canceling",
    "waiting_approval": "Waiting for an approval",
}
_PLACE = re.compile(r"(?m)^(?P<path>[^\s:][^:\n]{0,300}):(?P<line>\d{1,7}):(?:\d{1,7}:)? *(?P<message>.+)$")
_TEST_PLACE = re.compile(r"(?m)^(?P<path>[^\s:]{1,300}\.[A-Za-z0-9]{1,10}):(?P<line>\d{1,7}):")
"""Where a traceback of pytest, and many compilers, name a place."""


class CheckState(msgspec.Struct, frozen=True, kw_only=True):
    """What one check should show."""

    part: str
    name: str
    external_id: str
    phase: int
    conclusion: str | None = None
    title: str
    summary: str
    details_url: str | None = None
    started_at: int | None = None
    completed_at: int | None = None
    annotations: tuple[CheckAnnotation, ...] = ()

    @property
    def digest(self) -> bytes:
        return sha256(msgspec.json.encode(self)).digest()

    def body(self) -> dict[str, Any]:
        """The check run as GitHub takes it."""
        body: dict[str, Any] = {
            "name": self.name,
            "external_id": self.external_id,
            "status": STATUSES[self.phase],
            "output": {"title": self.title, "summary": self.summary},
            "actions": [] if self.phase == COMPLETED else [_CANCEL],
        }
        if self.details_url is not None:
            body["details_url"] = self.details_url
        if self.started_at is not None:
            body["started_at"] = _moment(self.started_at)
        if self.phase == COMPLETED:
            body["conclusion"] = self.conclusion
            if self.completed_at is not None:
                body["completed_at"] = _moment(self.completed_at)
        if self.annotations:
            body["output"]["annotations"] = [_annotation(one) for one in self.annotations]
        return body

    def is_shown_by(self, found: Mapping[str, Any]) -> bool:
        """Whether a check run that was read back shows this state."""
        output = found.get("output")
        title = output.get("title") if isinstance(output, Mapping) else None
        return (
            found.get("external_id") == self.external_id
            and found.get("status") == STATUSES[self.phase]
            and found.get("conclusion") == self.conclusion
            and title == self.title
        )


class StatusState(msgspec.Struct, frozen=True, kw_only=True):
    """What the commit status of a run should say."""

    phase: int
    state: str
    context: str
    description: str
    target_url: str | None = None

    @property
    def digest(self) -> bytes:
        return sha256(msgspec.json.encode(self)).digest()

    def body(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "context": self.context,
            "description": self.description,
            **({} if self.target_url is None else {"target_url": self.target_url}),
        }

    def is_shown_by(self, found: Mapping[str, Any]) -> bool:
        return all((found.get(name) or None) == value for name, value in self.body().items())


_CANCEL = {"label": "Cancel", "description": "Cancel the whole run", "identifier": CANCEL_ACTION}


def _moment(at: int) -> str:
    return to_datetime(at).isoformat(timespec="seconds").replace("+00:00", "Z")


def _annotation(one: CheckAnnotation) -> dict[str, Any]:
    return {
        "path": one.path,
        "start_line": one.line,
        "end_line": max(one.end_line or one.line, one.line),
        "annotation_level": one.level,
        "message": one.message,
        **({"title": one.title} if one.title else {}),
    }


# ---- Names.


def make_external_id(run_id: int, part: str) -> str:
    """The id by which a check run is found again. It begins with the run's id."""
    text = f"{ids.run_text(run_id)}:{part}"
    if len(text) <= EXTERNAL_CHARS_MAX and text.isascii() and text.isprintable():
        return text
    return f"{ids.run_text(run_id)}:sha256:{sha256(part.encode()).hexdigest()[:40]}"


def make_subject(target: VcsTarget, workflow: str) -> str:
    """What the checks of a run are about: runs of the same subject have checks with the same names."""
    kind = "push" if target.pull_request is None else "pull_request"
    return f"{target.commit_subject}{kind}:{workflow}"


def make_check_name(target: VcsTarget, workflow: str, job: str = "") -> str:
    """Checks of a push and of a pull request for the same commit have different names."""
    name = f"{workflow} / {job}" if job else workflow
    suffix = "" if target.pull_request is None else " (pull request)"
    return clean_text(name, NAME_CHARS_MAX - len(suffix)) + suffix


# ---- Texts of users.


def clean_text(text: str, most: int) -> str:
    """A text on one line, without control characters, cut to a length."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _quote(text: str) -> str:
    """A text of users as a code block, which it cannot end (law 4)."""
    lines = (clean_text(line, 500) for line in text[:MESSAGE_CHARS_MAX].splitlines())
    return "\n".join(f"    {line}" for line in lines)


def _cell(text: str, most: int = 100) -> str:
    """A text of users in a table or a list: no markup, no mentions."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|@~&])", r"\\\1", clean_text(text, most)).replace("\\@", "@\u200b")


def read_annotations(value: Any) -> tuple[CheckAnnotation, ...]:
    """The annotations in a step's output (`{"annotations": [...]}`). Invalid ones are left out."""
    listed = value.get("annotations") if isinstance(value, Mapping) else None
    found = []
    for one in listed[: 10 * ANNOTATIONS_MAX] if isinstance(listed, list) else ():
        try:
            given = msgspec.convert(one, CheckAnnotation)
        except msgspec.ValidationError:
            continue
        if (cleaned := _clean_annotation(given)) is not None:
            found.append(cleaned)
    return tuple(found)


def _clean_annotation(one: CheckAnnotation) -> CheckAnnotation | None:
    path = one.path.removeprefix("./")
    if not 0 < len(path) <= 500 or not path.isprintable() or path.startswith("/") or ".." in path.split("/"):
        return None
    if not 0 < one.line < 10**7 or not one.message.strip():
        return None
    return CheckAnnotation(
        path=path,
        line=one.line,
        end_line=one.end_line if one.end_line is not None and one.line < one.end_line < 10**7 else None,
        level=one.level,
        title=clean_text(one.title, 200),
        message=one.message.replace("\0", "")[:MESSAGE_CHARS_MAX],
    )


def find_places(error: Any) -> tuple[CheckAnnotation, ...]:
    """The places that an error names: `file`, `line` and `message` of an object, or lines such as `ci.yaml:3:5: wrong`."""
    if isinstance(error, Mapping):
        line, path = error.get("line"), error.get("file")
        if isinstance(path, str) and isinstance(line, int):
            message = str(error.get("message") or "")
            one = _clean_annotation(CheckAnnotation(path=path, line=line, message=message or "invalid"))
            return () if one is None else (one,)
    found = []
    for match in _PLACE.finditer(describe_error(error)[:MESSAGE_CHARS_MAX]):
        one = _clean_annotation(
            CheckAnnotation(path=match["path"], line=int(match["line"]), message=match["message"])
        )
        if one is not None:
            found.append(one)
    return tuple(found)


def find_test_place(case: FailedCase) -> tuple[str, int] | None:
    """Where a test failed: the last place in its file that its message names, else the file and line of its report. The message comes
    first, because some reports count lines from 0 or name the line of the function."""
    named = [
        (match["path"].removeprefix("./"), int(match["line"])) for match in _TEST_PLACE.finditer(case.message)
    ]
    file = case.file.removeprefix("./")
    same = [one for one in named if one[0] == file] if file else named
    if file and not same and case.line is not None:
        same = [(file, max(case.line, 1))]
    for path, line in reversed(same):
        if _clean_annotation(CheckAnnotation(path=path, line=line, message="-")) is not None:
            return path, line
    return None


def _annotate_test(
    case: FailedCase, place: tuple[str, int], level: Literal["warning", "failure"]
) -> CheckAnnotation | None:
    path, line = place
    message = case.message if case.message.strip() else f"the test {case.outcome}"
    return _clean_annotation(
        CheckAnnotation(path=path, line=line, level=level, title=case.test, message=message)
    )


def describe_error(error: Any) -> str:
    """The message of an error payload."""
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("code") or ""
    return error if isinstance(error, str) else ""


# ---- States.


class RunPicture(msgspec.Struct, frozen=True, kw_only=True):
    """What a report needs to know of a run."""

    run: RunRow
    target: VcsTarget
    jobs: list[StepRow]
    begun: Mapping[int, int]
    """When the first attempt of a step was granted, by the step's index."""
    jobs_left_out: int = 0
    """Jobs beyond `JOBS_MAX`."""
    gates: list[StepRow] = []
    """The approvals that the run waits for."""
    error: Any = None
    """The run's error, decoded."""
    details_url: str | None = None

    @property
    def is_final(self) -> bool:
        return self.run.status in CLOSED_RUN


def choose_jobs(steps: Iterable[StepRow]) -> tuple[list[StepRow], int]:
    """The steps that have checks of their own, and how many more jobs there are."""
    jobs = [step for step in steps if step.kind == "work"]
    return jobs[:JOBS_MAX], max(0, len(jobs) - JOBS_MAX)


def choose_gates(steps: Iterable[StepRow]) -> list[StepRow]:
    """The approvals that somebody has to decide about now."""
    return [step for step in steps if step.kind == "approval" and step.state == "waiting_approval"]


def find_begins(attempts: Iterable[AttemptRow]) -> dict[int, int]:
    """When the first attempt of each step was granted."""
    begun: dict[int, int] = {}
    for attempt in attempts:
        begun[attempt.idx] = min(attempt.granted_at, begun.get(attempt.idx, attempt.granted_at))
    return begun


def build_status(picture: RunPicture) -> StatusState:
    run = picture.run
    final = run.status in CLOSED_RUN
    text = f"{run.workflow} {_WORDS[run.status]}" if final else f"{run.workflow} is {run.status}"
    if run.status == "created" or (run.status != "queued" and not final):
        text = f"{run.workflow} is running"
    return StatusState(
        phase=COMPLETED
        if final
        else QUEUED
        if run.status in ("created", "planning", "queued")
        else IN_PROGRESS,
        state=_STATUS_STATES[run.status] if final else "pending",
        context=f"tenure/{make_check_name(picture.target, run.workflow)}",
        description=clean_text(text, DESCRIPTION_CHARS_MAX),
        target_url=picture.details_url,
    )


def build_run_check(picture: RunPicture) -> CheckState:
    run = picture.run
    final = run.status in CLOSED_RUN
    annotations: tuple[CheckAnnotation, ...] = ()
    if final:
        phase = COMPLETED
        title = f"The run {_WORDS[run.status]}"
        if run.status == "failed" and not run.planned:
            title = "Planning failed"
            annotations = find_places(picture.error)
    else:
        phase = QUEUED if run.status in ("created", "planning", "queued") else IN_PROGRESS
        title = _RUN_TITLES.get(run.status, "Running")
        if picture.gates and run.status != "canceling":
            title = _gate_title(picture.gates)
    return CheckState(
        part=RUN_PART,
        name=make_check_name(picture.target, run.workflow),
        external_id=make_external_id(run.id, RUN_PART),
        phase=phase,
        conclusion=_CONCLUSIONS[run.status] if final else None,
        title=title,
        summary=_run_summary(picture),
        details_url=picture.details_url,
        started_at=run.started_at,
        completed_at=run.finished_at,
        annotations=annotations[:ANNOTATIONS_MAX],
    )


def _gate_title(gates: list[StepRow]) -> str:
    more = f" and {len(gates) - 1} more" if len(gates) > 1 else ""
    return f"Waiting for an approval of {clean_text(gates[0].name, 100)}{more}"


def _run_summary(picture: RunPicture) -> str:
    run = picture.run
    lines = [f"Run `{ids.run_text(run.id)}`."]
    if picture.jobs_left_out:
        lines += [
            "",
            f"{picture.jobs_left_out} more jobs have no check of their own: only the first {JOBS_MAX} jobs of a run have.",
        ]
    if run.status not in CLOSED_RUN:
        for gate in picture.gates[:JOBS_LISTED_MAX]:
            lines += ["", f"Jobs wait until somebody decides about the approval {_cell(gate.name)}."]
        return "\n".join(lines)[:SUMMARY_CHARS_MAX]
    lines.append("")
    if run.status != "succeeded":
        lines += [f"Reason: `{run.reason or run.status}`", ""]
    message = describe_error(picture.error)
    if message:
        lines += [_quote(message), ""]
    jobs = picture.jobs
    if jobs:
        lines += ["| job | outcome | attempts |", "|---|---|---|"]
        lines += [
            f"| {_cell(job.name)} | {_outcome(job)} | {job.attempt} |" for job in jobs[:JOBS_LISTED_MAX]
        ]
        if len(jobs) + picture.jobs_left_out > len(jobs[:JOBS_LISTED_MAX]):
            unlisted = len(jobs) + picture.jobs_left_out - len(jobs[:JOBS_LISTED_MAX])
            lines.append(f"\n{unlisted} more jobs are not listed.")
    return "\n".join(lines)[:SUMMARY_CHARS_MAX]


def _outcome(step: StepRow) -> str:
    if step.reason == CONDITION_FALSE:
        return "skipped"
    return step.state if step.required or step.state == "succeeded" else f"{step.state}, not required"


def build_job_check(
    picture: RunPicture, step: StepRow, output: Any = None, error: Any = None, tests: TestReport | None = None
) -> CheckState:
    """The check of a job. `output`, `error` and `tests` are those of a job that has ended, decoded."""
    run, part = picture.run, f"{JOB_PREFIX}{step.name}"
    begun = picture.begun.get(step.idx)
    final = step.state in CLOSED_STEP
    annotations: tuple[CheckAnnotation, ...] = ()
    conclusion = None
    if final:
        phase = COMPLETED
        conclusion, title, summary, annotations = _job_outcome(picture, step, output, error, tests)
    elif begun is not None:
        phase = IN_PROGRESS
        title = f"Attempt {step.attempt} of {step.max_attempts}"
        summary = f"Job of run `{ids.run_text(run.id)}`."
    else:
        gates = [gate for gate in picture.gates if str(step.idx) in gate.dependents.split(",")]
        phase, title = QUEUED, _gate_title(gates) if gates else "Waiting"
        summary = f"Job of run `{ids.run_text(run.id)}`."
    return CheckState(
        part=part,
        name=make_check_name(picture.target, run.workflow, step.name),
        external_id=make_external_id(run.id, part),
        phase=phase,
        conclusion=conclusion,
        title=title,
        summary=summary,
        details_url=picture.details_url,
        started_at=begun,
        completed_at=step.finished_at,
        annotations=annotations,
    )


def _job_outcome(
    picture: RunPicture, step: StepRow, output: Any, error: Any, tests: TestReport | None
) -> tuple[str, str, str, tuple[CheckAnnotation, ...]]:
    """The conclusion, title, summary and annotations of a job that has ended."""
    conclusion, title = _CONCLUSIONS[step.state], f"The job {_WORDS[step.state]}"
    if step.reason == CONDITION_FALSE:
        conclusion, title = "skipped", "The job's condition is false"
    elif step.state in ("failed", "timed_out") and not step.required:
        conclusion, title = "neutral", f"The job {_WORDS[step.state]}; it is not required"
    lines = [
        f"Job of run `{ids.run_text(picture.run.id)}`; attempts: {step.attempt} of {step.max_attempts}.",
        "",
    ]
    if step.reused_run is not None:
        source = ids.run_text(step.reused_run)
        title = f"Reused from run {source} step {clean_text(step.reused_step or '', 100)}"
        lines = [
            f"Job of run `{ids.run_text(picture.run.id)}`. It was not run again: step {_cell(step.reused_step or '')} of run `{source}` had the same inputs.",
            "",
        ]
    if step.state != "succeeded" and step.reason:
        lines += [f"Reason: `{clean_text(step.reason, 100).replace('`', '')}`", ""]
    if step.state != "succeeded" and (message := describe_error(error)):
        lines += [_quote(message), ""]
    listed = read_annotations(output) or read_annotations(error)
    if len(listed) > ANNOTATIONS_MAX:
        lines.append(f"{len(listed) - ANNOTATIONS_MAX} more annotations are not shown.")
    listed = listed[:ANNOTATIONS_MAX]
    if tests is not None:
        level: Literal["warning", "failure"] = "warning" if step.state == "succeeded" else "failure"
        placed, described = _show_tests(tests, listed, level)
        listed, lines = (*listed, *placed), [*lines, *described]
    return conclusion, title, "\n".join(lines)[:SUMMARY_CHARS_MAX], listed


def _show_tests(
    tests: TestReport, listed: tuple[CheckAnnotation, ...], level: Literal["warning", "failure"]
) -> tuple[list[CheckAnnotation], list[str]]:
    """The annotations of failed tests whose place is known, as many as there is room for, and lines for the summary. `listed` are the
    annotations that the job has made itself: it is not said twice what is wrong with a line."""
    placed: list[CheckAnnotation] = []
    elsewhere: list[str] = []
    shown = 0
    room, taken = ANNOTATIONS_MAX - len(listed), {(one.path, one.line) for one in listed}
    for case in tests.failed_cases:
        if len(placed) >= room and len(elsewhere) >= TESTS_LISTED_MAX:
            break
        place = find_test_place(case)
        if place in taken:
            shown += 1
        elif place is not None and len(placed) < room:
            one = _annotate_test(case, place, level)
            if one is not None:
                placed.append(one)
                shown += 1
        elif place is None and len(elsewhere) < TESTS_LISTED_MAX:
            first = next(iter(case.message.strip().splitlines()), "")
            elsewhere.append(f"- {_cell(case.test, 200)}" + (f": {_cell(first, 300)}" if first else ""))
            shown += 1
    lines = [f"Tests: {tests.failed} failed, {tests.passed} passed, {tests.skipped} skipped.", ""]
    if elsewhere:
        lines += ["Failed without a known place:", "", *elsewhere, ""]
    if tests.failed > shown:
        lines.append(f"{tests.failed - shown} more failed tests are not shown.")
    return placed, lines
