"""Measures the CI runner: how long a sandbox takes to start, and how long many jobs take on one runner.

    python -m bench.ci_jobs [JOBS] [SLOTS] [SECONDS]

There are two processes beside this one: `tenure serve` on SQLite, and `tenure ci runner`. Each job checks out a commit and sleeps. The time runs
from the first grant to the last end in the database. The floor is the same number of sleeps without Tenure. A sandbox is started until its
first program has ended; the floor is that program alone.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.peers.protocol import free_port
from bench.service import TENANT, create_key
from tenure.engine import Engine
from tenure.sandbox.bubblewrap import make_sandbox_files
from tenure.sandbox.isolation import UID_BASE
from tenure.sandbox.sandbox import SandboxSpec, make_job_folders, run_sandboxed

SANDBOXES = 50
SANDBOX_MILLISECONDS_MAX = 150
PATIENCE_SECONDS = 600.0


async def measure_sandboxes(folder: Path) -> list[float]:
    """The seconds that each of some sandboxes takes, one after another."""
    uid = UID_BASE + 500 if os.geteuid() == 0 else None
    make_sandbox_files(folder / "files")
    make_job_folders(folder / "job", uid)
    spec = SandboxSpec(files=folder / "files", folder=folder / "job", uid=uid)
    taken = []
    for _ in range(SANDBOXES):
        began = time.perf_counter()
        await run_sandboxed(["true"], spec)
        taken.append(time.perf_counter() - began)
    return taken


def make_repository(folder: Path) -> str:
    """A repository with one commit. The result is the commit."""
    folder.mkdir()
    (folder / "README").write_text("hello\n")
    who = ["-c", "user.name=bench", "-c", "user.email=bench@example.com"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "Begin"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    head = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return head.stdout.strip()


async def prepare(url: str, repository: Path, jobs: int, seconds: float) -> tuple[str, str]:
    """Queue the jobs. The result is the run, and the key of a runner."""
    commit = make_repository(repository)
    job = {
        "checkout": {"repository": "bench", "url": str(repository), "commit": commit},
        "commands": [{"run": ["sleep", str(seconds)]}],
    }
    plan = [
        {"name": f"j{n}", "tool": "ci.job", "queue": "ci", "needs": [], "input": job} for n in range(jobs)
    ]
    async with Engine(url, sweep=False, tenant=TENANT) as engine:
        run = await engine.create("bench", plan, profile="delta-ci")
        return run, await create_key(engine, "runner")


async def measure_jobs(url: str, run: str, jobs: int) -> float:
    """The seconds from the first grant to the last end."""
    async with Engine(url, sweep=False, tenant=TENANT) as engine:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            steps = [step for step in await engine.runs.steps(run) if step.kind == "work"]
            if all(step.finished_at is not None for step in steps):
                break
            if time.monotonic() > deadline:
                raise SystemExit("the jobs did not end in time")
            await asyncio.sleep(0.5)
        failed = [step.name for step in steps if step.state != "succeeded"]
        if failed or len(steps) != jobs:
            raise SystemExit(f"{len(failed)} jobs failed")
        begun = min(step.started_at for step in steps if step.started_at is not None)
        ended = max(step.finished_at for step in steps if step.finished_at is not None)
        return (ended - begun).total_seconds()


def main(jobs: int = 50, slots: int = 8, seconds: float = 5.0) -> None:
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as name:
        folder, port = Path(name), free_port()
        starts = sorted(asyncio.run(measure_sandboxes(folder)))
        url = f"sqlite:{folder / 'bench.db'}"
        os.environ["TENURE_ARTIFACTS"] = str(folder / "artifacts")
        run, os.environ["TENURE_KEY"] = asyncio.run(prepare(url, folder / "repository", jobs, seconds))
        output = None if os.environ.get("BENCH_LOUD") else subprocess.DEVNULL
        tenure = [sys.executable, "-m", "tenure.cli"]
        server = ["serve", "--db", url, "--port", str(port), "--requests-per-second", "1000000"]
        runner = ["ci", "runner", "--server", f"http://127.0.0.1:{port}", "--slots", str(slots)]
        runner += ["--folder", str(folder / "runner"), "--git-protocol", "file"]
        processes = [
            subprocess.Popen([*tenure, *command], stdout=output, stderr=output)
            for command in (server, runner)
        ]
        try:
            taken = asyncio.run(measure_jobs(url, run, jobs))
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
                process.wait(60)
    load = os.getloadavg()[0]
    middle, late = statistics.median(starts) * 1000, starts[int(len(starts) * 0.95)] * 1000
    print(
        f"sandbox: {middle:.0f} ms p50, {late:.0f} ms p95 (bar: {SANDBOX_MILLISECONDS_MAX} ms p50; load average {load:.1f})"
    )
    least = math.ceil(jobs / slots) * seconds
    print(f"{jobs} jobs of `sleep {seconds:g}` on {slots} slots: {taken:.1f} s (floor: {least:g} s)")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*map(int, given[:2]), *map(float, given[2:3]))
