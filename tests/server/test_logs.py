"""Logs of a server: exactly the events of git-with-intent's section 7.2, and no secrets."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from tenure.kernel.commands import Heartbeat
from tenure.server.observe.structured_logs import configure_logging
from tests.engine.stage import head
from tests.server.manual_worker import claim, complete, fail_next_step, save_checkpoint
from tests.server.stage import site
from tests.server.workflows import register

PLAN = [{"name": "build"}]
EVERY_LINE = {"event", "level", "timestamp"}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log of a test, in the format of a server."""
    before, stream = structlog.get_config(), io.StringIO()
    configure_logging(stream)
    yield stream
    structlog.configure(**before)


def logged(log: io.StringIO, event: str) -> list[dict[str, Any]]:
    """The log lines of an event, without the fields that every line has."""
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert all(set(line) >= EVERY_LINE for line in lines)
    return [
        {name: value for name, value in line.items() if name not in EVERY_LINE}
        for line in lines
        if line["event"] == event
    ]


@pytest.mark.clause("GWI-23")
async def test_a_run_is_logged_with_the_fields_of_the_document(url: str, log: io.StringIO) -> None:
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        run = await engine.create(
            "autopilot", PLAN, profile="git-with-intent", key="github:77", source="github_webhook"
        )
        lease = await claim(s, run)
        assert lease is not None
        await save_checkpoint(s, lease, "analysed", 1)
        await complete(s, lease)
    about = {"runId": run, "tenant": "acme"}
    assert logged(log, "run_created") == [{**about, "type": "autopilot", "idempotencyKey": "github:77"}]
    assert logged(log, "run_transition") == [
        {**about, "from": "pending", "to": "running", "initiator": "system"},
        {**about, "from": "running", "to": "completed", "initiator": "system"},
    ]
    assert logged(log, "run_checkpoint") == [{**about, "stepId": "analysed", "resumable": True}]
    [ended] = logged(log, "run_completed")
    assert ended.pop("durationMs") >= 0
    assert ended == {**about, "status": "completed"}


@pytest.mark.clause("GWI-23")
async def test_an_orphaned_run_is_logged_with_its_last_heartbeat(url: str, log: io.StringIO) -> None:
    plan = [{"name": "build", "lease_seconds": 1.0}]
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        run = await engine.create("autopilot", plan, profile="git-with-intent")
        lease = await claim(s, run)
        assert lease is not None
        await s.engine.orchestrator.heartbeat(Heartbeat(**head(lease, 1)))
        with pytest.raises(Exception, match=r"RUN_ORPHANED|failed"):
            await engine.result(run, wait=30)
    [line] = logged(log, "orphan_detected")
    assert line.pop("lastHeartbeat").endswith("Z")
    assert line == {"runId": run, "tenant": "acme"}
    assert [line["status"] for line in logged(log, "run_completed")] == ["failed"]


@pytest.mark.clause("GWI-23")
async def test_a_replayed_request_is_logged_with_its_run(url: str, log: io.StringIO) -> None:
    async with site(url) as s:
        await register(s.engine)
        caller = await s.as_("operator")
        body = {"workflow": "echo", "input": {"word": "a"}}
        run = (await caller.post("/runs", json=body, headers={"Idempotency-Key": "once"})).json()["id"]
        await caller.post("/runs", json=body, headers={"Idempotency-Key": "once"})
    [line] = logged(log, "idempotency_hit")
    assert line.pop("key").endswith(":once")
    assert line == {"cachedRunId": run, "tenant": "acme"}


async def test_run_events_are_not_logged_if_they_are_switched_off(url: str, log: io.StringIO) -> None:
    async with site(url, log_runs=False) as s:
        run = await s.engine.scoped(tenant="acme").create("w", PLAN)
        await fail_next_step(s, run, "BROKEN")
    assert not any(logged(log, event) for event in ("run_created", "run_transition", "run_completed"))


async def test_a_request_is_logged_with_its_route_and_without_secrets(url: str, log: io.StringIO) -> None:
    async with site(url, log_requests=True) as s:
        key = await s.key("viewer")
        caller = await s.caller(key)
        await caller.get("/runs/run_secretly?profile=tenure", headers={"X-Request-ID": "mine-1"})
        await (await s.caller("tn_garbage")).get("/runs")
    first, second = logged(log, "request")
    assert (first["request_id"], first["route"], first["status"]) == ("mine-1", "/runs/{run_id}", 404)
    assert (first["tenant"], first["key_id"]) == ("acme", key.split("_")[1])
    assert (second["route"], second["status"], second["tenant"]) == ("/runs", 401, None)
    everything = log.getvalue()
    assert key.split("_", 2)[2] not in everything
    assert "garbage" not in everything


async def test_a_defect_is_logged_under_the_request_id_and_not_shown(
    url: str, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(url) as s:
        caller = await s.as_("viewer")
        monkeypatch.setattr(s.service, "engine_of", lambda *_: 1 / 0)
        answer = await caller.get("/runs")
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert error["code"] == "INTERNAL_ERROR"
        assert "ZeroDivision" not in answer.text
    [line] = logged(log, "request_failed")
    assert line["request_id"] == error["request_id"]
    assert "ZeroDivisionError" in line["traceback"]
