"""The storage of a runner, over a real server and connections that break."""

import asyncio
import io
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenure.ci_runner.http_storage import HttpJobStorage
from tenure.ci_runner.job_storage import JobFile, TestReport
from tenure.errors import TenureError
from tenure.limits import LOG_CHUNK_BYTES_MAX
from tenure.shapes.test_reports import FailedCase
from tenure.worker.connection import RunnerConnection
from tests.server.cutting_proxy import Proxy, cutting
from tests.server.job_files import JobLease, lease, start, step
from tests.server.stage import Site, site
from tests.server.test_runner_protocol import acme, advance_clock
from tests.worker.helpers import until


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "artifacts"
    monkeypatch.setenv("TENURE_ARTIFACTS", str(folder))
    monkeypatch.setattr("tenure.worker.connection.DOWNLOAD_BYTES", 10_000)  # so that half a file is written
    return folder


@asynccontextmanager
async def connected(s: Site) -> AsyncIterator[tuple[Proxy, RunnerConnection]]:
    """A connection through a proxy that cuts it."""
    async with cutting(s.address) as proxy:
        connection = RunnerConnection(proxy.address, "tn_unused")
        try:
            yield proxy, connection
        finally:
            await connection.close()


def storage(connection: RunnerConnection, held: JobLease, **how: int) -> HttpJobStorage:
    return HttpJobStorage(connection, held.lease["id"], held.lease["token"], **how)  # type: ignore[arg-type]  # part_bytes


@pytest.mark.clause("DCI-16")
async def test_a_log_arrives_whole_and_once_over_connections_that_break(url: str) -> None:
    async with site(url) as s, connected(s) as (proxy, connection):
        run = await start(s)
        log = storage(connection, await lease(s))
        body = random.Random(7).randbytes(2 * LOG_CHUNK_BYTES_MAX + 5_000)
        proxy.cut("before", "/log-chunks/1")
        proxy.cut("after", "/log-chunks/2", times=2)
        for at in range(0, len(body), 300_000):
            await log.append_log(body[at : at + 300_000])
        await log.close_log()
        assert proxy.cuts == 3
        found = bytearray()
        while (page := await acme(s).runs.read_log(run, "build", offset=len(found))).data:
            found += page.data
        assert found == body


async def test_a_line_is_stored_while_the_job_goes_on(url: str) -> None:
    async with site(url) as s, connected(s) as (_, connection):
        run = await start(s)
        log = storage(connection, await lease(s))
        await log.append_log(b"building\n")
        page = await acme(s).runs.read_log(run, "build", wait=30)
        assert (page.data, page.ended) == (b"building\n", False)
        await log.close_log()


async def test_artifacts_go_from_job_to_job(url: str, tmp_path: Path) -> None:
    async with site(url) as s, connected(s) as (proxy, connection):
        run = await start(s, step("build"), step("test", "build"))
        work = tmp_path / "work"
        (work / "out").mkdir(parents=True)
        content = random.Random(8).randbytes(400_000)
        (work / "out" / "app").write_bytes(content)
        (work / "readme").write_text("hello")
        build = await lease(s)
        stored = storage(connection, build, part_bytes=100_000)
        proxy.cut("after", "/uploads")
        proxy.cut("before", "/parts/2")
        proxy.cut("after", "/parts/3")
        proxy.cut("after", "/complete")
        files = [
            JobFile("out/app", work / "out" / "app", len(content), 0o755),
            JobFile("readme", work / "readme", 5, 0o644),
        ]
        await stored.upload("dist", files, 3_600)
        assert proxy.cuts == 4
        await build.say("complete")
        [listed] = await acme(s).runs.list_artifacts(run)
        assert (listed.state, listed.content_type) == ("accepted", "application/gzip")
        assert listed.expires_at is not None
        test = storage(connection, await lease(s))
        proxy.cut("half", "/needs/build")
        proxy.cut("before", "/needs/build")
        await test.download("build", "dist", tmp_path / "into")
        assert proxy.cuts == 6
        assert (tmp_path / "into" / "out" / "app").read_bytes() == content
        assert (tmp_path / "into" / "out" / "app").stat().st_mode & 0o777 == 0o755
        assert (tmp_path / "into" / "readme").read_text() == "hello"
        with pytest.raises(TenureError, match="ARTIFACT_NOT_FOUND"):
            await test.download("build", "none", tmp_path / "into")


