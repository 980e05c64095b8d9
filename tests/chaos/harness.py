"""The chaos harness: real worker processes on a real database, faults on purpose, and a ledger that Tenure does not keep.

    async with Hunt(Place("postgres", url, server), folder, seed=7) as hunt:
        await hunt.kills(300)
    print(hunt.tally)

Laws:
1. What happened is judged by the ledger and by rows, never by what a worker says of itself.
2. Lost: a run that succeeded without one of its steps, or ended otherwise without a reason that is its own. Doubled: a step that may
   not be repeated began twice, or any step began after it was recorded. LabStuck: a run that has not ended in time.
3. The seed covers what the harness draws (which worker, when, for how long, which workflow) and how long each step of a run takes. It does not
   cover when processes get the processor, nor the pauses that Tenure itself draws, so a seed brings much the same hunt again, not the same one.
4. It stops only what it has started.
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
"""How far the store's time may be from the host's."""


class Place(msgspec.Struct):
    """Where a hunt takes place."""

    name: str
    url: str
    server: PrivatePostgres | None = None
    """The PostgreSQL that may be crashed; None on SQLite."""


class Tally(msgspec.Struct):
    """What a hunt came to."""

    place: str
    seed: int
    runs: int = 0
    injected: Counter[str] = msgspec.field(default_factory=Counter)
    """Faults by kind."""
    lost: list[str] = []
    doubled: list[str] = []
    stuck: list[str] = []
    findings: list[str] = []
    """The doctor's."""
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    recovery_seconds: list[float] = []
    """From the death of a worker to the next sign of each run that it had."""

    @property
    def clean(self) -> bool:
        """Whether everything held."""
        return not (self.lost or self.doubled or self.stuck or self.findings)

    def percentile(self, share: float) -> float | None:
        """A percentile of the recovery, in seconds."""
        times = sorted(self.recovery_seconds)
        return times[min(len(times) - 1, int(share * len(times)))] if times else None


