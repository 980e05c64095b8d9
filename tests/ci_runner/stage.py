"""`ci_stage`: a real server, a real CI runner as its own process, and a real git repository.

async with ci_stage(url, tmp_path) as stage:
    run = await stage.start(job={"commands": [{"run": "make"}]})
    await stage.ended(run)
    assert stage.log(run, "job") == ...
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tenure.engine import Engine
from tests.ci_runner.runner_process import ProcessSettings
from tests.server.stage import Site, site
from tests.worker.helpers import until

ENDED = ("SUCCESS", "FAILED", "CANCELED", "TIMEOUT")
PATIENCE_SECONDS = 60.0


def make_repository(folder: Path, files: dict[str, str]) -> str:
    """A repository with one commit. The result is the commit."""
    folder.mkdir()
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    git(folder, "init", "-q", "-b", "main")
    return commit(folder)


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "Change")
    return git(folder, "rev-parse", "HEAD")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


class CiStage:
    def __init__(self, s: Site, folder: Path, commit_id: str) -> None:
        self.site = s
        self.folder = folder
        self.repository = folder / "repository"
        self.storage = folder / "storage"
        self.commit = commit_id
        self.runners: list[subprocess.Popen[bytes]] = []

    @property
    def engine(self) -> Engine:
        return self.site.engine.scoped(tenant="acme")

    async def start_runner(
        self, *, env: dict[str, str] | None = None, **settings: Any
    ) -> subprocess.Popen[bytes]:
        number = len(self.runners)
        made = ProcessSettings(
            server=self.site.address,
            key=await self.site.key("runner"),
            folder=str(self.folder / f"runner-{number}"),
            storage=str(self.storage),
            **settings,
        )
        process = subprocess.Popen(  # noqa: ASYNC220 - it starts at once, and outlives this function
            [sys.executable, "-m", "tests.ci_runner.runner_process", msgspec.json.encode(made).decode()],
            env={**os.environ, **(env or {})},
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
        )
        self.runners.append(process)
        return process

    def job(self, **job: Any) -> dict[str, Any]:
        """The input of a job. A text as `run` is its only command."""
        run = job.pop("run", None)
        checkout = {
            "repository": "r",
            "url": str(self.repository),
            "commit": self.commit,
            "ref": "refs/heads/main",
        }
        return {
            "checkout": checkout | job.pop("checkout", {}),
            "commands": [{"run": run}] if run is not None else [{"run": "true"}],
            **job,
        }

    async def start(
        self,
        *jobs: dict[str, Any],
        queue: str = "ci",
        retries: int = 0,
        lease_seconds: float | None = None,
        required: bool = True,
        **job: Any,
    ) -> str:
        """Start a run with these jobs; without any, with one job of the given fields. The jobs are `job-0`, `job-1`, ..."""
        inputs = [self.job(**each) for each in jobs] if jobs else [self.job(**job)]
        plan = [
            {
                "name": f"job-{number}",
                "tool": "ci.job",
                "queue": queue,
                "needs": [],
                "input": each,
                "retries": retries,
                "required": required,
                **({} if lease_seconds is None else {"lease_seconds": lease_seconds}),
                "backoff": {"seconds": (0.0,)},
            }
            for number, each in enumerate(inputs)
        ]
        return await self.engine.create("ci", plan, profile="delta-ci")

    async def ended(self, run: str) -> str:
        """Wait for the end of a run. The result is its status."""

        async def status() -> str:
            shown = (await self.engine.get(run)).shown
            return shown if shown in ENDED else ""

        return str(await until(status, f"the end of {run}", PATIENCE_SECONDS))

    async def result(self, **job: Any) -> tuple[str, str]:
        """Run one job. The result is the run's status and the job's log."""
        run = await self.start(**job)
        return await self.ended(run), self.log(run)

    async def step(self, run: str, name: str = "job-0") -> Any:
        (found,) = [step for step in await self.engine.runs.steps(run) if step.name == name]
        return found

    async def failure(self, run: str, name: str = "job-0") -> tuple[str, int]:
        """The code with which a job failed (empty if it did not), and the number of its attempts."""
        step = await self.step(run, name)
        return (step.last_error or step.reason or "") if step.shown == "FAILED" else "", step.attempt

    def lease(self, run: str, job: int = 0, attempt: int = 1) -> Path:
        return self.storage / f"{run}.{job}.{attempt}"

    def log(self, run: str, job: int = 0, attempt: int = 1) -> str:
        file = self.lease(run, job, attempt) / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    async def logged(self, run: str, text: str, job: int = 0) -> None:
        await until(lambda: text in self.log(run, job), f"{text!r} in the log", PATIENCE_SECONDS)


@asynccontextmanager
async def ci_stage(
    url: str, folder: Path, *, files: dict[str, str] | None = None, runner: bool = True, **settings: Any
) -> AsyncIterator[CiStage]:
    commit_id = make_repository(folder / "repository", files or {"README": "hello\n"})
    (folder / "storage").mkdir()
    async with site(url) as s:
        stage = CiStage(s, folder, commit_id)
        try:
            if runner:
                await stage.start_runner(**settings)
            yield stage
        finally:
            for process in stage.runners:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            for process in stage.runners:
                await asyncio.to_thread(process.wait)
