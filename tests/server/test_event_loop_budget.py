"""No request blocks the event loop. Every route gets its largest input, and each turn of the loop has a limit of CPU time.
CPU time, not elapsed time, is measured, so that the load of the machine does not matter."""

import asyncio
import http.client
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.engine import Engine
from tenure.kernel.commands import (
    Complete,
    CreateRun,
    DeleteRun,
    RequestCancel,
    SealRun,
    StepSpec,
    build_plan_step,
)
from tenure.kernel.run_rows import Cap
from tenure.limits import ARTIFACT_BYTES_MAX, WORKFLOW_BYTES_MAX
from tenure.server.http import openapi
from tenure.store.workflows import save_workflow
from tests.loop_turns import HELD_SECONDS_MAX, Turns, watched_turns
from tests.server.api_objects import (
    OTHER,
    delivery_headers,
    largest_delivery,
    ordered_routes,
    sender_of,
    server_with_objects,
    widest_workflow,
)
from tests.server.largest_bodies import bodies
from tests.server.stage import ACME, Site, site
from tests.server.webhook_senders import SECRET, SECRET_NAME

BODY_BYTES = 1024 * 1024
HOOK_BYTES = 5 * 1024 * 1024
TRIES = 3
"""The best of a few tries counts, because one long turn may have another cause."""


