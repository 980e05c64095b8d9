"""Claims, leases and lease tokens over HTTP: which requests a token authorizes, and how repeats are answered."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tenure.server.auth import authentication
from tenure.store.workflows import save_workflow
from tests.server.stage import Site, problem, site

CAPABILITIES = ["default|tool:build"]
PLAN = [{"name": "build", "tool": "build", "input": {"what": "all"}}]


async def start(s: Site, tenant: str = "acme", **how: Any) -> str:
    """Create a run of one step."""
    return await s.engine.scoped(tenant=tenant).create("ci", PLAN, **how)


async def claim(runner: httpx.AsyncClient, claim_id: str = "c1", **how: Any) -> list[dict[str, Any]]:
    """The leases that a claim gets."""
    asked = {"claim_id": claim_id, "capabilities": CAPABILITIES, "max": 10, **how}
    answer = await runner.post("/runner/claim", json=asked)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["leases"]
    return found


async def say(s: Site, lease: dict[str, Any], verb: str, seq: int = 0, **what: Any) -> httpx.Response:
    """Send a message of a lease with its token."""
    caller = await s.as_("runner")  # the lease token replaces the key of this client
    headers = {"Authorization": f"Bearer {lease['token']}"}
    path = f"/runner/leases/{lease['id']}/{verb}"
    return await caller.post(path, json={"seq": seq, **what}, headers=headers)


async def test_a_job_from_claim_to_complete(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        runner = await s.as_("runner")
        (lease,) = await claim(runner, worker="mac-1")
        assert lease["run_id"] == run
        assert lease["input"] == {"what": "all"}
        assert lease["token"].startswith("tl_")
        assert (await say(s, lease, "ack", 1)).json()["cancel"] is False
        assert (await say(s, lease, "running", 2)).json()["state"] == "ok"
        beat = (await say(s, lease, "heartbeat", 3, progress="half")).json()
        assert beat["expires_at"] > lease["expires_at"]
        done = await say(s, lease, "checkpoint", 4, name="compiled", output={"objects": 3})
        assert done.json() == {"state": "ok", "cancel": False}
        assert (await say(s, lease, "log", 5, lines=[{"text": "linking"}])).status_code == 200
        assert (await say(s, lease, "cost", 6, cost="0.02 USD")).status_code == 200
        assert (await say(s, lease, "uploading", 7)).status_code == 200
        assert (await say(s, lease, "complete", 8, output={"ok": True})).json()["state"] == "ok"
        seen = await s.engine.scoped(tenant="acme").get(run)
        assert seen.status == "succeeded"


async def test_the_same_claim_returns_the_same_leases_and_grants_nothing_new(url: str) -> None:
    async with site(url) as s:
        await start(s)
        runner = await s.as_("runner")
        first = await claim(runner, "c1")
        await start(s)
        again = await claim(runner, "c1")
        assert again == first
        assert len(first) == 1
        other = await claim(runner, "c2")
        assert len(other) == 1
        assert other != first


async def test_concurrent_equal_claims_are_one_claim(url: str) -> None:
    async with site(url) as s:
        for _ in range(4):
            await start(s)
        runner = await s.as_("runner")
        found = await asyncio.gather(*(claim(runner, "c1", max=2) for _ in range(6)))
        ids = {tuple(sorted(lease["id"] for lease in leases)) for leases in found}
        assert len(ids) == 1
        assert len(ids.pop()) == 2


async def test_the_same_claim_at_two_servers_is_one_claim(url: str) -> None:
    async with site(url) as one, site(url) as two:
        for _ in range(6):
            await start(one)
        key = await one.key("runner")
        callers = [await s.caller(key) for s in (one, two, one, two)]
        found = await asyncio.gather(*(claim(caller, "c1", max=3) for caller in callers))
        ids = {tuple(sorted(lease["id"] for lease in leases)) for leases in found}
        assert len(ids) == 1
        assert len(ids.pop()) == 3
        lease = found[0][0]
        for s, verb, seq in ((one, "ack", 1), (two, "running", 2), (one, "running", 2), (two, "complete", 3)):
            assert (await say(s, lease, verb, seq)).status_code == 200
        assert (await say(one, lease, "complete", 3)).status_code == 200


async def test_a_runner_cannot_see_another_tenants_work(url: str) -> None:
    async with site(url) as s:
        await start(s, "globex")
        await s.tenant("globex")
        runner = await s.as_("runner")
        assert await claim(runner) == []
        theirs = await s.as_("runner", tenant="globex")
        assert len(await claim(theirs)) == 1


async def test_a_lease_accepts_only_its_own_token(url: str) -> None:
    async with site(url) as s:
        await start(s)
        await start(s)
        runner = await s.as_("runner")
        one, two = await claim(runner)
        for token in (two["token"], "tl_" + "A" * 43, "tl_short", runner.headers["authorization"][7:]):
            answer = await say(s, {**one, "token": token}, "ack", 1)
            assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")
        for lease_id in ("run_2026-02-14_080000_abc123.0.1", "nonsense", f"{one['run_id']}.0.99"):
            answer = await say(s, {**one, "id": lease_id}, "ack", 1)
            assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")
        assert (await say(s, one, "ack", 1)).status_code == 200


async def test_an_operators_key_cannot_claim(url: str) -> None:
    async with site(url) as s:
        operator = await s.as_("operator")
        answer = await operator.post("/runner/claim", json={"claim_id": "c", "capabilities": CAPABILITIES})
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")


async def test_a_restarted_server_answers_a_repeated_claim_alike(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        key = await s.key("runner")
        (lease,) = await claim(await s.caller(key))
    async with site(url) as s:
        await start(s)
        assert await claim(await s.caller(key)) == [lease]
        for seq, verb in enumerate(("ack", "running", "complete"), start=1):
            assert (await say(s, lease, verb, seq)).status_code == 200
        assert (await s.engine.scoped(tenant="acme").get(run)).status == "succeeded"
        assert await claim(await s.caller(key)) == []


def contents(folder: Path) -> list[bytes]:
    """The contents of all files of a database."""
    return [path.read_bytes() for path in folder.glob("site.db*") if path.is_file()]


async def test_neither_tokens_nor_keys_are_stored(tmp_path: Path) -> None:
    async with site(f"sqlite:{tmp_path / 'site.db'}") as s:
        await start(s)
        key = await s.key("runner")
        (lease,) = await claim(await s.caller(key))
        await say(s, lease, "ack", 1)
        kept = b"".join(contents(tmp_path))
        for secret in (lease["token"], lease["token"][3:], key.split("_", 2)[2]):
            assert secret.encode() not in kept


@pytest.mark.parametrize("progress", ["a\0b", "x" * 2000])
async def test_a_refused_heartbeat_affects_no_other_lease(url: str, progress: str) -> None:
    async with site(url) as s:
        await start(s)
        await start(s)
        one, two = await claim(await s.as_("runner"), ack=True)
        wrong, right, number = await asyncio.gather(
            say(s, one, "heartbeat", 1, progress=progress),
            say(s, two, "heartbeat", 1, progress="fine"),
            say(s, one, "heartbeat", 2**40),
        )
        assert (wrong.status_code, problem(wrong)) == (422, "INVALID_INPUT")
        assert (number.status_code, problem(number)) == (422, "INVALID_INPUT")
        assert (right.status_code, right.json()["state"]) == (200, "ok")


async def test_workers_that_claim_or_register_are_listed(url: str) -> None:
    async with site(url) as s:
        runner = await s.as_("runner")
        await claim(runner, "c1", worker="mac-1", slots=3)
        body = {"worker": "mac-2", "capabilities": CAPABILITIES, "slots": 2}
        assert (await runner.post("/runner/register", json=body)).json() == {"refused": []}
        assert [(one.name, one.slots) for one in await runners_of(s)] == [
            ("@acme/mac-1", 3),
            ("@acme/mac-2", 2),
        ]
        for tenant, reason in (("acme", "turn"), ("globex", "worker")):
            explanation = await s.engine.scoped(tenant=tenant).runs.explain(await start(s, tenant))
            assert explanation.reason == reason, explanation
            assert "globex" not in explanation.text
        await runner.post("/runner/register", json={**body, "leaves": True})
        assert [one.name for one in await runners_of(s)] == ["@acme/mac-1"]


async def runners_of(s: Site) -> list[Any]:
    """The registered runners. Servers have rows in the same table."""
    seen: list[Any] = await s.engine.store.read("workers_seen_since", 0)
    return [one for one in seen if one.name.startswith("@")]


async def test_an_invalid_process_identity_is_refused(url: str) -> None:
    async with site(url) as s:
        runner = await s.as_("runner")
        process = {"session": 7, "boot_id": "b", "namespaces": "n", "pid": 5, "start_ticks": 9}
        body = {"worker": "mac-1", "capabilities": ["default|tool:build"], "process": process}
        assert (await runner.post("/runner/register", json=body)).status_code == 200
        for wrong in (
            {"pid": 0},
            {"pid": 1 << 40},
            {"session": -1},
            {"start_ticks": 1 << 70},
            {"boot_id": ""},
        ):
            refused = await runner.post("/runner/register", json={**body, "process": process | wrong})
            assert refused.status_code == 422, wrong
        claim = {"claim_id": "c", "capabilities": ["default|tool:build"], "session": -1}
        assert (await runner.post("/runner/claim", json=claim)).status_code == 422


async def test_a_runners_workflows_are_registered_in_its_tenant(url: str) -> None:
    async with site(url) as s:
        runner = await s.as_("runner")
        entry = {"name": "ship", "version": "1", "kind": "code", "definition": {"doc": "ships"}}
        answer = await runner.post("/runner/workflows", json={"workflows": [entry]})
        assert answer.json() == {"refused": []}
        (found,) = await s.engine.store.read("workflow_named", "acme", "ship")
        assert (found.version, found.kind) == ("1", "code")
        steps = {"name": "ship", "steps": [{"id": "a", "run": "true"}]}
        other = {**entry, "kind": "declared", "definition": steps}
        answer = await runner.post("/runner/workflows", json={"workflows": [other]})
        assert "WORKFLOW_CHANGED" in answer.json()["refused"][0]
        assert await s.engine.store.read("workflow_named", "globex", "ship") == []


@pytest.mark.parametrize(
    "definition",
    [
        {"inputs": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        {"inputs": {"$ref": 5}},
        {"inputs": {"$ref": "#/a", "$defs": []}},
        {"inputs": {"properties": [{}]}},
        {"inputs": {"properties": {}, "required": [{}]}},
        {"queue": 5},
        {"timeout_seconds": "long"},
        {"lease_seconds": "long"},
    ],
    ids=str,
)
async def test_a_runners_registration_of_its_code_is_checked(url: str, definition: dict[str, Any]) -> None:
    """Regression: with circular references in a schema, any tenant's runner could block the whole server."""
    async with site(url) as s:
        runner, operator = await s.as_("runner"), await s.as_("operator")
        entry = {"name": "odd", "version": "1", "definition": definition}
        answer = await runner.post("/runner/workflows", json={"workflows": [entry]})
        assert answer.status_code == 200, answer.text
        assert "WORKFLOW_INVALID" in answer.json()["refused"][0]
        # An invalid definition that is already in the database does no harm either.
        text = msgspec.json.encode(definition).decode()
        await save_workflow(s.engine.store, "acme", "odd", "1", "code", text, "d")
        started = await operator.post("/runs", json={"workflow": "odd"})
        assert (started.status_code, problem(started)) == (422, "WORKFLOW_INVALID")


