"""The Python client: the same methods and results as the engine."""

import asyncio
import inspect
import typing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import tenure
from tenure.cli.workflows.registration import register_workflows
from tenure.client import Client
from tenure.engine import Engine
from tenure.engine import engine as engine_module
from tenure.errors import TenureError
from tenure.sdk.definitions import Workflow, registry
from tests.server.stage import Site, site


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "workflows", {})
    monkeypatch.setattr(registry, "tools", {})


def release() -> Workflow[..., Any]:
    @tenure.step(retries=0)
    async def build(ref: str) -> str:
        if ref == "broken":
            raise ValueError("it does not build")
        return f"app:{ref}"

    @tenure.workflow(name="release", version="1")
    async def flow(ref: str, ask: bool = False) -> str:
        tenure.log("building", ref=ref)
        image = await build(ref)
        if ask:
            await tenure.approve(f"Deploy {image}?", within="1h")
            await tenure.wait("healthy", within="1h")
        return image

    return flow


@asynccontextmanager
async def client_with_worker(s: Site, flow: Workflow[..., Any]) -> AsyncIterator[Client]:
    """A client, and a worker on the server's database."""
    assert await register_workflows(s.engine, [flow]) == []
    async with s.engine.worker(flow), Client(s.address, await s.key("operator", "viewer")) as client:
        yield client


async def test_a_client_follows_a_run_to_its_end(url: str) -> None:
    async with site(url) as s, client_with_worker(s, release()) as client:
        run = await client.submit("release", {"ref": "main"}, labels={"team": "a"}, key="once")
        assert await client.submit("release", {"ref": "main"}, labels={"team": "a"}, key="once") == run
        assert await client.result(run, wait=20) == "app:main"
        view = await client.get(run)
        assert (view.status, view.labels, view.output) == ("succeeded", {"team": "a"}, "app:main")
        assert [step.name for step in await client.runs.steps(run)] == ["build"]
        while not (lines := await client.runs.logs(run)):
            pass  # logs are written outside of the run's commit, a moment later
        assert [line.text for line in lines] == ["building"]
        history = await client.runs.events(run)
        assert [event.seq for event in history] == list(range(1, await client.runs.version(run) + 1))
        assert [event.seq for event in await client.runs.events(run, after=1)] == [e.seq for e in history[1:]]
        assert (await client.runs.explain(run)).reason == "finished"
        assert [line.id for line in await client.runs.list(labels={"team": "a"})] == [run]
        assert await client.runs.list(labels={"team": "b"}) == []
        again = await client.runs.rerun(run)
        assert await client.result(again, wait=20) == "app:main"
        await client.runs.update(run, labels={"team": "b"})
        made = await client.runs.update(run, labels={"stage": "live", "team": None}, metadata={"pr": 7})
        assert (made.id, made.labels, made.metadata["pr"]) == (run, {"stage": "live"}, 7)
        about = await client.get(run)
        assert (about.labels, about.metadata["pr"]) == ({"stage": "live"}, 7)
        statement = await client.runs.mark_reported(run)
        assert (await client.get(run)).reported_statement == statement
        assert (await client.runs.events(run))[-1].kind == "report_stated"


async def test_a_client_raises_the_errors_of_an_engine(url: str) -> None:
    async with site(url) as s, client_with_worker(s, release()) as client:
        run = await client.submit("release", {"ref": "broken"})
        with pytest.raises(TenureError) as failed:
            await client.result(run, wait=20)
        assert failed.value.code == "STEP_FAILED"
        assert [
            attempt.code for attempt in await client.runs.failed_attempts(run)
        ] == []  # the last attempt is not listed: it is the run's own error
        with pytest.raises(TenureError, match="RUN_NOT_FOUND"):
            await client.get("run_2026-02-14_080000_abc123")
        with pytest.raises(TenureError, match="WORKFLOW_NOT_FOUND"):
            await client.submit("nothing")
        with pytest.raises(TenureError, match="RUN_TERMINAL_STATE"):
            await client.cancel(run)


