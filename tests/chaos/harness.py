"""The chaos harness: real worker processes on a real database, injected faults, and a ledger outside Tenure.

    async with Hunt(Place("postgres", url, server), folder, seed=7) as hunt:
        await hunt.kills(300)
    print(hunt.tally)

Rules:
1. The verdict relies on the ledger and on rows, never on the logs of workers.
2. Lost: a run succeeded without one of its steps, or ended in another way without a valid reason. Doubled: a step that must not be
   repeated began twice, or any step began again after it was recorded. Stuck: a run did not end in time.
3. The seed determines the choices of the harness (worker, moment, duration, workflow) and the duration of each step. It does not determine
   process scheduling or the random pauses of Tenure. The same seed gives a similar hunt, not an identical one.
4. The harness stops only processes that it has started.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.doctor.examination import examine_database
from tenure.engine import Engine
from tenure.engine.run_handle import RunHandle
from tenure.errors import TenureError
from tenure.kernel.run_rows import CheckpointRow
from tenure.sdk.replay_log import INNER_KEY_MARK
from tests.chaos import hunt_workflows as flows
from tests.conformance.tcp_proxy import TcpProxy
from tests.worker.helpers import until
from tests.worker.process import WorkerProcess
from tools.postgres_server import PrivatePostgres

WORKERS = 3
RUNS_UNDER_WAY = 12
END_SECONDS_MAX = 240.0
_FOREVER_US = 1 << 62
CLOCK_SLACK_US = 100_000
"""Largest difference between the time of the store and the time of the host."""


class Place(msgspec.Struct):
    """The database of a hunt."""

    name: str
    url: str
    server: PrivatePostgres | None = None
    """The PostgreSQL server that the hunt may crash. None for SQLite."""


class Tally(msgspec.Struct):
    """The result of a hunt."""

    place: str
    seed: int
    runs: int = 0
    injected: Counter[str] = msgspec.field(default_factory=Counter)
    """Faults by kind."""
    lost: list[str] = []
    doubled: list[str] = []
    stuck: list[str] = []
    findings: list[str] = []
    """Violations that the doctor found."""
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    recovery_seconds: list[float] = []
    """For each run of a killed worker: seconds from the kill to the next ledger line of the run."""

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, doubled or stuck and the doctor found nothing."""
        return not (self.lost or self.doubled or self.stuck or self.findings)

    def percentile(self, share: float) -> float | None:
        """Return a percentile of the recovery times, in seconds."""
        times = sorted(self.recovery_seconds)
        return times[min(len(times) - 1, int(share * len(times)))] if times else None


