"""The run document of git-with-intent has exactly the specified fields."""

import json
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tenure import ids
from tenure.engine import Engine
from tenure.reads.run_documents import read_document
from tenure.shapes.documents import RunDocument
from tenure.shapes.runs import RunTrigger
from tests.cli.apps import app
from tests.cli.plan_worker import work
from tests.cli.shell import Tenure, in_folder

SEED = Path(__file__).parents[2] / "docs" / "spec" / "seeds" / "git-with-intent.md"
GWI = ("--profile", "git-with-intent", "--json")
PLAN: list[dict[str, Any]] = [{"name": "plan"}, {"name": "apply"}]


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "intent.py").write_text(app("intent"))
    return in_folder(tmp_path, monkeypatch, capsys)


def fields_of_the_seed() -> dict[str, bool]:
    """Return the fields of section 6.2, and whether each is required."""
    section = SEED.read_text().partition("### 6.2 Run Document")[2].partition("### 6.3")[0]
    listed = re.findall(r"^  (\w+)(\??):", section, re.MULTILINE)
    return {name: not optional for name, optional in listed}


SOURCES: tuple[Literal["ui", "cli", "webhook", "scheduled", "api"], ...] = (
    "ui",
    "cli",
    "webhook",
    "scheduled",
    "api",
)
CREATE = ("runs", "create", "--workflow", "autopilot", "--plan", "plan.json", "--profile", "git-with-intent")
EXTRA = {
    "prId": "pr-7",
    "prUrl": "https://example.test/pull/7",
    "a2aCorrelationId": "corr-1",
    "compensationLog": [{"step": "apply", "action": "reverted"}],
}


def test_a_run_has_every_field_of_the_document_and_no_other(tenure: Tenure) -> None:
    seed = fields_of_the_seed()
    assert len(seed) == 23, "the parser did not find all fields of section 6.2"
    assert {field.encode_name for field in _fields()} == set(seed)
    keyed = ("--key", "delivery-1", "--repo", "me/app", "--metadata", json.dumps(EXTRA), "--by", "u1")
    run = tenure(*CREATE, *keyed).out.strip()

    fresh = tenure("runs", "show", run, *GWI).json()
    assert {name for name, required in seed.items() if required} <= set(fresh)
    assert fresh["schemaVersion"] == 1
    assert (fresh["tenantId"], fresh["repoId"], fresh["prId"]) == ("default", "me/app", "pr-7")
    assert (fresh["prUrl"], fresh["type"], fresh["status"]) == (EXTRA["prUrl"], "autopilot", "pending")
    assert fresh["trigger"] == {"source": "cli", "userId": "u1"}
    assert (fresh["idempotencyKey"], fresh["a2aCorrelationId"]) == ("delivery-1", "corr-1")
    assert fresh["currentStep"] == "plan"
    assert "compensationLog" not in fresh, "the log comes from undos, not from the caller"
    assert not {"completedAt", "durationMs", "result", "error", "cancellation", "resumedFrom"} & set(fresh)

    assert work({"n": 1}, once=True) == ["plan"]
    work(fail="BROKEN", message="it broke", final=True)
    failed = tenure("runs", "show", run, *GWI).json()
    assert (failed["status"], failed["error"]) == ("failed", "BROKEN: it broke")
    assert {"completedAt", "durationMs", "lastHeartbeatAt"} <= set(failed)
    assert "currentStep" not in failed
    assert failed["updatedAt"] >= failed["completedAt"] >= failed["createdAt"]

    again = tenure("runs", "resume", run).out.strip()
    resumed = tenure("runs", "show", again, *GWI).json()
    assert (resumed["resumedFrom"], resumed["resumeCount"], resumed["currentStep"]) == (run, 1, "apply")
    work("done")
    done = tenure("runs", "show", again, *GWI).json()
    assert (done["status"], done["result"]) == ("completed", "done")

    third = tenure(*CREATE).out.strip()
    tenure("runs", "cancel", third, "--reason", "NOT_NEEDED", "--by", "ada")
    canceled = tenure("runs", "show", third, *GWI).json()
    assert canceled["status"] == "cancelled"
    assert canceled["cancellation"]["reason"] == "NOT_NEEDED"
    assert canceled["cancellation"]["requestedBy"] == "ada"
    assert canceled["cancellation"]["requestedAt"].endswith("Z")
    assert canceled["compensationLog"] == []