async def test_a_runner_that_loses_its_access_loses_its_leases(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        admin = await s.as_("admin")
        for end in ("key", "client"):
            await start(s)
            key = await s.key("runner")
            runner = await s.caller(key)
            (lease,) = await claim(runner, end, ack=True)
            assert (await say(s, lease, "running", 1)).status_code == 200
            who = (await runner.get("/session")).json()
            where = f"/keys/{who['key_id']}" if end == "key" else f"/clients/{who['id']}"
            assert (await admin.delete(where)).status_code == 204
            token = {"Authorization": f"Bearer {lease['token']}"}
            for answer in (
                await say(s, lease, "heartbeat", 2),
                await say(s, lease, "complete", 3, output=1),
                await admin.get(f"/runner/leases/{lease['id']}", headers=token),
                await admin.get(f"/runner/leases/{lease['id']}/artifacts/a", headers=token),
                await admin.put(f"/runner/leases/{lease['id']}/artifacts/a", content=b"a", headers=token),
            ):
                assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")


async def test_guessed_lease_tokens_stop_reaching_the_database(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "REFUSALS_BURST", 5.0)
    monkeypatch.setattr(authentication, "REFUSALS_PER_SECOND", 0.001)
    async with site(url) as s:
        await start(s)
        (lease,) = await claim(await s.as_("runner"), ack=True)
        run, wrong = lease["run_id"], f"tl_{'a' * 43}"
        guessed = [
            {"id": f"{run}.{n}.99", "token": wrong} for n in (0, 1, 2, 99999999999, 9999999999999999, 5, 6, 7)
        ]
        answers = [await say(s, one, "heartbeat", 1) for one in guessed]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 3
        assert (await say(s, lease, "running", 1)).status_code == 200, "a known token is still accepted"
