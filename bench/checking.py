"""A broken run must not count as a fast one: every run of a sample is looked at when the clock has stopped."""

from __future__ import annotations

import asyncio

from bench.workloads import Expected
from tenure.doctor import RunDump, check_run
from tenure.ids import run_text
from tenure.store.port import Store

LANES = 4


class Broken(Exception):
    """A sample did not do what it was measured for."""


async def check(store: Store, runs: list[Expected], *, checked: int) -> None:
    """Every run has ended as expected; a few of them are examined by the doctor."""
    if len({run.run_id for run in runs}) != len(runs):
        raise Broken("two runs of the sample have the same id")
    left = iter(runs)

    async def lane() -> None:
        for expected in left:
            await _look(store, expected)

    await asyncio.gather(*(lane() for _ in range(LANES)))
    stride = max(1, len(runs) // checked)
    for expected in runs[::stride][:checked]:
        await _examine(store, expected)


async def _look(store: Store, expected: Expected) -> None:
    found = await store.read("get_run", expected.run_id)
    if not found:
        raise Broken(f"{run_text(expected.run_id)} is not there")
    run = found[0]
    said = Expected(run.id, run.version, run.steps_done, run.status)
    if said != expected:
        raise Broken(f"{run_text(expected.run_id)} should be {expected} and is {said}")


async def _examine(store: Store, expected: Expected) -> None:
    bundle = await load(store, expected.run_id)
    if len(bundle.events) != expected.events:
        raise Broken(f"{run_text(expected.run_id)} has {len(bundle.events)} events, not {expected.events}")
    if violations := check_run(bundle, settled=True):
        raise Broken(f"{run_text(expected.run_id)}: {'; '.join(map(str, violations[:5]))}")


async def load(store: Store, run_id: int) -> RunDump:
    """All rows of one run."""
    read = store.read
    return RunDump(
        run=(await read("get_run", run_id))[0],
        spec=next(iter(await read("get_spec", run_id)), None),
        steps=await read("steps_of", run_id),
        attempts=await read("attempts_of", run_id),
        checkpoints=await read("checkpoints_of", run_id),
        waits=await read("waits_of", run_id),
        approvals=await read("approvals_of", run_id),
        inbox=await read("inbox_of", run_id),
        children=await read("children_of", run_id),
        payloads=await read("payloads_of", run_id),
        events=await read("events_of", run_id),
        outbox=await read("outbox_of", run_id),
    )
