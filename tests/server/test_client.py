"""The client, and the command line with --server: the same words and answers as beside a database."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import tenure
from tenure.cli.desk import Desk
from tenure.cli.registering import put_all
from tenure.client import Client
from tenure.embedded import Engine
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
async def at_work(s: Site, flow: Workflow[..., Any]) -> AsyncIterator[Client]:
    """A client of a server with a worker beside it."""
    assert await put_all(s.engine, [flow]) == []
    async with s.engine.worker(flow), Client(s.address, await s.key("operator", "viewer")) as client:
        yield client


async def test_a_run_from_its_start_to_its_end_over_a_server(url: str) -> None:
    async with site(url) as s, at_work(s, release()) as client:
        run = await client.submit("release", {"ref": "main"}, labels={"team": "a"}, key="once")
        assert await client.submit("release", {"ref": "main"}, labels={"team": "a"}, key="once") == run
        assert await client.result(run, wait=20) == "app:main"
        view = await client.get(run)
        assert (view.status, view.labels, view.output) == ("succeeded", {"team": "a"}, "app:main")
        assert [step.name for step in await client.steps(run)] == ["build"]
        while not (lines := await client.logs(run)):
            pass  # they are written beside the run, a moment later
        assert [line.text for line in lines] == ["building"]
        history = await client.events(run)
        assert [event.seq for event in history] == list(range(1, await client.version(run) + 1))
        assert [event.seq for event in await client.events(run, after=1)] == [e.seq for e in history[1:]]
        assert (await client.why(run)).reason == "finished"
        assert [line.id for line in await client.list_runs(labels={"team": "a"})] == [run]
        assert await client.list_runs(labels={"team": "b"}) == []
        again = await client.rerun(run)
        assert await client.result(again, wait=20) == "app:main"
        await client.update(run, labels={"team": "b"})
        await client.update(run, labels={"stage": "live", "team": None}, metadata={"pr": 7})
        about = await client.get(run)
        assert (about.labels, about.metadata["pr"]) == ({"stage": "live"}, 7)
        said = await client.mark_reported(run)
        assert (await client.get(run)).reported_statement == said
        assert (await client.events(run))[-1].kind == "report_stated"


async def test_a_failure_is_raised_as_an_engine_raises_it(url: str) -> None:
    async with site(url) as s, at_work(s, release()) as client:
        run = await client.submit("release", {"ref": "broken"})
        with pytest.raises(TenureError) as failed:
            await client.result(run, wait=20)
        assert failed.value.code == "STEP_FAILED"
        assert [told.code for told in await client.tries(run)] == []  # its last try is its own line
        with pytest.raises(TenureError, match="RUN_NOT_FOUND"):
            await client.get("run_2026-02-14_080000_abc123")
        with pytest.raises(TenureError, match="WORKFLOW_NOT_FOUND"):
            await client.submit("nothing")
        with pytest.raises(TenureError, match="RUN_TERMINAL_STATE"):
            await client.cancel(run)


async def test_people_decide_and_events_arrive_over_a_server(url: str) -> None:
    async with site(url) as s, at_work(s, release()) as client:
        run = await client.submit("release", {"ref": "main", "ask": True})
        async with Client(s.address, await s.key("approver", "viewer", person="grace")) as grace:
            while not (asked := await grace.approvals(run)):
                pass  # each look is a request of its own
            assert asked[0].title == "Deploy app:main?"
            assert [one.id for one in await grace.approvals()] == [asked[0].id]
            assert await grace.approve(run) == "approved"
        told = await client.signal(run, "healthy", {"fine": True}, event_id="e1")
        assert await client.result(run, wait=20) == "app:main"
        assert not told.again


async def test_what_happens_is_streamed(url: str) -> None:
    async with site(url) as s, at_work(s, release()) as client:
        seen: list[tuple[str, Any]] = []

        async def listen() -> None:
            async for told in client.stream(types=["run.status.changed", "run.step.completed"]):
                seen.append((told.type, told.data))
                if told.data.get("status") == "succeeded":
                    return

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0.2)  # a listener without an id hears what comes after it
        run = await client.submit("release", {"ref": "main"})
        await asyncio.wait_for(listening, 20)
        assert {data["runId"] for _, data in seen} == {run}
        assert seen[-1] == (
            "run.status.changed",
            {"type": "run.status.changed", "runId": run, "status": "succeeded"},
        )


async def test_a_wrong_key_and_a_server_out_of_reach_are_told(url: str) -> None:
    async with site(url) as s, Client(s.address, "tn_aaaaaaaaaaaa_" + "x" * 43) as stranger:
        with pytest.raises(TenureError, match="UNAUTHENTICATED"):
            await stranger.list_runs()
    async with Client("http://127.0.0.1:9", "tn_x", patience_seconds=0.3) as nobody:
        with pytest.raises(
            TenureError, match=r"UPSTREAM_UNAVAILABLE: http://127\.0\.0\.1:9 cannot be reached"
        ):
            await nobody.list_runs()
    with pytest.raises(TenureError, match="begins with http"):
        Client("tenure.example.org")


@pytest.mark.parametrize("kind", [Engine, Client])
def test_an_engine_and_a_client_have_everything_a_command_needs(kind: type) -> None:
    for name, wanted in vars(Desk).items():
        if name.startswith("_"):
            continue
        has = getattr(kind, name)
        if inspect.isfunction(wanted):
            assert inspect.iscoroutinefunction(has), name
            missing = set(inspect.signature(wanted).parameters) - set(inspect.signature(has).parameters)
            assert not missing, (name, missing)
