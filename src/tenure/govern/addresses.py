"""Where a request of ours may go: to the world, and not to what only this machine or its network can reach.

Laws:
1. An address is looked at when it is connected to, whatever its name said before: a name that leads elsewhere tomorrow leads
   nowhere. TLS and the Host header still have the name.
2. An IPv6 address that has an IPv4 address inside is that address (IPv4-mapped, NAT64), or is refused (6to4, Teredo, ISATAP,
   local NAT64, IPv4-compatible and IPv4-translated).
3. Link-local, multicast, unspecified and reserved addresses are out of reach, whatever is allowed, and so are the addresses
   at which clouds serve a machine's metadata (`METADATA`): it has credentials.

Webhooks (`tenure.publish`) and the connectors' calls (`govern.outgoing`) go through the same backend.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import httpcore
import msgspec

NAT64 = IPv6Network("64:ff9b::/96")
LEADS_ELSEWHERE = (
    IPv6Network("2002::/16"),  # 6to4
    IPv6Network("2001::/32"),  # Teredo
    IPv6Network("64:ff9b:1::/48"),  # NAT64 of a network's own
    IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated (SIIT)
    IPv6Network("::/96"),  # IPv4-compatible, long out of use; ::1 and :: are looked at before
)
METADATA = tuple(
    ip_network(text)
    for text in (
        "169.254.169.254/32",  # AWS, Azure, Google, Oracle, DigitalOcean, OpenStack; all of link-local is refused anyway
        "169.254.170.2/32",  # AWS: credentials of tasks (ECS)
        "169.254.170.23/32",  # AWS: credentials of pods (EKS)
        "fd00:ec2::/32",  # AWS: the same and time and names, over IPv6
        "fd20:ce::254/128",  # Google
        "fd00:c1::/32",  # Oracle
        "fd00:42::42/128",  # Scaleway
        "168.63.129.16/32",  # Azure: its agent's server
        "100.100.100.200/32",  # Alibaba
        "192.0.0.192/32",  # Oracle, before
    )
)
"""Where clouds serve what a machine may know of itself. Some are ordinary public or private addresses."""
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The third quarter of an address with an IPv4 address in its last (RFC 5214)."""
THIS_NETWORK = IPv4Network("0.0.0.0/8")

Address = IPv4Address | IPv6Address


class Reach(msgspec.Struct, frozen=True):
    """How far requests may go."""

    loopback: bool = False
    """To this machine, also without TLS: for development."""
    private: bool = False
    """To private networks."""
    networks: tuple[str, ...] = ()
    """To these networks, private or of this machine, also without TLS."""


class Refused(httpcore.ConnectError):
    """The address is one where requests do not go."""


def parsed(address: str) -> Address:
    """An address, as the one that it leads to."""
    ip: Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return ip.ipv4_mapped
        if ip in NAT64:
            return IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip


def is_allowed(address: str, reach: Reach) -> bool:
    """Whether requests may go to an address."""
    ip = parsed(address)
    if any(ip in network for network in METADATA):
        return False
    if ip.is_loopback:
        return reach.loopback or _is_listed(ip, reach)
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved:
        return False
    if isinstance(ip, IPv6Address):
        if any(ip in network for network in LEADS_ELSEWHERE) or int(ip) >> 32 & 0xFFFF_FFFF in _ISATAP:
            return False
        if ip.is_site_local:
            return reach.private or _is_listed(ip, reach)
    elif ip in THIS_NETWORK:
        return False
    return ip.is_global or (ip.is_private and reach.private) or _is_listed(ip, reach)


def is_allowed_in_plain(address: str, reach: Reach) -> bool:
    """Whether requests may go there without TLS."""
    ip = parsed(address)
    return is_allowed(address, reach) and ((ip.is_loopback and reach.loopback) or _is_listed(ip, reach))


def _is_listed(ip: Address, reach: Reach) -> bool:
    return any(ip in ip_network(network) for network in reach.networks)


def literal(host: str) -> str | None:
    """The host, where it is an address."""
    try:
        return str(ip_address(host.strip("[]")))
    except ValueError:
        return None


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that are allowed, and to no others (law 1)."""

    def __init__(self, reach: Reach, what: str, *, plain: bool | None = None) -> None:
        self._reach = reach
        self._what = what
        self._is_allowed = is_allowed_in_plain if plain else is_allowed
        self._inner: Any = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first address of the host that is allowed and answers."""
        fault: Exception = Refused("its name has no address")
        for address in await addresses_of(host, port):
            if not self._is_allowed(address, self._reach):
                fault = Refused(f"it leads to an address where {self._what} do not go")
                continue
            try:
                stream: httpcore.AsyncNetworkStream = await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                fault = failed
            else:
                return stream
        raise fault

    async def connect_unix_socket(self, *_args: Any, **_how: Any) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise Refused(f"{self._what} do not go to a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        """What httpcore waits by."""
        await asyncio.sleep(seconds)


async def addresses_of(host: str, port: int) -> list[str]:
    """What a name leads to now."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        raise httpcore.ConnectError("its name is not known") from fault
    return list(dict.fromkeys(str(each[4][0]) for each in found))