def _fields() -> Any:
    return msgspec.structs.fields(RunDocument)


async def test_every_trigger_source_is_shown(tmp_path: Path) -> None:
    async with Engine(f"sqlite:{tmp_path / 't.db'}", sweep=False) as engine:
        for source in SOURCES:
            trigger = RunTrigger(type=source, ref="evt-9")
            run = await engine.create("w", [{"name": "a"}], profile="git-with-intent", trigger=trigger)
            made = await read_document(engine.scope.reader, engine.store, ids.run_int(run), "git-with-intent")
            expected = {"source": source, "user_id": "embedded"}
            found = {"source": made.trigger.source, "user_id": made.trigger.user_id}
            assert found == expected
            assert made.trigger.webhook_event_id == ("evt-9" if source == "webhook" else None)


def test_the_document_has_steps_checkpoints_and_idempotency_records(tenure: Tenure) -> None:
    run = tenure(*CREATE, "--key", "k/1").out.strip()
    work({"n": 1}, once=True)
    step = tenure("runs", "show", run, *GWI, "--at", "steps/plan").json()
    assert (step["id"], step["runId"], step["status"], step["output"]) == ("plan", run, "succeeded", {"n": 1})
    listed = tenure("runs", "show", run, *GWI, "--at", "steps").json()
    assert [each["id"] for each in listed] == ["plan", "apply"]
    record = tenure("runs", "show", run, *GWI, "--at", "idempotency/k/1").json()
    assert (record["key"], record["source"], record["tenantId"], record["runId"]) == (
        "k/1",
        "cli",
        "default",
        run,
    )
    assert record["response"] == {"id": run}

    coded = tenure("run", "intent.py:intent", "-i", "ref=x", "--json")
    flow = coded.json()["run"]["id"]
    made = tenure("runs", "show", flow, *GWI, "--at", "checkpoints/build").json()
    assert (made["stepId"], made["agent"], made["status"], made["output"]) == (
        "build",
        "builder",
        "completed",
        "app:x",
    )
    assert made["tokensUsed"] == {"input": 10, "output": 5}
    assert made["durationMs"] > 0
    assert (made["resumable"], made["idempotent"]) == (True, True)
    assert [c["stepId"] for c in tenure("runs", "show", flow, *GWI, "--at", "checkpoints").json()] == [
        "build",
        "tell",
    ]


def test_a_run_of_any_profile_has_a_document(tenure: Tenure) -> None:
    run = tenure(*CREATE).out.strip()
    shown = tenure("runs", "show", run, "--profile", "delta-ci", "--json").json()
    assert (shown["run"]["status"], shown["run"]["shown"]) == ("queued", "QUEUED")
    assert shown["steps"][0]["shown"] == "QUEUED"
    assert "queued (QUEUED in delta-ci)" in tenure("runs", "show", run, "--profile", "delta-ci").out
    assert "PROFILE_NOT_FOUND" in tenure("runs", "show", run, "--profile", "nobodys").err


def test_a_run_without_a_document_is_refused(tenure: Tenure) -> None:
    run = tenure(*CREATE).out.strip()
    other = tenure("runs", "show", run, "--profile", "delta-ci", "--json", "--at", "steps")
    assert other.code == 1
    assert "git-with-intent has one" in other.err
    assert "STEP_NOT_FOUND" in tenure("runs", "show", run, *GWI, "--at", "steps/nope").err
    assert "INVALID_INPUT" in tenure("runs", "show", run, *GWI, "--at", "other/nope").err
    assert tenure("runs", "show", run, "--profile", "git-with-intent").code == 2, "the document needs --json"
