"""A runner that plans a change and executes its jobs fetches it once, and only with the protocols of its owner."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec

from tenure.ci.change import NO_COMMIT, Change
from tenure.ci.job import PLAN_TOOL, JobCheckout
from tenure.ci.mirror import GitSettings
from tenure.ci.settings import RepositorySettings
from tenure.ci_runner.job_host import JobHost, RunnerSettings
from tenure.sandbox.isolation import Isolation
from tenure.sandbox.usage_limits import UsageMeter
from tenure.testing.git_host import GitHost, Push
from tests.ci_runner.stage import CiStage, ci_stage

PIPELINE = """\
jobs:
  whole: {run: "git log -1 --format=%s && ls /mirror/pack && ! touch /mirror/x && test ! -e HIDDEN"}
  some: {inputs: [src/**], run: "cat src/a && test ! -e /mirror"}
"""


class CountingHost(GitHost):
    """A git host that counts what is fetched from it."""

    fetches = 0

    def serve(self, request: dict[str, str], body: bytes) -> tuple[bytes, list[Push]]:
        self.fetches += b"command=fetch" in body
        return super().serve(request, body)


def find_mirrors(folder: Path) -> list[Path]:
    return list(folder.glob("runner-0/**/*.git"))


async def start_change(stage: CiStage, url: str, *protocols: str) -> str:
    settings = RepositorySettings(name="shop", url=url, protocols=protocols)
    change = Change(
        repository=settings, event="push", ref="refs/heads/main", base=NO_COMMIT, head=stage.commit
    )
    planner: dict[str, Any] = {"tool": PLAN_TOOL, "queue": "ci", "input": msgspec.to_builtins(change)}
    return await stage.engine.create("ci", planner=planner, profile="delta-ci")


async def test_a_plan_and_its_jobs_fetch_a_commit_once_into_one_mirror(url: str, tmp_path: Path) -> None:
    pipeline = PIPELINE.replace("HIDDEN", str(tmp_path / "runner-0" / "mirrors"))
    files = {".tenure/ci.yaml": pipeline, "src/a": "hello\n"}
    async with ci_stage(url, tmp_path, files=files, protocols=("http",)) as stage:
        with CountingHost(tmp_path) as host:
            run = await start_change(stage, f"{host.url}/repository/.git", "http")
            assert await stage.ended(run) == "SUCCESS"
            assert {step.name for step in await stage.engine.runs.steps(run)} >= {"whole", "some"}
            assert host.fetches == 1
        assert [mirror.parent.name for mirror in find_mirrors(tmp_path)] == ["mirrors"]


async def test_a_change_whose_settings_allow_more_than_the_runner_is_not_fetched(
    url: str, tmp_path: Path
) -> None:
    files = {".tenure/ci.yaml": PIPELINE, "src/a": "hello\n"}
    async with ci_stage(url, tmp_path, files=files, protocols=("https",)) as stage:
        planned = await start_change(stage, str(stage.repository), "file", "https")
        job = await stage.start(run="true")
        assert await stage.ended(planned) == "FAILED"
        assert await stage.ended(job) == "FAILED"
        assert "uses file; this host fetches with https" in str(await stage.engine.get(planned))
        assert (await stage.failure(job))[0] == "CHECKOUT_FAILED"
        assert "uses file" in stage.log(job)
        assert find_mirrors(tmp_path) == []


async def test_the_fetch_of_a_canceled_job_is_ended(tmp_path: Path) -> None:
    settings = RunnerSettings(folder=tmp_path / "runner", git=GitSettings(protocols=("http",)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/x.git"
        async with UsageMeter() as meter:
            host = JobHost(settings, Isolation(kind="none"), meter)
            checkout = JobCheckout(repository="slow", url=address, commit="1" * 40)
            fetching = asyncio.ensure_future(host.fetch(checkout))
            connection, _ = await asyncio.to_thread(silent.accept)
            fetching.cancel()
            connection.settimeout(60.0)
            while await asyncio.to_thread(connection.recv, 4096):  # until git has gone
                pass
            connection.close()
            host.close()
