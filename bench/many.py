"""Runs that do a thing many times: what one child, mapped step, event, wait, act or log line costs at growing numbers.

    python -m bench.many DATABASE KIND COUNT    # one measurement in a process of its own; prints one JSON object

Laws:
1. Everything happens in one run, through the SDK and a worker, as a user's program does it.
2. The clock runs from the start of the run to its result; the answer is checked.
3. Cost is time divided by items. The CPU time is this process's own: PostgreSQL's server has its own.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvloop

import tenure
from tenure.engine.run_handle import RunHandle
from tenure.govern.connector import ConnectorCall, Operation
from tenure.govern.connectors.base import ConnectorBase

SLOTS = 400
AT_ONCE = 100
"""Events that are delivered at the same time."""
STEPS_MAX = 100_000
POLICY = """version: 1
rules:
  - {name: notes, connector: notes, operation: keep, allow: true}
"""


class Cost(msgspec.Struct, frozen=True):
    """What so many items took."""

    count: int
    seconds: float
    cpu_seconds: float

    @property
    def micros(self) -> float:
        """Microseconds for each item."""
        return self.seconds / self.count * 1e6


class Notes(ConnectorBase):
    """A connector whose calls do nothing: an act costs what Tenure makes of it."""

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
        """Nothing is done."""
        return {"kept": call.fields["number"]}


# ------------------------------------------------------------------------------------------- workflows


@tenure.workflow
async def one_child(number: int) -> int:
    """A child that ends at once."""
    return number


@tenure.workflow(steps_max=STEPS_MAX)
async def many_children(count: int) -> int:
    """Start so many children, then collect what they come to."""
    started = [await tenure.start(one_child, number) for number in range(count)]
    return sum([await child.result() for child in started])


@tenure.step
async def same(number: int) -> int:
    """A step that does nothing."""
    return number


@tenure.workflow(steps_max=STEPS_MAX)
async def many_mapped(count: int) -> int:
    """A step for each of so many items."""
    return sum(await tenure.map(same, range(count)))


@tenure.workflow(steps_max=STEPS_MAX)
async def many_events(count: int) -> int:
    """Take so many events of one name, one after the other."""
    return sum([await tenure.wait("number") for _ in range(count)])


@tenure.workflow(steps_max=STEPS_MAX)
async def many_waits(count: int) -> int:
    """Wait for so many different events at once."""
    return sum(await tenure.gather(*(tenure.wait(f"number-{number}") for number in range(count))))


@tenure.workflow(steps_max=STEPS_MAX)
async def many_acts(count: int) -> int:
    """So many actions, one after the other."""
    total = 0
    for number in range(count):
        total += (await tenure.act("notes.keep", fields={"number": number}))["kept"]
    return total


@tenure.step
async def say_lines(count: int) -> int:
    """Log so many lines."""
    for number in range(count):
        tenure.log("a line", number=number)
        if number % 1000 == 999:
            await asyncio.sleep(
                0.25
            )  # what is not written in time is dropped; twenty times a second would be a chatty step
    return sum(range(count))


@tenure.workflow
async def many_log_lines(count: int) -> int:
    """A step that logs."""
    return await say_lines(count)


@tenure.workflow(steps_max=STEPS_MAX)
async def many_steps(count: int) -> int:
    """So many steps, one after the other, and an event to wait for behind them."""
    for number in range(count):
        await same(number)
    await tenure.wait("go on")
    return sum(range(count))


FLOWS = (
    one_child, many_children, many_mapped, many_events, many_waits, many_acts, many_log_lines, many_steps
)  # fmt: skip


# --------------------------------------------------------------------------------------------- driving


async def _alone(engine: tenure.Engine, run: RunHandle[int], count: int) -> None:
    """The run does everything by itself."""
    del engine, run, count


async def _go_on(engine: tenure.Engine, run: RunHandle[int], count: int) -> None:
    del count  # it has done its steps
    await engine.signal(run.id, "go on")


async def _events(engine: tenure.Engine, run: RunHandle[int], count: int) -> None:
    left = iter(range(count))

    async def deliver() -> None:
        for number in left:
            await engine.signal(run.id, "number", number)

    await asyncio.gather(*(deliver() for _ in range(AT_ONCE)))


async def _named_events(engine: tenure.Engine, run: RunHandle[int], count: int) -> None:
    left = iter(range(count))

    async def deliver() -> None:
        for number in left:
            await engine.signal(run.id, f"number-{number}", number)

    await asyncio.gather(*(deliver() for _ in range(AT_ONCE)))


async def _lines(engine: tenure.Engine, run: RunHandle[int], count: int) -> None:
    """Read the lines back, as they come."""
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
    "children": (many_children, _alone),
    "map": (many_mapped, _alone),
    "events": (many_events, _events),
    "waits": (many_waits, _named_events),
    "acts": (many_acts, _alone),
    "log_lines": (many_log_lines, _lines),
}
REPLAY = "replay"
"""Not of an item: recorded steps that are read and passed again when a run goes on."""


async def measured(database: str, kind: str, count: int) -> Cost:
    """One run with so many items."""
    async with (
        tenure.Engine(database, connectors=[Notes()], policy=POLICY) as engine,
        engine.worker(*FLOWS, slots=SLOTS) as worker,
    ):
        await (
            await engine.start(many_children, 20)
        ).result()  # connections, statements and caches, before the clock
        flow, drive = KINDS.get(kind, (many_steps, _go_on))
        run: RunHandle[int] | None = None
        before = worker.counts["suspended"]
        if kind == REPLAY:
            run = await engine.start(flow, count)
            while worker.counts["suspended"] == before:  # noqa: ASYNC110 - a look costs less than being told
                await asyncio.sleep(0.05)
        cpu, begun = time.process_time(), time.perf_counter()
        run = run or await engine.start(flow, count)
        await drive(engine, run, count)
        answer = await run.result()
        cost = Cost(count, time.perf_counter() - begun, time.process_time() - cpu)
        if answer != sum(range(count)):
            raise AssertionError(f"{kind}: {answer} of {count}")
        return cost


async def in_a_process(database: str, kind: str, count: int) -> Cost:
    """The same in a fresh process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.many", database, kind, str(count), stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the measurement of {count} {kind} ended with {process.returncode}")
    *said, last = answer.splitlines()
    for line in said:  # what Tenure has logged meanwhile
        print(line.decode(), file=sys.stderr)
    return msgspec.json.decode(last, type=Cost)


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(measured(sys.argv[1], sys.argv[2], int(sys.argv[3])))).decode())
