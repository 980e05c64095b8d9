"""Reports to a double of GitHub by real processes: a served hook starts the run, a worker does its jobs, and the reporter is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tenure.engine import Engine
from tenure.services.identity.bootstrap import create_first_tenant
from tenure.testing.doubles import GitHubDouble, push_event
from tests.engine.stage import Stage, queues
from tests.server.vcs_stage import REPO, SHA, TARGET, check_order, settings_text, start_github, wait_until

SECRET = "a secret of the hook"
WORKFLOW = """
name: ci
profile: delta-ci
steps:
  - id: build
    run: [echo, built]
  - id: test
    run: ["false"]
"""
RULE = {"when": "event == 'push'", "workflow": "ci"}


@pytest.fixture
def github(tmp_path: Path) -> Iterator[tuple[GitHubDouble, Path]]:
    yield from start_github(tmp_path)


def default_tenant(text: str, folder: Path) -> Path:
    path = folder / "vcs.yaml"
    path.write_text(text.replace("tenant: acme", "tenant: default"))
    return path


class Served:
    """A server process and a client of it."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, key: str) -> None:
        self.process = process
        self.address = address
        self.client = httpx.AsyncClient(
            base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=60
        )

    async def send(self, method: str, path: str, **how: Any) -> Any:
        answer = await self.client.request(method, path, **how)
        assert answer.status_code < 300, answer.text
        return answer.json()


