"""Event streams: which events a client gets, in which order, and when a stream ends."""

import asyncio
import contextlib
import itertools
import json
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from tenure.clock import us
from tenure.engine import Engine
from tenure.kernel.commands import ApprovalSpec, Complete, OpenWait
from tenure.kernel.identity_rows import ApiKeyRow
from tenure.kernel.lease_types import Lease
from tenure.limits import FEED_SECONDS
from tenure.orchestrator.feed_trimmer import FeedTrimmer
from tenure.server.live import feed_follower
from tenure.store.feed import FeedCursors
from tenure.store.identity import AdminChange
from tests.server.stage import Site, problem, site

QUEUES = ("default|tool:a", "default|tool:b")
SECONDS_MAX = 20.0
"""The longest wait for an event that must come."""


class StreamListener:
    """The client side of a stream."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer
        self._lines = answer.aiter_lines()
        self.last_id: str | None = None
        self.comments: list[str] = []

    async def frame(self) -> dict[str, Any]:
        """The next event. Raises StopAsyncIteration when the stream has ended."""
        data = None
        async with asyncio.timeout(SECONDS_MAX):
            async for line in self._lines:
                if not line:
                    if data is not None:
                        found: dict[str, Any] = json.loads(data)
                        return found
                    continue
                if line.startswith(":"):
                    self.comments.append(line)
                    continue
                field, _, value = line.partition(": ")
                assert field in ("id", "data"), line
                if field == "id":
                    self.last_id = value
                else:
                    data = value
        raise StopAsyncIteration

    async def receive(self, count: int) -> list[tuple[str, Any]]:
        """The next `count` events, each as (type, status or step)."""
        return [_short(await self.frame()) for _ in range(count)]

    async def read_to_end(self) -> None:
        """Read until the stream ends."""
        with contextlib.suppress(StopAsyncIteration):
            while await self.frame():
                pass


def _short(frame: dict[str, Any]) -> tuple[str, Any]:
    kind = frame["type"]
    return kind, frame.get("status", frame.get("step", frame.get("proposalId", frame.get("approvalId"))))


@asynccontextmanager
async def listening(
    caller: httpx.AsyncClient, after: str | None = None, **params: Any
) -> AsyncIterator[StreamListener]:
    """An open stream that gets all later events."""
    headers = {} if after is None else {"Last-Event-ID": after}
    async with caller.stream("GET", "/events/stream", params=params, headers=headers) as answer:
        if answer.status_code != 200:
            await answer.aread()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield StreamListener(answer)


def acme(s: Site, tenant: str = "acme") -> Engine:
    return s.engine.scoped(tenant=tenant)


async def work(s: Site, engine: Engine, profile: str = "agent-runs", tenant: str = "acme") -> str:
    """Run two steps to the end."""
    run = await acme(s, tenant).create("report", [{"name": "a"}, {"name": "b"}], profile=profile)
    for _ in range(2):
        [lease] = await engine.orchestrator.claim("bob", queues=QUEUES)
        await complete(engine, lease)
    return run


async def complete(engine: Engine, lease: Lease) -> None:
    await engine.orchestrator.send(Complete(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1))


EXPECTED_EVENTS = [
    ("run.status.changed", "queued"),
    ("run.status.changed", "running"),
    ("run.step.completed", 1),
    ("run.step.completed", 2),
    ("run.status.changed", "completed"),
]


async def test_a_stream_reports_a_run_in_the_words_of_its_profile(url: str) -> None:
    async with site(url) as s, listening(await s.as_("viewer")) as listener:
        run = await work(s, s.engine)
        heard = [await listener.frame() for _ in range(5)]
        assert list(map(_short, heard)) == EXPECTED_EVENTS
        assert [frame["runId"] for frame in heard] == [run] * 5
        assert heard[0] == {"type": "run.status.changed", "runId": run, "status": "queued"}
        assert {"type": "run.step.completed", "runId": run, "step": 1} in heard


async def test_a_stream_reports_approvals_by_id(url: str) -> None:
    only = ["approval.requested", "proposal.created"]
    async with site(url) as s, listening(await s.as_("viewer"), type=only) as listener:
        run = await acme(s).create("release", [{"name": "ok", "kind": "approval", "approval": {}}])
        [question] = await acme(s).approvals.list(run)
        assert await listener.frame() == {"type": "approval.requested", "approvalId": question.id}
        body = await acme(s).create("draft", [{"name": "main", "kind": "body"}])
        [lease] = await s.engine.orchestrator.claim("bob", queues=("default",))
        ask = OpenWait(
            run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1, label="p", proposal=ApprovalSpec()
        )
        await s.engine.orchestrator.send(ask)
        [question] = await acme(s).approvals.list(body)
        assert await listener.frame() == {"type": "proposal.created", "proposalId": question.id}


async def test_a_reconnecting_client_gets_the_remaining_events_once(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        async with listening(viewer) as listener:
            await work(s, s.engine)
            before = await listener.receive(2)
            place = listener.last_id
        assert place is not None
        async with listening(viewer, after=place) as listener:
            rest = await listener.receive(3)
            assert before + rest == EXPECTED_EVENTS
            await work(s, s.engine)
            again = await listener.receive(5)
            assert again == EXPECTED_EVENTS
        async with listening(
            viewer, last_event_id=place
        ) as listener:  # read from the database: no stream was open in between
            assert await listener.receive(3) == rest
            assert await listener.receive(5) == again


async def test_a_stream_cut_before_its_first_event_misses_nothing(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        async with listening(viewer, run=(await acme(s).create("w", [{"name": "a"}]))) as listener:
            other = await acme(s).create("w", [{"name": "a"}])
            asking = asyncio.ensure_future(listener.frame())
            while listener.last_id is None:  # noqa: ASYNC110 - reading sets it
                await asyncio.sleep(0)
            place = listener.last_id
            asking.cancel()
        async with listening(viewer, after=place, run=other) as listener:
            assert (await listener.frame())["runId"] == other


async def test_streams_are_filtered_by_run_and_type(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        first, second = [await acme(s).create("w", [{"name": "a"}]) for _ in range(2)]
        async with (
            listening(viewer, run=second) as listener,
            listening(viewer, type="run.step.completed") as steps,
        ):
            for _ in range(2):
                [lease] = await s.engine.orchestrator.claim("bob", queues=QUEUES)
                await complete(s.engine, lease)
            heard = [await listener.frame() for _ in range(3)]
            assert {frame["runId"] for frame in heard} == {second}
            assert {(await steps.frame())["runId"] for _ in range(2)} == {first, second}


async def test_a_stream_has_commits_of_other_processes_without_notifications(url: str) -> None:
    """Without notifications, the reader finds the commits by polling."""
    async with (
        site(url) as s,
        Engine(url, migrate=False, sweep=False) as other,
        listening(await s.as_("viewer")) as listener,
    ):
        run = await other.scoped(tenant="acme").create("w", [{"name": "a"}])
        assert (await listener.frame())["runId"] == run


async def test_a_burst_does_not_disconnect_a_fast_reader(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_follower, "QUEUE_BYTES_MAX", 8 * 1024)
    monkeypatch.setattr(feed_follower, "TURN_BYTES", 1024)
    monkeypatch.setattr(feed_follower, "MISSED_ROWS", 7)
    monkeypatch.setattr(feed_follower, "PAUSE_SECONDS", 1.0)  # so that one read has many commits
    async with site(url) as s, listening(await s.as_("viewer")) as listener:
        runs = [await acme(s).create("w", [{"name": "a"}]) for _ in range(100)]
        assert [(await listener.frame())["runId"] for _ in runs] == runs
        # Position 1 is the start of the feed.
        async with listening(
            await s.as_("viewer"),
            after=(await s.service.feed.cursors()).encode("acme", 2, 0)
            if "sqlite" in url
            else listener.last_id,
        ) as late:
            new = await acme(s).create("w", [{"name": "a"}])
            wanted = [*runs, new] if "sqlite" in url else [new]
            assert [(await late.frame())["runId"] for _ in wanted] == wanted


async def test_a_stream_has_no_events_of_other_tenants(url: str) -> None:
    async with site(url) as s:
        theirs = await s.as_("viewer", tenant="globex")
        async with listening(theirs) as listener:
            await work(s, s.engine)
            run = await acme(s, "globex").create("w", [{"name": "a"}])
            assert (await listener.frame())["runId"] == run


def number(text: str) -> int:
    """An event id as a 128-bit number."""
    return int.from_bytes(urlsafe_b64decode(text + "=="), "big")


def check_unrelated(texts: list[str]) -> None:
    """Check that no id reveals another: not by a common prefix, by its bits, or by the distance between them."""
    numbers = [number(text) for text in texts]
    for one, other in itertools.combinations(range(len(texts)), 2):
        assert (numbers[one] ^ numbers[other]).bit_length() > 92, "the ids share a prefix"
        assert 20 <= (numbers[one] ^ numbers[other]).bit_count() <= 108, "the bits of the ids are similar"
        assert abs(numbers[one] - numbers[other]) > 2**88, "the ids are close to each other"
    apart = [later - former for former, later in itertools.pairwise(numbers)]
    assert len(set(apart)) == len(apart), "equal distances of positions give equal distances of ids"


def test_ids_of_adjacent_events_are_unrelated() -> None:
    """Also without the random part: the id of a dead letter has none."""
    places = FeedCursors(bytes(range(32)))
    in_order = [places.encode("acme", 1_000 + gap, 1) for gap in range(100)]
    check_unrelated(in_order + [places.encode("globex", 1_000 + gap, 1) for gap in range(100)])
    check_unrelated([places.encode("acme", 1_000, part) for part in range(100)])
    check_unrelated([places.encode("acme", 1_000, 1, chance) for chance in range(100)])
    check_unrelated([FeedCursors(bytes([key]) * 32).encode("acme", 1_000, 1) for key in range(100)])
    rising = sum(number(one) < number(other) for one, other in itertools.pairwise(in_order))
    assert 25 <= rising <= 75, "the order of the ids follows the order of the positions"


async def test_an_event_id_reveals_nothing_about_other_tenants(url: str) -> None:
    """The ids do not show how many events of other tenants lie between, and a stream can continue from each of them."""
    between = (0, 0, 0, 3, 3, 3, 12, 0)
    async with site(url) as s:
        viewer, theirs = await s.as_("viewer"), await s.as_("viewer", tenant="globex")
        heard: list[tuple[str, str]] = []
        async with listening(viewer) as listener, listening(theirs) as other:
            for count in between:
                await acme(s).create("w", [{"name": "a"}])
                run = (await listener.frame())["runId"]
                assert listener.last_id is not None
                heard.append((listener.last_id, run))
                for _ in range(count):
                    await acme(s, "globex").create("w", [{"name": "a"}])
                    await other.frame()
                    assert other.last_id is not None
                    heard.append((other.last_id, ""))
        check_unrelated([text for text, _ in heard])
        mine = [(text, run) for text, run in heard if run]
        for (text, _), (_, following) in itertools.pairwise(mine):
            async with listening(viewer, after=text) as listener:
                assert (await listener.frame())["runId"] == following, "the stream continues after the id"
                assert listener.last_id not in dict(heard), "the same position gets a new id each time"
        answer = await theirs.get("/events/stream", headers={"Last-Event-ID": mine[0][0]})
        assert (answer.status_code, problem(answer)) == (410, "STREAM_RESET"), (
            "an id of another tenant is unknown"
        )
        assert not any(sign.isdigit() for sign in answer.json()["error"]["message"]), (
            "the message contains no position"
        )


async def test_an_invalid_or_expired_event_id_is_answered(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        for bad in ("x", "1", "1-1", "x" * 21, "x" * 23, "x" * 21 + "!"):
            answer = await viewer.get("/events/stream", headers={"Last-Event-ID": bad})
            assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED"), bad
        async with listening(viewer) as listener:
            await acme(s).create("w", [{"name": "a"}])
            await listener.frame()
            place = listener.last_id
            assert place is not None
            places = await s.service.feed.cursors()
            pos, _ = places.decode("acme", place) or (0, 0)
            ahead = places.encode("acme", pos + 10**9, 1)
            answer = await viewer.get("/events/stream", headers={"Last-Event-ID": ahead})
            assert (answer.status_code, problem(answer)) == (410, "STREAM_RESET")
            s.engine.store.shift_clock(us(FEED_SECONDS + 60))
            await acme(s).create("w", [{"name": "a"}])
            await listener.frame()
            kept = listener.last_id
        await FeedTrimmer(s.engine.store).once()
        answer = await viewer.get("/events/stream", headers={"Last-Event-ID": place})
        assert (answer.status_code, problem(answer)) == (410, "STREAM_RESET")
        for wrong in ({"run": "nonsense"}, {"type": "run.exploded"}):
            answer = await viewer.get("/events/stream", params=wrong)
            assert answer.status_code in (400, 422), wrong
            problem(answer)
        async with listening(viewer, after=kept) as listener:
            run = await acme(s).create("w", [{"name": "a"}])
            assert (await listener.frame())["runId"] == run


async def test_a_revoked_key_ends_its_streams_and_no_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_follower, "CREDENTIAL_SECONDS", 0.01)
    monkeypatch.setattr(feed_follower, "UPKEEP_SECONDS", 0.05)
    async with site(url, key_cache_seconds=0.01) as s:
        text = await s.key("viewer")
        async with listening(await s.caller(text)) as listener, listening(await s.as_("viewer")) as other:
            await acme(s).create("w", [{"name": "a"}])
            await listener.receive(1)
            [key] = await s.engine.store.read("key_named", "acme", text.split("_")[1])
            assert isinstance(key, ApiKeyRow)
            revoked = msgspec.structs.replace(key, revoked_at=key.created_at + 1)
            await s.identity.put(revoked, AdminChange(tenant="acme", kind="test", actor="test"))
            await listener.read_to_end()
            await acme(s).create("w", [{"name": "a"}])
            await other.receive(2)


async def test_a_stopping_server_ends_its_streams_first(url: str) -> None:
    async with site(url, grace_seconds=60.0) as s, listening(await s.as_("viewer")) as listener:
        s.service.stopping.set()
        await listener.read_to_end()


async def test_a_slow_reader_is_disconnected(url: str) -> None:
    async with site(url) as s:
        key = await s.key("viewer")
        reader, writer = await _open_without_reading(s, key)
        async with listening(await s.as_("viewer")) as quick:
            async with asyncio.timeout(SECONDS_MAX):
                while len(s.service.follower) < 2:  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.01)
            slow = next(one for one in s.service.follower.listeners if one.credential == key.split("_")[1])
            async with asyncio.timeout(SECONDS_MAX):
                while slow.ended is None:  # until the buffers of the sockets and the queue are full
                    slow.put(b":" + b"x" * 60_000 + b"\n\n")
                    await asyncio.sleep(0)
            assert slow.ended == "slow"
            await acme(s).create("w", [{"name": "a"}])
            assert await quick.receive(1) == EXPECTED_EVENTS[:1]
            assert len(s.service.follower) == 1
            async with asyncio.timeout(SECONDS_MAX):
                while await reader.read(65_536):
                    pass
        writer.close()


async def _open_without_reading(s: Site, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream over a plain socket and read nothing."""
    address = httpx.URL(s.address)
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=1024)
    writer.write(f"GET /events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    await writer.drain()
    return reader, writer
