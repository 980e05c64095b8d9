"""A command that is alone in its lane is committed inline by `submit`, in order and never instead of a batch."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import apsw
import pytest
from msgspec.structs import replace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from tenure.kernel.commands import Claimant, Complete, CreateRun, RecordCheckpoint, StartChild, UpdateMetadata
from tenure.kernel.lease_types import Lease
from tenure.kernel.snapshot import Snapshot
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.batch import BatchOutcome
from tenure.orchestrator.commit_lanes import LONE_COMMANDS_MAX
from tenure.store.feed import FeedRepository
from tenure.store.port import AmbiguousCommit, Save, Saved, Transaction
from tenure.store.sqlite import SqliteStore
from tenure.store.sqlite.statements import run_query
from tests.conformance.world import Place, World

T = TypeVar("T")


class InlineStore(SqliteStore):
    """SQLite that always commits inline, with a door before every other transaction."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.door = asyncio.Event()
        self.door.set()

    @property
    def commits_inline(self) -> bool:
        return True

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        await self.door.wait()
        return await super().transact(make, lane=lane, single=single)


class AmbiguousStore(InlineStore):
    """A store whose next inline commit succeeds but raises `AmbiguousCommit`."""

    ambiguous = False

    def commit_inline(self, decide: Callable[[int], Save | None]) -> Saved | None:
        saved = super().commit_inline(decide)
        if self.ambiguous:
            self.ambiguous = False
            raise AmbiguousCommit("it did happen")
        return saved


def a_world(place: Place, orchestrators: int = 1) -> World:
    return World(place, stores=[InlineStore(place.address) for _ in range(orchestrators)])


async def begin_run(orchestrator: Orchestrator) -> Lease:
    """Create a leased run, and let the event loop turn once."""
    created = await orchestrator.create(
        CreateRun(
            run_id=orchestrator.new_id("default"), tenant="acme", workflow="build", eager=Claimant("bob")
        )
    )
    assert created.lease is not None
    await asyncio.sleep(0)
    return created.lease


def checkpoint(lease: Lease, seq: int) -> RecordCheckpoint:
    return RecordCheckpoint(
        run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=seq, name=f"part-{seq}", output=b"1"
    )


async def checkpoint_names(w: World, lease: Lease) -> list[str]:
    """The names of the run's checkpoints, in order."""
    rows = await w.store.read("checkpoints_of", lease.run_id)
    return [row.name for row in sorted(rows, key=lambda row: row.no)]


async def test_a_lone_command_is_committed_when_submit_returns(sqlite_place: Place) -> None:
    async with a_world(sqlite_place) as w:
        lease = await begin_run(w.orchestrator)
        counted = w.orchestrator.batches, w.orchestrator.commands
        answer = w.orchestrator.submit(checkpoint(lease, 1))
        assert answer.done()
        assert answer.result().cancel is False
        assert (w.orchestrator.batches, w.orchestrator.commands) == (counted[0] + 1, counted[1] + 1)
        assert await checkpoint_names(w, lease) == ["part-1"]


async def test_a_lone_command_is_awaited_if_a_commit_is_a_round_trip(postgres_place: Place) -> None:
    async with World(postgres_place) as w:
        lease = await begin_run(w.orchestrator)
        answer = w.orchestrator.submit(checkpoint(lease, 1))
        assert not answer.done()
        await answer
        assert await checkpoint_names(w, lease) == ["part-1"]


async def test_a_run_that_never_waits_does_not_block_the_event_loop(sqlite_place: Place) -> None:
    async with a_world(sqlite_place) as w:
        lease = await begin_run(w.orchestrator)
        answers = [w.orchestrator.submit(checkpoint(lease, n)) for n in range(1, LONE_COMMANDS_MAX + 3)]
        assert [answer.done() for answer in answers] == [True] * LONE_COMMANDS_MAX + [False] * 2
        await asyncio.gather(*answers)
        assert await checkpoint_names(w, lease) == [f"part-{n}" for n in range(1, LONE_COMMANDS_MAX + 3)]


async def test_commands_of_many_runs_share_a_commit(sqlite_place: Place) -> None:
    async with a_world(sqlite_place) as w:

        async def one() -> None:
            lease = await begin_run(w.orchestrator)
            for n in range(1, 6):
                await w.orchestrator.send(checkpoint(lease, n))

        await asyncio.gather(*(one() for _ in range(50)))
        assert w.orchestrator.commands >= 50 * 6
        assert w.orchestrator.batches <= LONE_COMMANDS_MAX + 15


