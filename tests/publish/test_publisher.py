"""The one writer: outages, crashes, two publishers, deleted runs, and a feed that was trimmed."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tenure.clock import us
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.outbound.document_store import DocumentChanged, DocumentStore
from tenure.publish.documents import DocumentPublisher
from tenure.store.feed import FeedRepository
from tenure.store.publications import PublicationRepository
from tests.publish.stage import (
    AGENT,
    TENANT,
    WriteLog,
    await_status,
    publishing,
    read_json,
    status_of,
    until,
    work,
)
from tests.publish.storage_gate import StorageGate
from tools.s3_server import PrivateS3

pytestmark = pytest.mark.guard_seconds(180)

PLAN = [{"name": "load-context"}, {"name": "finalize"}]
STATES = [("requested", 0), ("queued", 0), ("running", 0), ("running", 1), ("completed", 2)]


def in_order(states: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """States without repetitions; their order must be that of a life."""
    seen = list(dict.fromkeys(states))
    assert states == sorted(states, key=seen.index), "a state was written after a later one"
    return seen


@pytest.mark.clause("AGR-17")
async def test_a_storage_outage_loses_and_reorders_nothing(
    sqlite_url: str, bucket: str, s3_server: PrivateS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with StorageGate(s3_server.endpoint).opened() as gate:
        monkeypatch.setenv("AWS_ENDPOINT", gate.endpoint)
        writes = WriteLog(monkeypatch)
        async with publishing(sqlite_url, bucket) as engine:
            first = await engine.create("archivist-violin", PLAN, profile=AGENT)
            await work(engine)
            await await_status(bucket, first, "running")
            gate.close()
            await work(engine)  # work goes on without the storage
            others = [await engine.create("archivist-violin", PLAN, profile=AGENT) for _ in range(3)]
            for _ in range(6):
                await work(engine)
            publisher = engine.publisher
            assert publisher is not None
            problem = await until(lambda: _problem(publisher))
            assert problem.startswith("UPSTREAM_UNAVAILABLE")
            gate.open()
            gate.lose_answers(2)  # and the first writes succeed without an answer
            for run in (first, *others):
                await await_status(bucket, run, "completed")
                assert in_order(writes.states(run))[-1] == ("completed", 2)
                seen = set()
                for path, body in writes.of_run(run):
                    seen.add(path)
                    if path == "status.json":
                        assert {f"steps/{n}.json" for n in range(1, body["steps_completed"] + 1)} <= seen


async def _problem(publisher: DocumentPublisher) -> str | None:
    return publisher.problem


async def test_one_of_two_publishers_writes_and_the_other_takes_over(
    url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = WriteLog(monkeypatch)
    async with publishing(url, None) as engine, AsyncExitStack() as second:
        one = DocumentPublisher(engine.store, place, lease_seconds=1)
        async with one:
            await until(lambda: _is_writer(one))
            two = await second.enter_async_context(DocumentPublisher(engine.store, place, lease_seconds=1))
            run = await engine.create("archivist-violin", PLAN, profile=AGENT)
            await work(engine)
            await until(lambda: _has_state(writes, run, ("running", 1)))
            assert not two.is_writer
            assert one._task is not None
            one._task.cancel()  # it dies without giving its lease back
            one._fence = 0
            await until(lambda: _is_writer(two))
            await work(engine)
            await await_status(place, run, "completed")
            assert in_order(writes.states(run)) == STATES
            assert two.states < len(STATES), "what the first had published was recognised"


async def _has_state(writes: WriteLog, run: str, state: tuple[str, int]) -> bool:
    return state in writes.states(run)


async def _is_writer(publisher: DocumentPublisher) -> bool:
    return publisher.is_writer


async def test_a_writer_without_its_lease_cannot_go_backwards(
    sqlite_url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two publishers that both believe that they are the writer."""
    writes = WriteLog(monkeypatch)
    async with publishing(sqlite_url, None) as engine:
        old, new = (DocumentPublisher(engine.store, place) for _ in range(2))
        feed = FeedRepository(engine.store)
        await feed.open()
        run = await engine.create("archivist-violin", PLAN, profile=AGENT)
        await work(engine)
        rows = await feed.after((await feed.bounds()).trimmed, 100)
        await old._publish(rows[:1])
        await work(engine)
        rows = await feed.after((await feed.bounds()).trimmed, 100)
        await new._publish(rows)
        assert (await status_of(place, run))["status"] == "completed"
        written = len(writes.of_run(run))
        await old._publish(rows)  # with the version that it remembers
        assert (await status_of(place, run))["status"] == "completed"
        assert [path for path, _ in writes.of_run(run)[written:] if path == "status.json"] == []
        head = await read_json(place, f"{TENANT}/events/head.json")
        assert head["next"] == 7, "no event was published twice"


