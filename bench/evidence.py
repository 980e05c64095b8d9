"""`python -m bench.evidence`: how long a run's evidence takes, and what sealing takes from running.

    python -m bench.evidence [--events 1000] [--runs 1500] [--rounds 3] [--store sqlite]

Laws:
1. What is built is verified, and what was sealed is counted: a bundle with something wrong ends the bench with 2.
2. With sealing and without it are measured one directly after the other, on a new database each, and the medians compared.
3. One JSON line for each figure, on stdout: the name, the value with its unit, and the bar.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from bench import workloads
from bench.figures import orchestrating
from bench.places import STORES, Place, open_places
from tenure.artifacts import ArtifactStore
from tenure.govern.evidence.bundle import build_bundle
from tenure.govern.evidence.sealer import RunSealer, SealerTask
from tenure.govern.evidence.statement import build_envelope, build_statement
from tenure.govern.evidence.verification import EvidenceFiles, verify_parts
from tenure.govern.signing import make_key
from tenure.proof.signatures import TrustedKeys

BAR_SECONDS = 1.0
BAR_KEPT = 0.9
"""What must be left of the throughput while sealing goes on; the machine's mood is of that size."""
IN_FLIGHT = 200


def figure(name: str, value: float, unit: str, bar: float, **more: Any) -> None:
    """Print one."""
    line = {"figure": name, "value": round(value, 4), "unit": unit, "bar": bar, **more}
    print(msgspec.json.encode(line).decode(), flush=True)


def broken(problem: str) -> None:
    """End the bench (law 1)."""
    print(problem, file=sys.stderr)
    raise SystemExit(2)


async def one_run(place: Place, events: int, rounds: int, folder: Path) -> None:
    """A run of so many events: built, signed and verified."""
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
                broken(f"the bundle is not right: {report}")
            how |= {"events": len(rows), "bytes": len(built.zip)}
    figure("evidence built and signed", statistics.median(built_in), "s", BAR_SECONDS, **how)
    figure("evidence verified", statistics.median(verified_in), "s", BAR_SECONDS, **how)


async def running(place: Place, runs: int, folder: Path | None) -> tuple[float, int]:
    """Steps a second, with sealing where there is a folder for what is sealed; and how many runs were sealed meanwhile."""
    async with place.database() as database, orchestrating(database) as orchestrator:
        await workloads.code_first(orchestrator, runs // 10, IN_FLIGHT)
        if folder is None:
            return (await workloads.code_first(orchestrator, runs, IN_FLIGHT)).rate, 0
        made = RunSealer(database.store, ArtifactStore(str(folder)), make_key(folder / "seal.key"))
        async with SealerTask(orchestrator, made, seconds=0.05, quiet_seconds=0.0):
            sample = await workloads.code_first(orchestrator, runs, IN_FLIGHT)
        sealed = len(await database.store.read("evidence_after", "tenant-1", 2**62, 0, runs * 2))
        return sample.rate, sealed


async def beside(place: Place, runs: int, rounds: int) -> None:
    """Running with sealing and without it, in turns (law 2)."""
    off, on, sealed = [], [], []
    for _ in range(rounds):
        off.append((await running(place, runs, None))[0])
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            rate, count = await running(place, runs, Path(folder))
        on.append(rate)
        sealed.append(count)
    kept = statistics.median(on) / statistics.median(off)
    figure(
        "throughput kept while sealing", kept, "of it", BAR_KEPT, store=place.name,
        off=round(statistics.median(off)), on=round(statistics.median(on)), sealed=sealed,
    )  # fmt: skip


def main(
    events: Annotated[int, typer.Option(min=10, help="Events of the one run.")] = 1000,
    runs: Annotated[int, typer.Option(min=10, help="Runs beside which is sealed.")] = 1500,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    store: Annotated[str, typer.Option(help="postgres, sqlite or both.")] = "both",
) -> None:
    """Measure; see above."""
    wanted = set(STORES) if store == "both" else {store}

    async def all_of_it(place: Place) -> None:
        with tempfile.TemporaryDirectory() as folder:
            await one_run(place, events, rounds, Path(folder))
        await beside(place, runs, rounds)

    with open_places(wanted) as places:
        for place in places.values():
            asyncio.run(all_of_it(place))


if __name__ == "__main__":
    typer.run(main)
