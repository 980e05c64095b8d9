"""The lifecycle of an agent run is the same on every store, with every executor and every way of waking workers.

One suite, with real worker processes: what was published is compared, state by state.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.publish.stage import WriteLog, status_of, until
from tests.server.stage import site
from tools.nats_server import PrivateNats

pytestmark = pytest.mark.guard_seconds(180)

AGENTS = "tenure.systems.agent_runs_agents"
BACKENDS = (
    "sqlite local database",
    "postgres local database",
    "sqlite remote database",
    "postgres local nats",
)
"""Store, executor (a worker with the database, or over HTTP), and what wakes workers."""


@contextmanager
def worker_process(folder: Path, *words: str) -> Iterator[None]:
    """A `tenure worker` process that is killed at the end of the block."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    with (folder / "worker.log").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", "tenure.cli", "worker", AGENTS, *words], stdout=log, stderr=log, env=env
        )
        try:
            yield
        finally:
            started.kill()
            started.wait()


@asynccontextmanager
async def nats_url(wanted: str) -> AsyncIterator[str | None]:
    if wanted != "nats":
        yield None
        return
    server = PrivateNats()
    await asyncio.to_thread(server.__enter__)
    try:
        yield server.url
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


async def has_word(writes: WriteLog, run: str, word: str) -> bool:
    return any(word == shown for shown, _ in writes.states(run))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def backend_url(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> str:
    if backend.startswith("sqlite"):
        return f"sqlite:{tmp_path / 'site.db'}"
    dsn: str = request.getfixturevalue("migrated_dsn")
    return dsn


@pytest.mark.clause("AGR-12")
async def test_every_backend_shows_the_same_lifecycle(
    backend: str, backend_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, executor, waking = backend.split()
    url = backend_url
    place = str(tmp_path / "documents")
    writes = WriteLog(monkeypatch)
    async with nats_url(waking) as queue, site(url, publish=place, queue=queue) as s:
        key_file = tmp_path / "runner.key"
        key_file.write_text(await s.key("runner"))
        words = ["--db", url] if executor == "local" else ["--server", s.address, "--key-file", str(key_file)]
        if queue is not None:
            words += ["--external-queue", queue]
        operator = await s.as_("operator")
        with worker_process(tmp_path, *words):

            async def start(agent: str, **given: str) -> str | None:
                answer = await operator.post("/agents/run", json={"workflow": agent, "input": given})
                return str(answer.json()["id"]) if answer.status_code == 201 else None

            # The worker registers its agents when it begins.
            done = await until(lambda: start("archivist-violin", topic="violins"))
            late = await until(lambda: start("dreamer"))
            for run, end in ((done, "completed"), (late, "failed")):
                await until(partial(has_word, writes, run, end))
        words_of = {run: list(dict.fromkeys(word for word, _ in writes.states(run))) for run in (done, late)}
        assert words_of == {
            done: ["requested", "queued", "running", "completed"],
            late: ["requested", "queued", "running", "failed"],
        }
        steps = [count for _, count in writes.states(done)]
        assert steps == sorted(steps)
        assert set(steps) == {0, 1, 2, 3, 4}
        assert (await status_of(place, late))["error"] == "AGENT_TIMEOUT: execution exceeded 2s limit"
        result = await operator.get(f"/runs/{late}/result")
        assert (result.status_code, result.json()["error"]["code"]) == (504, "AGENT_TIMEOUT")
