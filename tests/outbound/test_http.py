"""Outbound HTTP requests: allowed addresses, limits, and faults."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpcore
import pytest

from tenure.clock import boot_seconds
from tenure.outbound import address_rules, http
from tenure.outbound.address_rules import AllowedNetworks, is_allowed
from tenure.outbound.http import send_request
from tenure.outbound.responses import RequestNotSent, ResponseLost
from tenure.outbound.urls import OutboundRoute, find_url_problem
from tenure.testing.doubles import Double, DoubleReply, DoubleRequest, ServiceDouble
from tests.certificates import make_certificate

LOCAL = AllowedNetworks(networks=("127.0.0.0/8",))
OPEN = ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"]
V6 = ("[2606:2800:220:1::1]", "[2606:2800:220:1::2]:444")
METADATA = "169.254.169.254"
CLOSED = [
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "0.1.2.3",
    METADATA,
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%lo",
    "fc00::1",
    "fec0::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::5db8:d822",
    "2002:7f00:1::",
    "2002:5db8:d822::1",
    "2001:0:5db8:d822::1",
    *(str(ip_address(number + 1)) for number in (0x0A000000, 0xAC100000, 0xC0A80000)),
]


def soon(seconds: float = 10.0) -> float:
    return boot_seconds() + seconds


def route_to(double: Double, **how: Any) -> OutboundRoute:
    return OutboundRoute(hosts=(double.url.removeprefix("http://"),), reach=LOCAL, **how)


@pytest.fixture
def service() -> Iterator[ServiceDouble]:
    with ServiceDouble("neither") as double:
        yield double


@pytest.mark.parametrize("address", CLOSED)
def test_local_and_private_addresses_are_refused(address: str) -> None:
    assert not is_allowed(address, AllowedNetworks())


@pytest.mark.parametrize("address", OPEN)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed(address, AllowedNetworks())


def test_link_local_addresses_are_always_refused() -> None:
    wide = AllowedNetworks(loopback=True, private=True, networks=("0.0.0.0/0", "::/0"))
    for address in (
        METADATA,
        f"::ffff:{METADATA}",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::",
        "0.0.0.0",
        "::",
        "fe80::1",
    ):
        assert not is_allowed(address, wide), address
    assert is_allowed("127.0.0.1", LOCAL)
    assert is_allowed("::ffff:127.0.0.1", LOCAL)
    assert not is_allowed("::1", LOCAL)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
    ],
)
def test_cloud_metadata_addresses_are_refused_in_every_notation(address: str) -> None:
    wide = AllowedNetworks(loopback=True, private=True, networks=("0.0.0.0/0", "::/0"))
    ip = ip_address(address)
    writings = [address]
    if ip.version == 4:
        high, low = int(ip) >> 16, int(ip) & 0xFFFF
        last = f"{high:x}:{low:x}"
        flipped = int(ip) ^ 0xFFFF_FFFF
        writings += [
            f"::ffff:{last}",  # mapped
            f"::ffff:0:{last}",  # translated
            f"::{last}",  # compatible
            f"64:ff9b::{last}",  # NAT64
            f"64:ff9b:1::{last}",  # NAT64 with a network-specific prefix
            f"2002:{last}::",  # 6to4
            f"2001:0:1:1::{flipped >> 16:x}:{flipped & 0xFFFF:x}",  # Teredo
            f"2606:2800:220:1:0:5efe:{last}",  # ISATAP
            f"2606:2800:220:1:200:5efe:{last}",
        ]
    for reach in (AllowedNetworks(), AllowedNetworks(private=True), wide):
        assert not [text for text in writings if is_allowed(text, reach)]


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        ("https://api.example.com/x", False),
        ("https://API.example.com./x", False),
        ("https://api.example.com:443/x", False),
        ("https://api.example.com:8443/x", True),
        ("https://other.example.com:8443/x", False),
        ("https://other.example.com/x", True),
        ("https://a.example.org/x", False),
        ("https://a.b.example.org/x", False),
        ("https://example.org/x", True),
        ("https://evilexample.org/x", True),
        ("https://example.com/x", True),
        ("https://api.example.com.evil.test/x", True),
        ("https://api.example.com@evil.test/x", True),
        ("https://evil.test/api.example.com", True),
        ("https://evil.test\\@api.example.com/", True),
        ("http://api.example.com/x", True),
        ("ftp://api.example.com/x", True),
        ("file://localhost/etc/passwd", True),
        ("https://api.example.com/x y", True),
        ("https://xn--pi-7ka.example.com/", True),
        ("https://api.example.com/\n", True),
        ("https:///x", True),
        ("https://api.example.com/public/../admin", True),
        ("https://api.example.com/public/%2e%2E/admin", True),
        ("https://api.example.com/public/..%2fadmin", True),
        ("https://api.example.com/public/..%5Cadmin", True),
        ("https://api.example.com/public/%252e%252e%252fadmin", True),
        ("https://api.example.com/public/..;x=1/admin", True),
        ("https://api.example.com/public/%2e%2e%3b/admin", True),
        ("https://api.example.com/labels/a%2Fb;c", False),
        ("https://api.example.com/a..b/...?up=../x", False),
        ("https://[2606:2800:220:1::1]/x", False),
        ("https://[2606:2800:220:1::1]:444/x", True),
        ("https://[2606:2800:220:1::2]:444/x", False),
        ("", True),
    ],
)
def test_only_listed_hosts_are_called(url: str, is_refused: bool) -> None:
    way = OutboundRoute(hosts=("api.example.com", "other.example.com:8443", "*.example.org", *V6))
    assert (find_url_problem(url, way) is not None) == is_refused


def rebind(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Make each lookup return the next of these addresses. Return the list of looked up names."""
    loop = asyncio.get_running_loop()
    asked: list[str] = []

    async def getaddrinfo(host: Any, port: Any, **_how: Any) -> Any:
        asked.append(str(host))
        address = answers[min(len(asked), len(answers)) - 1]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    return asked


