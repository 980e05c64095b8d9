"""The status reporter: shows runs as checks of their commits, and makes them REPORTED.

Laws:
1. It may run in every process. The process that takes a report writes everything for its run, in order, under a fence (`store.vcs_reports`);
   a process that has lost a report sends nothing more for it.
2. It reads the run's rows and writes what differs. So intermediate states are merged, nothing goes backwards (I62), and nothing is lost
   when the feed is.
3. Before something is written, the intention is recorded. After a crash or a lost answer it is looked for first, so that there is one
   check run for each job, and a process that crashes again and again still makes progress.
4. A run is REPORTED only after the VCS has accepted its final state and shown it when it was read back (I63).
5. What fails is tried again, without end, with growing pauses; a rate limit pauses its installation until it is over. What the VCS
   refuses for good is listed, and the run is not REPORTED; a person can retry it.
6. No text that GitHub sends is trusted: ids and states are compared, messages are cut.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec

from tenure import clock, ids
from tenure.errors import TenureError
from tenure.kernel.ci_rows import TestReportRow
from tenure.kernel.commands import Context, MarkReported
from tenure.kernel.feed import decode_feed_lines
from tenure.kernel.run_rows import CLOSED_STEP, AttemptRow, RunRow, RunSpecRow, StepRow
from tenure.kernel.server_rows import VcsCheckRow, VcsReportRow
from tenure.logs import get_logger
from tenure.orchestrator.core import Orchestrator
from tenure.processes import ProcessIdentity, is_gone, own_identity
from tenure.publish.check_states import (
    COMPLETED,
    IN_PROGRESS,
    JOB_PREFIX,
    STATUS_PART,
    CheckState,
    RunPicture,
    StatusState,
    build_job_check,
    build_run_check,
    build_status,
    choose_gates,
    choose_jobs,
    find_begins,
    make_subject,
)
from tenure.publish.github_checks import GitHubChecks, ReportPostponed, ReportRefused, read_id
from tenure.publish.vcs_settings import VcsInstallation, VcsSettings
from tenure.reads.payloads import read_payload
from tenure.shapes.reports import VcsTarget
from tenure.shapes.test_reports import TestReport
from tenure.store.feed import FeedRepository
from tenure.store.transactions import read_first, read_rows
from tenure.store.vcs_reports import TakenReport, VcsReports, WantedReport
from tenure.work_pool import LARGE_BYTES, run_in_pool

log = get_logger(__name__)

ACTOR = "status-reporter"
POLL_SECONDS = 0.5
FAULT_SECONDS = 2.0
"""The pause after a round that failed."""
SCAN_SECONDS = 60.0
"""How often all runs with a target are looked at, for what the feed did not show."""
PAGE_ROWS = 500
CONCURRENT_REPORTS_MAX = 16
TAKEN_SECONDS = 60.0
"""How long a process has a report. Every write renews it."""
SEND_SECONDS_MAX = 15.0
IN_FLIGHT_SECONDS = 3.0
"""How long a request of a dead process may still be on its way."""
MERGE_SECONDS = 1.0
"""States of a run that follow each other faster than this are merged."""
LIMIT_SECONDS_MIN = 1.0
"""A rate limit's reset is in whole seconds."""
DELAYS_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
ERROR_CHARS_MAX = 500
STOP_SECONDS = 2.0
FEW_CASES = 20
"""Failed tests whose places are looked for on the event loop."""
_NOTHING = b""


class ReportLost(Exception):
    """Another process has taken the report."""


