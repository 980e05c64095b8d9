"""Any run in the words of any profile, and in the document formats of two profiles."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tenure.clock import us
from tenure.kernel import profiles
from tenure.shapes.runs import RunTrigger
from tests.profiles.custom import profiles_in_use, use_profiles
from tests.server.manual_worker import claim, complete, complete_next_step, fail_next_step, save_checkpoint
from tests.server.stage import Site, problem, site
from tests.server.workflows import register

SEEDS = Path(__file__).parents[2] / "docs/spec/seeds"
GWI = {"profile": "git-with-intent"}
AGENT = {"profile": "agent-runs"}


def list_document_fields() -> dict[str, bool]:
    """The fields of git-with-intent's section 6.2, and whether they are required."""
    text = (SEEDS / "git-with-intent.md").read_text()
    block = text.split("### 6.2 Run Document")[1].split("```")[1]
    found = re.findall(r"^  (\w+)(\??): ", block, re.MULTILINE)
    return {name: not optional for name, optional in found}


def _status_json() -> list[dict[str, Any]]:
    """The examples of agent-runs' section 3."""
    text = (SEEDS / "agent-runs-uk.md").read_text().split("## 3. Status.json Schema")[1]
    return [msgspec.json.decode(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)[:3]]


async def a_run(s: Site, profile: str = "tenure") -> str:
    engine = s.engine.scoped(tenant="acme", actor="person:rita")
    return await engine.create(
        "autopilot",
        [{"name": "plan/all#1"}, {"name": "apply"}],
        profile=profile,
        key="delivery-1",
        trigger=RunTrigger(type="webhook", ref="evt-9", repo="me/app"),
        metadata={"prId": "7", "prUrl": "https://example.test/pull/7", "a2aCorrelationId": "corr-1"},
    )


@pytest.mark.parametrize("profile", ["git-with-intent", "delta-ci"])
async def test_a_run_of_any_profile_has_a_git_with_intent_document(url: str, profile: str) -> None:
    fields = list_document_fields()
    assert len(fields) == 23, "all fields of section 6.2 are found"
    async with site(url) as s:
        viewer, run = await s.as_("viewer"), await a_run(s, profile)
        fresh = (await viewer.get(f"/runs/{run}", params=GWI)).json()
        assert {name for name, required in fields.items() if required} <= set(fresh) <= set(fields)
        assert (fresh["id"], fresh["schemaVersion"], fresh["tenantId"]) == (run, 1, "acme")
        assert (fresh["repoId"], fresh["prId"], fresh["type"]) == ("me/app", "7", "autopilot")
        assert fresh["trigger"] == {"source": "webhook", "userId": "person:rita", "webhookEventId": "evt-9"}
        assert (fresh["idempotencyKey"], fresh["a2aCorrelationId"]) == ("delivery-1", "corr-1")
        lease = await claim(s, run)
        assert lease is not None
        await save_checkpoint(s, lease, "look/at#2", 1, output=b'"seen"')
        at_work = (await viewer.get(f"/runs/{run}", params=GWI)).json()
        assert (at_work["status"], at_work["currentStep"]) == ("running", "plan/all#1")
        await complete(s, lease, b'{"n": 1}')
        await complete_next_step(s, run, b'"done"')
        ended = (await viewer.get(f"/runs/{run}", params=GWI)).json()
        assert (ended["status"], ended["result"]) == ("completed", "done")
        assert {"completedAt", "durationMs", "lastHeartbeatAt"} <= set(ended)
        (listed,) = (await viewer.get("/runs", params=GWI)).json()["items"]
        assert listed == ended

        steps = (await viewer.get(f"/runs/{run}/steps", params=GWI)).json()["items"]
        assert [(step["id"], step["runId"]) for step in steps] == [("plan/all#1", run), ("apply", run)]
        one = await viewer.get(f"/runs/{run}", params={**GWI, "at": "steps/plan/all#1"})
        assert one.json() == steps[0]
        points = (await viewer.get(f"/runs/{run}/checkpoints", params=GWI)).json()["items"]
        assert [(point["stepId"], point["status"], point["output"]) for point in points] == [
            ("look/at#2", "completed", "seen")
        ]
        one = await viewer.get(f"/runs/{run}", params={**GWI, "at": "checkpoints/look/at#2"})
        assert one.json() == points[0]
        record = (await viewer.get(f"/runs/{run}", params={**GWI, "at": "idempotency/delivery-1"})).json()
        assert (record["key"], record["tenantId"], record["runId"], record["status"]) == (
            "delivery-1",
            "acme",
            run,
            "completed",
        )
        assert record["attempts"] == 1
        none = await viewer.get(f"/runs/{run}", params={**GWI, "at": "steps/nope"})
        assert (none.status_code, problem(none)) == (404, "STEP_NOT_FOUND")
        odd = await viewer.get(f"/runs/{run}", params={"at": "steps"})
        assert (odd.status_code, problem(odd)) == (422, "INVALID_INPUT")


