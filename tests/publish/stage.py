"""Helpers for tests of published documents: workflows, a log of all writes, and plain reading."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import tenure
from tenure.doctor.examination import examine_database
from tenure.engine import Engine
from tenure.kernel.commands import Complete, Fail
from tenure.outbound.document_store import DocumentStore

TENANT = "acme"
AGENT = "agent-runs"


@tenure.step
async def draft(topic: str) -> str:
    return f"a draft about {topic}"


@tenure.workflow(name="archivist-violin", profile=AGENT)
async def archivist(topic: str) -> str:
    """Two steps and a proposal."""
    text = await draft(topic)
    await tenure.propose("Archive the draft", {"text": text})
    return await draft(text)


class WriteLog:
    """Every write to every document store of this process, in order: (path, decoded body)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes: list[tuple[str, Any]] = []
        put, replace = DocumentStore.put, DocumentStore.replace

        async def logged_put(store: DocumentStore, path: str, body: bytes) -> None:
            await put(store, path, body)
            self._note(path, body)

        async def logged_replace(store: DocumentStore, path: str, body: bytes, **how: Any) -> str:
            version = await replace(store, path, body, **how)
            self._note(path, body)
            return version

        monkeypatch.setattr(DocumentStore, "put", logged_put)
        monkeypatch.setattr(DocumentStore, "replace", logged_replace)

    def _note(self, path: str, body: bytes) -> None:
        if not path.endswith(".jsonl"):
            self.writes.append((path, msgspec.json.decode(body)))

    def of_run(self, run_id: str) -> list[tuple[str, Any]]:
        """The writes below a run's folder, with paths relative to it."""
        mark = f"/runs/{run_id}/"
        return [(path.partition(mark)[2], body) for path, body in self.writes if mark in path]

    def states(self, run_id: str) -> list[tuple[str, int]]:
        """Every status.json of a run: its status and its number of completed steps."""
        return [
            (body["status"], body["steps_completed"])
            for path, body in self.of_run(run_id)
            if path == "status.json"
        ]


async def read_json(place: str, path: str) -> Any:
    found = await DocumentStore(place).read(path)
    return None if found is None else msgspec.json.decode(found.body)


async def until(look: Callable[[], Awaitable[Any]], limit: float = 100.0) -> Any:
    """What `look` answers as soon as it is true."""
    async with asyncio.timeout(limit):
        while not (found := await look()):  # noqa: ASYNC110 - what it looks at lies outside of this process
            await asyncio.sleep(0.02)
        return found


async def status_of(place: str, run_id: str, tenant: str = TENANT) -> Any:
    return await read_json(place, f"{tenant}/runs/{run_id}/status.json")


async def await_status(place: str, run_id: str, *words: str, tenant: str = TENANT) -> Any:
    """The published status of a run, once it is one of `words`."""

    async def look() -> Any:
        found = await status_of(place, run_id, tenant)
        return found if found is not None and found["status"] in words else None

    return await until(look)


@asynccontextmanager
async def publishing(url: str, place: str | None) -> AsyncIterator[Engine]:
    """An engine of the tenant acme that publishes. At the end the doctor must find nothing."""
    async with Engine(url, tenant=TENANT, publish=place) as engine:
        yield engine
        report = await examine_database(engine.store)
        assert report.clean, report.violations


async def work(engine: Engine, *, fail: str | None = None, message: bytes = b"") -> None:
    """Do the next step of any plan, as a worker would."""
    tools = ("load-context", "execute-agent", "review", "finalize")

    async def claim() -> Any:
        return await engine.orchestrator.claim("bob", queues=[f"default|tool:{name}" for name in tools])

    [lease] = await until(claim)
    how: dict[str, Any] = {"run_id": lease.run_id, "idx": lease.idx, "n": lease.n, "seq": 1}
    await engine.orchestrator.send(
        Complete(**how) if fail is None else Fail(**how, code=fail, message=message)
    )
