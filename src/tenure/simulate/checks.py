"""The checks after every commit, once everything has settled, and at the end.

Laws:
1. After a commit, the doctor checks each run that it touched. The history of a run only grows.
2. Caps, keys and rates span all runs. They are checked after each commit that could have changed them.
3. The database alone decides whether everything has settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.clock import SECOND_US, us
from tenure.doctor import RunDump, Violation, check_run
from tenure.doctor.checked_run import RUN_QUERIES
from tenure.doctor.database_checks import RATE_WINDOW_US
from tenure.kernel.run_rows import CLOSED_RUN, AttemptRow, EventRow, RunRow
from tenure.simulate.store import WriteLog

if TYPE_CHECKING:
    from tenure.simulate.process import Process
    from tenure.simulate.world import World

LATE_SECONDS_MAX = 120.0
"""Without faults, a timer is swept within this time."""
_UNUSED_ROWS = ("artifacts", "upload_parts", "log_chunks", "cost_lines", "evidence")
"""No world has such rows, so they are not read."""
_ACT_ROWS = ("verdicts", "receipts", "run_spends")
"""Read only in worlds with acts."""


class Checks:
    def __init__(self, world: World) -> None:
        self._world = world
        self._heads: dict[int, tuple[int, bytes]] = {}
        """Run -> (version, head) as last seen."""

    @property
    def run_ids(self) -> list[int]:
        return sorted(self._heads)

    # -------------------------------------------------------------------------------- after a commit

    def check_commit(self, process: Process, seen: WriteLog) -> None:
        """Check everything that a transaction touched."""
        world = self._world
        for run_id in seen.run_ids:
            bundle = self.bundle(run_id)
            if bundle is None:
                self._heads.pop(run_id, None)
                world.oracle.deleted(run_id)
                continue
            run = bundle.run
            kinds = ",".join(event.kind for event in self._new_events(run, bundle.events))
            world.note(
                process.name,
                f"{run_id & 0xFFFF:04x} v{run.version} {run.status} {kinds} {run.head.hex()[:8]}",
            )
            self._report(check_run(bundle))
            world.oracle.follow(bundle)
        for save, saved in seen.saves:
            self._check_caps(
                [row for row in save.rows.get("attempt", ()) if isinstance(row, AttemptRow)], saved.ids
            )
            admitted = [
                run for run in (*save.new_runs, *save.runs) if run.id in saved.ids and run.admitted_at
            ]
            self._check_admissions(admitted, saved.now_us)

    def bundle(self, run_id: int) -> RunDump | None:
        """All rows of a run; None if there is no such run."""
        inspect = self._world.inspect
        runs = inspect("get_run", run_id)
        if not runs:
            return None
        left_out = _UNUSED_ROWS if self._world.workload.acts else _UNUSED_ROWS + _ACT_ROWS
        rows = {
            field: inspect(query, run_id) for field, query in RUN_QUERIES.items() if field not in left_out
        }
        return RunDump(run=runs[0], spec=next(iter(inspect("get_spec", run_id)), None), **rows)

    def _report(self, violations: list[Violation]) -> None:
        for violation in violations[:1]:
            self._world.violate(f"{violation} (run {violation.run_id & 0xFFFF:04x})")

    def _new_events(self, run: RunRow, events: list[EventRow]) -> list[EventRow]:
        """The events since the last check. The events before must not have changed."""
        version, head = self._heads.get(run.id, (0, b""))
        self._heads[run.id] = (run.version, run.head)
        if run.version < version:
            self._world.violate(f"I7: the run went back from version {version} to {run.version}")
        if version and (len(events) < version or events[version - 1].hash != head):
            self._world.violate(f"I3: event {version} of run {run.id & 0xFFFF:04x} is not what it was")
        return events[version:]

    def _check_caps(self, attempts: list[AttemptRow], ids: set[int]) -> None:
        """Check that new leases are within the caps of their tenants."""
        world = self._world
        tenants = set()
        for attempt in attempts:
            if attempt.run_id in ids and attempt.lease in ("granted", "active"):
                world.oracle.lease_written(attempt)
                tenants.add(attempt.tenant)
        caps = [
            cap for cap in world.workload.caps if cap.max_concurrency is not None and cap.tenant in tenants
        ]
        if not caps:
            return
        usage = world.inspect("live_usage")
        for cap in caps:
            used = sum(
                row.leases
                for row in usage
                if row.tenant == cap.tenant and cap.scope in ("", f"wf:{row.workflow}")
            )
            if cap.max_concurrency is not None and used > cap.max_concurrency:
                world.violate(
                    f"I46: {cap.tenant} {cap.scope} has {used} live leases, its cap is {cap.max_concurrency}"
                )

    def _check_admissions(self, runs: list[RunRow], now: int) -> None:
        """Check that admitted runs share no concurrency key, and that their tenants are within their rates."""
        world = self._world
        if any(run.concurrency_key is not None for run in runs) and (
            twice := world.inspect("key_holders_twice")
        ):
            world.violate(f"two runs hold one concurrency key: {[row.run_id & 0xFFFF for row in twice]}")
        for run in runs:
            if not run.rated or run.admitted_at != now:
                continue
            rates = world.inspect("rates", run.tenant, now - RATE_WINDOW_US)
            for cap in world.workload.caps:
                if cap.tenant == run.tenant and cap.max_runs_per_min is not None:
                    begun = sum(row.runs for row in rates if cap.scope in ("", f"wf:{row.workflow}"))
                    if begun > cap.max_runs_per_min:
                        world.violate(f"I46: {begun} runs of {cap.tenant} {cap.scope} began within a minute")

    # ------------------------------------------------------------------------------- after the faults

    def open_runs(self) -> list[RunRow]:
        """Runs that have not ended."""
        return [
            run
            for run_id in self.run_ids
            for run in self._world.inspect("get_run", run_id)
            if run.status not in CLOSED_RUN
        ]

    def unsettled(self) -> str | None:
        """What processes and workers have yet to do; None if everything waits for people, events or time."""
        world = self._world
        if world.pending_outbox():
            return "an outbox row is not delivered"
        if world.has_work():
            return "a ready step is not claimed"
        if world.inspect("live_usage"):
            return "there are live leases"
        now = world.now_us()
        for timer in world.inspect("due", now, 10):
            return f"a timer of a {timer.entity} has been due for {(now - timer.wake_at) / 1e6:.0f} s"
        for run in self.open_runs():
            if run.steps_retry or run.status in ("canceling", "planning"):
                return f"run {run.id & 0xFFFF:04x} is {run.status}"
            if run.admitted_at is None and run.planned and not self._waits_for_key(run):
                return f"run {run.id & 0xFFFF:04x} is not admitted"
        return None

    def check_nothing_late(self) -> None:
        """Check that everything due by the clocks of all processes is swept within a bound (I29, I49)."""
        now = self._world.slowest_us()
        if now is not None:
            for timer in self._world.inspect("due", now - us(LATE_SECONDS_MAX), 1):
                late = (now - timer.wake_at) / SECOND_US
                self._world.violate(
                    f"I29: a timer of a {timer.entity} has been due for {late:.0f} s and was not swept"
                )

    def _waits_for_key(self, run: RunRow) -> bool:
        """Whether another run holds this run's concurrency key."""
        return (
            run.concurrency_key is not None
            and self._world.inspect("key_queue", run.tenant, run.concurrency_key, 1 << 62)[0].holder_id
            is not None
        )

    def unfinished(self) -> str | None:
        """A run that has not ended, or what is unsettled; None if everything has ended."""
        for run in self.open_runs():
            return f"run {run.id & 0xFFFF:04x} is still {run.status}"
        return self.unsettled()

    def check_everything(self) -> None:
        """Check every run as in a system that has settled."""
        now = self._world.now_us()
        for run_id in self.run_ids:
            bundle = self.bundle(run_id)
            if bundle is not None:
                self._report(check_run(bundle, settled=True, now=now))
                self._world.oracle.follow(bundle)
                for child in bundle.children:
                    ended = self._world.inspect("get_run", child.child_id)
                    if child.state == "open" and ended and ended[0].status in CLOSED_RUN:
                        self._world.violate(
                            f"a child has ended, and it is still open in run {run_id & 0xFFFF:04x}"
                        )

    def check_end(self) -> None:
        """Check for rows without a run, and everything that was promised."""
        world = self._world
        for query in ("orphan_rows", "lost_specs", "key_holders_twice"):
            if found := world.inspect(query):
                world.violate(f"I50: {query}: {found[0]}")
        world.oracle.check_end()
        if world.workload.acts:
            world.service.check_end(
                [row for run_id in self.run_ids for row in world.inspect("receipts_of", run_id)]
            )
