"""`tenure ci runner` with a real server: everything of a job goes over HTTP, and is read back over HTTP."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.ci.change import NO_COMMIT, Change
from tenure.ci.mirror import GitSettings
from tenure.ci.plan_step import execute_plan_step
from tenure.ci.settings import RepositorySettings
from tenure.ci_runner.job_host import JobHost, RunnerSettings
from tenure.ci_runner.sandboxed_planner import make_planner_launcher, run_planner
from tenure.ci_runner.secrets_file import read_secrets_file
from tenure.errors import TenureError
from tenure.sandbox.isolation import choose_isolation
from tenure.sandbox.usage_limits import UsageMeter
from tests.ci.repositories import WorkRepository
from tests.ci_runner.stage import ci_stage

TENURE = [sys.executable, "-m", "tenure.cli"]


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for logs and artifacts."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))


@pytest.mark.clause("DCI-18", "DCI-23")
async def test_the_runner_command_stores_logs_artifacts_caches_and_tests_at_the_server(
    url: str, tmp_path: Path
) -> None:
    report = (
        "<testsuite><testcase name='good'/><testcase name='bad'><failure>no</failure></testcase></testsuite>"
    )
    async with ci_stage(url, tmp_path, files={"r.xml": report}, runner=False) as stage:
        (tmp_path / "key").write_text(await stage.site.key("runner"))
        (tmp_path / "secrets").write_text("# names only\nTOKEN: env:HUSH\n")
        command = [
            *TENURE,
            "ci",
            "runner",
            "--server",
            stage.site.address,
            "--key-file",
            str(tmp_path / "key"),
        ]
        command += ["--secrets", str(tmp_path / "secrets"), "--slots", "2", "--git-protocol", "file"]
        command += ["--folder", str(tmp_path / "runner"), "--labels", "linux", "--grace", "0s"]
        with (tmp_path / "runner.log").open("wb") as logs:
            runner = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
                command, env={**os.environ, "HUSH": "hush-value"}, stdout=logs, stderr=logs
            )
        stage.runners.append(runner)
        job = {
            "run": "echo value: $TOKEN; mkdir -p dist deps; echo exe > dist/exe; cat deps/lib || echo lib > deps/lib",
            "secrets": ["TOKEN"],
            "trusted": True,
            "scope": "trusted:r",
            "artifacts": [{"name": "dist", "paths": ["dist"]}],
            "caches": [{"key": "deps", "paths": ["deps"]}],
            "reports": ["*.xml"],
        }
        for text in ("cache deps: not found", "cache deps: restored from deps"):
            run = await stage.start(job, queue="ci+linux")
            assert await stage.ended(run) == "SUCCESS", (tmp_path / "runner.log").read_text()
            reader = await stage.site.as_("operator")
            log = (await reader.get(f"/runs/{run}/steps/job-0/log")).text
            assert text in log
            assert "value: ***\n" in log
            (tests,) = (await reader.get(f"/runs/{run}/steps/job-0/tests")).json()["items"]
            assert (tests["report"]["passed"], tests["report"]["failed"]) == (1, 1)
            listed = (await reader.get(f"/runs/{run}/artifacts")).json()
            assert "dist" in str(listed)
        runner.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(runner.wait) == 0


async def test_the_runner_command_refuses_a_machine_without_a_sandbox(url: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "bwrap"
    broken.write_text("#!/bin/sh\necho no permissions >&2\nexit 1\n")
    broken.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TENURE_KEY": "tn_x"}
    command = [
        *TENURE,
        "ci",
        "runner",
        "--server",
        "http://127.0.0.1:1",
        "--folder",
        str(tmp_path / "runner"),
    ]
    ended = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "SANDBOX_UNAVAILABLE" in ended.stderr
    assert "no permissions" in ended.stderr
    assert "--isolation none" in ended.stderr


def test_the_file_of_secrets_has_references_and_no_values(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text("A: env:X\n\n# comment\nB: 'file:/run/b'\n")
    assert read_secrets_file(file) == {"A": "env:X", "B": "file:/run/b"}
    for text in ("A: hunter2", "A", "A: env:X\nA: env:Y", "9: env:X"):
        file.write_text(text)
        with pytest.raises(TenureError, match="INVALID_INPUT") as refused:
            read_secrets_file(file)
        assert "hunter2" not in str(refused.value)


async def test_the_planner_runs_in_a_sandbox_and_two_runners_never_share_a_folder(tmp_path: Path) -> None:
    settings = RunnerSettings(folder=tmp_path / "runner")
    isolation = await choose_isolation("bubblewrap")
    async with UsageMeter() as meter:
        host = JobHost(settings, isolation, meter)
        with pytest.raises(TenureError, match="another CI runner"):
            JobHost(settings, isolation, meter)
        with pytest.raises(TenureError, match="PLAN_FAILED"):
            await run_planner(host, 0, b"this is no request", 60.0)
        launch = make_planner_launcher(host, asyncio.get_running_loop())
        work = WorkRepository(tmp_path / "shop")
        head = work.commit({".tenure/ci.yaml": "jobs:\n  docs: {run: make}\n"})
        repository = RepositorySettings(name="shop", url=str(work.folder), protocols=("file",))
        change = Change(
            repository=repository,
            event="push",
            ref="refs/heads/main",
            trusted=True,
            base=NO_COMMIT,
            head=head,
        )
        owner = GitSettings(protocols=("file",))
        planned = await asyncio.to_thread(execute_plan_step, change, tmp_path / "cache", owner, launch)
        assert [step.name for step in planned.steps] == ["docs"]
        host.close()
