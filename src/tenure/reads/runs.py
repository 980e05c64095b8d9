"""Runs, steps, questions and history as people see them.

Laws:
1. Nothing here writes or decides: it reads committed rows.
2. Ids are texts, times are datetimes, payloads are decoded. Another tenant's run looks like a run that does not exist.
3. A status is shown twice: in the kernel's word and in the word of the run's profile.
4. Users see one kind of step; see `reads.steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.errors import TenureError
from tenure.kernel import history, profiles
from tenure.kernel.profile import Profile
from tenure.kernel.run_rows import (
    CONDITION_FALSE,
    AttemptRow,
    EventRow,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
)
from tenure.reads.approvals import read_approvals
from tenure.reads.history import find_failed_attempts, to_event
from tenure.reads.payloads import read_bodies, read_payload
from tenure.reads.run_list import (
    RunFilter,
    RunPosition,
    check_status,
    decode_runs_cursor,
    encode_runs_cursor,
    known_steps_total,
    read_run_page,
    read_specs,
)
from tenure.reads.run_words import read_run_word
from tenure.reads.steps import StepRows, build_steps, read_shown_steps
from tenure.shapes.approvals import Approval
from tenure.shapes.events import Event
from tenure.shapes.runs import ReportStatement, Run, RunPage, RunSummary, SkippedStep
from tenure.shapes.steps import FailedAttempt, Step
from tenure.store.port import Store
from tenure.store.run_lists import RunGlance
from tenure.store.transactions import read_first, read_rows

LIST_MAX = 1_000
RESTARTED_KEY = "$tenure.restarted"
"""The key in the output of a restarted run that names its successor; see `tenure.sdk.codec`."""


# ------------------------------------------------------------------------------------------- plain values


def _text(run_id: int | None) -> str | None:
    return None if run_id is None else ids.run_text(run_id)


# ------------------------------------------------------------------------------------------------- words


def _fixed_word(profile: Profile, step: StepRow, attempt: AttemptRow | None) -> str | None:
    """The profile's word for the step's state, or None if it depends on the word before."""
    outcome = None if attempt is None else attempt.state
    given = profile.step.words[step.state]
    is_fixed = isinstance(given, str) or (outcome is not None and outcome in given.by_attempt)
    return profile.word("step", step.state, outcome) if is_fixed else None


def step_word(profile: Profile, step: StepRow, attempt: AttemptRow | None, events: Iterable[EventRow]) -> str:
    """The profile's word for the step's state; `events` are needed only if the word depends on the one before."""
    fixed = _fixed_word(profile, step, attempt)
    if fixed is not None:
        return fixed
    last: str | None = None
    for event in events:
        for entry in history.decode_body(event).get("edges", ()):
            for machine, _, after, _ in entry["edges"] if entry.get("step") == step.idx else ():
                if machine == "step":
                    last = profile.word("step", after, last=last)
    return profile.word("step", step.state, None if attempt is None else attempt.state, last)


# --------------------------------------------------------------------------------------------- the reads


async def read_skipped_steps(store: Store, run: RunRow | RunGlance) -> tuple[SkippedStep, ...]:
    """The steps of a run that its conditions skipped. If there are none, nothing is read."""
    if not run.steps_skipped:
        return ()
    return tuple(
        SkippedStep(step=step.name, reason=CONDITION_FALSE, condition=step.condition)
        for step in await read_rows(store, StepRow, "steps_of", run.id)
        if step.reason == CONDITION_FALSE
    )


class RunReader:
    """Reads for one tenant; None: for all tenants (inside the system)."""

    def __init__(self, store: Store, tenant: str | None) -> None:
        self._store = store
        self._tenant = tenant

    async def row(self, run_id: int) -> RunRow:
        """The run's row, or RUN_NOT_FOUND."""
        run = await read_first(self._store, RunRow, "get_run", run_id)
        if run is None or self._tenant not in (None, run.tenant):
            raise TenureError("RUN_NOT_FOUND", f"there is no run {ids.run_text(run_id)!r}")
        return run

    async def spec(self, run_id: int) -> RunSpecRow:
        """The run's spec, or RUN_NOT_FOUND."""
        spec = await read_first(self._store, RunSpecRow, "get_spec", run_id)
        if spec is None:
            raise TenureError("RUN_NOT_FOUND", f"there is no run {ids.run_text(run_id)!r}")
        return spec

    async def word(self, run: RunRow | RunGlance, profile_name: str | None = None) -> str:
        """The run's status in the words of a profile; without a name, of the run's own."""
        profile = profiles.get(profile_name) if profile_name else profiles.for_display(run.profile)
        return await read_run_word(self._store, run, profile)

    async def run(self, run_id: int, profile: str | None = None) -> Run:
        """One run with its input, output and error. `shown` is in the words of `profile`, or of the run's own."""
        run = await self.row(run_id)
        spec = await self.spec(run_id)
        output = (
            await read_payload(self._store, run.id, run.output_ref) if run.status == "succeeded" else None
        )
        successor = output.get(RESTARTED_KEY) if isinstance(output, dict) else None
        return Run(
            id=ids.run_text(run.id),
            workflow=run.workflow,
            code_version=run.code_version,
            profile=run.profile,
            tenant=run.tenant,
            workspace=run.workspace,
            status=run.status,
            shown=await self.word(run, profile),
            reason=run.reason,
            paused=run.paused,
            parked=run.parked,
            cancel_requested=run.cancel_at is not None,
            priority=spec.priority,
            concurrency_key=run.concurrency_key,
            labels=msgspec.json.decode(spec.labels),
            metadata=msgspec.json.decode(spec.metadata),
            requester=spec.requester,
            trigger=spec.trigger_type,
            trigger_ref=spec.trigger_ref,
            repo=run.repo,
            parent=_text(spec.parent_id),
            resumed_from=_text(spec.resumed_from),
            resume_count=spec.resume_count,
            rerun_of=_text(spec.rerun_of),
            attempt_no=spec.attempt_no,
            steps_total=known_steps_total(run),
            steps_done=run.steps_done,
            steps_skipped=run.steps_skipped,
            skipped=await read_skipped_steps(self._store, run),
            events=run.version,
            created_at=to_datetime(run.created_at),
            started_at=to_optional_datetime(run.started_at),
            finished_at=to_optional_datetime(run.finished_at),
            deadline_at=to_optional_datetime(run.deadline_at),
            seconds=None if run.duration_us is None else run.duration_us / 1e6,
            sealed=run.sealed_at is not None,
            input=await read_payload(self._store, run.id, spec.input_ref),
            output=output if successor is None else None,
            error=await read_payload(self._store, run.id, run.error_ref),
            restarted_as=successor,
            reported_at=to_optional_datetime(run.reported_at),
            reported_statement=None
            if spec.reported_stated_by is None or spec.reported_stated_at is None
            else ReportStatement(by=spec.reported_stated_by, at=to_datetime(spec.reported_stated_at)),
        )

    async def list_runs(
        self,
        tenant: str,
        *,
        status: str | None = None,
        repo: str | None = None,
        workflow: str | None = None,
        labels: Mapping[str, str] | None = None,
        parked: bool = False,
        profile: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """The newest runs that meet all conditions, or those after a cursor. With a profile, `status` is a word of it."""
        if not 0 < limit <= LIST_MAX:
            raise TenureError("INVALID_INPUT", f"a list has 1 to {LIST_MAX} runs, not {limit}")
        wanted = RunFilter(
            status=status, profile=profile, repo=repo, workflow=workflow, labels=labels or {}, parked=parked
        )
        check_status(wanted)
        found: list[RunRow] = []
        place: RunPosition | None = decode_runs_cursor(cursor, tenant, wanted)
        while place is not None and len(found) < limit:
            runs, place = await read_run_page(self._store, tenant, wanted, place, limit - len(found))
            found += runs
        page = RunPage(await self.lines(found, profile))
        page.next_cursor = encode_runs_cursor(tenant, wanted, place)
        return page

    async def lines(self, runs: list[RunRow], profile: str | None = None) -> list[RunSummary]:
        """Runs as items of a list; `shown` as in `run`."""
        specs = await read_specs(self._store, runs)
        return [
            RunSummary(
                id=ids.run_text(run.id),
                workflow=run.workflow,
                workspace=run.workspace,
                profile=run.profile,
                status=run.status,
                shown=await self.word(run, profile),
                reason=run.reason,
                paused=run.paused,
                parked=run.parked,
                steps_done=run.steps_done,
                steps_skipped=run.steps_skipped,
                steps_total=known_steps_total(run),
                labels=msgspec.json.decode(specs[run.id].labels) if run.id in specs else {},
                repo=run.repo,
                created_at=to_datetime(run.created_at),
                started_at=to_optional_datetime(run.started_at),
                finished_at=to_optional_datetime(run.finished_at),
                seconds=None if run.duration_us is None else run.duration_us / 1e6,
            )
            for run in runs
        ]

    async def steps(self, run_id: int, profile_name: str | None = None) -> list[Step]:
        """The steps of a run: leased ones, gates, checkpoints, waits and children; `shown` as in `run`."""
        run = await self.row(run_id)
        read = self._store.read
        steps = await read_shown_steps(self._store, run_id)
        attempts: list[AttemptRow] = await read("attempts_of", run_id)
        rows = StepRows(
            now_us=(await read("now"))[0].now_us,
            steps=steps,
            attempts=attempts,
            checkpoints=await read("checkpoints_of", run_id),
            waits=await read("waits_of", run_id),
            approvals=await read("approvals_of", run_id),
            children=await read("children_of", run_id),
            bodies=await read_bodies(self._store, run_id),
        )
        newest = {(a.idx, a.n): a for a in attempts}
        profile = profiles.get(profile_name) if profile_name else profiles.for_display(run.profile)
        seen = [(step, newest.get((step.idx, step.attempt))) for step in steps if step.kind != "body"]
        needs_events = (
            any(_fixed_word(profile, step, attempt) is None or step.attempt > 1 for step, attempt in seen)
        ) or any(c.tries > 1 for c in rows.checkpoints)
        events: list[EventRow] = await read("events_of", run_id) if needs_events else []
        words = {step.idx: step_word(profile, step, attempt, events) for step, attempt in seen}
        failures = {
            failed.step: failed.text
            for failed in find_failed_attempts(events, steps, rows.bodies)
            if failed.text
        }
        return [
            view
            if view.attempt < 2 or view.name not in failures
            else msgspec.structs.replace(view, last_failure=failures[view.name])
            for view in build_steps(rows, words)
        ]

    async def tries(self, run_id: int) -> list[FailedAttempt]:
        """The attempts of a run's steps that failed or were lost, and who took over, in order of time."""
        await self.row(run_id)
        events = await self._store.read("events_of", run_id)
        steps = await read_shown_steps(self._store, run_id)
        return find_failed_attempts(events, steps, await read_bodies(self._store, run_id))

    async def events(self, run_id: int, *, after: int = 0, limit: int = 10_000) -> list[Event]:
        """The run's history, from an event on."""
        await self.row(run_id)
        names = {step.idx: step.name for step in await read_rows(self._store, StepRow, "steps_of", run_id)}
        waits = await read_rows(self._store, WaitRow, "waits_of", run_id)
        labels = {str(wait.no): wait.label for wait in waits}
        rows = await read_rows(self._store, EventRow, "events_after", run_id, after, limit)
        return [to_event(row, names, labels) for row in rows]

    async def approvals(self, run_id: int) -> list[Approval]:
        """Every question of a run, oldest first."""
        await self.row(run_id)
        return await read_approvals(self._store, await self._store.read("approval_details_of", run_id))

    async def open_approvals(self, tenant: str, limit: int = 100) -> list[Approval]:
        """The open questions of a tenant, oldest first."""
        open_now = await self._store.read("approvals_open", tenant, limit)
        rows = [
            row for one in open_now for row in await self._store.read("approval_detail", one.run_id, one.no)
        ]
        return await read_approvals(self._store, rows)