async def test_a_host_name_that_resolves_to_a_private_address_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for address in ("127.0.0.1", METADATA, "::ffff:127.0.0.1", "64:ff9b::7f00:1"):
        rebind(monkeypatch, address)
        with pytest.raises(RequestNotSent) as raised:
            await send_request(
                "GET", "https://api.example.com/", OutboundRoute(hosts=("api.example.com",)), deadline=soon()
            )
        assert raised.value.refused


async def test_the_checked_address_is_the_one_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name resolves to a public address at the check, and to this machine a moment later."""
    asked = rebind(monkeypatch, OPEN[0], "127.0.0.1")
    connected: list[str] = []

    async def connect(_self: Any, host: str, *_args: Any, **_how: Any) -> Any:
        connected.append(host)
        raise httpcore.ConnectError("far away")

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    with pytest.raises(RequestNotSent):
        await send_request(
            "GET", "https://api.example.com/", OutboundRoute(hosts=("api.example.com",)), deadline=soon()
        )
    assert (asked, connected) == (["api.example.com"], [OPEN[0]])


async def test_redirects_are_returned_and_not_followed(service: ServiceDouble) -> None:
    with ServiceDouble() as elsewhere:
        for target in (f"http://{METADATA}/latest/", f"{elsewhere.url}/effects", "/log"):
            service.trouble(status=302, headers={"Location": target}, methods=frozenset({"GET"}))
            answer = await send_request("GET", f"{service.url}/log", route_to(service), deadline=soon())
            assert answer.status == 302
        assert elsewhere.requests == []
    assert len(service.requests) == 3


async def test_proxy_variables_are_ignored(service: ServiceDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServiceDouble() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.lower(), proxy.url)
        assert (
            await send_request("GET", f"{service.url}/log", route_to(service), deadline=soon())
        ).status == 200
        assert proxy.requests == []


async def test_requests_without_tls_go_only_to_listed_networks(
    service: ServiceDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebind(monkeypatch, OPEN[0])
    with pytest.raises(RequestNotSent) as raised:
        await send_request(
            "GET", "http://x.example/", OutboundRoute(hosts=("x.example",), reach=LOCAL), deadline=soon()
        )
    assert raised.value.refused


class Large(Double):
    """A service that sends responses above the limit."""

    def handle(self, request: DoubleRequest) -> DoubleReply:
        packed = {"Content-Encoding": "gzip"} if request.path == "/packed" else {}
        return DoubleReply(200, "x" * (2 * http.ANSWER_BYTES_MAX if not packed else 10), packed)


async def test_a_response_is_read_up_to_a_limit_and_never_decompressed() -> None:
    with Large() as double:
        answer = await send_request("GET", f"{double.url}/", route_to(double), deadline=soon())
        assert (answer.status, answer.cut, len(answer.body)) == (200, True, http.ANSWER_BYTES_MAX)
        assert answer.json() is None
        packed = await send_request("GET", f"{double.url}/packed", route_to(double), deadline=soon())
        assert packed.body == b'"xxxxxxxxxx"'
        assert packed.json() is None
        too_much = b"x" * (http.REQUEST_BYTES_MAX + 1)
        with pytest.raises(RequestNotSent) as raised:
            await send_request("POST", f"{double.url}/", route_to(double), deadline=soon(), content=too_much)
        assert raised.value.refused
        assert len(double.requests) == 2


async def test_a_fault_tells_whether_anything_was_sent(service: ServiceDouble) -> None:
    way, url = route_to(service), f"{service.url}/effects"
    with pytest.raises(RequestNotSent) as raised:
        await send_request("POST", url, way, deadline=soon(-1.0))
    assert raised.value.late
    service.trouble(drop="before")
    with pytest.raises(ResponseLost):
        await send_request("POST", url, way, deadline=soon(), content=b"{}")
    service.hold()
    with pytest.raises(ResponseLost):
        await send_request("POST", url, way, deadline=soon(0.2), content=b"{}")
    service.release()


async def test_a_request_whose_deadline_passes_while_it_connects_is_not_sent(
    service: ServiceDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole process is blocked between connecting and sending, so no timer can fire."""
    real = address_rules.GuardedBackend.connect_tcp

    async def slow(self: Any, *args: Any, **how: Any) -> Any:
        stream = await real(self, *args, **how)
        while boot_seconds() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 # blocks the process on purpose
        return stream

    monkeypatch.setattr(address_rules.GuardedBackend, "connect_tcp", slow)
    deadline = soon(0.2)
    with pytest.raises(RequestNotSent) as raised:
        await send_request(
            "POST", f"{service.url}/effects", route_to(service), deadline=deadline, content=b"{}"
        )
    assert raised.value.late
    assert service.requests == []
    assert service.effects == []