async def test_a_lone_command_does_not_overtake_a_running_batch(sqlite_place: Place) -> None:
    async with a_world(sqlite_place) as w:
        lease = await begin_run(w.orchestrator)
        for n in range(1, LONE_COMMANDS_MAX + 1):
            w.orchestrator.submit(checkpoint(lease, n))
        w.store.door.clear()
        queued = w.orchestrator.submit(checkpoint(lease, LONE_COMMANDS_MAX + 1))
        for _ in range(5):
            await asyncio.sleep(0)  # the lane has taken the command and waits at the door
        after = w.orchestrator.submit(checkpoint(lease, LONE_COMMANDS_MAX + 2))
        assert not queued.done()
        assert not after.done()
        w.store.door.set()
        await asyncio.gather(queued, after)
        assert (await checkpoint_names(w, lease))[-2:] == [f"part-{LONE_COMMANDS_MAX + n}" for n in (1, 2)]


async def test_a_run_changed_by_another_process_is_decided_again(sqlite_place: Place) -> None:
    async with a_world(sqlite_place, orchestrators=2) as w:
        here, there = w.orchestrators
        lease = await begin_run(here)
        await there.send(checkpoint(lease, 1))
        answer = here.submit(checkpoint(lease, 2))
        assert not answer.done()
        await answer
        assert await checkpoint_names(w, lease) == ["part-1", "part-2"]
        # The same command in another process first: both answers are equal, and one checkpoint is recorded.
        await there.send(checkpoint(lease, 3))
        await here.send(checkpoint(lease, 3))
        assert await checkpoint_names(w, lease) == ["part-1", "part-2", "part-3"]


async def test_a_refused_lone_command_is_decided_again_in_a_batch(sqlite_place: Place) -> None:
    async with a_world(sqlite_place) as w:
        lease = await begin_run(w.orchestrator)
        await w.orchestrator.send(checkpoint(lease, 1))
        await asyncio.sleep(0)
        async with w.refuses("CHECKPOINT_CONFLICT"):
            await w.orchestrator.send(replace(checkpoint(lease, 2), name="part-1"))
        await w.orchestrator.send(checkpoint(lease, 2))
        assert await checkpoint_names(w, lease) == ["part-1", "part-2"]


async def test_a_lone_command_waits_for_a_locked_file(sqlite_place: Place) -> None:
    async with a_world(sqlite_place) as w:
        lease = await begin_run(w.orchestrator)
        other = apsw.Connection(sqlite_place.address)
        other.execute("begin immediate")
        answer = w.orchestrator.submit(checkpoint(lease, 1))
        await asyncio.sleep(0.05)
        assert not answer.done()
        other.execute("rollback")
        other.close()
        await answer
        assert await checkpoint_names(w, lease) == ["part-1"]
        assert w.orchestrator.submit(checkpoint(lease, 2)).done(), "the run stayed in the cache"


async def test_an_ambiguous_commit_is_checked_before_it_is_decided_again(sqlite_place: Place) -> None:
    """Even if the run is loaded in between."""
    store = AmbiguousStore(sqlite_place.address)
    async with World(sqlite_place, stores=[store]) as w:
        run_id = await w.create()
        await asyncio.sleep(0)
        store.ambiguous = True
        answer = w.orchestrator.submit(UpdateMetadata(run_id=run_id, labels='{"size":"s"}'))
        assert not store.ambiguous
        assert store._cursor is not None
        [run], [spec] = (run_query(store._cursor, name, (), (run_id,)) for name in ("get_run", "get_spec"))
        loaded = BatchOutcome()
        loaded.snapshots.append(Snapshot(run_id, run))
        loaded.snapshots[0].spec = spec
        w.orchestrator.finish(loaded)
        assert (await answer)["labels"] == '{"size":"s"}'
        events = await w.store.read("events_of", run_id)
        assert [event.kind for event in events].count("metadata") == 1


async def test_outbox_deliveries_have_no_parent_span(sqlite_place: Place) -> None:
    """As after a batch: otherwise a restarted run would inherit the trace of the caller whose command was alone."""
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))
    async with a_world(sqlite_place) as w:
        lease = await begin_run(w.orchestrator)
        next_one = StartChild(run_id=w.orchestrator.new_id("default"), workflow="build")
        done = Complete(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1, restart=next_one)
        with use_span(NonRecordingSpan(context)):
            answer = w.orchestrator.submit(done)
        assert answer.done()
        await w.settle()
        [made] = await w.store.read("get_run", next_one.run_id)
        assert made.trace is None


@pytest.mark.parametrize("opener", [0, 1])
async def test_a_feed_has_everything_from_the_moment_it_is_opened(sqlite_place: Place, opener: int) -> None:
    """A process that has written before remembers that there was no feed."""
    async with a_world(sqlite_place, orchestrators=2) as w:
        lease = await begin_run(w.orchestrator)
        await w.orchestrator.send(checkpoint(lease, 1))
        await FeedRepository(w.stores[opener]).open()
        await w.orchestrator.send(checkpoint(lease, 2))
        rows = [row for row in await FeedRepository(w.store).after(0, 100) if row.body]
        assert len(rows) == 1