async def test_a_status_under_agent_runs_is_exactly_status_json(url: str) -> None:
    examples = _status_json()
    assert [one["status"] for one in examples] == ["running", "completed", "failed"], (
        "all examples of section 3 are found"
    )
    fields = list(examples[0])
    async with site(url) as s:
        viewer, engine = await s.as_("viewer"), s.engine.scoped(tenant="acme")
        plan = [{"name": name} for name in ("load", "execute-agent", "check", "finalize")]

        async def status(run: str) -> dict[str, Any]:
            body: dict[str, Any] = (await viewer.get(f"/runs/{run}/status", params=AGENT)).json()
            assert list(body) == fields, "exactly these fields, in this order"
            return body

        run = await engine.create("archivist-violin", plan)
        fresh = await status(run)
        assert (fresh["status"], fresh["started_at"], fresh["error"]) == ("queued", None, None)
        await complete_next_step(s, run)
        lease = await claim(s, run)
        assert lease is not None
        now = await status(run)
        stable = (
            "status",
            "trigger",
            "finished_at",
            "current_step",
            "steps_total",
            "steps_completed",
            "proposals_created",
        )
        assert {name: now[name] for name in (*stable, "error")} == {
            name: examples[0][name] for name in (*stable, "error")
        }
        assert (now["run_id"], now["agent_slug"]) == (run, "archivist-violin")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", now["started_at"])
        await complete(s, lease)
        await complete_next_step(s, run)
        await complete_next_step(s, run)
        ended = await status(run)
        assert (ended["status"], ended["current_step"], ended["steps_completed"]) == (
            "completed",
            "finalize",
            4,
        )

        for reason, error in (
            ("AGENT_TIMEOUT", "AGENT_TIMEOUT: execution exceeded 600s limit"),
            ("NLM_UNAVAILABLE", "NLM_UNAVAILABLE: execution exceeded 600s limit"),
            ("MY_OWN", "INTERNAL_ERROR: MY_OWN: execution exceeded 600s limit"),
        ):
            broken = await engine.create("archivist-violin", plan, trigger=RunTrigger(type="scheduled"))
            await complete_next_step(s, broken)
            await fail_next_step(s, broken, reason, b"execution exceeded 600s limit")
            body = await status(broken)
            assert body["error"] == error
            assert (body["status"], body["trigger"], body["current_step"]) == (
                "failed",
                "cron",
                "execute-agent",
            )
            assert (body["steps_total"], body["steps_completed"]) == (4, 1)


async def test_every_response_uses_the_words_of_the_profile(url: str) -> None:
    async with site(url) as s:
        viewer, run = await s.as_("viewer"), await a_run(s)
        assert await claim(s, run) is not None
        for name in profiles.names():
            profile = profiles.get(name)
            word, step = profile.word("run", "running"), profile.word("step", "running")
            params = {"profile": name}
            if name != "git-with-intent":
                assert (await viewer.get(f"/runs/{run}", params=params)).json()["shown"] == word
                assert (await viewer.get("/runs", params=params)).json()["items"][0]["shown"] == word
                steps = (await viewer.get(f"/runs/{run}/steps", params=params)).json()["items"]
                assert steps[0]["shown"] == step
            if name != "agent-runs":
                assert (await viewer.get(f"/runs/{run}/status", params=params)).json()["shown"] == word
        for path in (
            "/runs",
            f"/runs/{run}",
            f"/runs/{run}/status",
            f"/runs/{run}/steps",
            f"/runs/{run}/checkpoints",
        ):
            answer = await viewer.get(path, params={"profile": "nobodys"})
            assert (answer.status_code, problem(answer)) == (404, "PROFILE_NOT_FOUND"), path


async def test_a_server_without_a_custom_profile_serves_all_other_runs(url: str) -> None:
    own = (Path(profiles.__file__).parent / "delta-ci.toml").read_text().replace('"delta-ci"', '"ours"', 1)
    with profiles_in_use(own):
        async with site(url) as s:
            await register(s.engine)
            operator = await s.as_("operator")
            asked = {"workflow": "echo", "profile": "ours", "input": {"word": "a"}}
            made = await operator.post("/runs", json=asked, headers={"Idempotency-Key": "one"})
            assert (made.status_code, made.json()["profile"], made.json()["shown"]) == (201, "ours", "QUEUED")
            run, other = made.json()["id"], await a_run(s)
            assert (await operator.get(f"/runs/{other}", params={"profile": "ours"})).json()[
                "shown"
            ] == "QUEUED"

            use_profiles()
            refused = await operator.post(f"/runs/{run}/cancel", json={})
            assert (refused.status_code, problem(refused)) == (503, "PROFILE_NOT_HERE")
            listed = (await operator.get("/runs")).json()["items"]
            assert {line["id"]: line["shown"] for line in listed} == {run: "queued", other: "queued"}
            assert (await operator.get(f"/runs/{run}/status")).json()["shown"] == "queued"
            assert (await operator.get(f"/runs/{run}/steps")).status_code == 200
            assert (await operator.post(f"/runs/{other}/cancel", json={})).status_code < 300
            assert (await operator.get("/metrics")).status_code == 200


@pytest.mark.clause("GWI-24")
async def test_a_lost_run_tells_api_clients_why(url: str) -> None:
    """One worker is lost without a checkpoint. Another is lost during work that can be neither skipped nor repeated."""
    async with site(url) as s:
        viewer, engine = await s.as_("viewer"), s.engine.scoped(tenant="acme")
        for unsafe, reason in ((False, "RUN_ORPHANED"), (True, "RUN_RESUME_FAILED")):
            run = await engine.create("w", [{"name": "open"}], profile="git-with-intent")
            lease = await claim(s, run)
            assert lease is not None
            if unsafe:
                await save_checkpoint(
                    s, lease, "pull request", 1, state="started", idempotent=False, resumable=False
                )
            s.engine.store.shift_clock(us(301 if not unsafe else 602))
            answer = await viewer.get(f"/runs/{run}/result", params={"wait": 25})
            assert (answer.status_code, problem(answer)) == (500, reason)
            assert (await viewer.get(f"/runs/{run}")).json()["reason"] == reason
            document = (await viewer.get(f"/runs/{quote(run)}", params=GWI)).json()
            assert document["error"].startswith(reason)
