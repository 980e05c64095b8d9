"""The way of a sandbox to the hosts that it may reach: a proxy for HTTP and CONNECT on a Unix socket.

Laws:
1. A sandbox has no network besides this socket. A host that is not on its list is refused, whatever its address is.
2. The proxy resolves the name and checks each address (`outbound.address_rules`): not this machine, its network or the metadata of a cloud,
   unless the owner of the runner allows that.
3. A plain request goes to the host of its URL, with that Host header. Requests carry no credentials of ours.
4. Heads, connections and waiting times are limited. Nothing that a sandbox sends ends the proxy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpcore
import msgspec

from tenure.logs import get_logger
from tenure.outbound.address_rules import AllowedNetworks, is_allowed, resolve_host
from tenure.sandbox.bubblewrap import PROXY_SOCKET

log = get_logger(__name__)

HEAD_BYTES_MAX = 32 * 1024
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 20.0
CONNECTIONS_MAX = 200
HOSTS_MAX = 1_000
DEFAULT_PORTS = (80, 443)
_RELAY_BYTES = 64 * 1024
_PER_HOP = frozenset({b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive", b"host"})


class AllowedHost(msgspec.Struct, frozen=True):
    name: str
    """In lower case. With `*.` at its beginning: every name below it."""
    ports: tuple[int, ...] = DEFAULT_PORTS

    def admits(self, host: str, port: int) -> bool:
        named = host.endswith(self.name[1:]) if self.name.startswith("*.") else host == self.name
        return named and port in self.ports


def parse_hosts(entries: Sequence[str]) -> tuple[AllowedHost, ...]:
    """`HOST` (ports 80 and 443), `HOST:PORT`, `*.HOST`. ValueError for anything else."""
    if len(entries) > HOSTS_MAX:
        raise ValueError(f"a job may name at most {HOSTS_MAX} hosts, not {len(entries)}")
    found = []
    for entry in entries:
        host, port = _split_host(entry, 0)
        if not host or host == "*." or "*" in host.removeprefix("*."):
            raise ValueError(f"network: {entry[:100]!r} is not HOST, HOST:PORT or *.HOST")
        found.append(AllowedHost(host, (port,) if port else DEFAULT_PORTS))
    return tuple(found)


def _split_host(text: str, default_port: int) -> tuple[str, int]:
    parsed = urlsplit(f"//{text}")
    if parsed.path or parsed.query or parsed.fragment or parsed.username is not None or not parsed.hostname:
        raise ValueError(f"{text[:100]!r} is not a host")
    return parsed.hostname.rstrip("."), default_port if parsed.port is None else parsed.port


class _Refused(Exception):
    """Why a request is not carried out, with the status of the response."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


class NetworkProxy:
    def __init__(self, hosts: Sequence[AllowedHost], reach: AllowedNetworks) -> None:
        self._hosts = tuple(hosts)
        self._reach = reach
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._open += 1
        try:
            if self._open > CONNECTIONS_MAX:
                raise _Refused("503 Service Unavailable", f"more than {CONNECTIONS_MAX} connections are open")
            await self._serve(reader, writer)
        except _Refused as refused:
            with suppress(OSError):
                body = f"tenure: {refused}\n".encode()
                writer.write(
                    f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain\r\nConnection: close\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # either side has gone
        except Exception as fault:
            log.warning("network_proxy_failed", error=repr(fault))
        finally:
            self._open -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise _Refused(
                "431 Request Header Fields Too Large", f"the head exceeds {HEAD_BYTES_MAX} bytes"
            ) from None
        first, *lines = head[:-4].split(b"\r\n")
        try:
            method, target, version = first.decode("ascii").split(" ")
            if method == "CONNECT":
                host, port = _split_host(target, 443)
                begin = b""
            else:
                host, port, begin = _rewrite(method, target, version, lines)
        except ValueError:
            raise _Refused("400 Bad Request", "this is no request for a proxy") from None
        with_reader, with_writer = await self._connect(host, port)
        try:
            if begin:
                with_writer.write(begin)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as both:
                both.create_task(_relay(reader, with_writer))
                both.create_task(_relay(with_reader, writer))
        except ExceptionGroup:
            pass  # one of the two connections broke
        finally:
            with_writer.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not any(each.admits(host, port) for each in self._hosts):
            log.info("network_refused", host=host[:200], port=port)
            raise _Refused("403 Forbidden", f"{host}:{port} is not in the job's `network`")
        try:
            addresses = await resolve_host(host, port)
        except httpcore.ConnectError:
            raise _Refused("502 Bad Gateway", f"{host} cannot be resolved") from None
        why = f"{host}:{port} cannot be reached"
        for address in addresses:
            if not is_allowed(address, self._reach):
                why = f"{host} has an address that jobs may not reach"
                continue
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await asyncio.open_connection(address, port)
        raise _Refused("502 Bad Gateway", why)


def _rewrite(method: str, target: str, version: str, lines: list[bytes]) -> tuple[str, int, bytes]:
    """Host, port, and the head to send to it, for a request with a full URL."""
    url = urlsplit(target)
    if url.scheme != "http" or not version.startswith("HTTP/1."):
        raise ValueError(target)
    host, port = _split_host(url.netloc, 80)
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _PER_HOP]
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    begin = f"{method} {path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n".encode("ascii")
    return host, port, begin + b"".join(line + b"\r\n" for line in kept) + b"\r\n"


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_RELAY_BYTES):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()


@asynccontextmanager
async def serving_proxy(
    folder: Path, hosts: Sequence[AllowedHost], reach: AllowedNetworks
) -> AsyncIterator[Path]:
    """A proxy on a socket in a new folder, which can be mounted into a sandbox."""
    os.mkdir(folder, 0o755)
    proxy = NetworkProxy(hosts, reach)
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        # By its descriptor, because the path of a socket may have only 107 bytes.
        path = f"/proc/self/fd/{handle}/{PROXY_SOCKET}"
        server = await asyncio.start_unix_server(accept, path, limit=HEAD_BYTES_MAX)
        os.chmod(path, 0o666)  # the sandbox's user connects; nobody else sees the folder
    finally:
        os.close(handle)
    try:
        yield folder
    finally:
        server.close()
        for task in tuple(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
