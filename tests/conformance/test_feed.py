"""The feed: an item is visible if and only if its commit happened, and items appear in commit order."""

import asyncio
from pathlib import Path
from typing import Self

import apsw
import asyncpg
import pytest

from tenure.clock import us
from tenure.doctor.examination import examine_database
from tenure.kernel import commands as c
from tenure.kernel.feed import FeedItem, FeedLine, ObservedEvent, decode_feed_lines, encode_feed_lines
from tenure.kernel.server_rows import NoticeRow, SubscriptionRow
from tenure.limits import FEED_SECONDS
from tenure.orchestrator.feed_trimmer import FeedTrimmer
from tenure.store.feed import FeedRepository
from tenure.store.port import Save, Store
from tenure.store.subscriptions import SubscriptionRepository
from tests.conformance.samples import a_run, a_spec
from tests.conformance.stores import KINDS, open_store, save
from tests.conformance.world import Place, World, gate

Where = tuple[str, Path, str]
A, B = ("a",), ("b",)


class WorldWithFeed(World):
    """A world with an open feed."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await FeedRepository(self.store).open()
        return self


async def open_feed(store: Store) -> int:
    """Open the feed; the position after which items are written."""
    await FeedRepository(store).open()
    return (await FeedRepository(store).bounds()).head


async def read_feed(store: Store, after: int = 0) -> list[FeedItem]:
    """All feed items after a position."""
    return [
        line for row in await FeedRepository(store).after(after, 1000) for line in decode_feed_lines(row.body)
    ]


async def test_the_feed_has_a_run_from_its_creation_to_its_end(place: Place) -> None:
    async with WorldWithFeed(place) as w:
        run = await w.create(plan=["a", "b"])
        for _ in range(2):
            await w.complete(await w.claim("bob"))
        lines = await read_feed(w.store)
        tenant = (await w.run(run)).tenant
        assert {(line.run_id, line.tenant) for line in lines} == {(run, tenant)}
        assert [(line.before, line.status, line.steps, line.grew) for line in lines] == [
            (None, "queued", 0, False),
            ("queued", "running", 0, False),
            ("running", "running", 1, True),
            ("running", "succeeded", 2, True),
        ]


async def test_the_feed_is_written_only_after_it_is_opened(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        await w.create(plan=["a"])
        assert await w.read("feed_rows_after", 0, 10) == []
        feeds = [FeedRepository(w.store), FeedRepository(w.through(1).store)]
        creating = asyncio.gather(*[w.create(plan=["a"]) for _ in range(20)])
        await asyncio.gather(*[one.open() for one in feeds])
        made = await creating
        begin = (await feeds[0].bounds()).trimmed
        [opening] = [row for row in await w.read("feed_rows_after", 0, 100) if not row.body]
        assert opening.pos == begin
        assert {line.run_id for line in await read_feed(w.store)} <= set(made)
        last = [await w.create(plan=["a"]), await w.through(1).create(plan=["a"])]
        assert {line.run_id for line in await read_feed(w.store)} >= set(last)


async def test_no_save_is_running_when_the_feed_is_opened(postgres_place: Place) -> None:
    """A save that began without a feed ends before the feed's first position."""
    async with World(postgres_place) as w:
        run = await w.create(plan=["a"])
        other = await asyncpg.connect(postgres_place.address)
        transaction = other.transaction()
        await transaction.start()
        await other.execute("update tenure.run set version = version where id = $1", run)
        opening = asyncio.ensure_future(FeedRepository(w.store).open())
        await asyncio.sleep(0.05)
        creating = asyncio.ensure_future(w.create(plan=["a"]))
        await asyncio.sleep(0.05)
        assert not opening.done()
        assert not creating.done()
        await transaction.commit()
        await other.close()
        await opening
        made = await creating
        assert {line.run_id for line in await read_feed(w.store)} == {made}


async def test_a_checkpoint_appears_as_a_completed_step(place: Place) -> None:
    async with WorldWithFeed(place) as w:
        lease = await w.begin()
        before = (await FeedRepository(w.store).bounds()).head
        await w.checkpoint(lease, "one")
        await w.checkpoint(lease, "two")
        assert [(line.kind, line.steps) for line in await read_feed(w.store, before)] == [
            ("checkpoint", 1),
            ("checkpoint", 2),
        ]


