"""What lies beside the runs, written: schedules, workers, workflows and log lines.

Laws:
1. Each operation is one small transaction of its own, with the store's time; none touches a run's rows.
2. What was meant for one state of a row and finds another is a normal, named outcome, never half done.
3. After a commit of unknown fate the caller is told STORE_UNAVAILABLE and may repeat: registrations say the same
   twice, schedules name the revision they expect, and a log line may then be there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.beside import LogLine, RegisteredWorkflow, Schedule, SeenWorker, WorkerProcess
from tenure.limits import (
    LABEL_CHARS_MAX,
    LOG_FIELDS_BYTES_MAX,
    LOG_LINES_PER_RUN_MAX,
    LOG_TEXT_CHARS_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    WORKER_FORGOTTEN_SECONDS,
    WORKER_SILENT_SECONDS,
)
from tenure.store.port import Ambiguous, Answer, Conflict, Query, Rejected, Save, Saved, Transaction

T = TypeVar("T")


class SessionLease(msgspec.Struct, gc=False):
    """A live lease of a session."""

    run_id: int
    idx: int
    n: int


READS: dict[str, Answer] = {
    "schedules_due": Schedule,  # () ; now, limit -> earliest first
    "schedules_of": Schedule,  # () ; tenant, after_name, limit -> by name
    "schedule_named": Schedule,  # () ; tenant, name
    "workers_seen_since": SeenWorker,  # () ; since -> by name
    "worker_processes_at": WorkerProcess,  # () ; boot_id, namespaces
    "leases_of_session": SessionLease,  # () ; session, tenant ('' is all) -> the live ones
    "worker_named": SeenWorker,  # () ; name
    "workflows_of": RegisteredWorkflow,  # () ; tenant, after_name, limit -> by name and version
    "workflows_page": RegisteredWorkflow,  # () ; tenant, everybody, after_name, after_version, limit -> likewise, with
    # those for everybody that the tenant has none of its own of
    "workflow_named": RegisteredWorkflow,  # () ; tenant, name -> all its versions, newest first
    "log_lines_of": LogLine,  # () ; run_id, after_no, limit -> in order
}
"""Queries used on their own, beside those of the port; `beside.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "save_schedule": Schedule,
    "advance_schedule": Schedule,
    "delete_schedule": Schedule,
    "save_worker": SeenWorker,
    "delete_worker": SeenWorker,
    "delete_silent_workers": SeenWorker,
    "save_worker_process": WorkerProcess,
    "delete_worker_process": WorkerProcess,
    "delete_silent_worker_processes": WorkerProcess,
    "save_workflow": RegisteredWorkflow,
    "save_log_line": LogLine,
    "delete_old_log_lines": LogLine,
}
"""Statements that the operations below run in transactions of their own, and that answer the rows they wrote."""

LANE = -1
"""A connection of its own, so that lines and registrations never wait for commands, nor these for them."""
TRIES_MAX = 8


class _Transacts(Protocol):
    """What a store needs to have for all of this."""

    async def transact(
        self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False
    ) -> T: ...

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]: ...


class Beside:
    """The operations, the same for every store."""

    @property
    def at_once(self) -> bool:
        """Not where a commit is a round trip."""
        return False

    def save_now(self, decide: Callable[[int], Save | None]) -> Saved | None:
        """Not here."""
        del decide
        raise Conflict("a commit is a round trip")

    # ---------------------------------------------------------------------------------------- schedules

    async def put_schedule(self: _Transacts, schedule: Schedule) -> Schedule | None:
        """Insert a schedule of revision 1, or change the one whose revision is the one before. None: there is one
        already, or somebody else was quicker. (`created_at` and `updated_at` are the store's.)"""
        row = msgspec.structs.astuple(schedule)
        written: Schedule | None = await _one(self, "save_schedule", *row[:16], *row[18:])
        return written

    async def advance_schedule(
        self: _Transacts, schedule: Schedule, next_at: int | None, last_slot: int | None
    ) -> bool:
        """Go on from the slot a schedule was read with; False: somebody else did, or has changed it."""
        of = (schedule.tenant, schedule.name, schedule.revision, schedule.next_at)
        return await _one(self, "advance_schedule", *of, next_at, last_slot, timed=False) is not None

    async def drop_schedule(self: _Transacts, tenant: str, name: str) -> bool:
        """Delete a schedule; whether there was one."""
        return await _one(self, "delete_schedule", tenant, name, timed=False) is not None

    # ------------------------------------------------------------------------------------------ workers

    async def put_worker(
        self: _Transacts,
        name: str,
        queues: Sequence[str],
        slots: int,
        version: str,
        process: WorkerProcess | None = None,
    ) -> None:
        """Say that a worker is there: when it starts, and every few seconds (`limits.WORKER_BEAT_SECONDS`); and in which process,
        where its death could be proven."""
        _check_name("a worker's name", name)
        listed = msgspec.json.encode(sorted(set(queues))).decode()

        def work() -> Transaction[None]:
            now = (yield Query("now"))[0].now_us
            values = (name, listed, max(slots, 1), version[:NAME_CHARS_MAX], us(WORKER_SILENT_SECONDS), now)
            [seen] = yield Query("save_worker", scalars=values)
            if seen.started_at == seen.seen_at:  # it has just started: a good moment to forget the dead
                silent_since = (now - us(WORKER_FORGOTTEN_SECONDS),)
                yield Query("delete_silent_workers", scalars=silent_since)
                yield Query("delete_silent_worker_processes", scalars=silent_since)
            if process is not None:
                row = msgspec.structs.astuple(msgspec.structs.replace(process, seen_at=now))
                yield Query("save_worker_process", scalars=row)

        await settled(self, work)

    async def drop_worker_process(self: _Transacts, session: int) -> None:
        """Nothing has to be proven about a process any more."""
        await _one(self, "delete_worker_process", session, timed=False)

    async def drop_worker(self: _Transacts, name: str) -> None:
        """A worker stops in peace."""
        await _one(self, "delete_worker", name, timed=False)

    # ---------------------------------------------------------------------------------------- workflows

    async def put_workflow(
        self: _Transacts,
        tenant: str,
        name: str,
        version: str,
        kind: str,
        definition: str,
        digest: str,
        *,
        registered_by: str = "",
        unconfirmed: str = "",
    ) -> RegisteredWorkflow:
        """Register a version of a workflow; registering the same again changes nothing.

        What is known of a `code` workflow may be renewed. Another text under the version of a `declared` one,
        or another kind, is WORKFLOW_CHANGED. `registered_by` is written down; the people in `unconfirmed` stand behind its
        runs until a second person confirms it.
        """
        _check_name("a workflow's name", name)
        _check_name("a workflow's version", version)
        if len(definition.encode()) > PAYLOAD_BYTES_MAX:
            raise TenureError(
                "PAYLOAD_TOO_LARGE", f"the definition of {name!r} has more than {PAYLOAD_BYTES_MAX} bytes"
            )
        values = (tenant, name, version, kind, definition, digest, registered_by, unconfirmed)
        await _one(self, "save_workflow", *values)
        rows: list[RegisteredWorkflow] = await self.read("workflow_named", tenant, name)
        found = next(row for row in rows if row.version == version)
        if found.kind != kind or (kind == "declared" and found.digest != digest):
            raise TenureError(
                "WORKFLOW_CHANGED",
                f"version {version!r} of workflow {name!r} is registered as {found.kind} with the digest"
                f" {found.digest[:12]}; this is {kind} with {digest[:12]}",
            )
        return found

    # --------------------------------------------------------------------------------------- log lines

    async def put_log_lines(self: _Transacts, lines: Sequence[LogLine]) -> None:
        """Append lines to the logs of runs, in the order given. Lines of runs that are not there are dropped, and of
        a run with more than `limits.LOG_LINES_PER_RUN_MAX` the oldest: the first number says how many."""
        if lines:
            await settled(self, lambda: lines_kept(lines))


def lines_kept(lines: Sequence[LogLine]) -> Transaction[None]:
    """A part of a transaction: append lines to the logs of runs, and let the oldest go where they are too many."""
    now = (yield Query("now"))[0].now_us
    rows = [_log_row(line) for line in sorted(lines, key=lambda line: line.run_id)]
    newest: dict[int, int] = {}
    for line in (yield Query("save_log_line", rows, (now,))):
        newest[line.run_id] = max(line.no, newest.get(line.run_id, 0))
    over = [
        (run_id, no - LOG_LINES_PER_RUN_MAX)
        for run_id, no in sorted(newest.items())
        if no > LOG_LINES_PER_RUN_MAX
    ]
    if over:
        yield Query("delete_old_log_lines", over)


async def _one(store: _Transacts, name: str, *values: Any, timed: bool = True) -> Any:
    """The row that a statement wrote, if it did."""

    def work() -> Transaction[Any]:
        now = ((yield Query("now"))[0].now_us,) if timed else ()
        rows = yield Query(name, scalars=(*values, *now))
        return rows[0] if rows else None

    return await settled(store, work)


async def settled(store: _Transacts, work: Callable[[], Transaction[T]]) -> T:
    """Run a transaction; who lost a race for a number or a lock asks again."""
    for last in (*[False] * (TRIES_MAX - 1), True):
        try:
            return await store.transact(work, lane=LANE)
        except (Conflict, Rejected) as refused:
            if last:
                code = "STORE_BUSY" if isinstance(refused, Conflict) else "INVALID_INPUT"
                raise TenureError(code, f"the database refused it: {refused}") from refused
        except Ambiguous as lost:
            raise TenureError("STORE_UNAVAILABLE", f"whether it was written is not known: {lost}") from lost
    raise AssertionError("the last try answers or raises")


def _log_row(line: LogLine) -> tuple[Any, ...]:
    """A line as it is stored. A log must not fail its run: what cannot be kept is cut, and says so."""
    fields = line.fields if len(line.fields.encode()) <= LOG_FIELDS_BYTES_MAX else '{"fields": "too large"}'
    return (
        line.run_id,
        line.at,
        _plain(line.step, LABEL_CHARS_MAX),
        _plain(line.level, NAME_CHARS_MAX),
        _plain(line.text, LOG_TEXT_CHARS_MAX),
        _plain(fields, LOG_FIELDS_BYTES_MAX),
    )


def _plain(text: str, most: int) -> str:
    """Text that both databases take (neither a NUL nor half a character), at most so long."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _check_name(what: str, name: str) -> None:
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise TenureError(
            "INVALID_INPUT",
            f"{what} is printable and has 1 to {NAME_CHARS_MAX} characters, unlike {name[:60]!r}",
        )
