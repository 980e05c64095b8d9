"""Load limits: connections, half-sent bodies, streams and requests are limited. Requests over a limit are refused with a code,
and the counts are released afterwards."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tenure.server.http.protocol import HEADER_BYTES, HEADERS_MAX, READ_BYTES_MIN, make_protocol
from tenure.server.load_limits import LoadLimits
from tenure.server.settings import Settings
from tests.server.stage import Site, problem, site

BODY = b'{"workflow": "echo", "input": "' + b"x" * 50_000


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An empty SQLite database. These tests do not depend on the kind of database."""
    return f"sqlite:{tmp_path}/site.db"


class Socket:
    """A raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body, after the server has closed the connection."""
        text = await self.reader.read()
        head, _, body = text.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        return int(lines[0].split()[1]), headers, json.loads(body) if body else None

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def sockets(s: Site, count: int) -> AsyncIterator[list[Socket]]:
    host, port = s.address.removeprefix("http://").split(":")
    made = [Socket(*await asyncio.open_connection(host, int(port))) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            await one.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


def half_request(key: str = "", path: str = "/runs", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {key}\r\n"
        f"content-length: 100000\r\n{more}\r\n"
    ).encode() + BODY


def held_bytes(request: bytes) -> int:
    """The bytes that the part of a request received so far counts for."""
    head, _, body = request.partition(b"\r\n\r\n")
    line, *headers = head.split(b"\r\n")
    texts = sum(len(header) - len(b": ") + HEADER_BYTES for header in headers)
    return len(line.split(b" ")[1]) + texts + len(body)


async def refused_count(s: Site, bound: str) -> float:
    text = (await (await s.caller()).get("/metrics")).text
    return float(text.split(f'tenure_http_refused_total{{bound="{bound}"}} ')[1].split("\n")[0])


@pytest.mark.parametrize(
    ("setting", "bound", "status", "code"),
    [
        ("connections_max", "connections", 503, "SERVER_BUSY"),
        ("connections_per_address_max", "connections_per_address", 429, "TOO_MANY_CONNECTIONS"),
    ],
)
async def test_connections_are_limited_and_released(
    sqlite_url: str, setting: str, bound: str, status: int, code: str
) -> None:
    settings: dict[str, Any] = {setting: 4}
    async with site(sqlite_url, **settings) as s:
        async with sockets(s, 4) as held:
            await until(lambda: s.service.load.connections == 4)
            async with sockets(s, 1) as [fifth]:
                answered, headers, body = await fifth.answer()
                assert (answered, body["error"]["code"]) == (status, code)
                assert int(headers["retry-after"]) >= 1
            await held[0].close()
            await until(lambda: s.service.load.connections == 3)
            assert await refused_count(s, bound) == 1
        await until(lambda: s.service.load.connections <= 1)


async def test_half_sent_bodies_of_one_address_are_limited_and_released(sqlite_url: str) -> None:
    async with site(sqlite_url, bodies_per_address_max=3) as s:
        key = await s.key("operator")
        async with sockets(s, 3) as held:
            for one in held:
                await one.send(half_request(key))
            await until(lambda: s.service.load.half_sent == 3)
            async with sockets(s, 1) as [fourth]:
                await fourth.send(half_request(key))
                status, headers, body = await fourth.answer()
                assert (status, body["error"]["code"]) == (429, "TOO_MANY_CONNECTIONS")
                assert "retry-after" in headers
            assert s.service.load.half_sent == 3, "a refused body is not counted"
            whole = await (await s.caller(key)).post("/runs", json={"workflow": "none"})
            assert problem(whole) == "WORKFLOW_NOT_FOUND", "a complete body is not half-sent"
            assert await refused_count(s, "bodies_per_address") == 1
        await until(lambda: s.service.load.half_sent == 0 and s.service.load.body_bytes == 0)


async def test_the_bytes_of_all_bodies_are_limited_and_released(sqlite_url: str) -> None:
    async with site(sqlite_url, body_bytes_total_max=int(3.5 * len(BODY))) as s:
        key = await s.key("operator")
        async with sockets(s, 3) as held:
            for one in held:
                await one.send(half_request(key))
            await until(lambda: s.service.load.body_bytes == 3 * held_bytes(half_request(key)))
            async with sockets(s, 1) as [fourth]:
                await fourth.send(half_request(key))
                status, headers, body = await fourth.answer()
                assert (status, body["error"]["code"]) == (503, "SERVER_BUSY")
                assert "retry-after" in headers
            assert await refused_count(s, "body_bytes") == 1
        await until(lambda: s.service.load.body_bytes == 0)
        answer = await (await s.caller(key)).post(
            "/runs", json={"workflow": "none", "input": {"x": "x" * 10_000}}
        )
        assert problem(answer) == "WORKFLOW_NOT_FOUND"
        assert s.service.load.body_bytes == 0, (
            "an answered request holds nothing, even while its connection is open"
        )


async def test_unauthenticated_clients_have_no_higher_limits(sqlite_url: str) -> None:
    async with site(sqlite_url, body_bytes_total_max=4 * len(BODY)) as s:
        async with sockets(s, 12) as held:
            for one in held:
                await one.send(half_request("nobody", "/enrolments"))
            await until(lambda: s.service.load.refused["body_bytes"] >= 6)
            assert s.service.load.body_bytes <= 4 * len(BODY)
        await until(lambda: s.service.load.body_bytes == 0)


@pytest.mark.parametrize(
    ("setting", "bound"),
    [("streams_per_key_max", "streams_per_key"), ("streams_per_tenant_max", "streams_per_tenant")],
)
async def test_streams_are_limited_and_released(url: str, setting: str, bound: str) -> None:
    settings: dict[str, Any] = {setting: 2}
    async with site(url, **settings) as s:
        caller = await s.as_("viewer")
        other = await s.as_("operator", "viewer") if bound == "streams_per_tenant" else caller
        stranger = await s.as_("viewer", tenant="globex")
        async with (
            caller.stream("GET", "/events/stream") as first,
            caller.stream("GET", "/events/stream") as second,
        ):
            assert first.status_code == second.status_code == 200
            third = await other.get("/events/stream")
            assert (third.status_code, problem(third)) == (429, "TOO_MANY_STREAMS")
            assert "retry-after" in third.headers
            async with stranger.stream("GET", "/events/stream") as theirs:
                assert theirs.status_code == 200, "other clients are not affected"
        assert await refused_count(s, bound) == 1
        await until(lambda: not s.service.load._streams_of_key and not s.service.load._streams_of_tenant)
        async with other.stream("GET", "/events/stream") as again:
            assert again.status_code == 200


async def test_requests_of_one_key_are_limited_and_counted(sqlite_url: str) -> None:
    async with site(sqlite_url, requests_per_second=0.01, requests_burst=3) as s:
        caller, other = await s.as_("viewer"), await s.as_("operator", "viewer")
        for _ in range(3):
            assert (await caller.get("/runs")).status_code == 200
        answer = await caller.get("/runs")
        assert (answer.status_code, problem(answer)) == (429, "RATE_LIMITED")
        assert int(answer.headers["retry-after"]) > 1
        assert (await other.get("/runs")).status_code == 200
        assert await refused_count(s, "requests_per_key") == 1


# ---------------------------------------------------------------------------------------------- pipelined requests


def get_request(key: str, path: str = "/session", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{more}\r\n".encode()


async def read_answers(one: Socket, count: int) -> None:
    """Read this number of answers."""
    for _ in range(count):
        head = (await one.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await one.reader.readexactly(length)


async def test_the_body_of_a_pipelined_request_counts_until_the_request_is_answered(sqlite_url: str) -> None:
    async with site(sqlite_url, body_bytes_total_max=int(2.5 * len(BODY)), bodies_per_address_max=2) as s:
        key = await s.key("operator", "viewer")
        async with sockets(s, 2) as held:
            for one in held:
                await one.send(get_request(key) + half_request(key))
                await read_answers(one, 1)
            assert s.service.load.body_bytes == 2 * held_bytes(half_request(key)), (
                "the answer to the first request releases nothing of the second"
            )
            assert s.service.load.half_sent == 2
            for path, code in (("/runs", "SERVER_BUSY"), ("/session", "TOO_MANY_CONNECTIONS")):
                async with sockets(s, 1) as [third]:
                    sent = half_request(key, path)
                    await third.send(sent if path == "/runs" else sent[: -len(BODY) + 10])
                    assert (await third.answer())[2]["error"]["code"] == code
            await held[0].send(
                b"x" * (100_000 - len(BODY))
            )  # the complete body is invalid JSON and is answered
            await read_answers(held[0], 1)
            await until(lambda: s.service.load.half_sent == 1)
            assert s.service.load.body_bytes == held_bytes(half_request(key))
        await until(lambda: s.service.load.half_sent == 0 and s.service.load.body_bytes == 0)


async def test_pipelined_requests_behind_a_proxy_count_against_their_own_clients(sqlite_url: str) -> None:
    async with site(sqlite_url, behind_proxy=True) as s:
        key = await s.key("operator", "viewer")
        async with sockets(s, 1) as [one]:
            await one.send(
                get_request(key, x_forwarded_for="192.0.2.1") + half_request(key, x_forwarded_for="192.0.2.2")
            )
            await read_answers(one, 1)
            assert s.service.load._connections_of == {"192.0.2.2": 1}
        await until(lambda: not s.service.load._connections_of and not s.service.load._half_sent_of)


async def test_the_unanswered_requests_of_a_connection_are_limited(sqlite_url: str) -> None:
    async with site(sqlite_url) as s:
        key = await s.key("viewer")
        async with sockets(s, 1) as [one]:
            await one.send(get_request(key) * 50)
            await read_answers(one, 50)
            await one.send(get_request(key, "/events/stream") + get_request(key) * 200)
            await one.reader.read()  # until the server closes the connection
            assert s.service.load.refused["pipelined"] == 1


async def test_a_stream_with_a_pipelined_request_behind_it_ends_with_its_connection(sqlite_url: str) -> None:
    async with site(sqlite_url) as s:
        key = await s.key("viewer")
        async with sockets(s, 1) as [one]:
            await one.send(get_request(key, "/events/stream") + get_request(key))
            await one.reader.readuntil(b"\r\n\r\n")
            assert s.service.load._streams_of_key
        await until(lambda: not s.service.load._streams_of_key and s.service.load.connections == 0)


# -------------------------------------------------------------------------------------------------------- headers


async def test_the_number_of_headers_of_a_request_is_limited(sqlite_url: str) -> None:
    async with site(sqlite_url) as s:
        for count, status in ((HEADERS_MAX, 200), (HEADERS_MAX + 1, 400)):
            async with sockets(s, 1) as [one]:
                more = b"a:\r\n" * (count - 2)
                await one.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + more + b"\r\n")
                answered, _, body = await one.answer()
                assert answered == status
                if status == 400:
                    assert body["error"]["code"] == "REQUEST_MALFORMED"
                    assert str(HEADERS_MAX) in body["error"]["message"]
        await until(lambda: s.service.load.connections == 0)
        assert s.service.load.body_bytes == 0


async def test_the_headers_of_waiting_requests_are_counted_and_released(sqlite_url: str) -> None:
    waiting = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"a: \r\n" * 150 + b"\r\n"
    async with site(sqlite_url, body_bytes_total_max=30 * held_bytes(waiting)) as s:
        key = await s.key("viewer")
        stream = get_request(key, "/events/stream")
        async with sockets(s, 2) as [one, other]:
            await one.send(waiting * 20)
            await read_answers(one, 20)
            assert s.service.load.body_bytes == 0, "an answered request holds nothing"
            await one.send(stream + waiting * 20)
            await until(lambda: s.service.load.body_bytes == held_bytes(stream) + 20 * held_bytes(waiting))
            await other.send(waiting[:-2] + b"b" * 10_000)
            await until(
                lambda: s.service.load.body_bytes > held_bytes(stream) + 20 * held_bytes(waiting) + 10_000
            )
            await other.close()
            await until(lambda: s.service.load.body_bytes == held_bytes(stream) + 20 * held_bytes(waiting))
            await one.send(waiting * 20)
            await one.reader.read()  # the connection is closed: an error answer would be part of the stream
            assert await refused_count(s, "body_bytes") == 1
        await until(lambda: s.service.load.connections <= 1)  # the connection of `refused_count`
        assert s.service.load.body_bytes == 0
        async with sockets(s, 1) as [one]:
            await one.send(waiting * 20)
            await read_answers(one, 20)


async def test_headers_over_the_byte_limit_of_all_requests_are_refused(sqlite_url: str) -> None:
    async with site(sqlite_url, body_bytes_total_max=15_000) as s:
        large = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 20_000
        for sent in (large, large + b"\r\n\r\n"):
            async with sockets(s, 1) as [one]:
                await one.send(sent)
                status, headers, body = await one.answer()
                assert (status, body["error"]["code"]) == (503, "SERVER_BUSY")
                assert "retry-after" in headers
        await until(lambda: s.service.load.connections == 0)
        assert s.service.load.body_bytes == 0


async def test_a_small_request_in_the_same_chunk_as_a_large_one_is_accepted() -> None:
    post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n" + b"x" * 90_000
    transport = FakeTransport()
    transport.wire.data_received(post + b"GET / HTTP/1.1\r\nho")
    assert not transport.is_closing()
    transport.wire.data_received(b"st: x\r\n\r\n")
    await until(lambda: transport.written.count(b"HTTP/1.1 200 OK") == 2)
    transport.wire.data_received(post + b"GET / HTTP/1.1\r\nx: " + b"x" * 120_000)
    assert transport.is_closing(), "an endless header is still detected"
    transport.wire.connection_lost(None)
    assert (transport.load.body_bytes, transport.load.connections) == (0, 0)


async def test_trailers_are_dropped() -> None:
    transport = FakeTransport()
    transport.wire.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
    transport.wire.data_received(b"authorization: Bearer x\r\n" * 10)
    assert [name for name, _ in transport.wire.headers] == [b"host", b"transfer-encoding"]
    transport.wire.data_received(b"\r\n")
    await until(lambda: b"HTTP/1.1 200 OK" in transport.written)
    assert transport.load.body_bytes == 0


# ---------------------------------------------------------------------------------------- clients that do not read


class FakeTransport(asyncio.Transport):
    """A fake transport for the server's protocol: tests control its chunks, its unread bytes and its timers."""

    def __init__(self) -> None:
        super().__init__()
        self.load = LoadLimits(Settings())
        self.written = b""
        self.unread = 0
        self.closing = self.aborted = False
        self.timers: list[asyncio.TimerHandle] = []
        self.loop = asyncio.get_running_loop()
        config = uvicorn.Config(answer_ok, log_config=None, lifespan="off")
        timers_and_tasks: Any = self
        self.wire = make_protocol(Settings(), self.load)(config, ServerState(), {}, timers_and_tasks)
        self.wire.connection_made(self)

    def call_later(self, seconds: float, call: Any) -> asyncio.TimerHandle:
        self.timers.append(asyncio.TimerHandle(seconds, call, (), self.loop))
        return self.timers[-1]

    def create_task(self, work: Any) -> Any:
        return self.loop.create_task(work)

    def pass_time(self) -> None:
        """Fire the last timer, unless it was cancelled."""
        timer = self.timers.pop()
        if not timer.cancelled():
            timer._run()

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closing

    def is_aborted(self) -> bool:
        return self.aborted

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def answer_ok(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def test_a_slow_reader_is_kept_and_a_stopped_one_is_disconnected() -> None:
    transport = FakeTransport()
    transport.unread = 10 * READ_BYTES_MIN
    transport.wire.pause_writing()
    transport.unread -= READ_BYTES_MIN
    transport.pass_time()
    assert not transport.is_aborted()
    transport.unread -= READ_BYTES_MIN - 1
    transport.pass_time()
    assert transport.is_aborted()
    assert transport.load.refused["slow_readers"] == 1


async def test_a_client_that_has_read_everything_is_not_timed() -> None:
    transport = FakeTransport()
    transport.unread = READ_BYTES_MIN
    transport.wire.pause_writing()
    transport.unread = 10
    transport.wire.resume_writing()
    transport.pass_time()
    assert not transport.is_aborted()
    assert transport.load.refused["slow_readers"] == 0


@pytest.mark.parametrize("how", ["refused", "kept_alive", "connection_close", "paused"])
async def test_a_closing_connection_does_not_wait_forever_for_its_client(how: str) -> None:
    """A close waits until the client has read the last byte, so it needs a time limit."""
    transport = FakeTransport()
    transport.unread = 10
    if how == "refused":
        transport.wire.data_received(b"nonsense\r\n\r\n")
    elif how == "kept_alive":
        transport.wire.timeout_keep_alive_handler()
    elif how == "connection_close":
        transport.wire.data_received(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await until(lambda: transport.written)
    else:
        transport.wire.pause_writing()
        transport.wire.timeout_keep_alive_handler()
        transport.wire.resume_writing()
    assert transport.is_closing()
    assert not transport.is_aborted()
    transport.pass_time()
    assert transport.is_aborted()
    assert transport.load.refused["slow_readers"] == 1


async def test_a_client_that_does_not_read_is_disconnected(sqlite_url: str) -> None:
    async with site(sqlite_url, unread_seconds=0.05) as s:
        host, port = s.address.removeprefix("http://").split(":")
        with socket.socket() as mute:
            mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            mute.connect(
                (host, int(port))
            )  # the kernel completes the connection before the server accepts it
            mute.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 90)
            await until(lambda: s.service.load.refused["slow_readers"] == 1)
            await until(lambda: s.service.load.connections == 0)
            assert s.service.load.body_bytes == 0
        assert await refused_count(s, "slow_readers") == 1