LATE_SECONDS = 1.0
STOPPED = """
import asyncio, os, signal, sys
from tenure.clock import boot_seconds
from tenure.outbound import address_rules
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.responses import RequestNotSent
from tenure.outbound.http import send_request
from tenure.outbound.urls import OutboundRoute

url = sys.argv[1]
real = address_rules.GuardedBackend.connect_tcp

async def stops(self, *args, **how):
    stream = await real(self, *args, **how)
    os.kill(os.getpid(), signal.SIGSTOP)
    return stream

address_rules.GuardedBackend.connect_tcp = stops
way = OutboundRoute(hosts=(url.removeprefix("http://"),), reach=AllowedNetworks(networks=("127.0.0.1",)))
try:
    asyncio.run(send_request("POST", url + "/effects", way, deadline=boot_seconds() + float(sys.argv[2]), content=b"{}"))
except RequestNotSent as fault:
    sys.exit(7 if fault.late else 8)
"""


async def test_a_process_paused_past_the_deadline_sends_nothing(
    service: ServiceDouble,
) -> None:
    """Failure 15: SIGSTOP between INTENT and the call. Before the deadline the call is sent, after it is not."""
    for seconds, code, effects in ((60.0, 0, 1), (LATE_SECONDS, 7, 1)):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STOPPED, service.url, str(seconds)
        )
        _, status = await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        await asyncio.sleep(LATE_SECONDS + 0.1 if seconds == LATE_SECONDS else 0.0)
        process.send_signal(signal.SIGCONT)
        assert await process.wait() == code
        assert len(service.effects) == effects


# ------------------------------------------------------------------------------------------------- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for api.example.test, and its key."""
    return make_certificate(tmp_path, "api.example.test")


async def test_tls_and_host_use_the_name_while_connecting_to_the_address(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        rebind(monkeypatch, "127.0.0.1")
        way = OutboundRoute(
            hosts=(f"api.example.test:{port}", f"other.example.test:{port}"),
            reach=LOCAL,
            ca_file=str(certificate[0]),
        )
        answered = await send_request("GET", f"https://api.example.test:{port}/", way, deadline=soon())
        assert answered.status == 200
        assert names == ["api.example.test"]
        assert f"Host: api.example.test:{port}".encode() in heard[0]
        with pytest.raises(RequestNotSent) as raised:  # the certificate has another name
            await send_request("GET", f"https://other.example.test:{port}/", way, deadline=soon())
        assert not raised.value.refused
        usual = OutboundRoute(hosts=way.hosts, reach=LOCAL)
        with pytest.raises(RequestNotSent):  # the authority is not trusted
            await send_request("GET", f"https://api.example.test:{port}/", usual, deadline=soon())
        assert len(heard) == 1
