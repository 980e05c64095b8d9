"""Creation of runs over HTTP."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import Cap
from tenure.kernel.identity_rows import ApiKeyRow, ClientRow, PersonRow
from tenure.services.identity.principals import new_id, new_key
from tests.server.stage import ACME, Site, problem, site
from tests.server.workflows import begin, echo, register


async def test_a_run_is_created_with_all_requested_fields(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        answer = await operator.post(
            "/runs",
            json={
                "workflow": "echo",
                "version": "1",
                "input": {"word": "hello", "times": 2},
                "labels": {"team": "blue"},
                "metadata": {"ticket": 7},
                "priority": 3,
                "profile": "git-with-intent",
                "workspace": "night",
                "trigger": {
                    "type": "webhook",
                    "ref": "delivery-1",
                    "repo": "acme/site",
                    "pr_id": 12,
                    "pr_url": "https://example.test/12",
                    "commit": "abc",
                    "correlation_id": "corr-1",
                },
                "concurrency_key": "site",
                "timeout": "5m",
            },
        )
        assert answer.status_code == 201, answer.text
        made = answer.json()
        assert answer.headers["location"] == f"/runs/{made['id']}"
        assert set(made) == {
            "id", "workflow", "version", "profile", "workspace", "status", "shown", "created_at",
        }  # fmt: skip
        assert (made["workflow"], made["version"], made["workspace"]) == ("echo", "1", "night")
        assert (made["status"], made["shown"]) == ("queued", "pending")
        assert datetime.fromisoformat(made["created_at"]).tzinfo is not None
        engine = s.engine.scoped(tenant=ACME)
        run = await engine.get(made["id"])
        assert (run.profile, run.workspace, run.labels) == ("git-with-intent", "night", {"team": "blue"})
        row = await engine.scope.reader.row(_number(made["id"]))
        assert (row.repo, row.concurrency_key, row.timeout_us) == ("acme/site", "site", 300_000_000)
        document: Any = await engine.runs.document(made["id"], "git-with-intent")
        assert (document.repo_id, document.pr_id, document.pr_url) == (
            "acme/site",
            "12",
            "https://example.test/12",
        )
        assert document.a2a_correlation_id == "corr-1"
        assert (document.trigger.source, document.trigger.webhook_event_id) == ("webhook", "delivery-1")


def _number(run_id: str) -> int:
    from tenure import ids

    return ids.run_int(run_id)


async def test_a_worker_runs_the_requested_workflow(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        run = await begin(await s.as_("operator"), input={"word": "hello", "times": 2})
        async with s.engine.worker(echo):
            assert await s.engine.scoped(tenant=ACME).result(run, wait=20) == "HELLO HELLO"


REFUSED: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "an unknown workflow": ({"workflow": "nothing"}, 404, "WORKFLOW_NOT_FOUND", ""),
    "an unknown version": ({"version": "9"}, 404, "WORKFLOW_NOT_FOUND", ""),
    "an unknown profile": ({"profile": "nothing"}, 404, "PROFILE_NOT_FOUND", ""),
    "an unknown input": ({"input": {"word": "a", "loud": 1}}, 422, "INVALID_INPUT", "input.loud"),
    "a missing input": ({"input": {}}, 422, "INVALID_INPUT", "input.word"),
    "an unknown field": ({"colour": "red"}, 422, "INVALID_INPUT", "colour"),
    "a trigger's field there is not": ({"trigger": {"who": "me"}}, 422, "INVALID_INPUT", "trigger.who"),
    "a time without an offset": ({"not_before": "2026-02-14T08:00:00"}, 422, "INVALID_INPUT", "not_before"),
    "an invalid timeout": ({"timeout": "soon"}, 422, "INVALID_INPUT", "timeout"),
    "invalid labels": ({"labels": {"a": 1}}, 422, "INVALID_INPUT", "labels[...]"),
    "a priority out of range": ({"priority": 2**40}, 422, "INVALID_INPUT", "priority"),
    "an empty workspace": ({"workspace": ""}, 422, "INVALID_INPUT", "workspace"),
}


async def test_an_invalid_request_creates_nothing(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        for name, (fields, status, code, path) in REFUSED.items():
            body = {"workflow": "echo", "input": {"word": "a"}, **fields}
            answer = await operator.post("/runs", json=body, headers={"Idempotency-Key": "one"})
            assert (answer.status_code, problem(answer)) == (status, code), (name, answer.text)
            details = answer.json()["error"]["details"]
            if path:
                assert path in {detail["path"] for detail in details}, (name, details)
        assert await s.engine.scoped(tenant=ACME).runs.list() == []
        good = {"workflow": "echo", "input": {"word": "a"}}
        answer = await operator.post("/runs", json=good, headers={"Idempotency-Key": "one"})
        assert answer.status_code == 201, "a refused request has not used the key"
        assert "idempotency-replayed" not in answer.headers


MALFORMED = {
    "empty": b"",
    "half": b'{"workflow": "echo"',
    "no JSON": b"workflow: echo",
    "NaN": b'{"workflow": "echo", "input": {"word": NaN}}',
    "no UTF-8": b'{"workflow": "\xff"}',
    "a list": b"[]",
    "null": b"null",
    "deep": b'{"workflow": "echo", "input": {"word": ' + b"[" * 5_000 + b"]" * 5_000 + b"}}",
    "a lone surrogate": b'{"workflow": "\\ud800"}',
    "a NUL": b'{"workflow": "a\\u0000b"}',
}


@pytest.mark.parametrize("path", ["/runs", "/agents/run"])
async def test_both_routes_refuse_a_malformed_request_alike(url: str, path: str) -> None:
    """`POST /runs` bypasses the router; `POST /agents/run` does not."""
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        for name, body in MALFORMED.items():
            answer = await operator.post(path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (400, 404, 422), (name, answer.text)
            problem(answer)
        answer = await operator.post(path, content=b"{}", headers={"Content-Type": "text/plain"})
        assert (answer.status_code, problem(answer)) == (415, "UNSUPPORTED_MEDIA_TYPE")
        answer = await operator.post(f"{path}?dry=true", json={"workflow": "echo", "input": {"word": "a"}})
        assert answer.status_code in (400, 422), "unknown parameters are refused"
        for caller, status in ((await s.caller(), 401), (await s.as_("viewer"), 403)):
            answer = await caller.post(path, content=b"{", headers={"Content-Type": "application/json"})
            assert answer.status_code == status, "authentication comes before the body"
        assert await s.engine.scoped(tenant=ACME).runs.list() == []


async def test_a_delayed_run_waits_for_its_time(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        later = datetime.now(UTC) + timedelta(hours=1)
        run = await begin(await s.as_("operator"), not_before=later.isoformat())
        assert (await s.engine.scoped(tenant=ACME).scope.reader.row(_number(run))).admitted_at is None


async def test_a_newer_run_supersedes_the_older_one_with_its_key(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        engine = s.engine.scoped(tenant=ACME)
        first = await begin(operator, concurrency_key="site", supersede=True)
        await begin(operator, concurrency_key="site", supersede=True)
        assert await engine.run(first).reaches("canceled", wait=20) == "canceled"


async def test_a_large_input_is_stored_as_an_artifact(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))
    async with site(url) as s:
        await register(s.engine)
        word = "a" * 300_000
        run = await begin(await s.as_("operator"), input={"word": word})
        async with s.engine.worker(echo):
            assert await s.engine.scoped(tenant=ACME).result(run, wait=20) == word.upper()


@pytest.mark.clause("GOV-12")
async def test_a_request_over_the_rate_gets_429_with_retry_after(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        await s.engine.put_caps([Cap(ACME, "", max_runs_per_min=2)])
        operator = await s.as_("operator")
        for word in ("a", "b"):
            await begin(operator, input={"word": word})
        body = {"workflow": "echo", "input": {"word": "c"}}
        for _ in range(2):
            answer = await operator.post("/runs", json=body, headers={"Idempotency-Key": "third"})
            assert (answer.status_code, problem(answer)) == (429, "TENANT_RATE_LIMITED")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 2
        s.engine.store.shift_clock(61_000_000)
        answer = await operator.post("/runs", json=body, headers={"Idempotency-Key": "third"})
        assert answer.status_code == 201, "a request that got 429 has not used the key"


async def _owned(s: Site, owner: str) -> str:
    """A key of a client that a person owns."""
    made = new_key()
    client = ClientRow(ACME, new_id("cli_"), "ci", '["operator"]', owner, 1)
    person = PersonRow(ACME, owner, owner.title(), "[]", "[]", None, None, None, 1)
    key = ApiKeyRow(made.id, ACME, "client", client.id, "test", made.hash, None, "test", 1, None)
    await s.identity.put_all([client, person, key], None)
    return made.text


async def test_the_owner_of_a_client_is_the_requester_of_its_runs(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        client = await s.caller(await _owned(s, "alice"))
        run = await begin(client)
        assert (
            await s.engine.scoped(tenant=ACME).scope.reader.spec(_number(run))
        ).requester == "person:alice"
        free = await begin(await s.as_("operator"))
        requester = (await s.engine.scoped(tenant=ACME).scope.reader.spec(_number(free))).requester
        assert requester is not None
        assert requester.startswith("client:cli_")


async def test_a_tenants_own_workflow_takes_precedence_over_a_shared_one(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        acme, globex = await s.as_("operator"), await s.as_("operator", tenant="globex")
        text = "name: echo\nversion: ours\nsteps:\n  - id: say\n    run: [echo, hello]\n"
        answer = await acme.put("/workflows/echo", content=text, headers={"Content-Type": "application/yaml"})
        assert answer.status_code == 201, answer.text
        mine = await acme.post("/runs", json={"workflow": "echo"})
        assert mine.json()["version"] == "ours"
        theirs = await globex.post("/runs", json={"workflow": "echo", "input": {"word": "a"}})
        assert theirs.json()["version"] == "1"
        old = await acme.post("/runs", json={"workflow": "echo", "version": "1", "input": {"word": "a"}})
        assert old.json()["version"] == "1"
        answer = await globex.post("/runs", json={"workflow": "echo", "version": "ours"})
        assert (answer.status_code, problem(answer)) == (404, "WORKFLOW_NOT_FOUND")


async def test_a_created_run_is_visible_immediately_and_only_to_its_tenant(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        answers = await asyncio.gather(*(begin(operator, input={"word": str(i)}) for i in range(20)))
        assert len(set(answers)) == 20
        viewer, other = await s.as_("viewer"), await s.as_("viewer", tenant="globex")
        for run in answers[:3]:
            assert (await viewer.get(f"/runs/{run}")).json()["id"] == run
            assert (await other.get(f"/runs/{run}")).status_code == 404