def ask(address: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """Send a request from another thread, so that the client uses no time of the loop. Of an endless answer, only the
    beginning is read."""
    host, port = address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        endless = answer.getheader("Content-Type", "").startswith("text/event-stream")
        return answer.status, answer.read1() if endless else answer.read()
    except OSError:  # the server refused the request before it had read the whole body
        return 0, b""
    finally:
        connection.close()


async def measure(
    turns: Turns, s: Site, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, str]:
    """The status of the answer, and why the request blocks the loop for too long (empty if it does not)."""
    first = 0
    for _ in range(TRIES):
        turns.forget()
        status, _ = await asyncio.to_thread(ask, s.address, method, path, body, headers)
        first = first or status
        if turns.longest() <= HELD_SECONDS_MAX:
            return first, ""
    return first, turns.describe()


REACHED = frozenset({*range(200, 400), 409})
"""Statuses that only a route's handler returns. Every route must return one of them at least once; otherwise a route that
refuses every request before its handler would pass the test."""


@pytest.mark.guard_seconds(300)
async def test_no_route_blocks_the_event_loop(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in (ACME, OTHER):
        monkeypatch.setenv(SECRET_NAME.replace(ACME, tenant), SECRET)
    document: dict[str, Any] = json.loads(openapi.encoded_document())
    wrong: list[str] = []
    answered: dict[str, dict[str, int]] = {}
    async with server_with_objects(url, document, tmp_path) as objects:
        with watched_turns() as turns:
            for route in ordered_routes():
                sender = sender_of(route)
                room = HOOK_BYTES if sender else BODY_BYTES
                answered[route] = {}
                fitting = (
                    [("a valid body", *largest_delivery(route, room))]
                    if sender
                    else [("a valid body", None, "")]
                )
                for number, (name, body, kind) in enumerate([*fitting, *bodies(document, route, room)]):
                    asked = await objects.request_to(route)
                    text = asked.body if body is None else body
                    headers = {**asked.headers, "Content-Type": kind or "application/json"}
                    if sender:
                        headers |= delivery_headers(sender, number, text)
                    status, why = await measure(
                        turns,
                        objects.site,
                        route.split()[0],
                        asked.path,
                        text,
                        headers if text else asked.headers,
                    )
                    answered[route][name] = status
                    assert status < 500, f"{route} with {name}: {status}"
                    if why:
                        wrong.append(f"{route} with {name}: {why}")
    assert not wrong, "\n".join(wrong)
    unreached = [f"{route}: {given}" for route, given in answered.items() if not REACHED & {*given.values()}]
    assert not unreached, "\n".join(unreached)


async def test_runs_of_the_widest_workflow_do_not_block_the_event_loop(url: str) -> None:
    async with site(url) as s:
        await save_workflow(s.engine.store, "acme", "wide", "1", "declared", widest_workflow(), "d")
        echo = json.dumps({"name": "echo", "version": "1", "steps": [{"id": "a", "run": "true"}]})
        await save_workflow(s.engine.store, "acme", "echo", "1", "declared", echo, "d")
        headers = {
            "Authorization": f"Bearer {await s.key('operator', 'viewer')}",
            "Content-Type": "application/json",
        }
        metadata = {f"name-{i}": i for i in range(3_000)}
        one = {"workflow": "wide", "metadata": metadata}
        batches = [[one] * 5, [{"workflow": "echo", "metadata": {"a": "x" * 1_800}}] * 500]
        with watched_turns() as turns:
            asked = [("/runs", one), *(("/runs/batch", {"items": items}) for items in batches)]
            for path, body in asked:
                text = json.dumps(body, separators=(",", ":")).encode()
                status, why = await measure(turns, s, "POST", path, text, headers)
                assert (status in REACHED, why) == (True, ""), (path, status, why)
            for path in ("/runs?limit=200", "/costs", "/metrics", "/openapi.json", "/docs"):
                status, why = await measure(turns, s, "GET", path, b"", headers)
                assert (status, why) == (200, ""), (path, status, why)


async def test_numbers_with_many_digits_do_not_block_the_event_loop(url: str) -> None:
    """A digest writes numbers in full, and 1 MB of `1e308` has 50 million digits. The workflow does not exist, so no run starts."""
    many = "[" + ",".join(["1e308"] * 160_000) + "]"
    few = "[" + ",".join(["1e20", "1e-9", "0.5", "1.0"] * 40_000) + "]"
    async with site(url) as s:
        headers = {
            "Authorization": f"Bearer {await s.key('operator', 'viewer')}",
            "Content-Type": "application/json",
        }
        with watched_turns() as turns:
            for number, (values, refused) in enumerate(((many, True), (few, False))):
                new = f'"workflow": "none", "input": {{"x": {values}}}'
                keyed = {**headers, "Idempotency-Key": f"key-{number}"}
                status, why = await measure(turns, s, "POST", "/runs", f"{{{new}}}".encode(), keyed)
                assert (status, why) == (422 if refused else 404, "")
                batch = f'{{"items": [{{{new}, "idempotency_key": "item-{number}"}}]}}'.encode()
                status, why = await measure(turns, s, "POST", "/runs/batch", batch, headers)
                assert (status, why) == (200, "")


async def test_a_workflow_with_unknown_needs_does_not_block_the_event_loop(url: str) -> None:
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
            assert await measure(turns, s, "PUT", "/workflows/wide", text, headers) == (422, "")
            good = widest_workflow().encode()
            assert await measure(turns, s, "PUT", "/workflows/wide", good, headers) == (201, "")


async def test_an_artifact_does_not_block_the_event_loop(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))
    body = b"x" * (ARTIFACT_BYTES_MAX - 1)
    async with site(url) as s:
        with watched_turns() as turns:
            kept = await s.engine.artifacts.put(body, "run_2026-01-01_000000_aaaaaa")
            found = await s.engine.artifacts.get(kept)
        assert found == body
        assert turns.longest() <= HELD_SECONDS_MAX, turns.describe()


STEPS = 3_000
INDEPENDENT = tuple(StepSpec(name=f"s{i}", queue="apart") for i in range(STEPS))
DEPENDENT = (
    StepSpec(name="first", queue="behind"),
    *(StepSpec(name=f"s{i}", queue="later", needs=("first",)) for i in range(STEPS - 1)),
)


async def test_a_plan_of_3000_steps_created_alone_does_not_block_the_event_loop(url: str) -> None:
    async with Engine(url) as engine:
        await _check(lambda: _create(engine, INDEPENDENT))


async def test_a_plan_of_3000_steps_that_needs_a_lock_does_not_block_the_event_loop(url: str) -> None:
    async with Engine(url) as engine:
        await engine.orchestrator.put_caps([Cap("default", "", max_runs_per_min=1_000)])
        await _check(lambda: _create(engine, INDEPENDENT, concurrency_key="one"))


async def test_a_planner_that_brings_3000_steps_does_not_block_the_event_loop(url: str) -> None:
    async with Engine(url) as engine:

        async def plan() -> None:
            run_id = await _create(engine, (build_plan_step("planner", queue="planners"),))
            (lease,) = await engine.orchestrator.claim("planner", queues=["planners"], limit=1)
            assert lease.run_id == run_id
            message = Complete(run_id=run_id, idx=lease.idx, n=lease.n, seq=1, plan=INDEPENDENT)
            await engine.orchestrator.send(message)

        await _check(plan)


@pytest.mark.parametrize("known", [True, False])
async def test_a_cancel_of_3000_steps_does_not_block_the_event_loop(url: str, known: bool) -> None:
    async with Engine(url) as engine:
        runs = [await _create(engine, INDEPENDENT) for _ in range(TRIES)]
        if not known:
            engine.orchestrator._cache.clear()

        async def cancel() -> None:
            command = RequestCancel(context=engine.scope.context(), run_id=runs.pop(), reason="CANCELED")
            answer = await engine.orchestrator.send(command)
            assert answer["status"] == "canceled"

        await _check(cancel)


@pytest.mark.parametrize("known", [True, False])
async def test_3000_steps_that_become_ready_do_not_block_the_event_loop(url: str, known: bool) -> None:
    async with Engine(url) as engine:
        for _ in range(TRIES):
            await _create(engine, DEPENDENT)
        leases = await engine.orchestrator.claim("worker", queues=["behind"], limit=TRIES)
        if not known:
            engine.orchestrator._cache.clear()

        async def complete() -> None:
            lease = leases.pop()
            command = Complete(
                context=engine.scope.context(),
                run_id=lease.run_id,
                idx=lease.idx,
                n=lease.n,
                seq=1,
                output=b"1",
            )
            await engine.orchestrator.send(command)
            (run,) = await engine.store.read("get_run", lease.run_id)
            assert run.steps_ready == STEPS - 1

        await _check(complete)


async def test_deleting_a_run_of_3000_steps_does_not_block_the_event_loop(url: str) -> None:
    async with Engine(url) as engine:
        runs = [await _create(engine, INDEPENDENT) for _ in range(TRIES)]
        for run_id in runs:
            cancel = RequestCancel(context=engine.scope.context(), run_id=run_id, reason="CANCELED")
            await engine.orchestrator.send(cancel)
            await engine.orchestrator.send(SealRun(context=engine.scope.context(), run_id=run_id))

        async def delete() -> None:
            run_id = runs.pop()
            await engine.orchestrator.send(DeleteRun(context=engine.scope.context(), run_id=run_id))
            assert not await engine.store.read("steps_of", run_id)

        await _check(delete)


async def _create(engine: Engine, plan: tuple[StepSpec, ...], concurrency_key: str | None = None) -> int:
    orchestrator = engine.orchestrator
    command = CreateRun(
        context=engine.scope.context(),
        run_id=orchestrator.new_id("acme"),
        tenant="default",
        workspace="default",
        workflow="wide",
        code_version="1",
        profile="agent-runs",
        plan=plan,
        input=b"{}",
        concurrency_key=concurrency_key,
    )
    return (await orchestrator.create(command)).run_id


async def _check(work: Callable[[], Awaitable[object]]) -> None:
    """Check that the work does not block the loop for too long, in the best of a few tries."""
    reports: list[str] = []
    for _ in range(TRIES):
        with watched_turns() as turns:
            await work()
        if turns.longest() <= HELD_SECONDS_MAX:
            return
        reports.append(turns.describe())
    raise AssertionError("\n".join(reports))


COMMITS = 10
RUNS = 500


async def test_a_stream_that_is_far_behind_does_not_block_the_event_loop(url: str) -> None:
    async with site(url) as s:
        echo = json.dumps({"name": "echo", "version": "1", "steps": [{"id": "a", "run": "true"}]})
        await save_workflow(s.engine.store, "acme", "echo", "1", "declared", echo, "d")
        key = await s.key("operator", "viewer")
        caller = await s.caller(key)
        # With an open stream, new events stay in the server's memory. Without one, they are read from the database.
        async with caller.stream("GET", "/events/stream", params={"type": "approval.reminder"}) as quiet:
            beginning = await anext(quiet.aiter_text())
            place = next(line for line in beginning.splitlines() if line.startswith("id: "))[4:]
            for _ in range(COMMITS):
                made = await caller.post("/runs/batch", json={"items": [{"workflow": "echo"}] * RUNS})
                assert made.is_success, made.text
            await _catch_up(s, key, place)
        await _catch_up(s, key, place)


async def _catch_up(s: Site, key: str, place: str) -> None:
    """Read all events after a position."""
    with watched_turns() as turns:
        heard = await asyncio.to_thread(listen, s.address, key, place, COMMITS * RUNS)
    assert len(set(re.findall(rb"run_[\w-]+", heard))) == COMMITS * RUNS, "every run is reported"
    assert turns.longest() <= HELD_SECONDS_MAX, turns.describe()


def listen(address: str, key: str, after: str, events: int) -> bytes:
    """Read this number of events from a stream, then disconnect."""
    host, port = address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(
            "GET", "/events/stream", headers={"Authorization": f"Bearer {key}", "Last-Event-ID": after}
        )
        answer = connection.getresponse()
        heard: list[bytes] = []
        while len(heard) < events:
            line = answer.readline()
            assert line, heard[-3:]
            if line.startswith(b"data: "):
                heard.append(line)
        return b"".join(heard)
    finally:
        connection.close()