class Hunt:
    """One place, its workers and runs. An async context manager; leaving it judges everything."""

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
        """(pid, moment) of every worker that was killed."""
        self._drained: dict[int, int] = {}
        """When each worker was told to end, by its pid."""
        self._wire: TcpProxy | None = None
        self._engine: Engine | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._flows = flows.ORDINARY

    @property
    def engine(self) -> Engine:
        """What runs are started and looked at with."""
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
        """kill -9 of a worker that has work, again and again; its next life is started at once."""
        self._flows = flows.ORDINARY
        for _ in range(count):
            worker = await self._at_work()
            self._deaths.append((worker.process.pid, _now_us()))
            worker.signal(signal.SIGKILL)
            self.tally.injected["kills"] += 1
            worker.restart()

    async def stops(self, count: int) -> None:
        """SIGSTOP of a worker that has work for longer than its leases, then SIGCONT."""
        self._flows = flows.SHORT
        while count:
            some = self._chance.sample(self._workers, min(count, WORKERS - 1))
            for worker in some:
                await until(partial(is_up, worker), "a worker", 120)
            await self._feed()
            for worker in some:
                worker.signal(signal.SIGSTOP)
            await asyncio.sleep(self._chance.uniform(2.5, 3.5))
            for worker in some:
                worker.signal(signal.SIGCONT)
            self.tally.injected["stops"] += len(some)
            count -= len(some)
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))

    async def drains(self, count: int) -> None:
        """SIGTERM of a worker that has work: nothing that could end within the grace is repeated."""
        self._flows = flows.ORDINARY
        for _ in range(count):
            worker = await self._at_work()
            self._drained[worker.process.pid] = _now_us()
            worker.signal(signal.SIGTERM)
            self.tally.injected["drains"] += 1
            await asyncio.to_thread(worker.wait, 60.0)
            worker.restart()

    async def cuts(self, count: int) -> None:
        """Connections to PostgreSQL that break behind a save, before its answer: nobody knows what became of the commit."""
        assert self._wire is not None, "only PostgreSQL is behind a wire"
        self._flows = flows.SHORT
        wire = self._wire
        wire.cuts = 0
        while wire.cuts < count:
            await self._feed()
            wire.cut_before_the_answer_to_a_save()
            await asyncio.sleep(self._chance.uniform(0.0, 0.05))
        self.tally.injected["cuts"] += wire.cuts

    async def crashes(self, count: int) -> None:
        """PostgreSQL is killed, and started again."""
        server = self._place.server
        assert server is not None, "SQLite has no server to crash"
        self._flows = flows.SHORT
        for _ in range(count):
            await self._feed()
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))
            await asyncio.to_thread(server.stop, "kill")
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))
            await asyncio.to_thread(server.start)
            self.tally.injected["crashes"] += 1

    async def _at_work(self) -> WorkerProcess:
        """A worker that is up, at a random moment of its work."""
        worker = self._chance.choice(self._workers)
        await until(partial(is_up, worker), "a worker", 120)
        await self._feed()
        await asyncio.sleep(self._chance.uniform(0.0, 0.4))
        return worker

    async def _feed(self) -> None:
        """Have some runs under way."""
        lines = flows.ledger_lines(self._ledger)
        last = {"z", "d"}
        self._open -= {line.number for line in lines if line.what == "end" and line.step in last}
        for number in sorted(self._open) if len(self._open) == RUNS_UNDER_WAY else ():
            # Those that failed for a reason of their own have no last line.
            run = self._runs[number][1]
            if (await self._asked(partial(self.engine.get, run.id))).finished_at is not None:
                self._open.discard(number)
        while len(self._open) < RUNS_UNDER_WAY:
            number = len(self._runs)
            name = self._chance.choice(sorted(flows.BODIES))
            run = await self._asked(partial(self.engine.start, self._flows[name], number))
            self._runs[number] = (name, run)
            self._open.add(number)
            if name == "told":
                await self._asked(partial(self.engine.signal, run.id, "go", event_id="go"))

    async def _asked(self, ask: Any) -> Any:
        """Ask the engine for something, for as long as its database is away."""
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
        """Let everything end."""
        for worker in self._workers:
            await until(partial(is_up, worker), "a worker", 120)
        deadline = time.monotonic() + END_SECONDS_MAX
        for number, (name, run) in self._runs.items():
            while (await self._asked(partial(self.engine.get, run.id))).finished_at is None:
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
            # It is recorded that such a step begins before it does: from the end of the step before it on, nobody may know whether it has.
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
            f"{line.step} of {line.number} was begun by a worker that was told to end, and left for another"
            for line in self._left(lines, begins, finished)
        ]
        report = await examine_database(self.engine.store)
        tally.findings = [str(violation) for violation in report.violations]
        tally.recovery_seconds = self._recoveries(lines)

    def _left(
        self, lines: list[flows.Line], begins: dict[tuple[int, str], list[int]], finished: dict[int, int]
    ) -> Iterator[flows.Line]:
        """What was begun by workers that were told to end, and not ended by them: but for what they had lost before, standing still."""
        done = {(line.pid, line.number, line.step) for line in lines if line.what == "end"}
        for line in lines:
            told_at = self._drained.get(line.pid)
            if told_at is not None and (line.pid, line.number, line.step) not in done:
                moments = (*begins[line.number, line.step], finished[line.number])
                if not any(line.at_us < moment < told_at for moment in moments):
                    yield line

    async def _recorded(self, name: str, run: RunHandle[Any]) -> list[tuple[str, int]]:
        """The run's own steps, each with the moment at which it was recorded as done."""
        rows: list[CheckpointRow] = await self.engine.store.read("checkpoints_of", ids.run_int(run.id))
        own = [step for step in flows.STEPS[name] if not step.startswith("child")]
        done = sorted((row for row in rows if INNER_KEY_MARK not in row.name), key=lambda row: row.no)
        return [(step, row.at) for step, row in zip(own, done, strict=False) if row.state == "done"]

    def _recoveries(self, lines: list[flows.Line]) -> list[float]:
        """Of each run that a killed worker was in the middle of: seconds until somebody went on with it."""
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
    """Whether a worker has begun to claim; AssertionError where it has ended instead."""
    text = worker.text
    assert worker.process.poll() is None, f"a worker ended with {worker.process.poll()}: {text[-2000:]}"
    return "worker_started" in text


def _now_us() -> int:
    return time.time_ns() // 1000


def summary(tallies: list[Tally]) -> list[dict[str, str]]:
    """A row for each place, as it is printed."""
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
