"""Runs and their parts, read over HTTP."""

from typing import Any
from urllib.parse import quote

import pytest

import tenure
from tests.server.stage import Site, problem, site


@tenure.step
async def review(part: str) -> str:
    """A step that logs."""
    tenure.log("looked at it", part=part)
    return part.upper()


@tenure.workflow
async def reading(parts: list[str]) -> str:
    """Reviews each part in a scope of its own."""
    done = [await review(part) for part in parts]
    return "+".join(done)


async def a_read_run(s: Site) -> str:
    engine = s.engine.scoped(tenant="acme")
    async with engine.worker(reading):
        run = await engine.submit(reading, {"parts": ["a", "b", "c"]}, labels={"team": "red"})
        assert await run.result(wait=20) == "A+B+C"
    return run.id


async def test_a_run_and_its_parts_are_read(url: str) -> None:
    async with site(url) as s:
        run, viewer = await a_read_run(s), await s.as_("viewer")
        found = (await viewer.get(f"/runs/{run}")).json()
        assert (found["status"], found["output"], found["labels"]) == ("succeeded", "A+B+C", {"team": "red"})
        steps = (await viewer.get(f"/runs/{run}/steps")).json()
        keys = [step["name"] for step in steps["items"]]
        assert keys == ["review", "review#2", "review#3"]
        assert steps["next_cursor"] is None
        for key in keys:
            path = f"/runs/{run}/steps/{quote(key, safe='')}"
            (tried,) = (await viewer.get(f"{path}/attempts")).json()["items"]
            assert (tried["n"], tried["state"]) == (1, "succeeded")
            lines = (await viewer.get(f"{path}/logs")).json()["items"]
            assert [line["step"] for line in lines] == [key]
        lines = (await viewer.get(f"/runs/{run}/logs")).json()["items"]
        assert [line["fields"]["part"] for line in lines] == ["a", "b", "c"]
        after = (await viewer.get(f"/runs/{run}/logs", params={"after": lines[1]["no"]})).json()["items"]
        assert after == lines[2:]
        points = (await viewer.get(f"/runs/{run}/checkpoints")).json()["items"]
        assert [(point["key"], point["state"], point["output"]) for point in points] == [
            ("review", "done", "A"),
            ("review#2", "done", "B"),
            ("review#3", "done", "C"),
        ]
        events = (await viewer.get(f"/runs/{run}/events")).json()["items"]
        assert [event["seq"] for event in events] == list(range(1, found["events"] + 1))
        assert (await viewer.get(f"/runs/{run}/tries")).json()["items"] == []
        assert (await viewer.get(f"/runs/{run}/why")).json()["reason"] == "finished"


async def test_the_parts_of_a_run_are_paged(url: str) -> None:
    async with site(url) as s:
        run, viewer = await a_read_run(s), await s.as_("viewer")
        for part, key in (("steps", "name"), ("events", "seq"), ("logs", "no"), ("checkpoints", "key")):
            path = f"/runs/{run}/{part}"
            whole = [item[key] for item in (await viewer.get(path)).json()["items"]]
            paged: list[Any] = []
            cursor: dict[str, str] = {}
            while True:
                page = (await viewer.get(path, params={"limit": 2, **cursor})).json()
                assert len(page["items"]) <= 2
                paged += [item[key] for item in page["items"]]
                if page["next_cursor"] is None:
                    break
                cursor = {"cursor": page["next_cursor"]}
            assert paged == whole, part
            other = await viewer.get(f"/runs/{run}/{part}", params={"cursor": "bm8"})
            assert (other.status_code, problem(other)) == (400, "CURSOR_INVALID")


async def test_a_step_key_with_a_slash_is_one_segment(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        run = await engine.create("w", [{"name": "build/linux#2"}, {"name": "build%2Flinux#2"}])
        for key in ("build/linux#2", "build%2Flinux#2"):
            answer = await viewer.get(f"/runs/{run}/steps/{quote(key, safe='')}/attempts")
            assert (answer.status_code, answer.json()["items"]) == (200, []), key
        answer = await viewer.get(f"/runs/{run}/steps/build/linux/attempts")
        assert (answer.status_code, problem(answer)) == (404, "NOT_FOUND")
        answer = await viewer.get(f"/runs/{run}/steps/build%2Fmac/attempts")
        assert (answer.status_code, problem(answer)) == (404, "STEP_NOT_FOUND")
        answer = await viewer.get(f"/runs/{run}%2F..%2Fx/steps/a/attempts")
        assert (answer.status_code, problem(answer)) == (404, "RUN_NOT_FOUND")


@pytest.mark.clause("APR-11")
async def test_another_tenants_run_looks_missing(url: str) -> None:
    async with site(url) as s:
        run = await a_read_run(s)
        engine = s.engine.scoped(tenant="acme")
        waiting = await engine.create(
            "w", [{"name": "ask", "kind": "approval", "approval": {"action": "deploy"}}]
        )
        nothing = "run_2020-01-01_000000_aaaaaa"
        stranger = await s.as_("viewer", "approver", tenant="globex")
        for tail in (
            "", "?profile=git-with-intent", "/status", "/result", "/steps", "/steps/review/attempts", "/steps/review/logs",
            "/logs", "/tries", "/events", "/checkpoints", "/artifacts", "/artifacts/x", "/why",
        ):  # fmt: skip
            theirs, none = (
                await stranger.get(f"/runs/{run}{tail}"),
                await stranger.get(f"/runs/{nothing}{tail}"),
            )
            assert (theirs.status_code, problem(theirs)) == (404, "RUN_NOT_FOUND"), tail
            assert _without_ids(theirs, run) == _without_ids(none, nothing), tail
        assert (await stranger.get("/runs")).json()["items"] == []
        assert (await stranger.get("/approvals")).json()["items"] == []
        assert (await stranger.get("/inbox/stats")).json()["pending_approvals"] == 0
        (asked,) = (await (await s.as_("viewer")).get("/approvals")).json()["items"]
        assert asked["run_id"] == waiting
        person = await s.person("zoe", tenant="globex")
        for answer in (
            await person.post(f"/approvals/{asked['id']}/decision", json={"decision": "approve"}),
            await person.post("/approvals/apr_2020-01-01_00000000001/decision", json={"decision": "approve"}),
            await person.post(f"/approvals/{asked['id'][:-1]}9/decision", json={"decision": "approve"}),
        ):
            assert (answer.status_code, problem(answer)) == (404, "APPROVAL_NOT_FOUND")
        answer = await person.post(f"/runs/{waiting}/approve", json={"decision": "approve"})
        assert (answer.status_code, problem(answer)) == (404, "RUN_NOT_FOUND")


def _without_ids(answer: Any, run: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()["error"]
    return {**body, "request_id": "", "message": body["message"].replace(run, "RUN")}
