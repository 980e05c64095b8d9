"""What clients may lay on a server: connections, half-sent bodies, streams and requests are bounded, refused with a code,
counted, and counted off again."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.stage import Site, problem, site

BODY = b'{"workflow": "echo", "input": "' + b"x" * 50_000


@pytest.fixture
def file(tmp_path: Path) -> str:
    """None of this depends on the database."""
    return f"sqlite:{tmp_path}/site.db"


class Socket:
    """A connection of a client that does as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body, once the server has closed."""
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
        while not condition():  # noqa: ASYNC110 - there is nobody to tell
            await asyncio.sleep(0.005)


def half(key: str = "", path: str = "/runs", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {key}\r\n"
        f"content-length: 100000\r\n{more}\r\n"
    ).encode() + BODY


async def refused(s: Site, bound: str) -> float:
    text = (await (await s.caller()).get("/metrics")).text
    return float(text.split(f'tenure_http_refused_total{{bound="{bound}"}} ')[1].split("\n")[0])


@pytest.mark.parametrize(
    ("setting", "bound", "status", "code"),
    [
        ("connections_max", "connections", 503, "SERVER_BUSY"),
        ("connections_per_address_max", "connections_per_address", 429, "TOO_MANY_CONNECTIONS"),
    ],
)
async def test_connections_are_bounded_and_free_again(
    file: str, setting: str, bound: str, status: int, code: str
) -> None:
    settings: dict[str, Any] = {setting: 4}
    async with site(file, **settings) as s:
        async with sockets(s, 4) as held:
            await until(lambda: s.service.load.connections == 4)
            async with sockets(s, 1) as [fifth]:
                answered, headers, body = await fifth.answer()
                assert (answered, body["error"]["code"]) == (status, code)
                assert int(headers["retry-after"]) >= 1
            await held[0].close()
            await until(lambda: s.service.load.connections == 3)
            assert await refused(s, bound) == 1
        await until(lambda: s.service.load.connections <= 1)


async def test_half_sent_bodies_of_one_address_are_bounded_and_free_again(file: str) -> None:
    async with site(file, bodies_per_address_max=3) as s:
        key = await s.key("operator")
        async with sockets(s, 3) as held:
            for one in held:
                await one.send(half(key))
            await until(lambda: s.service.load.half_sent == 3)
            async with sockets(s, 1) as [fourth]:
                await fourth.send(half(key))
                status, headers, body = await fourth.answer()
                assert (status, body["error"]["code"]) == (429, "TOO_MANY_CONNECTIONS")
                assert "retry-after" in headers
            assert s.service.load.half_sent == 3, "what was refused is not counted"
            whole = await (await s.caller(key)).post("/runs", json={"workflow": "none"})
            assert problem(whole) == "WORKFLOW_NOT_FOUND", "a body that comes whole is not half-sent"
            assert await refused(s, "bodies_per_address") == 1
        await until(lambda: s.service.load.half_sent == 0 and s.service.load.body_bytes == 0)


async def test_the_bytes_of_all_bodies_are_bounded_and_free_again(file: str) -> None:
    async with site(file, body_bytes_total_max=int(3.5 * len(BODY))) as s:
        key = await s.key("operator")
        async with sockets(s, 3) as held:
            for one in held:
                await one.send(half(key))
            await until(lambda: s.service.load.body_bytes == 3 * len(BODY))
            async with sockets(s, 1) as [fourth]:
                await fourth.send(half(key))
                status, headers, body = await fourth.answer()
                assert (status, body["error"]["code"]) == (503, "SERVER_BUSY")
                assert "retry-after" in headers
            assert await refused(s, "body_bytes") == 1
        await until(lambda: s.service.load.body_bytes == 0)
        answer = await (await s.caller(key)).post(
            "/runs", json={"workflow": "none", "input": {"x": "x" * 10_000}}
        )
        assert problem(answer) == "WORKFLOW_NOT_FOUND"
        assert s.service.load.body_bytes == 0, (
            "an answered request holds nothing, though its connection lives"
        )


async def test_strangers_hold_no_more_than_others_before_they_are_known(file: str) -> None:
    async with site(file, body_bytes_total_max=4 * len(BODY)) as s:
        async with sockets(s, 12) as held:
            for one in held:
                await one.send(half("nobody", "/enrolments"))
            await until(lambda: s.service.load.refused["body_bytes"] >= 6)
            assert s.service.load.body_bytes <= 4 * len(BODY)
        await until(lambda: s.service.load.body_bytes == 0)


@pytest.mark.parametrize(
    ("setting", "bound"),
    [("streams_per_key_max", "streams_per_key"), ("streams_per_tenant_max", "streams_per_tenant")],
)
async def test_streams_are_bounded_and_free_again(url: str, setting: str, bound: str) -> None:
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
                assert theirs.status_code == 200, "others are not touched"
        assert await refused(s, bound) == 1
        await until(lambda: not s.service.load._by_key and not s.service.load._by_tenant)
        async with other.stream("GET", "/events/stream") as again:
            assert again.status_code == 200


async def test_requests_of_one_key_are_bounded_and_counted(file: str) -> None:
    async with site(file, requests_per_second=0.01, requests_burst=3) as s:
        caller, other = await s.as_("viewer"), await s.as_("operator", "viewer")
        for _ in range(3):
            assert (await caller.get("/runs")).status_code == 200
        answer = await caller.get("/runs")
        assert (answer.status_code, problem(answer)) == (429, "RATE_LIMITED")
        assert int(answer.headers["retry-after"]) > 1
        assert (await other.get("/runs")).status_code == 200
        assert await refused(s, "requests_per_key") == 1


# ---------------------------------------------------------------------------------------------- pipelined requests


def asked(key: str, path: str = "/session", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{more}\r\n".encode()


async def answers(one: Socket, count: int) -> None:
    """Read so many heads of answers with their bodies."""
    for _ in range(count):
        head = (await one.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await one.reader.readexactly(length)


async def test_the_body_of_a_pipelined_request_is_counted_until_that_request_is_answered(file: str) -> None:
    async with site(file, body_bytes_total_max=int(2.5 * len(BODY)), bodies_per_address_max=2) as s:
        key = await s.key("operator", "viewer")
        async with sockets(s, 2) as held:
            for one in held:
                await one.send(asked(key) + half(key))
                await answers(one, 1)
            assert s.service.load.body_bytes == 2 * len(BODY), (
                "the answer to the first frees nothing of the second"
            )
            assert s.service.load.half_sent == 2
            for path, code in (("/runs", "SERVER_BUSY"), ("/session", "TOO_MANY_CONNECTIONS")):
                async with sockets(s, 1) as [third]:
                    sent = half(key, path)
                    await third.send(sent if path == "/runs" else sent[: -len(BODY) + 10])
                    assert (await third.answer())[2]["error"]["code"] == code
            await held[0].send(b"x" * (100_000 - len(BODY)))  # it is no JSON, and is answered
            await answers(held[0], 1)
            await until(lambda: s.service.load.half_sent == 1)
            assert s.service.load.body_bytes == len(BODY)
        await until(lambda: s.service.load.half_sent == 0 and s.service.load.body_bytes == 0)


async def test_pipelined_requests_behind_a_proxy_are_counted_for_their_own_clients(file: str) -> None:
    async with site(file, behind_proxy=True) as s:
        key = await s.key("operator", "viewer")
        async with sockets(s, 1) as [one]:
            await one.send(asked(key, x_forwarded_for="192.0.2.1") + half(key, x_forwarded_for="192.0.2.2"))
            await answers(one, 1)
            assert s.service.load._from == {"192.0.2.2": 1}
        await until(lambda: not s.service.load._from and not s.service.load._bodies)


async def test_a_connection_has_a_bounded_number_of_requests_that_are_not_answered(file: str) -> None:
    async with site(file) as s:
        key = await s.key("viewer")
        async with sockets(s, 1) as [one]:
            await one.send(asked(key) * 50)
            await answers(one, 50)
            await one.send(asked(key, "/events/stream") + asked(key) * 200)
            await one.reader.read()  # it is closed
            assert s.service.load.refused["pipelined"] == 1


async def test_a_stream_ends_with_its_connection_though_a_request_was_pipelined_behind_it(file: str) -> None:
    async with site(file) as s:
        key = await s.key("viewer")
        async with sockets(s, 1) as [one]:
            await one.send(asked(key, "/events/stream") + asked(key))
            await one.reader.readuntil(b"\r\n\r\n")
            assert s.service.load._by_key
        await until(lambda: not s.service.load._by_key and s.service.load.connections == 0)
