"""The runs of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import msgspec

from tenure.client.transport import RemoteGroup, drop_none, join_path
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import artifact_name_problem
from tenure.limits import LOG_READ_BYTES_MAX
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
    RunSummary,
    SignalResult,
)
from tenure.shapes.steps import FailedAttempt, Step
from tenure.shapes.test_reports import StepTests

WAIT_SECONDS = 25.0
"""How long one request waits for a run to end, before another is sent."""
_List = list  # `RemoteRuns.list` hides the builtin in annotations of the class


class RemoteRuns(RemoteGroup):
    """`engine.runs`, over HTTP. The owner of the key is the actor: an `actor` that is given is not sent."""

    async def get(self, run_id: str, profile: str | None = None) -> Run:
        """The run, with its input, output and error; in the words of its own profile, unless another is named."""
        return await self._transport.get(join_path("runs", run_id), Run, profile=profile)

    async def version(self, run_id: str) -> int:
        """The length of the run's history. It grows with every change."""
        return int((await self._transport.get(join_path("runs", run_id, "status"), dict[str, Any]))["events"])

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
        """The newest runs that fulfil all conditions; with the `next_cursor` of a list, those that follow it. With a profile, `status` is
        a word of it."""
        lines, next_cursor = await self._transport.part(
            "/runs",
            RunSummary,
            limit=limit,
            cursor=cursor,
            status=status,
            repo=repo,
            workflow=workflow,
            label=[f"{name}={value}" for name, value in (labels or {}).items()],
            parked="true" if parked else None,
            profile=profile,
            shape=None if profile is None else "summary",
        )
        listed = RunPage(lines)
        listed.next_cursor = next_cursor
        return listed

    async def steps(self, run_id: str, profile: str | None = None) -> _List[Step]:
        """The run's steps and checkpoints."""
        return await self._transport.pages(join_path("runs", run_id, "steps"), Step, profile=profile)

    async def events(self, run_id: str, *, after: int = 0) -> _List[Event]:
        """The run's history."""
        return await self._transport.pages(join_path("runs", run_id, "events"), Event, after=after)

    async def failed_attempts(self, run_id: str) -> _List[FailedAttempt]:
        """The attempts that did not succeed."""
        return await self._transport.pages(join_path("runs", run_id, "tries"), FailedAttempt)

    async def logs(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> _List[RunLogLine]:
        """The lines that the run's code has logged."""
        return await self._transport.pages(
            join_path("runs", run_id, "logs"), RunLogLine, limit=limit, after=after
        )

    async def document(self, run_id: str, profile: str, at: str | None = None) -> Any:
        """The run as the document of a profile, or a part of that document."""
        return await self._transport.get(join_path("runs", run_id), dict[str, Any], profile=profile, at=at)

    async def explain(self, run_id: str) -> Explanation:
        """Why the run makes no progress, as one reason."""
        return await self._transport.get(join_path("runs", run_id, "why"), Explanation)

    async def result(self, run_id: str, *, wait: float | None = 0.0) -> Any:
        """The run's output, or its error raised. Waits `wait` seconds for the run to end; None waits without a limit."""
        loop = asyncio.get_running_loop()
        until = None if wait is None else loop.time() + wait
        while True:
            left = WAIT_SECONDS if until is None else max(min(until - loop.time(), WAIT_SECONDS), 0)
            # The error of a failed run may look like a retryable error of the server, so it is not retried.
            params, path = {"wait": round(left, 3)}, join_path("runs", run_id, "result")
            answer = await self._transport.ask("GET", path, params=params, again=False)
            found = msgspec.json.decode(answer.content, type=dict[str, Any])
            if answer.status_code == 200:
                return found["output"]
            if until is not None and loop.time() >= until:
                raise TenureError("COMMAND_DEADLINE", f"{run_id} is still {found.get('status')}")

    async def list_artifacts(self, run_id: str) -> _List[Artifact]:
        """The files that runners have uploaded, by name, step and attempt, including late ones."""
        return await self._transport.pages(join_path("runs", run_id, "artifacts"), Artifact)

    async def read_artifact(
        self,
        run_id: str,
        name: str,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> bytes:
        """The accepted file with this name. Raises ARTIFACT_AMBIGUOUS if several steps have one: name the step and the attempt."""
        problem = artifact_name_problem(name)
        if problem is not None:  # it would address another path
            raise TenureError("ARTIFACT_NOT_FOUND", problem)
        params = {"step": step, "attempt": attempt, "late": None if late is None else str(late).lower()}
        path = join_path("runs", run_id, "artifacts", name)
        return (await self._transport.ask("GET", path, params=params)).content

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
        problem = artifact_name_problem(name)
        if problem is not None:  # it would address another path
            raise TenureError("ARTIFACT_NOT_FOUND", problem)
        params = {"step": step, "attempt": attempt, "late": None if late is None else str(late).lower()}
        async for piece in self._transport.pieces(join_path("runs", run_id, "artifacts", name), params):
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
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while True:
            left = max(min(until - loop.time(), WAIT_SECONDS), 0)
            params = {
                "attempt": attempt,
                "offset": offset,
                "limit": limit,
                "tail": tail,
                "late": str(late).lower(),
                "wait": round(left, 3),
            }
            answer = await self._transport.ask(
                "GET", join_path("runs", run_id, "steps", step, "log"), params=params
            )
            found = _read_log(step, answer.headers.get("tenure-log", ""), answer.content)
            if found.data or found.ended or loop.time() >= until:
                return found

    async def tests(self, run_id: str, step: str | None = None) -> _List[StepTests]:
        """The test reports of the run's jobs, or of one job, by step and attempt."""
        path = ("runs", run_id, "tests") if step is None else ("runs", run_id, "steps", step, "tests")
        return await self._transport.pages(join_path(*path), StepTests)

    async def cancel(self, run_id: str, *, reason: str = "RUN_CANCELED", actor: str | None = None) -> str:
        """Request cancellation. Returns the run's status."""
        return await self._post("status", join_path("runs", run_id, "cancel"), {"reason": reason})

    async def cancel_step(self, run_id: str, name: str, *, actor: str | None = None) -> str:
        """Cancel one step. Returns its state."""
        return await self._post("state", join_path("runs", run_id, "steps", name, "cancel"))

    async def pause(self, run_id: str, *, actor: str | None = None) -> None:
        """Hand out no more steps of the run."""
        await self._transport.ask("POST", join_path("runs", run_id, "pause"))

    async def unpause(self, run_id: str, *, actor: str | None = None) -> None:
        """Hand out the run's steps again."""
        await self._transport.ask("POST", join_path("runs", run_id, "unpause"))

    async def signal(
        self,
        run_id: str,
        event: str,
        data: Any = None,
        *,
        event_id: str | None = None,
        source: str = "",
        actor: str | None = None,
    ) -> SignalResult:
        """Deliver an event to the run."""
        path = join_path("runs", run_id, "signals", event)
        return await self._transport.send(
            "POST", path, SignalResult, drop_none(data=data, event_id=event_id, source=source or None)
        )

    async def resume(
        self, run_id: str, *, actor: str | None = None, happened: Mapping[str, Any] | None = None,
        repeat: Collection[str] = (),
    ) -> str:  # fmt: skip
        """Resume a run. Returns the id of the run that continues."""
        body = {"happened": dict(happened or {}), "repeat": list(repeat)}
        return await self._post("id", join_path("runs", run_id, "resume"), body)

    async def rerun(self, run_id: str, *, actor: str | None = None) -> str:
        """Start the same run again. Returns the id of the new run."""
        return await self._post("id", join_path("runs", run_id, "rerun"))

    async def update(
        self,
        run_id: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> RunMetadata:
        """Change labels and metadata, also of a run that has ended. None removes a name."""
        body = drop_none(labels=labels, metadata=metadata)
        return await self._transport.send("PATCH", join_path("runs", run_id), RunMetadata, body)

    async def revoke_lease(self, run_id: str, step: str | None = None, *, actor: str | None = None) -> str:
        """Revoke the lease of a step. Returns the step's state."""
        return await self._post("state", join_path("runs", run_id, "revoke"), {"step": step})

    async def mark_reported(self, run_id: str, *, actor: str | None = None) -> ReportStatement:
        """State that the run's outcome was reported. This does not change the run's status."""
        found = await self._transport.send("POST", join_path("runs", run_id, "reported"), dict[str, Any])
        return msgspec.convert(found["statement"], ReportStatement)

    async def delete(self, run_id: str, *, actor: str | None = None) -> None:
        """Refused: a server deletes runs by retention only."""
        raise TenureError(
            "INVALID_INPUT", f"{run_id}: a server deletes no runs by hand; use --db where its database is"
        )


def _read_log(step: str, place: str, data: bytes) -> JobLog:
    """A page of a log, from the header that says which bytes these are."""
    fields = dict(one.partition("=")[::2] for one in place.split("; "))
    try:
        return JobLog(
            step=step,
            attempt=int(fields["attempt"]),
            offset=int(fields["offset"]),
            size=int(fields["size"]),
            late_size=int(fields["late"]),
            ended=fields["ended"] == "true",
            data=data,
        )
    except (KeyError, ValueError) as wrong:
        raise TenureError(
            "UPSTREAM_UNAVAILABLE",
            f"the server's response does not say which bytes of the log it has: {place[:100]!r}",
        ) from wrong