async def test_a_client_approves_and_sends_signals(url: str) -> None:
    async with site(url) as s, client_with_worker(s, release()) as client:
        run = await client.submit("release", {"ref": "main", "ask": True})
        async with Client(s.address, await s.key("approver", "viewer", person="grace")) as grace:
            while not (asked := await grace.approvals.list(run)):
                pass  # each call is a request
            assert asked[0].title == "Deploy app:main?"
            assert [one.id for one in await grace.approvals.list()] == [asked[0].id]
            assert await grace.approve(run) == "approved"
        result = await client.signal(run, "healthy", {"fine": True}, event_id="e1")
        assert await client.result(run, wait=20) == "app:main"
        assert not result.again


async def test_a_client_streams_events(url: str) -> None:
    async with site(url) as s, client_with_worker(s, release()) as client:
        seen: list[tuple[str, Any]] = []

        async def listen() -> None:
            async for event in client.stream(types=["run.status.changed", "run.step.completed"]):
                seen.append((event.type, event.data))
                if event.data.get("status") == "succeeded":
                    return

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0.2)  # a stream without an event id starts at the current position
        run = await client.submit("release", {"ref": "main"})
        await asyncio.wait_for(listening, 20)
        assert {data["runId"] for _, data in seen} == {run}
        assert seen[-1] == (
            "run.status.changed",
            {"type": "run.status.changed", "runId": run, "status": "succeeded"},
        )


async def test_a_wrong_key_and_an_unreachable_server_are_reported(url: str) -> None:
    async with site(url) as s, Client(s.address, "tn_aaaaaaaaaaaa_" + "x" * 43) as stranger:
        with pytest.raises(TenureError, match="UNAUTHENTICATED"):
            await stranger.runs.list()
    async with Client("http://127.0.0.1:9", "tn_x", patience_seconds=0.3) as nobody:
        with pytest.raises(
            TenureError, match=r"UPSTREAM_UNAVAILABLE: http://127\.0\.0\.1:9 cannot be reached"
        ):
            await nobody.runs.list()
    with pytest.raises(TenureError, match="must begin with http"):
        Client("tenure.example.org")


ENGINE_ONLY = {
    "runs": {
        "add_steps",
        "build_rerun",
        "build_resumed",
        "delete_finished",
        "output",
    },
    "approvals": {
        "check_not_involved",
        "decide",
        "decide_only",
        "find",
        "inbox",
        "open_page",
        "show",
        "withdraw",
    },
    "receipts": {"find", "settle_row", "unknown_page"},
    "workflows": {"page", "register_declared"},
    "schedules": {"edit"},
    "evidence": {"seal"},
    "undos": {"build"},
    "hooks": {"delete", "page", "page_of_deliveries", "update"},
    "policies": {"page", "publish_once"},
    "reports": {"page"},
    "confirmations": {"confirm_row"},
    "people": {"link_slack", "page", "unlink_slack"},
    "clients": {"page"},
    "keys": {"page", "page_of_owner"},
    "tenants": {"audit_page", "page"},
}
"""Methods that only the engine has: group -> methods."""
CLIENT_ONLY = {"confirmations": {"confirm_as_operator"}, "workflows": {"register"}}


async def test_a_client_has_the_groups_and_methods_of_an_engine() -> None:
    async with Client("http://127.0.0.1:9", "tn_x") as client:
        for group in engine_module._GROUPS:
            local = typing.get_type_hints(getattr(Engine, group).func)["return"]
            in_engine, in_client = methods(local), methods(type(getattr(client, group)))
            assert in_engine.keys() - in_client.keys() == ENGINE_ONLY.get(group, set()), group
            assert in_client.keys() - in_engine.keys() == CLIENT_ONLY.get(group, set()), group
            for name in in_engine.keys() & in_client.keys():
                assert required(in_engine[name]) >= required(in_client[name]), f"{group}.{name}"
    everyday = {"approve", "cancel", "get", "reject", "result", "signal", "submit"}
    assert everyday <= methods(Engine).keys() & methods(Client).keys()


def methods(kind: type) -> dict[str, Any]:
    return {name: one for name, one in vars(kind).items() if inspect.isfunction(one) and name[0] != "_"}


def required(method: Any) -> set[str]:
    parameters = inspect.signature(method).parameters.values()
    return {
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }
