"""Existing runs: read, wait for, control and delete them. (`run_creation` starts runs.)

Law: a change of a run is one command to the orchestrator. Everything else reads committed rows.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime
from math import inf
from typing import Any

import msgspec

from tenure import ids
from tenure.artifacts import is_reference
from tenure.clock import to_datetime, us
from tenure.errors import CODES, TenureError
from tenure.govern.ledger.tenant_ledger import TenantLedger
from tenure.kernel import commands as c
from tenure.kernel import profiles, reruns
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.registry_rows import LogLineRow
from tenure.kernel.run_rows import CLOSED_RUN, AttemptRow, RunRow, StepRow, WaitRow
from tenure.limits import ARTIFACT_BYTES_MAX, ARTIFACTS_PER_RUN_MAX, LOG_READ_BYTES_MAX
from tenure.reads.artifacts import find_artifact, list_artifacts, to_artifact
from tenure.reads.explanation import explain_run
from tenure.reads.file_stream import open_artifact, stream_file
from tenure.reads.job_logs import read_job_log, read_step_tests
from tenure.reads.payloads import decode_payload
from tenure.reads.run_documents import read_document
from tenure.sdk import codec
from tenure.services.evidence import seal_run
from tenure.services.file_sweeper import delete_files
from tenure.services.plans import PlanLike, encode_json_object, encode_payload, make_plan
from tenure.services.run_waiters import POLL_SECONDS_LOCAL, POLL_SECONDS_MAX, POLL_SECONDS_MIN
from tenure.services.scope import Service
from tenure.shapes.events import Event
from tenure.shapes.job_logs import JobLog
from tenure.shapes.runs import (
    Artifact,
    Explanation,
    ReportStatement,
    Run,
    RunLogLine,
    RunMetadata,
    RunPage,
    SignalResult,
)
from tenure.shapes.steps import FailedAttempt, Step
from tenure.shapes.test_reports import StepTests
from tenure.store.uploads import ask_run_deletion

RETENTION_PAGE = 200
LOG_POLL_SECONDS = 0.2
_List = list  # `Runs.list` hides the builtin in annotations of the class


def show_log_line(line: LogLineRow) -> RunLogLine:
    fields = decode_payload(line.fields.encode())
    return RunLogLine(
        no=line.no,
        at=to_datetime(line.at),
        step=line.step,
        level=line.level,
        text=line.text,
        fields=fields if isinstance(fields, dict) else {},
    )


class Runs(Service):
    """The runs of a scope's tenant."""

    # ------------------------------------------------------------------------------------------ reading

    async def get(self, run_id: str, profile: str | None = None) -> Run:
        """The run with its input, output and error, in the words of its profile or of the named one."""
        return await self._scope.reader.run(ids.run_int(run_id), profile)

    async def list(
        self,
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
        """The newest runs that meet all conditions. Pass the `next_cursor` of a page as `cursor` to get the next page. With a
        profile, `status` is a word of it."""
        scope = self._scope
        return await scope.reader.list_runs(
            scope.tenant,
            status=status,
            repo=repo,
            workflow=workflow,
            labels=labels,
            parked=parked,
            profile=profile,
            limit=limit,
            cursor=cursor,
        )

    async def version(self, run_id: str) -> int:
        """The length of the run's history, which grows with each change."""
        return (await self._row(run_id)).version

    async def steps(self, run_id: str, profile: str | None = None) -> _List[Step]:
        return await self._scope.reader.steps(ids.run_int(run_id), profile)

    async def events(self, run_id: str, *, after: int = 0) -> _List[Event]:
        return await self._scope.reader.events(ids.run_int(run_id), after=after)

    async def failed_attempts(self, run_id: str) -> _List[FailedAttempt]:
        return await self._scope.reader.tries(ids.run_int(run_id))

    async def logs(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> _List[RunLogLine]:
        """The lines that the run's code has logged, after the line with number `after`."""
        run = await self._row(run_id)
        lines: _List[LogLineRow] = await self._scope.store.read("log_lines_of", run.id, after, limit)
        return [show_log_line(line) for line in lines]

    async def document(self, run_id: str, profile: str, at: str | None = None) -> Any:
        """The run as the document that a profile defines, or the part of that document at a path."""
        return await read_document(self._scope.reader, self._scope.store, ids.run_int(run_id), profile, at)

    async def explain(self, run_id: str) -> Explanation:
        """The reason why the run does not make progress."""
        reader, number = self._scope.reader, ids.run_int(run_id)
        return await explain_run(self._scope.store, await reader.row(number), await reader.spec(number))

    async def list_artifacts(self, run_id: str) -> _List[Artifact]:
        """The files that runners have uploaded for the run, including late ones."""
        run = await self._row(run_id)
        rows = await list_artifacts(self._scope.store, run.id, limit=ARTIFACTS_PER_RUN_MAX)
        return [to_artifact(row) for row in rows]

    async def read_artifact(
        self,
        run_id: str,
        name: str,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> bytes:
        """The accepted file with this name. If several steps have one (ARTIFACT_AMBIGUOUS), name the step and the attempt."""
        run = await self._row(run_id)
        row = await find_artifact(self._scope.store, run.id, name, step=step, attempt=attempt, late=late)
        if row.size > ARTIFACT_BYTES_MAX:
            raise TenureError(
                "PAYLOAD_TOO_LARGE", f"artifact {name!r} has {row.size} bytes: read it with `stream_artifact`"
            )
        file = await open_artifact(self._scope.store, row)
        return b"".join([piece async for piece in stream_file(self._scope.artifacts, file)])

    async def stream_artifact(
        self,
        run_id: str,
        name: str,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> AsyncIterator[bytes]:
        """The bytes of a file of any size, in pieces. It is found as by `read_artifact`."""
        run = await self._row(run_id)
        row = await find_artifact(self._scope.store, run.id, name, step=step, attempt=attempt, late=late)
        file = await open_artifact(self._scope.store, row)
        async for piece in stream_file(self._scope.artifacts, file):
            yield piece

    async def read_log(
        self,
        run_id: str,
        step: str,
        *,
        attempt: int | None = None,
        offset: int = 0,
        limit: int = LOG_READ_BYTES_MAX,
        tail: int | None = None,
        late: bool = False,
        wait: float = 0.0,
    ) -> JobLog:
        """Bytes of the log of a job from `offset`, at most `limit`; or its last `tail` lines. Without an `attempt`, of the newest one.
        With `late`, also what arrived after the end of the lease. If there is nothing yet, wait up to `wait` seconds."""
        run, loop = await self._row(run_id), asyncio.get_running_loop()
        until = loop.time() + wait
        while True:
            found = await read_job_log(
                self._scope.store,
                self._scope.artifacts,
                run.id,
                step,
                attempt=attempt,
                offset=offset,
                limit=limit,
                tail=tail,
                late=late,
            )
            left = until - loop.time()
            if found.data or found.ended or left <= 0:
                return found
            await asyncio.sleep(min(LOG_POLL_SECONDS, left))

    async def tests(self, run_id: str, step: str | None = None) -> _List[StepTests]:
        """The test reports of the run's jobs, or of one job, by step and attempt."""
        run = await self._row(run_id)
        return await read_step_tests(self._scope.store, run.id, step)

    # ------------------------------------------------------------------------------------------ results

    async def result(self, run_id: str, *, wait: float | None = 0.0) -> Any:
        """The run's output. Raises the error of a run that did not succeed, and COMMAND_DEADLINE if the run does not end within `wait`
        seconds. None: wait for ever."""
        return decode_payload(await self.output(run_id, wait=wait))

    async def output(self, run_id: str, *, wait: float | None = 0.0) -> bytes | None:
        """The bytes of the run's output. A restarted run is followed to its last successor."""
        given = run_id
        while True:
            body = await self._output(ids.run_int(run_id), wait, may_be_missing=run_id != given)
            if body is None or not body.startswith(codec.RESERVED):
                return body
            if is_reference(body):
                return await self._scope.artifacts.get(body)
            run_id = codec.decode_restart(body)

    async def _output(self, number: int, wait: float | None, *, may_be_missing: bool) -> bytes | None:
        scope, loop = self._scope, asyncio.get_running_loop()
        deadline = inf if wait is None else loop.time() + wait
        pause = POLL_SECONDS_MIN
        run: RunRow | None = None
        with scope.runtime.waiters.waiting(number) as waiter:
            while not waiter.succeeded:
                local = any(worker.holds(scope.tenant, number) for worker in scope.runtime.workers)
                if not local:  # a local worker notifies the waiter
                    run = await self._find(number, may_be_missing)
                    if run is not None and run.status in CLOSED_RUN:
                        break
                left = min(POLL_SECONDS_LOCAL if local else pause, deadline - loop.time())
                if left <= 0:
                    run = run or await self._find(number, may_be_missing)
                    status = "not created yet" if run is None else run.status
                    raise TenureError(
                        "COMMAND_DEADLINE", f"run {ids.run_text(number)} is still {status}", status=status
                    )
                await waiter.wait(left)
                pause = min(pause * 1.5, POLL_SECONDS_MAX)
            if waiter.succeeded:
                return waiter.output
        assert run is not None
        if run.status == "succeeded":
            return await scope.read_payload(number, run.output_ref)
        raise await self._failure(run)

    async def _find(self, number: int, may_be_missing: bool) -> RunRow | None:
        """The run's row. A successor that the outbox has not created yet may be missing."""
        try:
            return await self._scope.reader.row(number)
        except TenureError as refused:
            if may_be_missing and refused.code == "RUN_NOT_FOUND":
                return None
            raise

    async def _failure(self, run: RunRow) -> TenureError:
        """The error of a run that did not succeed. A user's own code is its `reason`."""
        reason = run.reason or "STEP_FAILED"
        code = "RUN_CANCELED" if run.status == "canceled" else reason if reason in CODES else "STEP_FAILED"
        error = decode_payload(await self._scope.read_payload(run.id, run.error_ref))
        cause = f": {error}" if error is not None else ""
        message = f"{ids.run_text(run.id)} {run.status} ({reason}){cause}"
        return TenureError(code, message, status=run.status, reason=reason, error=error)

    # --------------------------------------------------------------------------------------------- plans

    async def add_steps(self, run_id: str, plan: PlanLike) -> None:
        """Add steps to a run that has not ended."""
        await self._scope.send(c.AddSteps(**self._scope.address(run_id), plan=make_plan(plan)))

    # ------------------------------------------------------------------------------------------- control

    async def cancel(
        self, run_id: str, *, reason: str = "RUN_CANCELED", actor: str | None = None, involved: str = ""
    ) -> str:
        """Request cancellation. Returns the new status: `canceling` while work is being stopped."""
        address = self._scope.address(run_id, actor)
        return await self._stop(c.RequestCancel(**address, reason=reason, involved=involved), "status")

    async def cancel_step(
        self, run_id: str, name: str, *, actor: str | None = None, involved: str = ""
    ) -> str:
        """Cancel one step. Returns its new state."""
        address = self._scope.address(run_id, actor)
        return await self._stop(c.CancelStep(**address, name=name, involved=involved), "state")

    async def _stop(self, command: c.RequestCancel | c.CancelStep | c.RevokeLease, field: str) -> str:
        """Send a command that takes work from workers, and return a field of its result."""
        answer = await self._scope.send(command)
        self._scope.notify_workers(command.run_id)
        return str(answer[field])

    async def pause(self, run_id: str, *, actor: str | None = None) -> None:
        """Lease no further step of the run. Work in progress continues, and deadlines still apply."""
        await self._scope.send(c.Pause(**self._scope.address(run_id, actor)))

    async def unpause(self, run_id: str, *, actor: str | None = None) -> None:
        """Lease steps again, even if the run was parked."""
        await self._scope.send(c.Unpause(**self._scope.address(run_id, actor)))

    async def signal(
        self,
        run_id: str,
        event: str,
        data: Any = None,
        *,
        event_id: str | None = None,
        source: str = "",
        actor: str | None = None,
        involved: str = "",
    ) -> SignalResult:
        """Deliver an event to the run. An `event_id` counts once; without one, every call is a new event.

        The sender and the people in `involved` (`id id`) become involved in the run when it takes the event.
        """
        scope, run = self._scope, await self._row(run_id)
        command = c.DeliverEvent(
            **scope.address(run_id, actor),
            name=event,
            event_id=event_id or f"evt:{secrets.token_hex(8)}",
            source=source,
            payload=await scope.store_payload(encode_payload(data, aside=True), run_id),
            involved=involved,
        )
        answer = await scope.send(command)
        taken = bool(answer["taken"])
        waits: _List[WaitRow] = [] if taken else await scope.store.read("waits_of", run.id)
        names = (w.name for w in waits if w.state == "open" and w.kind == "event" and w.name != event)
        return SignalResult(taken=taken, again=bool(answer["again"]), awaited=tuple(dict.fromkeys(names)))

    async def update(
        self,
        run_id: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str | None = None,
        involved: str = "",
    ) -> RunMetadata:
        """Set labels and metadata by name, even of a finished run. None removes a name. The actor and the people in `involved`
        (`id id`) become involved in the run, and cannot approve it."""
        command = c.UpdateMetadata(
            **self._scope.address(run_id, actor),
            labels=None if labels is None else encode_json_object(labels),
            metadata=None if metadata is None else encode_json_object(metadata),
            merge=True,
            involved=involved,
        )
        result = await self._scope.send(command)
        return RunMetadata(
            id=run_id,
            labels=msgspec.json.decode(result["labels"]),
            metadata=msgspec.json.decode(result["metadata"]),
        )

    async def revoke_lease(
        self, run_id: str, step: str | None = None, *, actor: str | None = None, involved: str = ""
    ) -> str:
        """Take a step from its worker. Later messages of that worker are ignored. Returns the step's new state.

        The attempt counts, and the step is leased again if it has attempts left. Name the `step` if several are leased.
        """
        held = await self._leased_attempt(await self._row(run_id), step)
        address = self._scope.address(run_id, actor)
        return await self._stop(c.RevokeLease(**address, idx=held.idx, n=held.n, involved=involved), "state")

    async def _leased_attempt(self, run: RunRow, name: str | None) -> AttemptRow:
        """The leased attempt of the named step, or the only leased attempt of the run."""
        if run.status in CLOSED_RUN:
            raise TenureError("RUN_TERMINAL_STATE", f"run {ids.run_text(run.id)} is already {run.status}")
        steps: _List[StepRow] = await self._scope.store.read("steps_of", run.id)
        names = {step.idx: step.name for step in steps}
        if name is not None and name not in names.values():
            raise TenureError(
                "STEP_NOT_FOUND", f"run {ids.run_text(run.id)} has no step {name!r} that can be leased"
            )
        attempts: _List[AttemptRow] = await self._scope.store.read("attempts_of", run.id)
        held = [a for a in attempts if a.lease in LIVE_LEASE and name in (None, names[a.idx])]
        if not held:
            what = "a step of the run" if name is None else f"step {name!r}"
            raise TenureError("RUN_INVALID_TRANSITION", f"no worker holds {what}")
        if len(held) > 1:
            listed = ", ".join(names[attempt.idx] for attempt in held)
            raise TenureError("INVALID_INPUT", f"several steps are leased; name one of {listed}")
        return held[0]

    async def mark_reported(self, run_id: str, *, actor: str | None = None) -> ReportStatement:
        """Record a person's statement that the end of a run was reported. The first statement counts. The run's status does not change:
        only the status reporter makes it REPORTED."""
        stated = await self._scope.send(c.AttestReported(**self._scope.address(run_id, actor)))
        return ReportStatement(by=stated["by"], at=to_datetime(stated["at"]))

    # ---------------------------------------------------------------------------------- resuming, rerunning

    async def resume(
        self, run_id: str, *, actor: str | None = None, happened: Mapping[str, Any] | None = None,
        repeat: Collection[str] = (),
    ) -> str:  # fmt: skip
        """Continue a run. Returns the id of the run that continues.

        A finished run continues as a new run that reuses completed work. A run that waits for an event or a time continues by
        ending that wait; an approval is never ended this way. A step that has begun and is not safe to repeat is named in
        `happened` (with what it returned) or in `repeat` (if it did not happen).
        """
        command = await self.build_resumed(run_id, actor=actor, happened=happened, repeat=repeat)
        return run_id if command is None else await self._scope.create(command)

    async def build_resumed(
        self, run_id: str, *, actor: str | None = None, happened: Mapping[str, Any] | None = None,
        repeat: Collection[str] = (), involved: str = "",
    ) -> c.CreateRun | None:  # fmt: skip
        """The command that creates the continuing run. None: the run was waiting, and its wait has been ended."""
        scope, run = self._scope, await self._row(run_id)
        if run.status not in CLOSED_RUN:
            await scope.send(c.EndWait(**scope.address(run_id, actor), involved=involved))
            return None
        outputs = {
            name: await scope.store_payload(encode_payload(output, aside=True), run_id)
            for name, output in (happened or {}).items()
        }
        finished, new_id = await self._finished(run), scope.orchestrator.new_id(run.tenant)
        return reruns.build_resumed_run(
            finished, new_id, scope.context(actor), happened=outputs, repeat=repeat
        )

    async def rerun(self, run_id: str, *, actor: str | None = None) -> str:
        """Start a new run of the same plan, linked to the finished one. Returns its id."""
        return await self._scope.create(await self.build_rerun(run_id, actor=actor))

    async def build_rerun(self, run_id: str, *, actor: str | None = None) -> c.CreateRun:
        """The command that creates the new run."""
        scope = self._scope
        old = first = await self._finished(await self._row(run_id))
        while first.spec.resumed_from is not None:
            first = await self._finished(await scope.reader.row(first.spec.resumed_from))
        new_id = scope.orchestrator.new_id(old.run.tenant)
        return reruns.build_rerun(old, first, new_id, scope.context(actor))

    async def _finished(self, run: RunRow) -> reruns.FinishedRun:
        read = self._scope.store.read
        return reruns.FinishedRun(
            run,
            await self._scope.reader.spec(run.id),
            await read("steps_of", run.id),
            await read("checkpoints_of", run.id),
            await read("payloads_of", run.id),
        )

    # ----------------------------------------------------------------------------------------- retention

    async def delete(self, run_id: str, *, actor: str | None = None) -> None:
        """Seal a finished run, then delete it with its history and payloads."""
        scope, address = self._scope, self._scope.address(run_id, actor)
        if await self._needs_seal():
            await self._row(run_id)
            await seal_run(scope, address["run_id"])
        await self._row(run_id)
        deletion = await ask_run_deletion(scope.store, address["run_id"])
        for command in (c.SealRun, c.DeleteRun):
            await scope.send(command(**address))
        await delete_files(scope.store, scope.artifacts, deletion)

    async def delete_finished(self, before: datetime) -> int:
        """Seal and delete the runs that ended before a time. Returns their number."""
        limit_us, deleted = us(before.timestamp()), 0
        for status in sorted(CLOSED_RUN):
            while (found := await self._delete_some(status, limit_us)) > 0:
                deleted += found
        return deleted

    async def _delete_some(self, status: str, before_us: int) -> int:
        """One pass over the runs of a status, newest first. Runs with the same time as the end of a page are left to the next pass. Runs
        whose profile this process lacks are skipped."""
        scope, deleted, at = self._scope, 0, before_us
        while rows := await scope.store.read("runs_by_status", scope.tenant, status, at, RETENTION_PAGE):
            due = [r for r in rows if profiles.find(r.profile) and (r.finished_at or before_us) < before_us]
            if await self._needs_seal():
                for run in due:
                    await seal_run(scope, run.id)
            deletions = [await ask_run_deletion(scope.store, run.id) for run in due]
            for command in (c.SealRun, c.DeleteRun):
                context = scope.context(initiator="policy", cause="retention")
                commands = (command(run_id=run.id, tenant=scope.tenant, context=context) for run in due)
                await asyncio.gather(*map(scope.orchestrator.send, commands))
            for deletion in deletions:
                await delete_files(scope.store, scope.artifacts, deletion)
            deleted += len(due)
            at = rows[-1].created_at
        return deleted

    async def _needs_seal(self) -> bool:
        scope = self._scope
        return scope.runtime.seals or await TenantLedger(scope.store, scope.tenant).size() > 0

    async def _row(self, run_id: str) -> RunRow:
        """The run's row; RUN_NOT_FOUND for another tenant's run."""
        return await self._scope.reader.row(ids.run_int(run_id))
