"""Measures what one child, mapped step, event, wait, act or log line costs in runs with many of them.

    python -m bench.many DATABASE KIND COUNT    # prints one JSON object

Laws:
1. Everything happens in one run, through the SDK and a worker, as in a user's program.
2. The clock runs from the start of the run to its result. The result is checked.
3. The cost is time divided by items. The CPU time is that of this process, without PostgreSQL.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import uvloop

import tenure
from bench.peers.protocol import run_concurrently
from bench.service import run_module
from tenure.engine.run_handle import RunHandle
from tenure.govern.connector import ConnectorCall, Operation
from tenure.govern.connectors.base import ConnectorBase

SLOTS = 400
AT_ONCE = 100
"""Concurrent deliveries of events."""
STEPS_MAX = 100_000
POLICY = """version: 1
rules:
  - {name: notes, connector: notes, operation: keep, allow: true}
"""


class Cost(msgspec.Struct, frozen=True):
    count: int
    seconds: float
    cpu_seconds: float

    @property
    def micros(self) -> float:
        """Microseconds for each item."""
        return self.seconds / self.count * 1e6


class Notes(ConnectorBase):
    """A connector whose calls do nothing, so that an act costs only what Tenure does."""

    name = "notes"

    def __init__(self) -> None:
        nothing: dict[str, Any] = {"type": "object", "properties": {}}
        fields = {"type": "object", "properties": {"number": {"type": "integer"}}}
        self.operations = {
            "keep": Operation(
                name="keep", summary="Keep a number.", target=nothing, fields=fields, repeats="sets_state"
            )
        }

    async def call(self, call: ConnectorCall) -> Any:
        return {"kept": call.fields["number"]}


# ------------------------------------------------------------------------------------------- workflows


@tenure.workflow
async def one_child(number: int) -> int:
    return number


@tenure.workflow(steps_max=STEPS_MAX)
async def many_children(count: int) -> int:
    started = [await tenure.start(one_child, number) for number in range(count)]
    return sum([await child.result() for child in started])


@tenure.step
async def same(number: int) -> int:
    return number


@tenure.workflow(steps_max=STEPS_MAX)
async def many_mapped(count: int) -> int:
    return sum(await tenure.map(same, range(count)))


@tenure.workflow(steps_max=STEPS_MAX)
async def many_events(count: int) -> int:
    """Take events of one name, one after the other."""
    return sum([await tenure.wait("number") for _ in range(count)])


@tenure.workflow(steps_max=STEPS_MAX)
async def many_waits(count: int) -> int:
    """Wait for events of different names at once."""
    return sum(await tenure.gather(*(tenure.wait(f"number-{number}") for number in range(count))))


@tenure.workflow(steps_max=STEPS_MAX)
async def many_acts(count: int) -> int:
    results = [await tenure.act("notes.keep", fields={"number": number}) for number in range(count)]
    return sum(result["kept"] for result in results)


@tenure.step
async def log_lines(count: int) -> int:
    for number in range(count):
        tenure.log("a line", number=number)
        if number % 1000 == 999:  # faster, and lines that are not written in time would be dropped
            await asyncio.sleep(0.25)
    return sum(range(count))


@tenure.workflow
async def many_log_lines(count: int) -> int:
    return await log_lines(count)


@tenure.workflow(steps_max=STEPS_MAX)
async def many_steps(count: int) -> int:
    """Steps one after the other, and then a wait for an event."""
    for number in range(count):
        await same(number)
    await tenure.wait("go on")
    return sum(range(count))


FLOWS = (
    one_child, many_children, many_mapped, many_events, many_waits, many_acts, many_log_lines, many_steps
)  # fmt: skip


# --------------------------------------------------------------------------------------------- driving


async def _drive_nothing(engine: tenure.Engine, run: RunHandle[int], count: int) -> None:
    """Do nothing: the run needs no events."""
    del engine, run, count


async def _signal_go_on(engine: tenure.Engine, run: RunHandle[int], count: int) -> None:
    del count
    await engine.signal(run.id, "go on")


async def _deliver(name: str, engine: tenure.Engine, run: RunHandle[int], count: int) -> None:
    left = iter(range(count))

    async def deliver_one() -> None:
        number = next(left)
        await engine.signal(run.id, name.format(number), number)

    await run_concurrently(count, AT_ONCE, deliver_one)


async def _read_lines(engine: tenure.Engine, run: RunHandle[int], count: int) -> None:
    """Read the log lines while they are written."""
    found = last = 0
    while found < count:
        lines = await engine.runs.logs(run.id, after=last)
        found += len(lines)
        if lines:
            last = lines[-1].no
        else:
            await asyncio.sleep(0.05)


Drive = Callable[[tenure.Engine, RunHandle[int], int], Awaitable[None]]
KINDS: dict[str, tuple[Any, Drive]] = {
    "children": (many_children, _drive_nothing),
    "map": (many_mapped, _drive_nothing),
    "events": (many_events, partial(_deliver, "number")),
    "waits": (many_waits, partial(_deliver, "number-{}")),
    "acts": (many_acts, _drive_nothing),
    "log_lines": (many_log_lines, _read_lines),
}
REPLAY = "replay"
"""Another kind: the recorded steps that are replayed when a run continues."""


async def measure(database: str, kind: str, count: int) -> Cost:
    """Measure one run with `count` items."""
    async with (
        tenure.Engine(database, connectors=[Notes()], policy=POLICY) as engine,
        engine.worker(*FLOWS, slots=SLOTS) as worker,
    ):
        warm_up = await engine.start(many_children, 20)
        await warm_up.result()
        flow, drive = KINDS.get(kind, (many_steps, _signal_go_on))
        run: RunHandle[int] | None = None
        before = worker.counts["suspended"]
        if kind == REPLAY:
            run = await engine.start(flow, count)
            while worker.counts["suspended"] == before:  # noqa: ASYNC110 - polling costs less than a callback
                await asyncio.sleep(0.05)
        cpu, begun = time.process_time(), time.perf_counter()
        run = run or await engine.start(flow, count)
        await drive(engine, run, count)
        answer = await run.result()
        cost = Cost(count, time.perf_counter() - begun, time.process_time() - cpu)
        if answer != sum(range(count)):
            raise AssertionError(f"{kind}: the result is {answer}, but {sum(range(count))} was expected")
        return cost


async def measure_in_process(database: str, kind: str, count: int) -> Cost:
    """`measure` in a fresh process."""
    return await run_module(Cost, "bench.many", database, kind, str(count))


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))).decode())
