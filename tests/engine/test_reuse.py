"""Earlier results on both stores, with the real resolver: what a key covers, whose results are found, and results that are gone."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from tenure import ids
from tenure.artifacts import ArtifactStore
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.kernel.server_rows import ArtifactRow
from tenure.reads.artifacts import find_artifact, list_artifacts
from tenure.store.artifacts import put_artifact
from tests.engine.stage import Stage, stage

DIGEST = "cd" * 32


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for artifacts."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))


def job(name: str, *needs: str, digest: str = DIGEST, scope: str = "repo", **how: Any) -> dict[str, Any]:
    also = how.pop("also", [])
    return {
        "name": name,
        "needs": list(needs),
        "reuse": {"scope": scope, "digest": digest, "also": also},
        **how,
    }


async def run_jobs(engine: Stage, *plan: dict[str, Any], **outputs: bytes) -> tuple[str, list[str]]:
    """Run a plan to its end. Returns the run and the names of the steps that were executed."""
    run = await engine.create("ci", list(plan), profile="delta-ci")
    done = []
    await engine.settle()
    while (await engine.get(run)).finished_at is None:
        lease = await engine.claim()
        done.append(lease.name)
        await engine.complete(lease, outputs.get(lease.name, b"null"))
        await engine.settle()
    assert (await engine.get(run)).status == "succeeded"
    return run, done


async def test_a_job_with_the_same_inputs_is_not_run_again(url: str) -> None:
    async with stage(url) as engine:
        plan = (job("build"), job("test", "build"), {"name": "ship", "needs": ["test"]})
        first, done = await run_jobs(engine, *plan, build=b'{"image":1}', test=b"7")
        assert done == ["build", "test", "ship"]
        second, done = await run_jobs(engine, *plan)
        assert done == ["ship"]
        third, done = await run_jobs(engine, *plan)
        assert done == ["ship"]
        for run in (second, third):  # a reused result of a reused step links to the original
            steps = {step.name: step for step in await engine.runs.steps(run)}
            assert [(s.state, s.shown, s.reason, s.attempt) for s in steps.values()][:2] == [
                ("succeeded", "SUCCEEDED", "REUSED", 0)
            ] * 2
            assert [(s.reused_from.run, s.reused_from.step) for s in steps.values() if s.reused_from] == [
                (first, "build"),
                (first, "test"),
            ]
            assert (steps["build"].output, steps["test"].output) == ({"image": 1}, 7)
        notes = [note for event in await engine.runs.events(second) for note in event.notes]
        assert f"build: reused from {first} step build" in notes


async def test_a_result_that_was_made_without_a_sandbox_is_not_reused(url: str) -> None:
    async with stage(url) as engine:
        await run_jobs(engine, job("build"), build=b'{"isolation":"none"}')
        _, done = await run_jobs(engine, job("build"), build=b'{"isolation":"bubblewrap"}')
        assert done == ["build"], "it may have read more than its digest covers"
        _, done = await run_jobs(engine, job("build"))
        assert done == []


@pytest.mark.parametrize("changed", ["digest", "output", "scope", "tenant", "failed"])
async def test_a_job_with_other_inputs_runs(url: str, changed: str) -> None:
    async with stage(url) as engine:
        if changed == "failed":
            run = await engine.create("ci", [{"name": "first"}, job("build", "first")], profile="delta-ci")
            await engine.complete(await engine.claim(), b"1")
            await engine.fail(await engine.claim(), "TEST_FAILURE", retryable=False)
            assert (await engine.get(run)).status == "failed"
        else:
            await run_jobs(engine, {"name": "first"}, job("build", "first"), first=b"1")
        how: dict[str, Any] = {"digest": "ef" * 32} if changed == "digest" else {}
        if changed == "scope":
            how["scope"] = "pull/5"
        other = engine.scoped(tenant="other") if changed == "tenant" else engine
        run = await other.create("ci", [{"name": "first"}, job("build", "first", **how)], profile="delta-ci")
        await engine.complete(await engine.claim(), b"2" if changed == "output" else b"1")
        lease = await engine.claim()
        assert (lease.name, ids.run_text(lease.run_id)) == ("build", run)
        await engine.complete(lease)


async def test_results_of_a_pull_request_serve_only_it_and_trusted_ones_serve_everybody(url: str) -> None:
    async with stage(url) as engine:
        await run_jobs(engine, job("build", scope="pull/5", also=["trusted"]))
        assert (await run_jobs(engine, job("build", scope="pull/5", also=["trusted"])))[1] == []
        assert (await run_jobs(engine, job("build", scope="pull/6", also=["trusted"])))[1] == ["build"]
        assert (await run_jobs(engine, job("build", scope="trusted")))[1] == ["build"]
        assert (await run_jobs(engine, job("build", scope="pull/7", also=["trusted"])))[1] == []


async def upload(engine: Engine, run: str, step: str, name: str, body: bytes) -> None:
    """Upload a file for the leased attempt of a step, as a runner does."""
    number = ids.run_int(run)
    await engine.artifacts.put(body, run)
    rows = {row.name: row for row in await engine.store.read("steps_of", number)}
    held = next(a for a in await engine.store.read("attempts_of", number) if a.idx == rows[step].idx)
    digest = f"sha256:{sha256(body).hexdigest()}"
    row = ArtifactRow(
        number, name, held.idx, held.n, False, held.tenant, step, held.owner, len(body), digest,
        "text/plain", 0, 0,
    )  # fmt: skip
    await put_artifact(engine.store, row, late_seconds=60)


async def build_with_file(engine: Stage, output: bytes = b"null") -> str:
    run = await engine.create("ci", [job("build")], profile="delta-ci")
    lease = await engine.claim()
    await upload(engine, run, "build", "report.txt", b"all fine")
    await engine.complete(lease, output)
    return run


async def test_files_of_the_original_are_files_of_the_reused_step(url: str) -> None:
    async with stage(url) as engine:
        await build_with_file(engine)
        run, done = await run_jobs(engine, job("build"), {"name": "next", "needs": ["build"]})
        assert done == ["next"]
        (listed,) = await engine.runs.list_artifacts(run)
        assert (listed.name, listed.step, listed.state, listed.size) == ("report.txt", "build", "accepted", 8)
        assert await engine.runs.read_artifact(run, "report.txt") == b"all fine"
        assert await engine.runs.read_artifact(run, "report.txt", step="build") == b"all fine"
        number = ids.run_int(run)
        page = await list_artifacts(engine.store, number, limit=1)
        assert (
            await list_artifacts(
                engine.store, number, after=(page[0].name, page[0].idx, page[0].n, page[0].late), limit=5
            )
            == []
        )
        found = await find_artifact(engine.store, number, "report.txt")
        assert (found.idx, found.step) == (0, "build")


@pytest.mark.parametrize("gone", ["file", "output", "run", "erased"])
async def test_a_job_whose_result_is_gone_runs(url: str, gone: str, tmp_path: Path) -> None:
    async with stage(url) as engine:
        large = b'"' + b"x" * 300_000 + b'"'
        reference = b""
        if gone == "output":
            run = await engine.create("ci", [job("build")], profile="delta-ci")
            reference = await engine.artifacts.put(large, run)
            await engine.complete(await engine.claim(), reference)
        else:
            run = await build_with_file(engine, b'"a result"')
        if gone == "run":
            await engine.runs.delete(run)
        elif gone == "erased":
            await erase_payloads(url, ids.run_int(run))
        else:
            (stored,) = (tmp_path / "artifacts").glob(f"{run}/sha256/*")
            stored.unlink()
        assert (await run_jobs(engine, job("build")))[1] == ["build"]


async def erase_payloads(url: str, run_id: int) -> None:
    """Erase the payloads of a run, as its owner may."""
    if url.startswith("sqlite:"):
        connection = apsw.Connection(url.removeprefix("sqlite:"))
        connection.execute("delete from payload where run_id = ?", (run_id,))
        connection.close()
    else:
        postgres = await asyncpg.connect(url)
        await postgres.execute("delete from tenure.payload where run_id = $1", run_id)
        await postgres.close()


async def test_a_silent_artifact_store_does_not_hold_a_job_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(url) as engine:
        await build_with_file(engine)

        async def exists(_self: ArtifactStore, _reference: bytes) -> bool:
            raise TenureError("STORE_UNAVAILABLE", "no answer")

        monkeypatch.setattr(ArtifactStore, "exists", exists)
        assert (await run_jobs(engine, job("build")))[1] == ["build"]
