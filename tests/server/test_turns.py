"""No request holds the event loop: every route there is, at the largest input it takes, bounded by the CPU time of the loop's thread
in one turn. (Not by a clock: how busy the machine is does not matter.)"""

import asyncio
import base64
import hmac
import http.client
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tenure.embedded import Engine
from tenure.kernel.commands import CreateRun, StepSpec
from tenure.limits import ARTIFACT_BYTES_MAX, WORKFLOW_BYTES_MAX
from tenure.server.http import openapi
from tests.server.largest import bodies
from tests.server.senders import SECRET, SECRET_NAME, make_hook
from tests.server.stage import Site, site
from tests.server.walking import routes
from tests.turns import HELD_SECONDS_MAX, Turns, watched_turns

BODY_BYTES = 1024 * 1024
HOOK_BYTES = 5 * 1024 * 1024
TRIES = 3
"""A turn that is long once may have met something else: of some tries the best counts."""


def ask(address: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """A request from a thread of its own, so that nothing of the client is done in the loop's."""
    host, port = address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:  # it refused before it had read everything
        return 0, b""
    finally:
        connection.close()


async def held(turns: Turns, s: Site, method: str, path: str, body: bytes, headers: dict[str, str]) -> str:
    """Why a request holds the loop for too long; nothing where it does not."""
    for _ in range(TRIES):
        turns.forget()
        await asyncio.to_thread(ask, s.address, method, path, body, headers)
        if turns.longest() <= HELD_SECONDS_MAX:
            return ""
    return turns.told()


def _path(route: str, hooks: dict[str, str], names: dict[str, str]) -> str:
    path = route.partition(" ")[2]
    for kind, hook_id in hooks.items():
        path = path.replace(f"/hooks/{kind}/{{hook_id}}", f"/hooks/{kind}/{hook_id}")
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    return path


@pytest.mark.guard_seconds(300)
async def test_no_route_holds_the_event_loop(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    document: dict[str, Any] = json.loads(openapi.encoded())
    async with site(url) as s:
        await s.engine.store.put_workflow("acme", "wide", "1", "declared", _wide(), "d")
        key = await s.key("viewer", "operator", "approver", "admin", "runner", person="ann")
        operator = await s.operator_key()
        hooks = {kind: (await make_hook(s, kind))["id"] for kind in ("github", "slack", "generic")}
        run = (await (await s.caller(key)).post("/runs", json={"workflow": "wide"})).json()["id"]
        names = {"run_id": run, "name": "wide", "key": "s0", "hook_id": hooks["github"], "version": "1"}
        wrong = []
        with watched_turns() as turns:
            for route in sorted(routes()):
                method, _, template = route.partition(" ")
                if template == "/events/stream":
                    continue  # it does not end; what it hands out has a test of its own
                path = _path(route, hooks, names)
                path = path.replace("{", "").replace("}", "")
                hooked = template.startswith(("/hooks/github/", "/hooks/slack/", "/hooks/generic/"))
                room = HOOK_BYTES if hooked else BODY_BYTES
                for name, body, kind in bodies(document, route, room):
                    headers = {
                        "Authorization": f"Bearer {operator if path.startswith('/admin') else key}",
                        "Idempotency-Key": f"{route}-{name}"[:200],
                        **({"Content-Type": kind} if kind else {}),
                    }
                    if hooked:
                        headers |= _signed(body)
                    why = await held(turns, s, method, path, body, headers)
                    if why:
                        wrong.append(f"{route} with {name}: {why}")
        assert not wrong, "\n".join(wrong)


def _signed(body: bytes) -> dict[str, str]:
    """What each of the senders would send along."""
    secret, at = SECRET.encode(), str(int(time.time()))
    standard = hmac.digest(secret, b"m1." + at.encode() + b"." + body, "sha256")
    return {
        "X-GitHub-Delivery": "d1",
        "X-GitHub-Event": "push",
        "X-Hub-Signature-256": f"sha256={hmac.digest(secret, body, 'sha256').hex()}",
        "X-Slack-Request-Timestamp": at,
        "X-Slack-Signature": f"v0={hmac.digest(secret, b'v0:' + at.encode() + b':' + body, 'sha256').hex()}",
        "webhook-id": "m1",
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(standard).decode()}",
    }


async def test_runs_of_the_widest_workflow_do_not_hold_the_event_loop(url: str) -> None:
    async with site(url) as s:
        await s.engine.store.put_workflow("acme", "wide", "1", "declared", _wide(), "d")
        echo = json.dumps({"name": "echo", "version": "1", "steps": [{"id": "a", "run": "true"}]})
        await s.engine.store.put_workflow("acme", "echo", "1", "declared", echo, "d")
        headers = {
            "Authorization": f"Bearer {await s.key('operator', 'viewer')}",
            "Content-Type": "application/json",
        }
        metadata = {f"name-{i}": i for i in range(3_000)}
        wide = {"workflow": "wide", "metadata": metadata}
        batches = [[wide] * 5, [{"workflow": "echo", "metadata": {"a": "x" * 1_800}}] * 500]
        with watched_turns() as turns:
            asked = [("/runs", wide), *(("/runs/batch", {"items": items}) for items in batches)]
            for path, body in asked:
                text = json.dumps(body, separators=(",", ":")).encode()
                why = await held(turns, s, "POST", path, text, headers)
                assert not why, (path, why)
            for path in ("/runs?limit=200", "/costs", "/metrics", "/openapi.json", "/docs"):
                why = await held(turns, s, "GET", path, b"", headers)
                assert not why, (path, why)


def _wide(steps: int = 950) -> str:
    """A workflow with as many steps as may be."""
    listed = [{"id": f"s{i}", "run": "true", "needs": []} for i in range(steps)]
    return json.dumps({"name": "wide", "version": "1", "steps": listed})


async def test_a_workflow_with_unknown_needs_does_not_hold_the_event_loop(url: str) -> None:
    long = "a-name-that-is-as-long-as-names-may-be-" * 3
    steps = "".join(f"  - id: {long[:80]}{i}\n    run: x\n    needs: [{long[:81]}{i}]\n" for i in range(950))
    text = f"name: wide\nsteps:\n{steps}".encode()
    assert len(text) < WORKFLOW_BYTES_MAX
    async with site(url) as s:
        headers = {
            "Authorization": f"Bearer {await s.key('operator')}",
            "Content-Type": "application/yaml",
        }
        with watched_turns() as turns:
            assert not await held(turns, s, "PUT", "/workflows/wide", text, headers)
            good = _wide().encode()
            assert not await held(turns, s, "PUT", "/workflows/wide", good, headers)


async def test_an_artifact_does_not_hold_the_event_loop(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))
    body = b"x" * (ARTIFACT_BYTES_MAX - 1)
    async with site(url) as s:
        with watched_turns() as turns:
            kept = await s.engine.artifacts.put(body, "run_2026-01-01_000000_aaaaaa")
            found = await s.engine.artifacts.get(kept)
        assert found == body
        assert turns.longest() <= HELD_SECONDS_MAX, turns.told()


async def test_a_plan_of_3000_steps_created_alone_does_not_hold_the_event_loop(url: str) -> None:
    plan = tuple(StepSpec(name=f"s{i}", queue="q", needs=()) for i in range(3_000))
    best: list[str] = []
    async with Engine(url) as engine:
        orchestrator = engine.orchestrator
        for _ in range(TRIES):
            with watched_turns() as turns:
                await orchestrator.create(
                    CreateRun(
                        context=engine.context(),
                        run_id=orchestrator.new_id(),
                        tenant="default",
                        workspace="default",
                        workflow="wide",
                        code_version="1",
                        profile="agent-runs",
                        plan=plan,
                        input=b"{}",
                    )
                )
            if turns.longest() <= HELD_SECONDS_MAX:
                return
            best.append(turns.told())
    assert not best