class _Hold:
    """This process's hold of a report: until when it may send, by `clock.boot_seconds()`."""

    def __init__(self, reports: VcsReports, row: VcsReportRow, began: float) -> None:
        self._reports = reports
        self.row = row
        self._until = began + TAKEN_SECONDS

    def deadline(self) -> float:
        """The end of a request that begins now (law 1)."""
        return min(clock.boot_seconds() + SEND_SECONDS_MAX, self._until - IN_FLIGHT_SECONDS)

    async def renew(self) -> None:
        began = clock.boot_seconds()
        if not await self._reports.keep(self.row, TAKEN_SECONDS):
            raise ReportLost
        self._until = began + TAKEN_SECONDS

    async def free(self) -> None:
        """Let another process take the report, when a request under way must have arrived."""
        taken = TakenReport(self.row.run_id, self.row.fence, "")
        await self._reports.free(taken, IN_FLIGHT_SECONDS)

    async def record(self, check: VcsCheckRow) -> None:
        began = clock.boot_seconds()
        if not await self._reports.put_check(self.row, check, TAKEN_SECONDS):
            raise ReportLost
        self._until = began + TAKEN_SECONDS


class VcsReporter:
    """See the laws above."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        settings: VcsSettings,
        *,
        public_url: str | None = None,
    ) -> None:
        """`public_url` is where people reach the server; checks link to the page of their run below it."""
        self._orchestrator = orchestrator
        self._store = orchestrator.store
        self._reports = VcsReports(self._store)
        self._feed = FeedRepository(self._store)
        self._settings = settings
        self._public_url = None if public_url is None else public_url.rstrip("/")
        identity = own_identity()
        self._identity = identity
        self._holder = "?" if identity is None else msgspec.json.encode(identity).decode()
        self._place: int | None = None
        self._scan_at = 0.0
        self._limited: dict[int, float] = {}
        """Installation -> when its rate limit is over, by `time.monotonic()`."""
        self._woken = asyncio.Event()
        self._under_way: dict[int, tuple[asyncio.Task[None], _Hold]] = {}
        self._task: asyncio.Task[None] | None = None

    # -------------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        await self._feed.open()
        self._task = asyncio.create_task(self._repeat(self._look), name="tenure-vcs-reporter")

    async def stop(self) -> None:
        """Stop. Reports in progress get a moment; other processes continue the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        under_way = list(self._under_way.values())
        if under_way:
            await asyncio.wait([task for task, _ in under_way], timeout=STOP_SECONDS)
        for task, hold in under_way:
            if task.cancel():
                await asyncio.gather(task, return_exceptions=True)
                with suppress(TenureError):  # otherwise the hold expires by itself
                    await hold.free()

    def wake(self) -> None:
        """Look now, because this process has just committed."""
        self._woken.set()

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
                continue
            except TenureError as refused:
                log.warning("vcs_reporter_failed", error=refused.code, message=refused.message)
            except Exception:
                log.error("vcs_reporter_failed", traceback=traceback.format_exc())
            await asyncio.sleep(FAULT_SECONDS)

    async def _look(self) -> None:
        """One round: open reports of new runs, and begin with those that are due."""
        self._woken.clear()
        await self._open_reports()
        room = CONCURRENT_REPORTS_MAX - len(self._under_way)
        if room > 0 and await self._reports.is_any_due():
            began = clock.boot_seconds()
            for row in await self._reports.take(self._holder, TAKEN_SECONDS, room):
                hold = _Hold(self._reports, row, began)
                task = asyncio.create_task(self._report(hold))
                self._under_way[row.run_id] = (task, hold)
                task.add_done_callback(partial(self._ended, row.run_id))
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._woken.wait()

    def _ended(self, run_id: int, _task: asyncio.Task[None]) -> None:
        self._under_way.pop(run_id, None)
        self._woken.set()

    # ------------------------------------------------------------------------------------------- new reports

    async def _open_reports(self) -> None:
        """Insert the reports of new runs: of those in the feed, and from time to time of all."""
        if self._place is None or time.monotonic() >= self._scan_at:
            self._scan_at = time.monotonic() + SCAN_SECONDS
            # The position first: a run that is created now is in the feed behind it, or found by the scan.
            self._place = (await self._feed.bounds()).head
            await self._open_after(0)
            await self._free_dead()
            await self._reports.delete_orphans()
            return
        rows = await self._feed.after(self._place, PAGE_ROWS)
        if rows:
            items = [item for row in rows for item in decode_feed_lines(row.body)]
            created = [item.run_id for item in items if item.before is None]
            if created:
                await self._open_after(min(created) - 1)
            self._place = rows[-1].pos
            if len(rows) == PAGE_ROWS:
                self._woken.set()
        await self._free_dead()

    async def _open_after(self, run_id: int) -> None:
        while wanted := await self._reports.wanted(run_id, PAGE_ROWS):
            await self._reports.open([(one, _subject(one)) for one in wanted])
            run_id = wanted[-1].run_id
            if len(wanted) < PAGE_ROWS:
                break

    async def _free_dead(self) -> None:
        """Free the reports of processes of this host that are proven dead."""
        if self._identity is None:
            return
        for taken in await self._reports.taken():
            with suppress(msgspec.MsgspecError):
                other = msgspec.json.decode(taken.holder, type=ProcessIdentity)
                if is_gone(other, self._identity):
                    await self._reports.free(taken, IN_FLIGHT_SECONDS)
                    log.info("vcs_report_freed", run=ids.run_text(taken.run_id), pid=other.pid)

    # ------------------------------------------------------------------------------------------- one report

    async def _report(self, hold: _Hold) -> None:
        """Bring the checks of one run up to date, and record the outcome (law 5)."""
        row, run_text = hold.row, ids.run_text(hold.row.run_id)
        try:
            seen, reported = await self._bring_up_to_date(hold)
        except ReportLost:
            log.info("vcs_report_lost", run=run_text, fence=row.fence)
            return
        except ReportRefused as refused:
            error = str(refused)[:ERROR_CHARS_MAX]
            log.warning("vcs_report_refused", run=run_text, tenant=row.tenant, error=error)
            refusal = msgspec.structs.replace(row, state="refused", tries=row.tries + 1, error=error)
            await self._put(refusal, None)
            return
        except ReportPostponed as postponed:
            pause = DELAYS_SECONDS[min(row.tries, len(DELAYS_SECONDS) - 1)]
            if postponed.limited:
                pause = max(postponed.seconds, LIMIT_SECONDS_MIN)
            await self._postpone(row, str(postponed), pause)
            return
        except TenureError as refused:  # the database
            await self._postpone(row, f"{refused.code}: {refused.message}", DELAYS_SECONDS[0])
            return
        except Exception:  # a defect must not affect other reports
            log.error("vcs_report_failed", run=run_text, traceback=traceback.format_exc())
            await self._postpone(row, "INTERNAL_ERROR: the log says why", DELAYS_SECONDS[-1])
            return
        done = msgspec.structs.replace(row, seen=seen, tries=0, error=None)
        if reported:
            await self._put(msgspec.structs.replace(done, state="reported"), None)
            log.info("vcs_reported", run=run_text, tenant=row.tenant)
        else:
            await self._put(done, MERGE_SECONDS)

    async def _postpone(self, row: VcsReportRow, error: str, seconds: float) -> None:
        log.warning("vcs_report_postponed", run=ids.run_text(row.run_id), error=error, seconds=seconds)
        later = msgspec.structs.replace(row, tries=row.tries + 1, error=error[:ERROR_CHARS_MAX])
        await self._put(later, max(seconds, 0.1))

    async def _put(self, row: VcsReportRow, after_seconds: float | None) -> None:
        try:
            await self._reports.put(row, after_seconds)
        except TenureError as fault:  # the hold expires, and the report is made again
            log.warning("vcs_report_not_recorded", run=ids.run_text(row.run_id), error=fault.code)

    async def _bring_up_to_date(self, hold: _Hold) -> tuple[int, bool]:
        """Write what differs. Returns the version of the run that was written, and whether the run is REPORTED."""
        run = await read_first(self._store, RunRow, "get_run", hold.row.run_id)
        spec = await read_first(self._store, RunSpecRow, "get_spec", hold.row.run_id)
        if run is None or spec is None or spec.vcs_target is None:
            raise ReportRefused("the run no longer exists")
        target = msgspec.json.decode(spec.vcs_target, type=VcsTarget)
        place = self._settings.find(run.tenant, target)
        if place is None:
            raise ReportRefused(
                f"tenant {run.tenant} may not report to {target.repository}: list it in the VCS settings file"
            )
        self._check_limit(place.installation)
        checks = await self._reports.checks(run.id)
        picture = await self._draw(run, target)
        writer = _CheckWriter(
            hold, GitHubChecks(self._settings.app, place.installation, target, hold.deadline), checks
        )
        try:
            await self._write(writer, picture, place)
        except ReportPostponed as postponed:
            if postponed.limited:
                self._limited[place.installation] = time.monotonic() + postponed.seconds
            raise
        if not picture.is_final:
            return run.version, False
        context = Context(ACTOR, "system", f"vcs:{target}")
        await self._orchestrator.send(MarkReported(run_id=run.id, context=context, target=spec.vcs_target))
        return run.version, True

    def _check_limit(self, installation: int) -> None:
        left = self._limited.get(installation, 0.0) - time.monotonic()
        if left > 0:
            raise ReportPostponed("the installation's rate limit is used up", seconds=left, limited=True)

    async def _draw(self, run: RunRow, target: VcsTarget) -> RunPicture:
        """Read what the report shows. The run was read first, so its steps are at least as new."""
        steps = await read_rows(self._store, StepRow, "steps_of", run.id)
        attempts = await read_rows(self._store, AttemptRow, "attempts_of", run.id)
        link = None if self._public_url is None else f"{self._public_url}/runs/{ids.run_text(run.id)}/page"
        jobs, jobs_left_out = choose_jobs(steps)
        return RunPicture(
            run=run,
            target=target,
            jobs=jobs,
            jobs_left_out=jobs_left_out,
            gates=choose_gates(steps),
            begun=find_begins(attempts),
            error=await read_payload(self._store, run.id, run.error_ref),
            details_url=link,
        )

    async def _write(self, writer: _CheckWriter, picture: RunPicture, place: VcsInstallation) -> None:
        """Write the run's own check first while it runs, and last when it has ended, so that it completes the list."""
        status = build_status(picture) if place.statuses else None
        if not picture.is_final:
            if status is not None:
                await self._write_status(writer, status)
            await writer.write(build_run_check(picture))
            for step in picture.jobs:
                await self._write_job(writer, picture, step)
            return
        for step in picture.jobs:
            await self._write_job(writer, picture, step)
        await writer.write(build_run_check(picture))
        if status is not None:
            await self._write_status(writer, status)
        states = [*(build_job_check(picture, step) for step in picture.jobs), build_run_check(picture)]
        await writer.read_back(states, status)

    async def _write_job(self, writer: _CheckWriter, picture: RunPicture, step: StepRow) -> None:
        """Write one job. Its payloads are read one job at a time, because a run may have many."""
        if writer.is_complete(f"{JOB_PREFIX}{step.name}"):
            return
        output = error = tests = None
        if step.state in CLOSED_STEP:
            output = await read_payload(self._store, step.run_id, step.output_ref)
            error = await read_payload(self._store, step.run_id, step.error_ref)
            tests = await self._read_tests(step)
        large = tests is not None and len(tests.failed_cases) > FEW_CASES
        build = partial(build_job_check, picture, step, output, error, tests)
        await writer.write(await run_in_pool(build) if large else build())
        await asyncio.sleep(0)  # a run with many jobs must not hold the event loop

    async def _read_tests(self, step: StepRow) -> TestReport | None:
        """The test report of a job's last attempt. One that arrived after the attempt had ended is not part of the job's result."""
        row = await read_first(
            self._store, TestReportRow, "test_report_of", step.run_id, step.idx, step.attempt
        )
        if row is None or row.late:
            return None
        if len(row.body) > LARGE_BYTES:
            return await run_in_pool(_decode_tests, row.body)
        return _decode_tests(row.body)

    async def _write_status(self, writer: _CheckWriter, status: StatusState) -> None:
        # A newer run of the same subject has the same context: an older run must not overwrite its status.
        if not await self._reports.has_newer(writer.hold.row):
            await writer.write_status(status)


