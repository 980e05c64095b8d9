"""`python -m bench.publish`: how many states of agent runs are published to S3 in a second, and how far behind their commits.

    python -m bench.publish [--runs 300] [--steps 4] [--rate 100] [--seconds 8]

Laws:
1. S3 is a private SeaweedFS on this machine, with real conditional writes. Database, workers and publisher share this process.
2. Throughput: the runs are over before the publisher begins to read the feed; every state of every run must be published, in order.
3. Lag: runs are worked off at a steady rate, and each state is timed from its commit to the answer of S3. The median counts.
4. It prints a JSON line for each figure: the name, the value with its unit, and the bar. A state that is missing ends it with 2.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from typing import Annotated, Any

import typer

from bench.report import print_json
from tenure import ids
from tenure.engine import Engine
from tenure.kernel.commands import Complete
from tenure.outbound.document_store import DocumentStore
from tenure.publish.documents import DocumentPublisher
from tenure.store.feed import FeedRepository
from tools.s3_server import PrivateS3

BAR_STATES = 500.0
BAR_LAG_SECONDS = 0.2
TENANT, PROFILE, TOOL = "bench", "agent-runs", "a"
IN_FLIGHT = 50
SECONDS_MAX = 120.0


async def _work_off(engine: Engine, steps: int) -> str:
    """One run of so many steps."""
    plan = [{"name": f"step-{n}", "tool": TOOL} for n in range(steps)]
    run = await engine.create("agent", plan, profile=PROFILE)
    for _ in range(steps):
        leases: list[Any] = []
        while not leases:
            leases = await engine.orchestrator.claim("bench", queues=[f"default|tool:{TOOL}"])
        for lease in leases:
            await engine.orchestrator.send(Complete(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1))
    return run


def _states(runs: int, steps: int) -> int:
    """Requested, queued and running; each step; the last step and the end are one event."""
    return runs * (3 + steps)


async def _until_published(publisher: DocumentPublisher, states: int) -> None:
    end = time.monotonic() + SECONDS_MAX
    while publisher.states < states:
        if time.monotonic() > end:
            print(f"{publisher.states} of {states} states were published", file=sys.stderr)
            raise typer.Exit(2)
        await asyncio.sleep(0.005)


async def measure_throughput(place: str, runs: int, steps: int, folder: str) -> None:
    async with Engine(f"sqlite:{folder}/throughput.db", tenant=TENANT) as engine:
        publisher = DocumentPublisher(engine.store, place)
        await FeedRepository(engine.store).open()
        async with publisher:
            while not publisher.is_writer:  # noqa: ASYNC110 - it has only a flag
                await asyncio.sleep(0.01)
            held = asyncio.Event()
            publish = publisher._publish

            async def wait_then_publish(rows: Any) -> None:
                await held.wait()
                await publish(rows)

            publisher._publish = wait_then_publish  # type: ignore[method-assign]  # the feed fills up first
            for begin in range(0, runs, IN_FLIGHT):
                await asyncio.gather(*(_work_off(engine, steps) for _ in range(min(IN_FLIGHT, runs - begin))))
            began = time.perf_counter()
            held.set()
            await _until_published(publisher, _states(runs, steps))
            seconds = time.perf_counter() - began
    print_json(
        {
            "figure": "published states",
            "value": round(_states(runs, steps) / seconds, 1),
            "unit": "states/s",
            "bar": BAR_STATES,
        }
    )


async def measure_lag(place: str, rate: float, seconds: float, steps: int, folder: str) -> None:
    answered: dict[tuple[str, int], int] = {}
    replace = DocumentStore.replace

    async def timed(store: DocumentStore, path: str, body: bytes, **how: Any) -> str:
        version = await replace(store, path, body, **how)
        answered[path, how.get("mark", 0)] = time.time_ns() // 1000
        return version

    DocumentStore.replace = timed  # type: ignore[method-assign,assignment]  # restored below
    try:
        async with Engine(f"sqlite:{folder}/lag.db", tenant=TENANT, publish=place) as engine:
            assert engine.publisher is not None
            count = max(int(rate * seconds / (3 + steps)), 1)
            runs: list[str] = []
            began = time.perf_counter()
            for number in range(count):
                runs.append(await _work_off(engine, steps))
                ahead = (number + 1) * (3 + steps) / rate - (time.perf_counter() - began)
                if ahead > 0:
                    await asyncio.sleep(ahead)
            await _until_published(engine.publisher, _states(count, steps))
            lags: list[float] = []
            for run in runs:
                path = f"{TENANT}/runs/{run}/status.json"
                lags += [
                    (answered[path, event.seq] - event.at) / 1e6
                    for event in await engine.store.read("events_of", ids.run_int(run))
                    if (path, event.seq) in answered
                ]
    finally:
        DocumentStore.replace = replace  # type: ignore[method-assign]  # as it was
    print_json(
        {
            "figure": "publishing lag p50",
            "value": round(statistics.median(lags), 4),
            "unit": "s",
            "bar": BAR_LAG_SECONDS,
            "p95": round(statistics.quantiles(lags, n=20)[18], 4),
            "states": len(lags),
        }
    )


def main(
    runs: Annotated[int, typer.Option(min=1)] = 300,
    steps: Annotated[int, typer.Option(min=1)] = 4,
    rate: Annotated[float, typer.Option(min=1)] = 100.0,
    seconds: Annotated[float, typer.Option(min=1)] = 8.0,
) -> None:
    """Measure the publisher against S3 on this machine."""
    with PrivateS3() as server, tempfile.TemporaryDirectory() as folder:
        os.environ.update(server.environment())
        asyncio.run(measure_throughput(server.place("throughput"), runs, steps, folder))
        asyncio.run(measure_lag(server.place("lag"), rate, seconds, steps, folder))


if __name__ == "__main__":
    typer.run(main)