class Hunt:
    """A database with workers and runs. An async context manager: on exit it waits for all runs and fills the tally."""

    def __init__(self, place: Place, folder: Path, seed: int) -> None:
        self.tally = Tally(place.name, seed)
        self._place = place
        self._ledger = folder / "ledger"
        self._chance = random.Random(seed)
        self._stack = AsyncExitStack()
        self._workers: list[WorkerProcess] = []
        self._runs: dict[int, tuple[str, RunHandle[Any]]] = {}
        self._open: set[int] = set()
        self._deaths: list[tuple[int, int]] = []
        """(pid, time) of every killed worker."""
        self._drained: dict[int, int] = {}
        """Pid of each drained worker -> the time of its SIGTERM."""
        self._wire: TcpProxy | None = None
        self._engine: Engine | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._flows = flows.ORDINARY

    @property
    def engine(self) -> Engine:
        """The engine that starts and reads runs."""
        assert self._engine is not None
        return self._engine

    async def __aenter__(self) -> Self:
        os.environ[flows.LEDGER] = str(self._ledger)
        os.environ[flows.SEED] = str(self.tally.seed)
        self._engine = await self._stack.enter_async_context(Engine(self._place.url, sweep_seconds=0.1))
        for name in (flows.LEDGER, flows.SEED):
            self._stack.callback(os.environ.pop, name, None)
        url = self._place.url
        if self._place.server is not None:
            self._wire = await self._stack.enter_async_context(TcpProxy(url).serve())
            url = self._wire.dsn
        for _ in range(WORKERS):
            self._workers.append(
                self._stack.enter_context(
                    WorkerProcess(
                        url, "tests.chaos.hunt_workflows", slots=8, grace=30.0, wait_for_database=60
                    )
                )
            )
        for worker in self._workers:
            await until(partial(is_up, worker), "a worker", 120)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                await self._end()
                await self._judge()
        finally:
            await self._stack.aclose()

    # ---------------------------------------------------------------------------------------- the faults

    async def kills(self, count: int) -> None:
        """Kill a busy worker with SIGKILL and restart it, `count` times."""
        self._flows = flows.ORDINARY
        for _ in range(count):
            worker = await self._pick_busy_worker()
            self._deaths.append((worker.process.pid, _now_us()))
            worker.signal(signal.SIGKILL)
            self.tally.injected["kills"] += 1
            worker.restart()

    async def stops(self, count: int) -> None:
        """Pause busy workers (SIGSTOP) for longer than their leases, then resume them (SIGCONT)."""
        self._flows = flows.SHORT
        while count:
            some = self._chance.sample(self._workers, min(count, WORKERS - 1))
            for worker in some:
                await until(partial(is_up, worker), "a worker", 120)
            await self._top_up_runs()
            for worker in some:
                worker.signal(signal.SIGSTOP)
            await asyncio.sleep(self._chance.uniform(2.5, 3.5))
            for worker in some:
                worker.signal(signal.SIGCONT)
            self.tally.injected["stops"] += len(some)
            count -= len(some)
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))

    async def drains(self, count: int) -> None:
        """Drain a busy worker (SIGTERM). No step that can end within the grace period is repeated."""
        self._flows = flows.ORDINARY
        for _ in range(count):
            worker = await self._pick_busy_worker()
            self._drained[worker.process.pid] = _now_us()
            worker.signal(signal.SIGTERM)
            self.tally.injected["drains"] += 1
            await asyncio.to_thread(worker.wait, 60.0)
            worker.restart()

    async def cuts(self, count: int) -> None:
        """Cut connections to PostgreSQL after a save and before its reply, so that the outcome of the commit is unknown."""
        assert self._wire is not None, "only PostgreSQL is behind a proxy"
        self._flows = flows.SHORT
        wire = self._wire
        wire.cuts = 0
        while wire.cuts < count:
            await self._top_up_runs()
            wire.cut_before_the_answer_to_a_save()
            await asyncio.sleep(self._chance.uniform(0.0, 0.05))
        self.tally.injected["cuts"] += wire.cuts

    async def crashes(self, count: int) -> None:
        """Kill PostgreSQL and start it again, `count` times."""
        server = self._place.server
        assert server is not None, "SQLite has no server to crash"
        self._flows = flows.SHORT
        for _ in range(count):
            await self._top_up_runs()
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))
            await asyncio.to_thread(server.stop, "kill")
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))
            await asyncio.to_thread(server.start)
            self.tally.injected["crashes"] += 1

    async def _pick_busy_worker(self) -> WorkerProcess:
        """Return a random worker at a random moment of its work."""
        worker = self._chance.choice(self._workers)
        await until(partial(is_up, worker), "a worker", 120)
        await self._top_up_runs()
        await asyncio.sleep(self._chance.uniform(0.0, 0.4))
        return worker

    async def _top_up_runs(self) -> None:
        """Start runs until `RUNS_UNDER_WAY` runs are open."""
        lines = flows.ledger_lines(self._ledger)
        last = {"z", "d"}
        self._open -= {line.number for line in lines if line.what == "end" and line.step in last}
        for number in sorted(self._open) if len(self._open) == RUNS_UNDER_WAY else ():
            # A failed run has no line for its last step.
            run = self._runs[number][1]
            if (await self._retry(partial(self.engine.get, run.id))).finished_at is not None:
                self._open.discard(number)
        while len(self._open) < RUNS_UNDER_WAY:
            number = len(self._runs)
            name = self._chance.choice(sorted(flows.BODIES))
            run = await self._retry(partial(self.engine.start, self._flows[name], number))
            self._runs[number] = (name, run)
            self._open.add(number)
            if name == "signaled":
                await self._retry(partial(self.engine.signal, run.id, "go", event_id="go"))

    async def _retry(self, ask: Any) -> Any:
        """Call the engine. Repeat the call for up to 60 seconds while the database is unavailable."""
        deadline = time.monotonic() + 60.0
        while True:
            try:
                return await ask()
            except TenureError as refused:
                if not refused.retryable or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    # ---------------------------------------------------------------------------------------- the verdict

    async def _end(self) -> None:
        """Wait until all runs have ended."""
        for worker in self._workers:
            await until(partial(is_up, worker), "a worker", 120)
        deadline = time.monotonic() + END_SECONDS_MAX
        for number, (name, run) in self._runs.items():
            while (await self._retry(partial(self.engine.get, run.id))).finished_at is None:
                if time.monotonic() > deadline:
                    why = (await self.engine.runs.explain(run.id)).text
                    self.tally.stuck.append(f"{name} {number} ({run.id}): {why}")
                    break
                await asyncio.sleep(0.05)

    async def _judge(self) -> None:
        tally = self.tally
        tally.runs = len(self._runs)
        lines = flows.ledger_lines(self._ledger)
        begun, ended = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        begins: dict[tuple[int, str], list[int]] = {}
        for line in lines:
            key = (line.number, line.step)
            (begun if line.what == "begin" else ended)[key] += 1
            if line.what == "begin":
                begins.setdefault(key, []).append(line.at_us)
        finished: dict[int, int] = {}
        for number, (name, run) in self._runs.items():
            view = await self.engine.get(run.id)
            tally.ended[view.status] += 1
            finished[number] = _FOREVER_US if view.finished_at is None else us(view.finished_at.timestamp())
            # The begin of an unrepeatable step is recorded first. After the end of the previous step, a crash leaves it unknown whether it began.
            steps = flows.STEPS[name]
            once_begun = any(
                step in flows.UNREPEATABLE and ended[number, before] for before, step in pairwise(steps)
            )
            if view.status == "succeeded":
                missing = [step for step in steps if not ended[number, step]]
                tally.lost += [f"{name} {number}: {step} never ended" for step in missing]
            elif view.finished_at is not None and not (view.reason == "RUN_RESUME_FAILED" and once_begun):
                tally.lost.append(f"{name} {number}: {view.status} {view.reason} {view.error}")
            for step in flows.UNREPEATABLE:
                if begun[number, step] > 1:
                    tally.doubled.append(f"{name} {number}: {step} began {begun[number, step]} times")
            tally.doubled += [
                f"{name} {number}: {step} began {(at - recorded) / 1e3:.1f} ms after it was recorded"
                for step, recorded in await self._recorded(name, run)
                for at in sorted(begins.get((number, step), ()))[1:]
                if at > recorded + CLOCK_SLACK_US
            ]
        tally.doubled += [
            f"{line.step} of {line.number} was begun by a draining worker and left for another"
            for line in self._abandoned_by_drain(lines, begins, finished)
        ]
        report = await examine_database(self.engine.store)
        tally.findings = [str(violation) for violation in report.violations]
        tally.recovery_seconds = self._recoveries(lines)

    def _abandoned_by_drain(
        self, lines: list[flows.Line], begins: dict[tuple[int, str], list[int]], finished: dict[int, int]
    ) -> Iterator[flows.Line]:
        """Yield the steps that drained workers began and did not end, except those whose lease they had lost before the drain."""
        done = {(line.pid, line.number, line.step) for line in lines if line.what == "end"}
        for line in lines:
            drained_at = self._drained.get(line.pid)
            if drained_at is not None and (line.pid, line.number, line.step) not in done:
                moments = (*begins[line.number, line.step], finished[line.number])
                if not any(line.at_us < moment < drained_at for moment in moments):
                    yield line

    async def _recorded(self, name: str, run: RunHandle[Any]) -> list[tuple[str, int]]:
        """Return the recorded steps of the run itself, without its children, each with its time."""
        rows: list[CheckpointRow] = await self.engine.store.read("checkpoints_of", ids.run_int(run.id))
        own = [step for step in flows.STEPS[name] if not step.startswith("child")]
        done = sorted((row for row in rows if INNER_KEY_MARK not in row.name), key=lambda row: row.no)
        return [(step, row.at) for step, row in zip(own, done, strict=False) if row.state == "done"]

    def _recoveries(self, lines: list[flows.Line]) -> list[float]:
        """Return, for each open step of a killed worker, the seconds until another worker continued the run."""
        found: list[float] = []
        for pid, died in self._deaths:
            mine = [line for line in lines if line.pid == pid and line.at_us <= died]
            last = {line.number: line for line in mine}
            open_steps = [line for line in last.values() if line.what == "begin"]
            for line in open_steps:
                again = (
                    other.at_us - died
                    for other in lines
                    if other.number == line.number and other.pid != pid and other.at_us > died
                )
                first = min(again, default=None)
                if first is not None:
                    found.append(first / 1e6)
        return found


def is_up(worker: WorkerProcess) -> bool:
    """Whether a worker has started. Raises AssertionError if its process has ended."""
    text = worker.text
    assert worker.process.poll() is None, f"a worker ended with {worker.process.poll()}: {text[-2000:]}"
    return "worker_started" in text


def _now_us() -> int:
    return time.time_ns() // 1000


def summary(tallies: list[Tally]) -> list[dict[str, str]]:
    """Return one table row for each tally."""
    rows = []
    for tally in tallies:
        p50, p99 = tally.percentile(0.5), tally.percentile(0.99)
        rows.append(
            {
                "place": tally.place,
                "seed": str(tally.seed),
                "runs": str(tally.runs),
                "injected": ", ".join(f"{count} {what}" for what, count in tally.injected.items()),
                "lost": str(len(tally.lost)),
                "doubled": str(len(tally.doubled)),
                "stuck": str(len(tally.stuck)),
                "doctor": str(len(tally.findings)),
                "recovery p50": "-" if p50 is None else f"{p50:.2f} s",
                "recovery p99": "-" if p99 is None else f"{p99:.2f} s",
            }
        )
    return rows