def _decode_tests(body: bytes) -> TestReport:
    return msgspec.json.decode(body, type=TestReport)


def _subject(wanted: WantedReport) -> str:
    return make_subject(msgspec.json.decode(wanted.vcs_target, type=VcsTarget), wanted.workflow)


def _is_complete(row: VcsCheckRow | None) -> bool:
    return row is not None and row.phase == COMPLETED and row.digest != _NOTHING


class _CheckWriter:
    """Writes the checks of one run, one after the other, and records each."""

    def __init__(self, hold: _Hold, api: GitHubChecks, known: dict[str, VcsCheckRow]) -> None:
        self.hold = hold
        self._api = api
        self._known = known

    def is_complete(self, part: str) -> bool:
        """Whether the final state of a check was written."""
        return _is_complete(self._known.get(part))

    async def _record(self, part: str, check_id: int | None, phase: int, digest: bytes) -> None:
        row = VcsCheckRow(self.hold.row.run_id, part, check_id, phase, digest)
        await self.hold.record(row)
        self._known[part] = row

    async def write(self, state: CheckState) -> None:
        """Create or update one check run, unless it shows the state already."""
        row = self._known.get(state.part)
        if _is_complete(row):
            return
        if row is not None and state.phase < row.phase:  # a phase never falls
            state = msgspec.structs.replace(state, phase=row.phase)
        if row is not None and row.digest == state.digest:
            return
        check_id = await self._find_or_create(row, state)
        await self._record(state.part, check_id, state.phase, state.digest)

    async def _find_or_create(self, row: VcsCheckRow | None, state: CheckState) -> int:
        """Make GitHub show a state, and return the id of its check run. An interrupted write is looked for first (law 3): a second check
        run, or a second set of annotations, could not be taken back."""
        if row is None:
            await self._record(state.part, None, 0, _NOTHING)
            return await self._api.create(state)
        if row.check_id is None:
            found = await self._api.find(state)
        elif row.digest == _NOTHING:
            found = await self._api.read(row.check_id)
        else:
            found = {"id": row.check_id}
            await self._record(state.part, row.check_id, row.phase, _NOTHING)
        if found is None:
            return await self._api.create(state)
        if not state.is_shown_by(found):
            await self._api.update(read_id(found), state)
        return read_id(found)

    async def write_status(self, state: StatusState) -> None:
        row = self._known.get(STATUS_PART)
        if row is not None and (row.digest == state.digest or state.phase < row.phase):
            return
        if state.phase == IN_PROGRESS and row is not None and row.digest != _NOTHING:
            return  # `pending` either way
        unsure = row is not None and row.digest == _NOTHING
        await self._record(STATUS_PART, None, 0 if row is None else row.phase, _NOTHING)
        if not (unsure and await self._api.has_status(state)):
            await self._api.set_status(state)
        await self._record(STATUS_PART, None, state.phase, state.digest)

    async def read_back(self, states: list[CheckState], status: StatusState | None) -> None:
        """Compare what GitHub shows with the final states (law 4). What differs is written again by the next try."""
        await self.hold.renew()
        shown = await self._api.read_all()
        wrong = []
        for state in states:
            check = self._known[state.part]
            assert check.check_id is not None
            found = shown.get(check.check_id)
            if found is None or not state.is_shown_by(found):
                await self.hold.renew()
                found = await self._api.read(check.check_id)
            if not state.is_shown_by(found):
                wrong.append(state.name)
                await self._record(state.part, check.check_id, check.phase, _NOTHING)
        row = self._known.get(STATUS_PART)
        # Its final status is not written if a newer run has taken over the context.
        if status is not None and _is_complete(row) and not await self._api.has_status(status):
            wrong.append(status.context)
            await self._record(STATUS_PART, None, COMPLETED, _NOTHING)
        if wrong:
            raise ReportPostponed(f"GitHub does not show the final state of {', '.join(wrong[:5])}")