async def test_a_commit_without_visible_changes_writes_no_feed_item(place: Place) -> None:
    async with WorldWithFeed(place) as w:
        run = await w.create(plan=[c.StepSpec(name="a", needs=()), c.StepSpec(name="b", needs=())])
        first = await w.claim("bob")
        before = len(await read_feed(w.store))
        await w.claim("bob")  # the run is already running
        await w.beat(first)
        assert len(await read_feed(w.store)) == before
        assert await w.status(run) == "running"


async def test_the_feed_has_a_question_each_time_it_is_asked(place: Place) -> None:
    async with WorldWithFeed(place) as w:
        run = await w.create(plan=[gate(people=2)])
        [approval] = await w.approvals(run)
        assert [line.asked for line in await read_feed(w.store)] == [(approval.no,)]
        before = (await FeedRepository(w.store).bounds()).head
        await w.approve(run)  # one of two approvals: no new question
        assert await read_feed(w.store, before) == []
        await w.revise(run, approval.no, "ab" * 32)
        assert [line.asked for line in await read_feed(w.store, before)] == [(approval.no,)]


async def test_a_watcher_sees_every_event_with_its_kind(place: Place) -> None:
    async with WorldWithFeed(place) as w:
        seen: list[ObservedEvent] = []
        stop = w.orchestrator.watch(seen.extend)
        run = await w.create(idempotency_key="k", request_hash=b"h")
        lease = await w.claim("bob")
        await w.checkpoint(lease, "one", resumable=True)
        await w.later(61).sweep()  # the lease expires
        await w.later(5).sweep()
        await w.complete(await w.claim("eve"))
        stop()
        await w.create()
        assert {event.run_id for event in seen} == {run}
        assert [event.kind for event in seen] == await w.kinds(run)
        assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
        assert (seen[0].created, seen[0].key, seen[0].source) == (True, "k", "api")
        assert [(event.checkpoint, event.resumable) for event in seen if event.checkpoint] == [("one", True)]
        [orphan] = [event for event in seen if event.orphaned]
        assert orphan.beat_at is not None
        assert (seen[-1].reason, seen[-1].duration_us is not None) == ("done", True)


