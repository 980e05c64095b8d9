"""The documents of a run: their order, their schema, and that nothing is written after the end."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import to_builtins

from tenure import ids
from tenure.reads.status_document import read_status_document
from tests.publish.stage import (
    AGENT,
    TENANT,
    WriteLog,
    archivist,
    await_status,
    publishing,
    read_json,
    status_of,
    work,
)

SEED = Path(__file__).parents[2] / "docs" / "spec" / "seeds" / "agent-runs-uk.md"
ERROR = re.compile(r"[A-Z_]+: .+")


def examples() -> list[dict[str, Any]]:
    """The examples of section 3 of the document."""
    text = SEED.read_text().split("## 3. Status.json Schema")[1].split("## 4.")[0]
    return [msgspec.json.decode(body) for body in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]


@pytest.mark.clause("AGR-03", "AGR-04", "AGR-05")
async def test_steps_the_manifest_and_the_status_are_written_in_order(
    url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = WriteLog(monkeypatch)
    async with publishing(url, place) as engine, engine.worker(archivist):
        run = await engine.submit(archivist, {"topic": "violins"})
        await run.result(wait=30)
        last = await await_status(place, run.id, "completed")
        assert writes.states(run.id) == [
            ("requested", 0), ("queued", 0), ("running", 0), ("running", 1), ("running", 1), ("completed", 2),
        ]  # fmt: skip
        names = [path for path, _ in writes.of_run(run.id)]
        seen: list[str] = []
        for name, body in writes.of_run(run.id):
            if name == "status.json":
                for number in range(1, body["steps_completed"] + 1):
                    assert f"steps/{number}.json" in seen, "a status shows a step that is not published"
                assert body["status"] != "completed" or "manifest.json" in seen
            seen.append(name)
        assert names.count("manifest.json") == 1
        [proposal] = last["proposals_created"]
        assert re.fullmatch(r"prop_\d{4}-\d{2}-\d{2}_[0-9a-z]+", proposal)
        for example in examples():
            assert list(example) == list(last)
        assert (last["agent_slug"], last["trigger"], last["error"]) == ("archivist-violin", "manual", None)
        assert last["steps_total"] is None, "code does not say how many steps it will have"
        assert re.fullmatch(r"run_\d{4}-\d{2}-\d{2}_\d{6}_[0-9a-z]{6}", last["run_id"])
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z", last["finished_at"])
        step = await read_json(place, f"{TENANT}/runs/{run.id}/steps/1.json")
        assert (step["step"], step["name"], step["output"]) == (1, "draft", "a draft about violins")
        manifest = await read_json(place, f"{TENANT}/runs/{run.id}/manifest.json")
        assert [each["path"] for each in manifest["steps"]] == ["steps/1.json", "steps/2.json"]
        assert (manifest["status"], manifest["proposals_created"]) == ("completed", [proposal])
        # The document from the database has the same words.
        assert writes.of_run(run.id)[-1] == ("status.json", last)


PLAN: list[dict[str, Any]] = [
    {"name": "load-context"},
    {"name": "execute-agent", "needs": ["load-context"]},
    {"name": "review", "needs": ["execute-agent"]},
    {"name": "finalize", "needs": ["review"]},
]


@pytest.mark.clause("AGR-03", "AGR-04")
async def test_the_total_is_the_plans_from_the_start(
    sqlite_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = WriteLog(monkeypatch)
    async with publishing(sqlite_url, bucket) as engine:
        run = await engine.create("archivist-violin", PLAN, profile=AGENT)
        for _ in PLAN:
            await work(engine)
        last = await await_status(bucket, run, "completed")
        statuses = [body for path, body in writes.of_run(run) if path == "status.json"]
        assert [body["steps_total"] for body in statuses] == [4] * len(statuses)
        running = [body["current_step"] for body in statuses if body["status"] == "running"]
        assert running[0] == "load-context"
        assert list(dict.fromkeys(running)) == [step["name"] for step in PLAN]
        assert (last["current_step"], last["steps_completed"]) == ("finalize", 4)
        assert sorted({body["steps_completed"] for body in statuses}) == [0, 1, 2, 3, 4]
        glance = (await engine.store.read("run_glances", rows=[(ids.run_int(run),)]))[0]
        assert to_builtins(await read_status_document(engine.store, glance, "completed")) == last


@pytest.mark.clause("AGR-09")
async def test_a_run_fails_after_its_retries_with_a_code_and_a_text(
    sqlite_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = WriteLog(monkeypatch)
    async with publishing(sqlite_url, bucket) as engine:
        ends = {}
        for code in ("NLM_UNAVAILABLE", "UPSTREAM_UNAVAILABLE", "MODEL_CONFUSED"):
            plan = [{"name": "execute-agent", "backoff": {"seconds": [0.0, 0.0, 0.0], "jitter": 0.0}}]
            run = await engine.create("archivist-violin", plan, profile=AGENT)
            for _ in range(4):  # three retries
                await work(engine, fail=code, message=b"the model did not answer")
            ends[code] = await await_status(bucket, run, "failed")
            assert writes.states(run)[:3] == [("requested", 0), ("queued", 0), ("running", 0)]
            again = await engine.create("archivist-violin", plan, profile=AGENT)  # by hand
            assert again != run
            await work(engine)
            await await_status(bucket, again, "completed")
            assert (await status_of(bucket, run)) == ends[code], "the failed run is not touched again"
        assert {code: end["error"] for code, end in ends.items()} == {
            "NLM_UNAVAILABLE": "NLM_UNAVAILABLE: the model did not answer",
            "UPSTREAM_UNAVAILABLE": "UPSTREAM_UNAVAILABLE: the model did not answer",
            "MODEL_CONFUSED": "INTERNAL_ERROR: MODEL_CONFUSED: the model did not answer",
        }
        for end in ends.values():
            assert (end["status"], end["current_step"], end["steps_completed"]) == (
                "failed",
                "execute-agent",
                0,
            )


async def test_a_terminal_status_is_never_written_again(
    sqlite_url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = WriteLog(monkeypatch)
    async with publishing(sqlite_url, place) as engine:
        run = await engine.create("archivist-violin", PLAN[:1], profile=AGENT)
        await work(engine)
        await await_status(place, run, "completed")
        count = len(writes.of_run(run))
        publisher = engine.publisher
        assert publisher is not None
        version = await publisher.documents.version(f"{TENANT}/runs/{run}/status.json")
        await engine.runs.mark_reported(run)  # an event after the end
        other = await engine.create("archivist-violin", PLAN[:1], profile=AGENT)
        await work(engine)
        await await_status(place, other, "completed")  # so everything before has been read
        # A writer that knows nothing finds the terminal document, and leaves it.
        publisher._runs.forget()
        await publisher._publish_all((await publisher._feed.bounds()).head)
        assert len(writes.of_run(run)) == count
        assert await publisher.documents.version(f"{TENANT}/runs/{run}/status.json") == version
