"""Logs, artifacts in parts, caches and test reports of CI jobs, over HTTP."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tenure import ids
from tenure.client import Client
from tenure.doctor.examination import examine_database
from tenure.errors import TenureError
from tenure.services.file_sweeper import FileSweeper
from tests.server.job_files import COMMIT, NONCE, digest, job, lease, start, step
from tests.server.stage import Site, problem, site
from tests.server.test_runner_protocol import acme, advance_clock, status
from tools.s3_server import PrivateS3


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for artifacts, with PostgreSQL too."""
    folder = tmp_path / "artifacts"
    monkeypatch.setenv("TENURE_ARTIFACTS", str(folder))
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def sweep(s: Site) -> None:
    """Delete what is to be deleted."""
    await FileSweeper(s.engine.store, s.engine.artifacts).once()


# -------------------------------------------------------------------------------------------------- logs


@pytest.mark.clause("DCI-16")
async def test_a_log_is_read_while_it_is_written(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        held, viewer = await lease(s), await s.as_("viewer")
        path = f"/runs/{run}/steps/build/log"
        assert (await viewer.get(path)).content == b""
        answer = await held.log(1, 0, b"one\ntwo\n")
        assert answer.json() == {"seq": 1, "size": 8, "late": False}
        got = await viewer.get(path)
        assert got.content == b"one\ntwo\n"
        assert got.headers["tenure-log"] == "attempt=1; offset=0; next=8; size=8; late=0; ended=false"
        assert got.headers["content-security-policy"] == "sandbox; default-src 'none'"
        waiting = asyncio.ensure_future(viewer.get(f"{path}?offset=8&wait=30"))
        for _ in range(2):  # a repeated chunk has no second effect
            assert (await held.log(2, 8, b"three")).json() == {"seq": 2, "size": 13, "late": False}
        assert (await waiting).content == b"three"
        assert (await viewer.get(f"{path}?offset=4&limit=6")).content == b"two\nth"
        assert (await viewer.get(f"{path}?tail=2")).content == b"two\nthree"
        ranged = await viewer.get(path, headers={"Range": "bytes=4-6"})
        assert (ranged.status_code, ranged.content) == (206, b"two")
        assert ranged.headers["content-range"] == "bytes 4-6/13"
        past = await viewer.get(path, headers={"Range": "bytes=99-"})
        assert (past.status_code, problem(past)) == (416, "RANGE_NOT_SATISFIABLE")
        await held.say("complete")
        assert "ended=true" in (await viewer.get(f"{path}?offset=13&wait=30")).headers["tenure-log"]
        assert (await acme(s).runs.read_log(run, "build", offset=8)).data == b"three"


async def test_chunks_of_a_log_follow_each_other(url: str, artifacts: Path) -> None:
    async with site(url) as s:
        run = await start(s)
        held = await lease(s)
        assert (await held.log(1, 0, b"abc")).status_code == 200
        before = files_in(artifacts)
        wrong = {
            "a gap": await held.log(3, 3, b"x"),
            "another offset": await held.log(2, 4, b"x"),
            "other bytes under a number": await held.log(1, 0, b"xyz"),
        }
        for what, answer in wrong.items():
            assert (answer.status_code, problem(answer)) == (409, "MESSAGE_OUT_OF_ORDER"), what
        assert problem(await held.log(2, 3, b"x", stated=digest(b"y"))) == "INVALID_INPUT"
        assert problem(await held.log(2, 3, b"x", stated="")) == "INVALID_INPUT"
        assert problem(await held.log(2, 3, b"")) == "INVALID_INPUT"
        assert (await acme(s).runs.read_log(run, "build")).data == b"abc"
        assert not [path for path in files_in(artifacts) if "/3-" in path], (
            "bytes that nobody counts were stored"
        )
        assert set(before) <= set(files_in(artifacts))


async def test_a_place_without_rights_refuses_files_at_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    async with site(url) as s:
        await start(s)
        held = await lease(s)
        monkeypatch.setattr("tenure.artifacts.keep_file", refuse)
        answer = await held.log(1, 0, b"abc")
        assert (answer.status_code, problem(answer)) == (500, "ARTIFACT_STORE_REFUSED")
        assert answer.json()["error"]["retryable"] is False, "a runner would try again for minutes"


async def test_the_bytes_of_a_log_are_limited(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.store.log_chunks.LOG_BYTES_PER_ATTEMPT_MAX", 5)
    async with site(url) as s:
        await start(s)
        held = await lease(s)
        assert (await held.log(1, 0, b"12345")).status_code == 200
        assert problem(await held.log(2, 5, b"6")) == "LIMIT_EXCEEDED"


@pytest.mark.clause("DCI-12")
async def test_a_forced_cancel_keeps_the_log_and_the_artifacts_that_come_late(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        held, viewer = await lease(s), await s.as_("viewer")
        await held.log(1, 0, b"in time\n")
        begun = (await held.begin("dist")).json()
        await (await s.as_("operator")).post(f"/runs/{run}/cancel", json={})
        assert (await held.say("heartbeat")).json()["cancel"] is True
        await advance_clock(s, 200)  # the grace period is over, and the step is canceled without the runner
        assert await status(s, run) == "canceled"
        assert (await held.log(2, 8, b"late\n")).json()["late"] is True
        assert (await held.part(begun["upload"], 1, b"partial")).status_code == 200
        done = await held.complete(begun["upload"], "dist", b"partial")
        assert (done.status_code, done.json()["late"]) == (200, True)
        assert (await held.report(passed=1, failed=1, failed_cases=[{"test": "a"}])).json()["late"] is True
        assert problem(await held.say("complete")) == "LEASE_STALE"
        assert await status(s, run) == "canceled"
        got = await viewer.get(f"/runs/{run}/steps/build/log")
        assert got.content == b"in time\n", "what came late is not mixed with what came in time"
        assert "late=5" in got.headers["tenure-log"]
        assert (await viewer.get(f"/runs/{run}/steps/build/log?late=true")).content == b"in time\nlate\n"
        assert (await viewer.get(f"/runs/{run}/steps/build/log?tail=1")).content == b"in time\n"
        listed = (await viewer.get(f"/runs/{run}/artifacts")).json()["items"]
        assert [(one["name"], one["state"]) for one in listed] == [("dist", "late")]
        got = await viewer.get(f"/runs/{run}/artifacts/dist?step=build&attempt=1&late=true")
        assert got.content == b"partial"
        await advance_clock(s, 900)
        for answer in (await held.log(3, 13, b"x"), await held.begin("other"), await held.report(passed=1)):
            assert (answer.status_code, problem(answer)) == (409, "LEASE_STALE")
        assert (await viewer.get(f"/runs/{run}/steps/build/log?late=true")).content == b"in time\nlate\n"


@pytest.mark.clause("DCI-12")
async def test_an_attempt_that_lost_its_lease_adds_nothing_to_the_next_ones_log(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        lost = await lease(s)
        await lost.log(1, 0, b"of 1")
        await advance_clock(s, 120)
        won = await lease(s)
        await won.log(1, 0, b"of 2")
        assert (await lost.log(2, 4, b" late")).json()["late"] is True
        runs = acme(s).runs
        assert (await runs.read_log(run, "build")).data == b"of 2"
        assert (await runs.read_log(run, "build", attempt=1)).data == b"of 1"
        assert (await runs.read_log(run, "build", attempt=1, late=True)).data == b"of 1 late"
        with pytest.raises(TenureError, match="LOG_NOT_FOUND"):
            await runs.read_log(run, "build", attempt=3)
        with pytest.raises(TenureError, match="STEP_NOT_FOUND"):
            await runs.read_log(run, "none")


async def test_the_end_of_a_log_is_found_across_chunks(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        held = await lease(s)
        lines = [b"line %d\n" % number for number in range(40)]
        offset = 0
        for seq, line in enumerate(lines, start=1):
            await held.log(seq, offset, line)
            offset += len(line)
        await held.log(41, offset, b"no end")
        for count in (1, 2, 17, 41, 100):
            found = await acme(s).runs.read_log(run, "build", tail=count)
            assert found.data == b"".join([*lines, b"no end"][-count:])
            assert found.next_offset == found.size == offset + 6


async def test_a_client_reads_what_a_job_stored(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        held = await lease(s)
        key = (await s.as_("viewer")).headers["Authorization"].removeprefix("Bearer ")
        async with Client(s.address, key) as client:
            waiting = asyncio.ensure_future(client.runs.read_log(run, "build", wait=60))
            await held.log(1, 0, b"one\ntwo\n")
            await waiting
            await held.report(passed=1)
            await held.upload("dist", b"a" * 300_000, b"b")
            await held.say("complete")
            runs, direct = client.runs, acme(s).runs
            asked: list[dict[str, Any]] = [{}, {"offset": 4}, {"tail": 1}, {"limit": 3}]
            for how in asked:
                assert await runs.read_log(run, "build", **how) == await direct.read_log(run, "build", **how)
            assert await runs.tests(run) == await runs.tests(run, "build") == await direct.tests(run)
            for group in (runs, direct):
                pieces = [piece async for piece in group.stream_artifact(run, "dist")]
                assert b"".join(pieces) == b"a" * 300_000 + b"b"
            with pytest.raises(TenureError, match="LOG_NOT_FOUND"):
                await runs.read_log(run, "build", attempt=2)


async def test_files_of_jobs_are_stored_in_a_bucket(
    tmp_path: Path, s3_server: PrivateS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TENURE_ARTIFACTS", s3_server.place(f"jobs/{uuid4().hex}"))
    async with site(f"sqlite:{tmp_path / 'site.db'}") as s:
        run = await start(s)
        held, viewer = await lease(s), await s.as_("viewer")
        for _ in range(2):
            assert (await held.log(1, 0, b"one\ntwo\n")).status_code == 200
        await held.upload("dist", b"1" * 70_000, b"2" * 5)
        await held.upload("key", b"cache", kind="cache")
        assert (await held.cache("key")).content == b"cache"
        await held.say("complete")
        assert (await viewer.get(f"/runs/{run}/steps/build/log?tail=1")).content == b"two\n"
        ranged = await viewer.get(f"/runs/{run}/artifacts/dist", headers={"Range": "bytes=69999-"})
        assert ranged.content == b"122222"
        report = await examine_database(s.engine.store, artifacts=s.engine.artifacts)
        assert (report.clean, report.unreached) == (True, 0), report.violations
        assert len(await s.engine.artifacts.list_sizes(f"{run}/")) == 3
        await acme(s).runs.delete(run)
        assert await s.engine.artifacts.list_sizes(f"{run}/") == {}
        assert len(await s.engine.artifacts.list_sizes("caches/")) == 1


# ----------------------------------------------------------------------------------------------- artifacts


async def test_an_artifact_in_parts_is_visible_when_it_is_complete(url: str, artifacts: Path) -> None:
    async with site(url) as s:
        run = await start(s)
        held, viewer = await lease(s), await s.as_("viewer")
        await held.say("running")
        await held.say("uploading")
        shown = (await viewer.get(f"/runs/{run}/steps")).json()["items"][0]
        assert (shown["state"], shown["shown"]) == ("uploading", "UPLOADING")
        begun = (await held.begin("dist")).json()
        assert (await held.begin("dist")).json() == begun, "to begin again finds the same upload"
        one, two = b"1" * 1_000, b"2" * 500
        await held.part(begun["upload"], 2, two)
        assert problem(await held.complete(begun["upload"], "dist", one, two)) == "INVALID_INPUT"
        for _ in range(2):
            assert (await held.part(begun["upload"], 1, one)).status_code == 200
        assert (await viewer.get(f"/runs/{run}/artifacts")).json()["items"] == []
        assert (await viewer.get(f"/runs/{run}/artifacts/dist")).status_code == 404
        first = await held.complete(begun["upload"], "dist", one, two)
        assert first.json()["size"] == 1_500
        assert (await held.complete(begun["upload"], "dist", one, two)).json() == first.json()
        assert problem(await held.part(begun["upload"], 1, b"other")) == "UPLOAD_NOT_FOUND"
        got = await viewer.get(f"/runs/{run}/artifacts/dist")
        assert (got.content, got.headers["content-length"]) == (one + two, "1500")
        for asked, expected in (("990-1009", one[990:] + two[:10]), ("-3", b"222"), ("1000-", two)):
            part = await viewer.get(f"/runs/{run}/artifacts/dist", headers={"Range": f"bytes={asked}"})
            assert (part.status_code, part.content) == (206, expected)
        unchanged = await viewer.get(
            f"/runs/{run}/artifacts/dist", headers={"If-None-Match": got.headers["etag"]}
        )
        assert unchanged.status_code == 304
        assert await acme(s).runs.read_artifact(run, "dist") == one + two


async def test_a_fenced_out_attempt_changes_nothing_that_was_accepted(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        lost = await lease(s)
        begun = (await lost.begin("dist")).json()
        await lost.part(begun["upload"], 1, b"of 1")
        await advance_clock(s, 120)
        won = await lease(s)
        assert (await won.upload("dist", b"of 2")).status_code == 200
        await won.say("complete")
        assert (await lost.complete(begun["upload"], "dist", b"of 1")).json()["late"] is True
        assert (await lost.upload("dist", b"again", nonce=NONCE[::-1])).json()["late"] is True
        assert (await won.upload("dist", b"after the end", nonce=NONCE[::-1])).json()["late"] is True
        viewer = await s.as_("viewer")
        assert (await viewer.get(f"/runs/{run}/artifacts/dist")).content == b"of 2"
        listed = (await viewer.get(f"/runs/{run}/artifacts")).json()["items"]
        assert [(one["attempt"], one["state"]) for one in listed] == [
            (1, "late"),
            (2, "accepted"),
            (2, "late"),
        ]


async def test_an_upload_that_is_begun_again_replaces_the_first(url: str, artifacts: Path) -> None:
    async with site(url) as s:
        run = await start(s)
        held = await lease(s)
        first = (await held.begin("dist")).json()["upload"]
        await held.part(first, 1, b"old")
        assert problem(await held.part(first, 1, b"other")) == "INVALID_INPUT"
        assert (await held.upload("dist", b"new", nonce=NONCE[::-1])).status_code == 200
        assert problem(await held.complete(first, "dist", b"old")) == "UPLOAD_NOT_FOUND"
        assert (await held.upload("dist", b"newest", nonce="n" * 16)).status_code == 200
        await sweep(s)
        assert len(files_in(artifacts)) == 1
        assert await acme(s).runs.read_artifact(run, "dist") == b"newest"


async def test_artifacts_are_deleted_when_their_retention_ends(url: str, artifacts: Path) -> None:
    async with site(url) as s:
        run = await start(s)
        held, viewer = await lease(s), await s.as_("viewer")
        await held.upload("short", b"a", b"b", retention_seconds=3_600)
        await held.upload("long", b"c")
        await held.say("complete")
        s.engine.store.shift_clock(3_590 * 1_000_000)
        await sweep(s)
        assert (await viewer.get(f"/runs/{run}/artifacts/short")).content == b"ab"
        s.engine.store.shift_clock(3_610 * 1_000_000)
        await sweep(s)
        assert len(files_in(artifacts)) == 1
        gone = await viewer.get(f"/runs/{run}/artifacts/short")
        assert (gone.status_code, problem(gone)) == (410, "ARTIFACT_EXPIRED")
        assert (await viewer.get(f"/runs/{run}/artifacts/long")).content == b"c"
        listed = (await viewer.get(f"/runs/{run}/artifacts")).json()["items"]
        assert [bool(one["deleted_at"]) for one in listed] == [False, True]


async def test_uploads_that_nobody_completes_are_swept(url: str, artifacts: Path) -> None:
    async with site(url) as s:
        await start(s)
        held = await lease(s)
        begun = (await held.begin("dist")).json()["upload"]
        await held.part(begun, 1, b"a part")
        await held.say("fail", code="COMPILE_ERROR")
        await sweep(s)
        assert len(files_in(artifacts)) == 1, "the upload may still be completed"
        s.engine.store.shift_clock(700 * 1_000_000)
        await sweep(s)
        assert files_in(artifacts) == []
        assert await s.engine.store.read("upload_parts_of", ids.run_int(held.lease["run_id"]), begun) == []


async def test_deleting_a_run_deletes_its_files_even_if_that_fails_at_first(
    url: str, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(url) as s:
        run = await start(s)
        held = await lease(s)
        await held.log(1, 0, b"log")
        await held.upload("dist", b"file")
        await held.part((await held.begin("key", "cache")).json()["upload"], 1, b"never complete")
        await held.say("complete")
        engine = acme(s)
        real = engine.artifacts.delete_files

        async def broken(path: str) -> None:
            raise TenureError("STORE_UNAVAILABLE", "the bucket is away")

        monkeypatch.setattr(engine.artifacts, "delete_files", broken)
        await engine.runs.delete(run)
        with pytest.raises(TenureError, match="RUN_NOT_FOUND"):
            await engine.get(run)
        assert len(files_in(artifacts)) == 3
        monkeypatch.setattr(engine.artifacts, "delete_files", real)
        s.engine.store.shift_clock(120 * 1_000_000)
        await sweep(s)
        assert files_in(artifacts) == []
        assert await s.engine.store.read("orphan_rows") == []


async def test_a_job_downloads_artifacts_of_the_jobs_it_needs(url: str) -> None:
    async with site(url) as s:
        await start(s, step("build"), step("other"), step("test", "build"))
        held = [await lease(s), await lease(s)]
        for one in held:
            await one.upload("dist", one.lease["step"].encode())
            await one.say("complete")
        test = await lease(s)
        assert test.lease["step"] == "test"
        got = await test.http.get(f"{test.path}/needs/build/artifacts/dist")
        assert (got.status_code, got.content) == (200, b"build")
        for path in ("other/artifacts/dist", "build/artifacts/none", "none/artifacts/dist"):
            refused = await test.http.get(f"{test.path}/needs/{path}")
            assert (refused.status_code, problem(refused)) == (404, "ARTIFACT_NOT_FOUND"), path
        await test.say("complete")
        ended = await test.http.get(f"{test.path}/needs/build/artifacts/dist")
        assert problem(ended) == "LEASE_STALE"


async def test_a_reused_job_shows_the_files_log_and_tests_of_the_original_while_they_are_there(
    url: str,
) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        reusable = step("build", reuse={"digest": "ab" * 32, "scope": "trusted:web"})
        plan = [reusable, step("test", "build")]
        first = await start(s, *plan)
        held = await lease(s)
        await held.log(1, 0, b"built\n")
        await held.report(passed=3)
        await held.upload("dist", b"one", b"two", retention_seconds=3_600)
        for _ in range(2):  # `build`, and then `test`
            await held.say("complete")
            held = held if held.lease["step"] == "test" else await lease(s)
        second = await start(s, *plan)
        await s.engine.settle()
        test = await lease(s)
        assert (test.lease["run_id"], test.lease["step"]) == (second, "test"), "the job was not reused"
        got = await test.http.get(f"{test.path}/needs/build/artifacts/dist")
        assert (got.status_code, got.content) == (200, b"onetwo")
        assert (await viewer.get(f"/runs/{second}/artifacts/dist")).content == b"onetwo"
        assert (await viewer.get(f"/runs/{second}/steps/build/log")).content == b"built\n"
        [shown] = (await viewer.get(f"/runs/{second}/tests")).json()["items"]
        assert (shown["step"], shown["report"]["passed"]) == ("build", 3)
        await test.say("complete")
        s.engine.store.shift_clock(3_700 * 1_000_000)
        await sweep(s)
        third = await start(s, *plan)
        await s.engine.settle()
        again = await lease(s)
        assert (again.lease["run_id"], again.lease["step"]) == (third, "build"), "its outputs are gone"
        assert (await viewer.get(f"/runs/{first}/artifacts/dist")).status_code == 410


# -------------------------------------------------------------------------------------------------- caches


async def cached(s: Site, scope: str, key: str, body: bytes) -> bool:
    """Save a cache as a job of a scope."""
    await start(s, step(input=job(scope)))
    held = await lease(s)
    kept: bool = (await held.upload(key, body, kind="cache")).json()["kept"]
    await held.say("complete")
    return kept


async def test_the_first_cache_of_a_key_is_kept_and_prefixes_find_the_newest(url: str) -> None:
    async with site(url) as s:
        for key, body in (("pip-1", b"one"), ("pip-2", b"two"), ("npm-1", b"npm"), ("pip-1", b"other")):
            assert await cached(s, "trusted:web", key, body) is (body != b"other")
        await start(s)
        held = await lease(s)
        for asked, expected in (
            (("pip-1",), b"one"),
            (("pip-9", "pip-"), b"two"),
            (("pip-9", "none-", "n"), b"npm"),
            (("npm-1", "pip-"), b"npm"),
        ):
            got = await held.cache(*asked)
            assert (got.status_code, got.content) == (200, expected)
        assert (await held.cache("pip-9", "npm")).headers["tenure-cache-key"] == "npm-1"
        missing = await held.cache("pip-9", "none-", "%")
        assert (missing.status_code, problem(missing)) == (404, "CACHE_NOT_FOUND")
        ranged = await held.http.get(f"{held.path}/caches?key=npm-1", headers={"Range": "bytes=1-"})
        assert (ranged.status_code, ranged.content) == (206, b"pm")


async def test_of_two_writers_of_a_key_the_first_to_complete_wins(url: str, artifacts: Path) -> None:
    async with site(url) as s:
        await start(s, step("a"), step("b"))
        one, two = await lease(s), await lease(s)
        uploads = [(await held.begin("k", "cache")).json()["upload"] for held in (one, two)]
        await one.part(uploads[0], 1, b"slow")
        await two.part(uploads[1], 1, b"fast")
        assert (await two.complete(uploads[1], "k", b"fast", kind="cache")).json()["kept"] is True
        assert (await one.complete(uploads[0], "k", b"slow", kind="cache")).json()["kept"] is False
        assert (await two.complete(uploads[1], "k", b"fast", kind="cache")).json()["kept"] is True
        assert (await one.cache("k")).content == b"fast"
        await sweep(s)
        assert len(files_in(artifacts)) == 1


async def test_caches_of_untrusted_jobs_serve_only_their_pull_request(url: str) -> None:
    async with site(url) as s:
        assert await cached(s, "trusted:web", "k", b"trusted")
        assert await cached(s, "pull:web:7", "k", b"of 7")
        assert await cached(s, "pull:web:7", "only-7", b"poison")
        seen: dict[str, tuple[bytes, int]] = {}
        for scope in ("trusted:web", "pull:web:7", "pull:web:8", ""):
            await start(s, step(input=job(scope)))
            held = await lease(s)
            seen[scope] = ((await held.cache("k")).content, (await held.cache("only-7", "only")).status_code)
            await held.say("complete")
        assert seen == {
            "trusted:web": (b"trusted", 404),
            "pull:web:7": (b"of 7", 200),
            "pull:web:8": (b"trusted", 404),
            "": (b"trusted", 404),
        }


async def test_a_job_without_a_scope_and_other_steps_cannot_write_trusted_caches(url: str) -> None:
    async with site(url) as s:
        assert await cached(s, "", "k", b"of a ref")
        await start(s)
        held = await lease(s)
        assert problem(await held.cache("k")) == "CACHE_NOT_FOUND"
        await held.say("complete")
        for wrong in ({"any": "thing"}, job("trusted:other"), job("pull:other:1")):
            await start(s, step(input=wrong))
            held = await lease(s)
            assert problem(await held.begin("k", "cache")) == "INVALID_INPUT"
            assert problem(await held.cache("k")) == "INVALID_INPUT"
            await held.say("complete")


async def test_caches_belong_to_their_tenant(url: str) -> None:
    async with site(url) as s:
        assert await cached(s, "trusted:web", "k", b"acme's")
        await s.tenant("beta")
        await s.engine.scoped(tenant="beta").create("ci", [step()], profile="delta-ci")
        held = await lease(s, "beta")
        assert problem(await held.cache("k", "k")) == "CACHE_NOT_FOUND"


async def test_the_least_recently_used_caches_make_room(
    url: str, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.caches.CACHE_BYTES_PER_REPOSITORY_MAX", 30)
    async with site(url) as s:
        for number, key in enumerate(("a", "b", "c"), start=1):
            assert await cached(s, "trusted:web", key, key.encode() * 10)
            s.engine.store.shift_clock(number * 70 * 1_000_000)
        await start(s)
        held = await lease(s)
        assert (await held.cache("a")).status_code == 200  # so that `b` was used longest ago
        await held.say("complete")
        assert await cached(s, "trusted:web", "d", b"d" * 10)
        assert not await cached(s, "trusted:web", "e", b"e" * 31), "it fits never"
        assert not await cached(s, "pull:web:1", "f", b"f"), "an untrusted job deleted a trusted cache"
        await start(s)
        held = await lease(s)
        assert [(await held.cache(key)).status_code for key in "abcd"] == [200, 404, 200, 200]
        await sweep(s)
        assert len(files_in(artifacts)) == 3


# --------------------------------------------------------------------------------------------------- tests


async def test_test_reports_are_shown_by_step_and_attempt(url: str) -> None:
    async with site(url) as s:
        run = await start(s, step("unit"), step("lint"))
        held, viewer = await lease(s), await s.as_("viewer")
        case = {"test": "t.test_a", "message": "1 != 2", "file": "t.py", "line": 3, "seconds": 0.5}
        report: dict[str, Any] = {"passed": 2, "failed": 1, "seconds": 1.5, "failed_cases": [case]}
        for _ in range(2):
            assert (await held.report(**report)).json() == {"late": False}
        assert problem(await held.report(passed=3)) == "INVALID_INPUT"
        assert problem(await held.report(passed=-1)) == "INVALID_INPUT"
        [shown] = (await viewer.get(f"/runs/{run}/tests")).json()["items"]
        assert (shown["step"], shown["attempt"], shown["late"]) == (held.lease["step"], 1, False)
        assert shown["report"] == report
        assert (await viewer.get(f"/runs/{run}/steps/{held.lease['step']}/tests")).json()["items"] == [shown]
        other = {"unit": "lint", "lint": "unit"}[held.lease["step"]]
        assert (await viewer.get(f"/runs/{run}/steps/{other}/tests")).json()["items"] == []
        assert (await viewer.get(f"/runs/{run}/steps/none/tests")).status_code == 404
        [same] = await acme(s).runs.tests(run)
        assert same.report.failed_cases[0].message == "1 != 2"


FAILED: dict[str, Any] = {"failed": 1, "failed_cases": [{"test": "t.test_a"}]}


async def reported(s: Site, commit: str, scope: str = "trusted:web", **report: Any) -> dict[str, Any]:
    """Send a report as a job of a commit, and return the history of `t.test_a` afterwards."""
    await start(s, step(input=job(scope, commit)))
    held = await lease(s)
    for _ in range(2):  # a repeated report counts once
        assert (await held.report(**report)).status_code == 200
    found = await held.history("t.test_a", "t.test_b")
    await held.say("complete")
    assert set(found) <= {"t.test_a"}
    return dict(found.get("t.test_a", {}))


async def test_the_history_of_a_test_shows_that_it_is_flaky(url: str) -> None:
    async with site(url) as s:
        assert await reported(s, "1" * 40, passed=1, passed_tests=["t.test_a"]) == {}, "it never failed"
        first = await reported(s, "2" * 40, passed=1, **FAILED)
        assert (first.get("failed"), first.get("passed"), first.get("flips")) == (1, None, None)
        fixed = await reported(s, "3" * 40, passed=2, passed_tests=["t.test_a"])
        assert (fixed.get("passed"), fixed.get("changes"), fixed.get("flips")) == (1, 1, None)
        assert (await reported(s, "4" * 40, passed=1, **FAILED)).get("flips") is None, "another commit"
        again = await reported(s, "4" * 40, passed=2)  # complete, without the failure: it passed
        assert (again["failed"], again["passed"], again["flips"]) == (2, 2, 1)
        assert (await reported(s, "4" * 40, passed=1, **FAILED))["flips"] == 2
        cut = await reported(s, COMMIT, passed=1, failed=9, failed_cases=[{"test": "t.test_a"}])
        assert (await reported(s, COMMIT, passed=1, failed=9))["passed"] == cut["passed"] == 2


async def test_untrusted_reports_do_not_change_the_history_of_trusted_jobs(url: str) -> None:
    async with site(url) as s:
        await reported(s, COMMIT, "pull:web:7", passed=1, **FAILED)
        mine = await reported(s, COMMIT, "pull:web:7", passed=1, passed_tests=["t.test_a"])
        assert mine["flips"] == 1
        assert await reported(s, COMMIT, passed=5) == {}
        assert await reported(s, COMMIT, "pull:web:8", passed=5) == {}
        await reported(s, COMMIT, passed=1, **FAILED)
        assert (await reported(s, COMMIT, "pull:web:8", passed=5))["failed"] == 1