async def test_a_download_begins_again_if_the_file_has_changed_since(url: str) -> None:
    async with site(url) as s, connected(s) as (proxy, connection):
        await start(s)
        held = await lease(s)
        await held.upload("dist", b"old" * 100_000)
        proxy.cut("half", "/artifacts/dist")
        proxy.silent_after_half = True
        into = io.BytesIO()
        path = f"{held.path}/artifacts/dist"
        task = asyncio.ensure_future(connection.download(path, into, token=held.lease["token"]))
        await until(lambda: proxy.silent, "the first half")
        await held.upload("dist", b"new" * 50_000, nonce="n" * 16)
        proxy.silent = False
        await task
        assert into.getvalue() == b"new" * 50_000


async def test_caches_are_saved_once_and_restored(url: str, tmp_path: Path) -> None:
    async with site(url) as s, connected(s) as (_, connection):
        work = tmp_path / "work"
        (work / "cache").mkdir(parents=True)
        (work / "cache" / "wheel").write_text("1")
        await start(s)
        job = storage(connection, await lease(s))
        assert await job.restore_cache("pip-1", ["pip-"], tmp_path / "into") is None
        assert not (tmp_path / "into").exists()
        await job.save_cache("pip-1", [work / "cache"], work)
        (work / "cache" / "wheel").write_text("2")
        await job.save_cache("pip-1", [work / "cache"], work)
        assert await job.restore_cache("pip-2", ["pip-"], tmp_path / "into") == "pip-1"
        assert (tmp_path / "into" / "cache" / "wheel").read_text() == "1"


async def test_reports_and_histories(url: str) -> None:
    async with site(url) as s, connected(s) as (proxy, connection):
        run = await start(s)
        held = await lease(s)
        job = storage(connection, held)
        proxy.cut("after", "/report")
        case = FailedCase(test="t.a", message="no")
        await job.send_report(TestReport(passed=3, failed=1, failed_cases=(case,)))
        [shown] = await acme(s).runs.tests(run, "build")
        assert shown.report.failed_cases == (case,)
        histories = await job.failed_before(["t.a", "t.b"])
        assert [(test, known.failed, known.flaky) for test, known in histories.items()] == [("t.a", 1, False)]


async def test_nothing_is_sent_after_the_lease_has_ended_for_good(url: str, tmp_path: Path) -> None:
    async with site(url) as s, connected(s) as (proxy, connection):
        await start(s)
        held = await lease(s)
        job = storage(connection, held)
        await held.say("complete")
        await advance_clock(s, 700)
        await job.append_log(b"too late")
        with pytest.raises(TenureError, match="LEASE_STALE"):
            await job.close_log()
        sent = len(proxy.seen)
        with pytest.raises(TenureError, match="LEASE_STALE"):
            await job.append_log(b"more")
        (tmp_path / "file").write_text("x")
        for call in (
            job.upload("dist", [JobFile("file", tmp_path / "file", 1, 0o644)], None),
            job.save_cache("k", [tmp_path / "file"], tmp_path),
            job.restore_cache("k", (), tmp_path / "into"),
            job.send_report(TestReport(passed=1)),
        ):
            with pytest.raises(TenureError, match="LEASE_STALE"):
                await call
        assert len(proxy.seen) == sent


async def test_a_writer_of_a_log_waits_while_too_much_waits(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.ci_runner.http_storage.BUFFER_BYTES_MAX", 1_000)
    async with site(url) as s, connected(s) as (proxy, connection):
        run = await start(s)
        job = storage(connection, await lease(s))
        proxy.silent = True
        writing = asyncio.ensure_future(job.append_log(b"x" * 5_000))
        await until(lambda: proxy.seen, "the first chunk")  # and nothing answers
        assert not writing.done()
        proxy.silent = False
        await writing
        await job.close_log()
        assert (await acme(s).runs.read_log(run, "build")).size == 5_000


async def test_an_upload_that_fails_leaves_no_thread_and_no_artifact(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(url) as s, connected(s) as (_, connection):
        run = await start(s)
        job = storage(connection, await lease(s), part_bytes=1_000)
        (tmp_path / "file").write_bytes(random.Random(9).randbytes(500_000))
        monkeypatch.setattr("tenure.services.runners.job_storage.ARTIFACT_PARTS_MAX", 3)
        with pytest.raises(TenureError, match="LIMIT_EXCEEDED"):
            await job.upload("big", [JobFile("file", tmp_path / "file", 500_000, 0o644)], None)
        with pytest.raises(TenureError, match="cannot be read"):
            await job.upload("gone", [JobFile("gone", tmp_path / "gone", 1, 0o644)], None)
        assert await acme(s).runs.list_artifacts(run) == []
