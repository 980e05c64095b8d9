"""`python -m bench.evidence`: how long the evidence of a run takes, and how much sealing slows other runs down.

    python -m bench.evidence [--events 1000] [--runs 1500] [--rounds 3] [--store sqlite]

Laws:
1. Every bundle is verified, and sealed runs are counted. A wrong bundle ends the bench with 2.
2. Throughput with and without sealing is measured one directly after the other, each on a new database. The medians are compared.
3. It prints a JSON line for each figure: the name, the value with its unit, and the bar.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import workloads
from bench.figures import orchestrating
from bench.places import STORES, Place, open_places
from bench.report import print_json
from tenure.artifacts import ArtifactStore
from tenure.govern.evidence.bundle import build_bundle
from tenure.govern.evidence.sealer import RunSealer, SealerTask
from tenure.govern.evidence.statement import build_envelope, build_statement
from tenure.govern.evidence.verification import EvidenceFiles, verify_parts
from tenure.govern.signing import make_key
from tenure.proof.signatures import TrustedKeys

BAR_SECONDS = 1.0
BAR_KEPT = 0.9
"""The share of the throughput that must remain during sealing. The noise of a machine is about as large as the loss."""
IN_FLIGHT = 200


def print_figure(name: str, value: float, unit: str, bar: float, **more: Any) -> None:
    print_json({"figure": name, "value": round(value, 4), "unit": unit, "bar": bar, **more})


async def one_run(place: Place, events: int, rounds: int, folder: Path) -> None:
    """Build, sign and verify the evidence of a run with `events` events."""
    signer = make_key(folder / "seal.key")
    async with place.database() as database, orchestrating(database) as orchestrator:
        lease = await workloads.start(orchestrator)
        for seq in range(1, events - 1):
            await workloads.checkpoint(orchestrator, lease, seq, f"step-{seq}")
        await workloads.complete(orchestrator, lease, events - 1)
        run_id, store = lease.run_id, database.store
        built_in, verified_in = [], []
        how: dict[str, Any] = {"store": place.name}
        for _ in range(rounds):
            began = time.perf_counter()
            rows = await store.read("events_of", run_id)
            (run,) = await store.read("get_run", run_id)
            built = build_bundle(run_id, run.tenant, rows)
            envelope = await build_envelope(build_statement(built, run.finished_at or 0), signer)
            built_in.append(time.perf_counter() - began)
            began = time.perf_counter()
            given = EvidenceFiles(name=built.name, zip=built.zip, envelope=envelope)
            (report,) = verify_parts([given], TrustedKeys.from_public_keys(signer.public))
            verified_in.append(time.perf_counter() - began)
            if report.wrong is not None or report.events != len(rows):
                print(f"the bundle is wrong: {report}", file=sys.stderr)
                raise SystemExit(2)
            how |= {"events": len(rows), "bytes": len(built.zip)}
    print_figure("evidence built and signed", statistics.median(built_in), "s", BAR_SECONDS, **how)
    print_figure("evidence verified", statistics.median(verified_in), "s", BAR_SECONDS, **how)


async def running(place: Place, runs: int, folder: Path | None) -> tuple[float, int]:
    """The steps per second, and the number of sealed runs. Runs are sealed if there is a folder for the evidence."""
    async with place.database() as database, orchestrating(database) as orchestrator:
        await workloads.code_first(orchestrator, runs // 10, IN_FLIGHT)
        if folder is None:
            return (await workloads.code_first(orchestrator, runs, IN_FLIGHT)).rate, 0
        made = RunSealer(database.store, ArtifactStore(str(folder)), make_key(folder / "seal.key"))
        async with SealerTask(orchestrator, made, seconds=0.05, quiet_seconds=0.0):
            sample = await workloads.code_first(orchestrator, runs, IN_FLIGHT)
        sealed = len(await database.store.read("evidence_after", "tenant-1", 2**62, 0, runs * 2))
        return sample.rate, sealed


async def compare_sealing(place: Place, runs: int, rounds: int) -> None:
    """Measure the throughput with and without sealing, by turns (law 2)."""
    off, on, sealed = [], [], []
    for _ in range(rounds):
        off.append((await running(place, runs, None))[0])
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            rate, count = await running(place, runs, Path(folder))
        on.append(rate)
        sealed.append(count)
    kept = statistics.median(on) / statistics.median(off)
    print_figure(
        "throughput kept while sealing", kept, "of it", BAR_KEPT, store=place.name,
        off=round(statistics.median(off)), on=round(statistics.median(on)), sealed=sealed,
    )  # fmt: skip


def main(
    events: Annotated[int, typer.Option(min=10, help="Events of the run whose evidence is built.")] = 1000,
    runs: Annotated[int, typer.Option(min=10, help="Runs per sample of the throughput.")] = 1500,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    store: Annotated[str, typer.Option(help="postgres, sqlite or both.")] = "both",
) -> None:
    """Measure how long evidence takes, and how much sealing slows other runs down."""
    with open_places(set(STORES) if store == "both" else {store}) as places:
        for place in places.values():
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(one_run(place, events, rounds, Path(folder)))
            asyncio.run(compare_sealing(place, runs, rounds))


if __name__ == "__main__":
    typer.run(main)
