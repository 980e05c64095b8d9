"""What must hold after every commit, once everything has settled, and at the end.

Laws:
1. After every commit each run it touched is checked by the doctor, and followed: its history only grows.
2. What concerns all runs is checked whenever a commit could have changed it: caps, keys, rates.
3. "Settled" is what the database says, not what the simulation believes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.clock import SECOND_US, us
from tenure.doctor import RunDump, Violation, check_run
from tenure.kernel.run_rows import CLOSED_RUN, AttemptRow, EventRow, RunRow
from tenure.simulate.store import WriteLog

if TYPE_CHECKING:
    from tenure.simulate.process import Process
    from tenure.simulate.world import World

RATE_WINDOW_US = 60_000_000
LATE_SECONDS_MAX = 120.0
"""How late a moment may be swept while nothing fails."""
_BENEATH = {
    "steps": "steps_of",
    "attempts": "attempts_of",
    "checkpoints": "checkpoints_of",
    "waits": "waits_of",
    "approvals": "approvals_of",
    "inbox": "inbox_of",
    "children": "children_of",
    "payloads": "payloads_of",
    "events": "events_of",
    "outbox": "outbox_of",
}
_OF_ACTS = {"verdicts": "verdicts_of", "receipts": "receipts_of", "run_spends": "run_spends_of"}
"""Read of runs that act only: nobody else has any."""


class Checks:
    """See the laws above."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heads: dict[int, tuple[int, bytes]] = {}
        """Run -> (version, head) as last seen."""

    @property
    def run_ids(self) -> list[int]:
        """The runs there are."""
        return sorted(self._heads)

    # -------------------------------------------------------------------------------- after a commit

    def after(self, process: Process, seen: WriteLog) -> None:
        """Look at everything a transaction touched."""
        world = self._world
        for run_id in seen.run_ids:
            bundle = self.bundle(run_id)
            if bundle is None:
                self._heads.pop(run_id, None)
                world.oracle.deleted(run_id)
                continue
            run = bundle.run
            kinds = ",".join(event.kind for event in self._news(run, bundle.events))
            world.note(
                process.name,
                f"{run_id & 0xFFFF:04x} v{run.version} {run.status} {kinds} {run.head.hex()[:8]}",
            )
            self._report(check_run(bundle))
            world.oracle.follow(bundle)
        for save, saved in seen.saves:
            self._granted(
                [row for row in save.rows.get("attempt", ()) if isinstance(row, AttemptRow)], saved.ids
            )
            admitted = [
                run for run in (*save.new_runs, *save.runs) if run.id in saved.ids and run.admitted_at
            ]
            self._admitted(admitted, saved.now_us)

    def bundle(self, run_id: int) -> RunDump | None:
        """All rows of a run."""
        inspect = self._world.inspect
        runs = inspect("get_run", run_id)
        if not runs:
            return None
        specs = inspect("get_spec", run_id)
        queries = _BENEATH | _OF_ACTS if self._world.workload.acts else _BENEATH
        beneath = {field: inspect(query, run_id) for field, query in queries.items()}
        return RunDump(run=runs[0], spec=specs[0] if specs else None, **beneath)

    def _report(self, violations: list[Violation]) -> None:
        for violation in violations[:1]:
            self._world.violate(f"{violation} (run {violation.run_id & 0xFFFF:04x})")

    def _news(self, run: RunRow, events: list[EventRow]) -> list[EventRow]:
        """The events since the last look; what was there then must be there still."""
        version, head = self._heads.get(run.id, (0, b""))
        self._heads[run.id] = (run.version, run.head)
        if run.version < version:
            self._world.violate(f"I7: the run went back from version {version} to {run.version}")
        if version and (len(events) < version or events[version - 1].hash != head):
            self._world.violate(f"I3: event {version} of run {run.id & 0xFFFF:04x} is not what it was")
        return events[version:]

    def _granted(self, attempts: list[AttemptRow], ids: set[int]) -> None:
        """Leases were given: within the caps?"""
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

    def _admitted(self, runs: list[RunRow], now: int) -> None:
        """Runs began: is the key theirs alone, is the tenant within its rate?"""
        world = self._world
        if any(run.concurrency_key is not None for run in runs):
            twice = world.inspect("key_holders_twice")
            if twice:
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
        runs: list[RunRow] = []
        for run_id in self.run_ids:
            runs += [run for run in self._world.inspect("get_run", run_id) if run.status not in CLOSED_RUN]
        return runs

    def unsettled(self) -> str | None:
        """What is still to be done without anybody's help; None when nothing is."""
        world = self._world
        if world.owed(1):
            return "something is still owed to another run"
        if world.has_work():
            return "there is work that nobody claims"
        if world.inspect("live_usage"):
            return "there are live leases"
        now = world.now_us()
        for timer in world.inspect("due", now, 10):
            return f"a timer of a {timer.entity} is due since {(now - timer.wake_at) / 1e6:.0f} s"
        for run in self.open_runs():
            if run.steps_retry or run.status in ("canceling", "planning"):
                return f"run {run.id & 0xFFFF:04x} is {run.status}"
            if run.admitted_at is None and run.planned and not self._in_line(run):
                return f"run {run.id & 0xFFFF:04x} is held back"
        return None

    def check_nothing_late(self) -> None:
        """Without faults, whatever is due by every process's time is swept within a bound (I29, I49)."""
        now = self._world.slowest_us()
        if now is not None:
            for timer in self._world.inspect("due", now - us(LATE_SECONDS_MAX), 1):
                late = (now - timer.wake_at) / SECOND_US
                self._world.violate(
                    f"I29: a timer of a {timer.entity} is due since {late:.0f} s, and nobody sweeps it"
                )

    def _in_line(self, run: RunRow) -> bool:
        """Whether another run, which waits for somebody, holds this one's concurrency key."""
        if run.concurrency_key is None:
            return False
        queue = self._world.inspect("key_queue", run.tenant, run.concurrency_key, 1 << 62)[0]
        return queue.holder_id is not None

    def unfinished(self) -> str | None:
        """Which run has not ended; None when all have."""
        for run in self.open_runs():
            return f"run {run.id & 0xFFFF:04x} is still {run.status}"
        return self.unsettled()

    def everything(self, *, settled: bool) -> None:
        """The whole doctor's report."""
        now = self._world.now_us()
        for run_id in self.run_ids:
            bundle = self.bundle(run_id)
            if bundle is not None:
                self._report(check_run(bundle, settled=settled, now=now))
                self._world.oracle.follow(bundle)
                for child in bundle.children:
                    ended = self._world.inspect("get_run", child.child_id)
                    if child.state == "open" and ended and ended[0].status in CLOSED_RUN:
                        self._world.violate(f"a child has ended and run {run_id & 0xFFFF:04x} was never told")

    def at_the_end(self) -> None:
        """Nothing belongs to nobody, and whatever was promised was kept."""
        world = self._world
        for query in ("orphan_rows", "lost_specs", "key_holders_twice"):
            if found := world.inspect(query):
                world.violate(f"I50: {query}: {found[0]}")
        world.oracle.at_the_end()
        if world.workload.acts:
            world.service.at_the_end(
                [row for run_id in self.run_ids for row in world.inspect("receipts_of", run_id)]
            )
