"""The proxy of a sandbox: which hosts and addresses it connects to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenure.outbound.address_rules import AllowedNetworks
from tenure.sandbox.bubblewrap import PROXY_SOCKET
from tenure.sandbox.network_proxy import HEAD_BYTES_MAX, parse_hosts, serving_proxy

LOOPBACK = AllowedNetworks(loopback=True)


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """A server that returns the head that it got."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + head)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def ask(folder: Path, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(folder / PROXY_SOCKET))
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


async def test_plain_requests_and_tunnels_reach_named_hosts_only(tmp_path: Path) -> None:
    async with echo_server() as port:
        hosts = parse_hosts([f"localhost:{port}", "*.example.invalid"])
        async with serving_proxy(tmp_path / "p", hosts, LOOPBACK) as folder:
            plain = f"GET http://localhost:{port}/a?b=c HTTP/1.1\r\nHost: evil\r\nProxy-Authorization: x\r\nX: y\r\n\r\n"
            answer = await ask(folder, plain.encode())
            assert (
                f"GET /a?b=c HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nX: y\r\n\r\n".encode()
                in answer
            )
            tunnel = f"CONNECT localhost:{port} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"
            answer = await ask(folder, tunnel.encode())
            assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
            for target in (f"127.0.0.1:{port}", "localhost:1", "localhost.evil:443", "example.invalid:443"):
                answer = await ask(folder, f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
                assert answer.startswith(b"HTTP/1.1 403"), target
            answer = await ask(folder, b"CONNECT a.example.invalid:443 HTTP/1.1\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 502")  # it may be asked for, and does not exist


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"])
async def test_addresses_of_the_machine_and_its_network_are_refused_even_if_they_are_named(
    tmp_path: Path, host: str
) -> None:
    async with serving_proxy(tmp_path / "p", parse_hosts([host]), AllowedNetworks()) as folder:
        answer = await ask(folder, f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode())
        assert b"may not reach" in answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET ftp://x/ HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT x:99999999 HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT user@x:1 HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://x/ HTTP/1.1\r\nA: " + b"a" * (HEAD_BYTES_MAX + 10) + b"\r\n\r\n", b"431"),
        (b"\xff\xfe http://x/ HTTP/1.1\r\n\r\n", b"400"),
    ],
)
async def test_a_malformed_request_is_answered(tmp_path: Path, request_bytes: bytes, status: bytes) -> None:
    async with serving_proxy(tmp_path / "p", parse_hosts(["x"]), LOOPBACK) as folder:
        assert (await ask(folder, request_bytes)).startswith(b"HTTP/1.1 " + status)


def test_hosts_of_a_job_are_checked() -> None:
    pypi, port, below = parse_hosts(["PyPI.org.", "h:8080", "*.h.org"])
    assert pypi.admits("pypi.org", 443)
    assert pypi.admits("pypi.org", 80)
    assert not pypi.admits("pypi.org", 22)
    assert port.admits("h", 8080)
    assert not port.admits("h", 443)
    assert below.admits("a.h.org", 443)
    assert not below.admits("h.org", 443)
    assert not below.admits("xh.org", 443)
    for wrong in ("", "http://h", "h/x", "*", "a.*.org", "h:x", "u@h"):
        with pytest.raises(ValueError, match=r".*"):
            parse_hosts([wrong])