@asynccontextmanager
async def process(
    *words: str, log: Path | None = None, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python process, which is killed at the end. Its output goes to a file."""
    output = os.open(os.devnull if log is None else log, os.O_WRONLY | os.O_APPEND)
    try:
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *words, stdout=output, env={**os.environ, **environment}
        )
    finally:
        os.close(output)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            running.kill()
        await running.wait()


@asynccontextmanager
async def serve(url: str, settings: Path, key: str) -> AsyncIterator[Served]:
    log = settings.with_name("server.log")
    log.write_text("")
    words = ("tenure.cli", "serve", "--port", "0", "--db", url, "--vcs", str(settings), "--no-migrate")
    public = ("--public-url", "https://ci.example.com")

    async def started() -> str | None:
        lines = [
            json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")
        ]
        return next((line["address"] for line in lines if line["event"] == "server_started"), None)

    async with process(*words, *public, log=log, TENURE_SECRET_default_HOOK=SECRET) as running:
        served = Served(running, await wait_until(started, "the server"), key)
        async with served.client:
            yield served


@pytest.mark.guard_seconds(280)
@pytest.mark.clause("DCI-06", "DCI-24")
async def test_a_push_is_reported_by_a_server_that_is_killed_and_its_buttons_work(
    url: str, github: tuple[GitHubDouble, Path], tmp_path: Path
) -> None:
    double, key = github
    settings = default_tenant(settings_text(double, key, "statuses: true"), tmp_path)
    async with Engine(url) as engine:
        keys = await create_first_tenant(engine.runtime)
    assert keys is not None

    async def reported(server: Served, run: str) -> dict[str, Any] | None:
        found: dict[str, Any] = await server.send("GET", f"/runs/{run}")
        return found if found["shown"] == "REPORTED" else None

    async with serve(url, settings, keys.person) as server:
        await server.send(
            "PUT", "/workflows/ci", content=WORKFLOW, headers={"Content-Type": "application/yaml"}
        )
        hook = await server.send(
            "POST",
            "/hooks",
            json={
                "kind": "github",
                "name": "pushes",
                "secrets": ["env:TENURE_SECRET_default_HOOK"],
                "rules": [RULE],
                "settings": {"reports": True},
            },
        )

        async def send(to: Served, event: str, payload: dict[str, Any], delivery: str | None = None) -> Any:
            where = to.address + hook["address"]
            return await asyncio.to_thread(
                double.send_event, where, event, payload, secret=SECRET, delivery=delivery
            )

        # The second write kills the server: the run's check exists, and nobody has recorded it.
        double.on_write = lambda n: os.kill(server.process.pid, signal.SIGKILL) if n == 2 else None
        started = await send(server, "push", push_event(REPO, SHA))
        assert started.status in (201, 202), started
        await server.process.wait()
    double.on_write = None
    async with serve(url, settings, keys.person) as server:
        [run] = [one["id"] for one in (await server.send("GET", "/runs"))["items"]]

        async def queued() -> bool:
            return len(double.find_checks(f"{run}:job:test")) == 1

        await wait_until(queued, "the checks")
        assert (await server.send("GET", f"/runs/{run}"))["shown"] == "QUEUED"
        words = ("tenure.cli", "worker", "--commands", "--server", server.address)
        async with process(*words, TENURE_KEY=keys.program):
            final = await wait_until(lambda: reported(server, run), "the report")
        assert final["status"] == "failed"
        outcomes = {check["external_id"]: check["conclusion"] for check in double.checks.values()}
        assert outcomes == {
            f"{run}:run": "failure",
            f"{run}:job:build": "success",
            f"{run}:job:test": "failure",
        }
        check_order(double.check_writes)
        assert [one["state"] for one in double.statuses] == ["failure", "pending"]
        [listed] = (await server.send("GET", "/reports", params={"state": "reported"}))["items"]
        assert (listed["run_id"], listed["repository"], listed["head_sha"]) == (run, REPO, SHA)

        # Re-run, twice with the same delivery: one new run, linked to the old one.
        [check] = double.find_checks(f"{run}:job:test")
        pressed = double.check_run_event(check["id"], "rerequested")
        answers = [await send(server, "check_run", pressed, "press-1") for _ in range(2)]
        again = answers[0].json["run_id"]
        assert [answer.json["run_id"] for answer in answers] == [again, again]
        found = await server.send("GET", f"/runs/{again}")
        assert (found["rerun_of"], found["attempt_no"]) == (run, 2)

        async def shown() -> dict[str, Any] | None:
            return next(iter(double.find_checks(f"{again}:run")), None)

        # Cancel, with the button of the new run's check.
        other = await wait_until(shown, "the check of the rerun")
        pressed = double.check_run_event(other["id"], "requested_action", identifier="cancel")
        assert (await send(server, "check_run", pressed)).json["run_id"] == again
        assert (await wait_until(lambda: reported(server, again), "the rerun's report", 150.0))[
            "status"
        ] == "canceled"
        # A check of somebody else is none of ours.
        foreign = {**pressed, "check_run": {**pressed["check_run"], "external_id": "other-app"}}
        assert (await send(server, "check_run", foreign)).json["status"] == "ignored"
        moved = {**pressed, "repository": {"full_name": "globex/app"}}
        assert (await send(server, "check_run", moved)).json["status"] == "ignored"

        page = await server.client.get(f"/runs/{run}/page")
        assert page.headers["content-type"].startswith("text/html")
        assert "ci: REPORTED" in page.text
        assert double.find_checks(f"{run}:run")[0]["details_url"] == f"https://ci.example.com/runs/{run}/page"
        async with httpx.AsyncClient() as nobody:
            assert (await nobody.get(f"{server.address}/runs/{run}/page")).status_code == 401


@pytest.mark.guard_seconds(280)
@pytest.mark.clause("DCI-06")
async def test_a_reporter_that_is_killed_after_every_write_goes_on_without_a_duplicate(
    url: str, github: tuple[GitHubDouble, Path], tmp_path: Path
) -> None:
    double, key = github
    settings = default_tenant(settings_text(double, key, "statuses: true"), tmp_path)
    killed: list[int] = []
    reporters: list[asyncio.subprocess.Process] = []

    def kill(number: int) -> None:
        killed.append(number)
        os.kill(reporters[-1].pid, signal.SIGKILL)

    double.on_write = kill
    async with Stage(url, tenant="default") as engine:
        run = await engine.create("ci", [{"name": "build"}], profile="delta-ci", vcs_target=TARGET)

        async def report_until(done: Callable[[], Awaitable[bool]]) -> None:
            """Start the reporter again whenever it was killed, until something is done."""
            while not await done():
                async with process("tests.server.reporter_process", url, str(settings)) as running:
                    reporters.append(running)

                    async def ended(running: asyncio.subprocess.Process = running) -> bool:
                        return running.returncode is not None or await done()

                    await wait_until(ended, "the reporter")

        async def is_queued() -> bool:
            return bool(double.find_checks(f"{run}:job:build"))

        async def is_reported() -> bool:
            return (await engine.get(run)).reported_at is not None

        await report_until(is_queued)
        [lease] = await engine.orchestrator.claim("bob", queues=await queues(engine), limit=1)
        await engine.complete(lease)
        assert (await engine.get(run)).shown == "SUCCESS"
        await report_until(is_reported)
    # Three for the queued run, three for its end; a status that was written twice is one more.
    assert 6 <= len(killed) <= 8, killed
    check_order(double.check_writes)
    assert len(double.checks) == 2
    assert {check["conclusion"] for check in double.checks.values()} == {"success"}
    assert [one["state"] for one in double.statuses] == ["success", "pending"]
