"""Workflows over HTTP: registration, lists, versions."""

from typing import Any

import httpx

from tenure.engine import Engine
from tests.server.stage import ACME, problem, site
from tests.server.workflows import register

DEPLOY = """
name: deploy
version: "{version}"
profile: approval-runs
inputs:
  ref: {{type: string}}
  dry: {{type: boolean, default: false}}
steps:
  - id: build
    run: [make, "${{{{ inputs.ref }}}}"]
  - id: ask
    approval: {{title: Ship it?}}
"""


def deploy(version: str = "1", more: str = "") -> str:
    return DEPLOY.format(version=version) + more


async def put(
    caller: httpx.AsyncClient, name: str, text: str, kind: str = "application/yaml"
) -> httpx.Response:
    return await caller.put(f"/workflows/{name}", content=text, headers={"Content-Type": kind})


async def test_a_document_is_registered_and_its_runs_follow_it(url: str) -> None:
    async with site(url) as s:
        operator = await s.as_("operator")
        made = await put(operator, "deploy", deploy())
        assert made.status_code == 201, made.text
        assert (made.json()["name"], made.json()["version"], made.json()["kind"]) == (
            "deploy",
            "1",
            "declared",
        )
        assert made.json()["definition"]["document"] == deploy()
        same = await put(
            operator, "deploy", deploy().replace("Ship it?", '"Ship it?"'), "text/yaml; charset=utf-8"
        )
        assert same.status_code == 200, "the same definition in another notation"
        changed = await put(operator, "deploy", deploy().replace("make", "cmake"))
        assert (changed.status_code, problem(changed)) == (409, "WORKFLOW_CHANGED")
        run = await operator.post("/runs", json={"workflow": "deploy", "input": {"ref": "main"}})
        assert run.status_code == 201, run.text
        assert (run.json()["profile"], run.json()["shown"]) == ("approval-runs", "PENDING")
        steps = await s.engine.scoped(tenant=ACME).runs.steps(run.json()["id"])
        assert [step.name for step in steps] == ["build", "ask"]
        assert (await s.engine.scoped(tenant=ACME).get(run.json()["id"])).input == {
            "ref": "main",
            "dry": False,
        }
        for bad in ({}, {"ref": 1}, {"ref": "main", "wet": True}):
            answer = await operator.post("/runs", json={"workflow": "deploy", "input": bad})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), bad
            assert answer.json()["error"]["details"][0]["path"].startswith("input."), answer.text


async def test_a_json_document_can_be_registered(url: str) -> None:
    async with site(url) as s:
        operator = await s.as_("operator")
        document = '{"name": "hello", "steps": [{"id": "say", "run": ["echo", "hello"]}]}'
        made = await put(operator, "hello", document, "application/json")
        assert made.status_code == 201, made.text
        assert made.json()["version"] == made.json()["digest"][:12], (
            "the default version is the start of the digest"
        )


async def test_every_problem_of_a_document_is_reported_with_its_line(url: str) -> None:
    async with site(url) as s:
        operator = await s.as_("operator")
        answer = await put(
            operator,
            "deploy",
            "name: deploy\nsteps:\n  - id: a\n    run: x\n    needs: [b]\n    tmeout: 1s\n",
        )
        assert (answer.status_code, problem(answer)) == (422, "WORKFLOW_INVALID")
        details = answer.json()["error"]["details"]
        assert [detail["path"].split(":")[1] for detail in details] == ["5", "6"], details
        answer = await put(operator, "other", deploy())
        assert (answer.status_code, problem(answer)) == (422, "WORKFLOW_INVALID")
        assert answer.json()["error"]["details"][0]["path"] == "name"
        answer = await put(operator, "deploy", deploy(), "text/plain")
        assert (answer.status_code, problem(answer)) == (415, "UNSUPPORTED_MEDIA_TYPE")
        answer = await operator.put(
            "/workflows/deploy", content=b"\xff\xfe", headers={"Content-Type": "application/yaml"}
        )
        assert (answer.status_code, problem(answer)) == (422, "WORKFLOW_INVALID")
        assert (await operator.get("/workflows")).json() == {"items": [], "next_cursor": None}


async def test_the_newest_version_is_started_by_default(url: str) -> None:
    async with site(url) as s:
        operator = await s.as_("operator")

        async def started(**named: Any) -> Any:
            body = {"workflow": "deploy", "input": {"ref": "main"}, **named}
            return (await operator.post("/runs", json=body)).json()["version"]

        await put(operator, "deploy", deploy("1"))
        assert await started() == "1"
        await put(operator, "deploy", deploy("2"))
        assert await started() == "2"
        assert await started(version="1") == "1"
        found = (await operator.get("/workflows/deploy")).json()["items"]
        assert [row["version"] for row in found] == ["2", "1"]


async def pages(caller: httpx.AsyncClient, limit: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    cursor: str | None = None
    while True:
        query: dict[str, Any] = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
        page = (await caller.get("/workflows", params=query)).json()
        assert len(page["items"]) <= limit
        found += [(row["name"], row["version"]) for row in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


async def test_lists_contain_own_and_shared_workflows_page_by_page(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator, other = await s.as_("operator"), await s.as_("operator", tenant="globex")
        for version in ("1", "2", "3"):
            await put(operator, "deploy", deploy(version))
        await put(operator, "echo", 'name: echo\nversion: "1"\nsteps:\n  - id: say\n    run: [echo, hi]\n')
        wanted = [("deploy", "1"), ("deploy", "2"), ("deploy", "3"), ("echo", "1"), ("patient", "1")]
        for limit in (1, 2, 3, 50):
            assert await pages(operator, limit) == wanted, limit
        assert await pages(other, 2) == [("echo", "1"), ("patient", "1")]
        listed = (await operator.get("/workflows")).json()["items"]
        assert {row["name"]: row["kind"] for row in listed}["echo"] == "declared", (
            "the tenant's own workflow takes precedence"
        )
        answer = await other.get("/workflows/deploy")
        assert (answer.status_code, problem(answer)) == (404, "WORKFLOW_NOT_FOUND")
        cursor = (await operator.get("/workflows", params={"limit": 1})).json()["next_cursor"]
        answer = await other.get("/workflows", params={"cursor": cursor})
        assert (answer.status_code, problem(answer)) == (400, "CURSOR_INVALID")


async def test_a_code_first_workflow_describes_its_input(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        viewer = await s.as_("viewer")
        [found] = (await viewer.get("/workflows/echo")).json()["items"]
        assert found["kind"] == "code"
        about = found["definition"]
        assert (about["queue"], about["profile"], about["timeout_seconds"]) == ("default", "agent-runs", 600)
        answer = await put(viewer, "deploy", deploy())
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")


async def test_a_workflow_registered_by_another_process_is_found_quickly(url: str) -> None:
    async with site(url) as s, Engine(url) as elsewhere:
        operator = await s.as_("operator")
        answer = await operator.post("/runs", json={"workflow": "echo", "input": {"word": "a"}})
        assert problem(answer) == "WORKFLOW_NOT_FOUND"
        await register(elsewhere)
        answer = await operator.post("/runs", json={"workflow": "echo", "input": {"word": "a"}})
        assert answer.status_code == 201, "a missing workflow is not cached"