async def test_a_deleted_run_is_deleted_from_every_publication(
    url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.publish.documents.publisher.LOOK_SECONDS", 0.05)
    async with publishing(url, None) as engine:
        async with DocumentPublisher(engine.store, place, lease_seconds=0.5) as publisher:
            run, kept = [await engine.create("archivist-violin", PLAN, profile=AGENT) for _ in range(2)]
            for _ in range(4):
                await work(engine)
            for each in (run, kept):
                await await_status(place, each, "completed")
            real, failures = DocumentStore.delete_folder, 2

            async def failing(store: DocumentStore, folder: str) -> None:
                nonlocal failures
                failures -= 1
                if failures >= 0:
                    raise _outage()
                await real(store, folder)

            monkeypatch.setattr(DocumentStore, "delete_folder", failing)
            await engine.runs.delete(run)

            async def is_gone() -> bool:
                return await status_of(place, run) is None

            await until(is_gone)
            assert failures < 0, "a failed deletion is tried again"
            # A writer that does not know of the deletion writes the run again; the second deletion finds it.
            await publisher.documents.put(f"{TENANT}/runs/{run}/status.json", b"{}")
            await until(is_gone)
            await until(lambda: _no_deletions(engine))
        assert await read_json(place, f"{TENANT}/runs/{run}/steps/1.json") is None
        assert (await status_of(place, kept))["status"] == "completed"


async def _no_deletions(engine: Engine) -> bool:
    return await PublicationRepository(engine.store).list_deletions() == []


def _outage() -> Exception:
    return TenureError("UPSTREAM_UNAVAILABLE", "the bucket is away")


async def test_after_a_reset_every_run_is_published_from_its_rows(url: str, place: str) -> None:
    async with publishing(url, None) as engine:
        await FeedRepository(engine.store).open()
        before = await engine.create("archivist-violin", PLAN, profile=AGENT)
        foreign = await engine.create("archivist-violin", PLAN, profile="tenure")
        await work(engine)
        async with DocumentPublisher(engine.store, place):  # the run is older than the publication
            await await_status(place, before, "running")
        await work(engine)
        later = await engine.create("archivist-violin", PLAN, profile=AGENT)
        feed = FeedRepository(engine.store)
        now = (await engine.store.read("now"))[0].now_us
        await feed.trim(now + us(60))
        async with DocumentPublisher(engine.store, place):
            await await_status(place, later, "queued", "running")
            done = await status_of(place, before)
            assert done["status"] in ("running", "completed")
            assert await read_json(place, f"{TENANT}/runs/{before}/steps/1.json") is not None
            assert await status_of(place, foreign) is None, "only agent runs are published"


async def test_a_conditional_write_replaces_only_what_its_writer_has_seen(place: str) -> None:
    documents = DocumentStore(place)
    first = await documents.replace("a/b.json", b"1", expected=None, mark=1)
    with pytest.raises(DocumentChanged):
        await documents.replace("a/b.json", b"2", expected=None, mark=2)
    second = await documents.replace("a/b.json", b"2", expected=first, mark=2)
    with pytest.raises(DocumentChanged):
        await documents.replace("a/b.json", b"3", expected=first, mark=3)
    with pytest.raises(DocumentChanged):
        await documents.replace("a/c.json", b"3", expected=first, mark=3)
    found = await documents.read("a/b.json")
    assert found is not None
    assert (found.body, found.version, found.mark) == (b"2", second, 2)
    results = await asyncio.gather(
        *(documents.replace("a/b.json", b"%d" % n, expected=second, mark=n) for n in range(3, 11)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, DocumentChanged) for one in results) == 7, "one of eight writers wins"
    assert await documents.read("a/none.json") is None
    await documents.delete_folder("a")
    assert await documents.version("a/b.json") is None
