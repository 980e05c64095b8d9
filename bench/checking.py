"""Checks every run of a sample after the clock has stopped, so that broken runs do not count as fast ones."""

from __future__ import annotations

from bench.peers.protocol import run_concurrently
from bench.workloads import Expected
from tenure.doctor import check_run
from tenure.doctor.examination import load_run_dump
from tenure.ids import run_text
from tenure.store.port import Store

CONCURRENT_READS = 4


class Broken(Exception):
    """A sample is not valid."""


async def check(store: Store, runs: list[Expected], *, checked: int) -> None:
    """Check that every run has ended as expected, and let the doctor examine `checked` of them."""
    if len({run.run_id for run in runs}) != len(runs):
        raise Broken("two runs of the sample have the same id")
    left = iter(runs)
    await run_concurrently(len(runs), CONCURRENT_READS, lambda: _check_end(store, next(left)))
    stride = max(1, len(runs) // checked)
    for expected in runs[::stride][:checked]:
        await _examine(store, expected)


async def _check_end(store: Store, expected: Expected) -> None:
    found = await store.read("get_run", expected.run_id)
    if not found:
        raise Broken(f"{run_text(expected.run_id)} does not exist")
    run = found[0]
    actual = Expected(run.id, run.version, run.steps_done, run.status)
    if actual != expected:
        raise Broken(f"{run_text(expected.run_id)} is {actual}, but {expected} was expected")


async def _examine(store: Store, expected: Expected) -> None:
    bundle = await load_run_dump(store, expected.run_id)
    assert bundle is not None
    if len(bundle.events) != expected.events:
        raise Broken(f"{run_text(expected.run_id)} has {len(bundle.events)} events, not {expected.events}")
    if violations := check_run(bundle, settled=True):
        raise Broken(f"{run_text(expected.run_id)}: {'; '.join(map(str, violations[:5]))}")