@pytest.fixture(params=KINDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """An empty database of each kind: (kind, directory, DSN)."""
    dsn = request.getfixturevalue("migrated_dsn") if request.param == "postgres" else ""
    return request.param, tmp_path, dsn


async def test_the_feed_omits_a_run_that_the_save_left_out(where: Where) -> None:
    async with open_store(*where) as store:
        one, other = a_run(101), a_run(102)
        begin = await open_feed(store)
        new = Save(new_runs=[one, other], new_specs=[a_spec(101), a_spec(102)])
        assert (await save(store, new)).ids == {101, 102}
        late = other.version + 7
        moved = Save(
            expect=[(101, one.version, None), (102, late, None)],
            runs=[one, other],
            feed=[(101, [A]), (102, [B])],
        )
        assert (await save(store, moved)).ids == {101}
        assert [row.body for row in await FeedRepository(store).after(begin, 10)] == [encode_feed_lines([A])]
        for single in (True, False):
            alone = Save(expect=[(102, late, None)], runs=[other], feed=[(102, [B])])
            assert (await save(store, alone, single=single)).ids == set()
        off = Save(expect=[(102, other.version, None)], runs=[other], feed=[(102, [B])], estimate_us=1)
        assert (await save(store, off, single=True)).ids == set()
        assert len(await FeedRepository(store).after(begin, 10)) == 1
        both = Save(
            expect=[(101, one.version, None), (102, other.version, None)],
            runs=[one, other],
            feed=[(101, [A]), (102, [B])],
        )
        assert (await save(store, both)).ids == {101, 102}
        assert [row.body for row in await FeedRepository(store).after(begin, 10)] == [
            encode_feed_lines([A]),
            encode_feed_lines([A, B]),
        ]


async def test_a_reader_does_not_pass_an_open_transaction_between_two_others(where: Where) -> None:
    """Positions become visible in commit order: a reader that sees the third also sees the second."""
    kind, directory, dsn = where
    async with open_store(*where) as store:
        feed, begin = FeedRepository(store), await open_feed(store)
        runs = [a_run(number) for number in (101, 102, 103)]
        await save(store, Save(new_runs=runs, new_specs=[a_spec(run.id) for run in runs]))

        async def write(run_id: int, line: FeedLine) -> None:
            run = next(run for run in runs if run.id == run_id)
            await save(store, Save(expect=[(run_id, run.version, None)], runs=[run], feed=[(run_id, [line])]))

        await write(101, (1,))
        if kind == "sqlite":  # one writer at a time: the third cannot even begin
            held = apsw.Connection(str(directory / "tenure.db"))
            held.execute("begin immediate")
            held.execute("insert into feed (at, body) values (1, ?)", (b"[2]\n",))
            third = asyncio.ensure_future(write(103, (3,)))
            await asyncio.sleep(0.05)
            assert [row.body for row in await feed.after(begin, 10)] == [b"[1]\n"]
            held.execute("commit")
            held.close()
            await third
        else:
            other = await asyncpg.connect(dsn)
            transaction = other.transaction()
            await transaction.start()
            await other.execute(
                "insert into tenure.feed (pos, at, body) values (pg_current_xact_id()::text::bigint, 1, $1)",
                b"[2]\n",
            )
            await write(103, (3,))  # committed, with a higher position
            place = (await feed.bounds()).head
            assert [row.body for row in await feed.after(begin, 10)] == [b"[1]\n"]
            await transaction.commit()
            await other.close()
            assert [row.body for row in await feed.after(place, 10)] == [b"[2]\n", b"[3]\n"]
        assert [row.body for row in await feed.after(begin, 10)] == [b"[1]\n", b"[2]\n", b"[3]\n"]


async def test_items_older_than_a_day_are_trimmed_and_the_position_is_recorded(place: Place) -> None:
    async with WorldWithFeed(place) as w:
        feed = FeedRepository(w.store)
        [begin] = await feed.after(0, 10)
        assert (begin.pos, begin.body) == ((await feed.bounds()).trimmed, b"")
        for _ in range(3):
            await w.create()
        old = await feed.after(0, 10)
        w.later(FEED_SECONDS + 1)
        assert await FeedTrimmer(w.store).once() == len(old)
        assert (await feed.bounds()).trimmed == old[-1].pos
        [marker] = await feed.after(0, 10)
        assert (marker.pos, decode_feed_lines(marker.body)) == (old[-1].pos, [])
        await w.create()
        [_, new] = await feed.after(0, 10)
        assert new.pos > marker.pos
        assert await FeedTrimmer(w.store).once() == 0
        assert (await feed.bounds()).trimmed == marker.pos


async def test_trimming_by_count_keeps_the_newest_rows(place: Place) -> None:
    async with WorldWithFeed(place) as w:
        feed = FeedRepository(w.store)
        for _ in range(5):
            await w.create()
        rows = (await feed.after(0, 10))[1:]
        await feed.trim_excess(2)
        assert (await feed.bounds()).trimmed == rows[2].pos
        assert [row.pos for row in await feed.after(rows[2].pos, 10)] == [rows[3].pos, rows[4].pos]
        await feed.trim_excess(2)
        assert (await feed.bounds()).trimmed == rows[2].pos


async def test_a_database_moved_to_another_server_repeats_no_feed_items(
    postgres_place: Place,
) -> None:
    async with WorldWithFeed(postgres_place) as w:
        await w.create()
        [_, row] = await FeedRepository(w.store).after(0, 10)
        connection = await asyncpg.connect(postgres_place.address)
        await connection.execute("update tenure.feed set pos = pos + 1000000")
        await connection.close()
        assert await FeedRepository(w.store).after(0, 10) == []
        await FeedTrimmer(w.store).once()
        await w.create()
        [again, new] = await FeedRepository(w.store).after(0, 10)
        assert (await FeedRepository(w.store).bounds()).trimmed == again.pos
        assert row.pos < new.pos < row.pos + 1_000_000
        assert (await w.read("feed_excess", 0))[0].at == new.pos


async def test_the_doctor_finds_missing_and_invented_feed_items(place: Place) -> None:
    async with WorldWithFeed(place, examined=False) as w:
        w.later(61)  # events within a minute of the feed's first row are not checked
        await w.complete(await w.begin())
        run = await w.create(plan=["a"])
        await w.complete(await w.claim("bob"))
        assert (await examine_database(w.store)).clean
        rows = await FeedRepository(w.store).after(0, 100)
        await _rewrite(place, rows[-1].pos, rows[-1].body.replace(b",3,", b",33,", 1))
        found = {(one.number, one.text) for one in (await examine_database(w.store)).violations}
        assert found == {
            ("I39", "its event 3 changed its status and is not in the feed"),
            ("I39", "the feed has its event 33, which does not exist"),
        }
        assert {one.run_id for one in (await examine_database(w.store)).violations} == {run}


async def _rewrite(place: Place, pos: int, body: bytes) -> None:
    """Change a feed row directly in the database."""
    if place.kind == "sqlite":
        with apsw.Connection(place.address) as connection:
            connection.execute("update feed set body = ? where pos = ?", (body, pos))
        connection.close()
    else:
        other = await asyncpg.connect(place.address)
        await other.execute("update tenure.feed set body = $1 where pos = $2", body, pos)
        await other.close()


# --------------------------------------------------------------------------------------------- notices


def a_subscription(pos: int = 0) -> SubscriptionRow:
    return SubscriptionRow("acme", "wh_1", "https://x.test/", "env:X", "[]", None, "o", pos, 1, 1)


def a_notice(pos: int, run_id: int = 1, part: int = 1) -> NoticeRow:
    return NoticeRow("acme", "wh_1", pos, part, run_id, "run.status.changed", b"{}", 1, 1)


async def test_one_of_two_processes_that_advance_a_subscription_creates_the_notices(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        here, there = SubscriptionRepository(w.store), SubscriptionRepository(w.through(1).store)
        row = await here.save(a_subscription())
        assert row is not None
        made = await asyncio.gather(here.advance(row, 7, [a_notice(7)]), there.advance(row, 7, [a_notice(7)]))
        assert sorted(made) == [False, True]
        assert [n.pos for n in await here.take_notices(10, us(60))] == [7]
        assert await here.save(a_subscription()) is None  # revision 1 exists already


async def test_the_next_notice_of_a_run_waits_for_the_previous_one(place: Place) -> None:
    async with World(place) as w:
        subscriptions = SubscriptionRepository(w.store)
        row = await subscriptions.save(a_subscription())
        assert row is not None
        assert await subscriptions.advance(row, 9, [a_notice(7), a_notice(8, run_id=2), a_notice(9)])
        taken = await subscriptions.take_notices(10, us(60))
        assert sorted(n.pos for n in taken) == [7, 8]
        assert (
            await subscriptions.take_notices(10, us(60)) == []
        )  # both are taken, and the third waits for the first
        first = next(n for n in taken if n.pos == 7)
        await subscriptions.fail_notice(first, w.now + us(5), "HTTP 500")
        assert await subscriptions.take_notices(10, us(60)) == []
        w.later(6)
        [again] = await subscriptions.take_notices(10, us(60))
        assert (again.pos, again.tries) == (7, 2)
        await subscriptions.delete_notice(first)  # from the first try: outdated
        assert await subscriptions.take_notices(10, us(60)) == []
        await subscriptions.fail_notice(again, None, "HTTP 500")  # dead: it blocks no later notice
        [last] = await subscriptions.take_notices(10, us(60))
        assert last.pos == 9
        await subscriptions.delete_notice(last)
        [dead] = await subscriptions.list_dead_notices("acme", "wh_1", (2**62, 0), 10)
        assert (dead.pos, dead.error) == (7, "HTTP 500")
        assert await subscriptions.revive_notices("acme", "wh_1", "8-1") == 0
        assert await subscriptions.revive_notices("acme", "wh_1", "7-1") == 1
        [again] = await subscriptions.take_notices(10, us(60))
        assert (again.pos, again.tries) == (7, 1)


async def test_the_notice_of_a_dead_process_is_taken_over(place: Place) -> None:
    async with World(place) as w:
        subscriptions = SubscriptionRepository(w.store)
        row = await subscriptions.save(a_subscription())
        assert row is not None
        await subscriptions.advance(row, 7, [a_notice(7)])
        assert len(await subscriptions.take_notices(10, us(60))) == 1
        w.later(61)
        assert [n.tries for n in await subscriptions.take_notices(10, us(60))] == [2]
        assert await subscriptions.delete("acme", "wh_1")
        w.later(61)
        assert await subscriptions.take_notices(10, us(60)) == []
        assert not await subscriptions.delete("acme", "wh_1")
