"""Which addresses requests may reach: public ones, and not this machine or its network unless that is allowed.

Laws:
1. An address is checked when the connection is made, so a name that changes its address gains nothing. TLS and the Host header
   still use the name.
2. An IPv6 address that contains an IPv4 address counts as that address (IPv4-mapped, NAT64) or is refused (6to4, Teredo,
   ISATAP, local NAT64, IPv4-compatible and IPv4-translated).
3. Link-local, multicast, unspecified and reserved addresses are always refused. So are the addresses at which clouds serve
   instance metadata (`METADATA`), which includes credentials.
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
TUNNEL_NETWORKS = (
    IPv6Network("2002::/16"),  # 6to4
    IPv6Network("2001::/32"),  # Teredo
    IPv6Network("64:ff9b:1::/48"),  # local NAT64
    IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated (SIIT)
    IPv6Network("::/96"),  # IPv4-compatible, deprecated; ::1 and :: are checked before
)
METADATA = tuple(
    ip_network(text)
    for text in (
        "169.254.169.254/32",  # AWS, Azure, Google, Oracle, DigitalOcean, OpenStack; link-local is refused anyway
        "169.254.170.2/32",  # AWS: credentials of tasks (ECS)
        "169.254.170.23/32",  # AWS: credentials of pods (EKS)
        "fd00:ec2::/32",  # AWS: metadata, time and DNS over IPv6
        "fd20:ce::254/128",  # Google
        "fd00:c1::/32",  # Oracle
        "fd00:42::42/128",  # Scaleway
        "168.63.129.16/32",  # Azure: the agent's server
        "100.100.100.200/32",  # Alibaba
        "192.0.0.192/32",  # Oracle, old
    )
)
"""Addresses of cloud metadata services. Some are ordinary public or private addresses."""
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The third 32 bits of an address that has an IPv4 address in its last 32 bits (RFC 5214)."""
THIS_NETWORK = IPv4Network("0.0.0.0/8")

Address = IPv4Address | IPv6Address


class AllowedNetworks(msgspec.Struct, frozen=True):
    """Which addresses are allowed besides public ones."""

    loopback: bool = False
    """This machine, also without TLS: for development."""
    private: bool = False
    networks: tuple[str, ...] = ()
    """These networks, private or local, also without TLS."""


class AddressRefused(httpcore.ConnectError):
    """Requests may not go to this address."""


def parse_address(address: str) -> Address:
    """An address, or the IPv4 address inside it (law 2)."""
    ip: Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return ip.ipv4_mapped
        if ip in NAT64:
            return IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip


def is_allowed(address: str, reach: AllowedNetworks) -> bool:
    ip = parse_address(address)
    if any(ip in network for network in METADATA):
        return False
    if ip.is_loopback:
        return reach.loopback or _is_listed(ip, reach)
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved:
        return False
    if isinstance(ip, IPv6Address):
        if any(ip in network for network in TUNNEL_NETWORKS) or int(ip) >> 32 & 0xFFFF_FFFF in _ISATAP:
            return False
        if ip.is_site_local:
            return reach.private or _is_listed(ip, reach)
    elif ip in THIS_NETWORK:
        return False
    return ip.is_global or (ip.is_private and reach.private) or _is_listed(ip, reach)


def is_allowed_without_tls(address: str, reach: AllowedNetworks) -> bool:
    ip = parse_address(address)
    return is_allowed(address, reach) and ((ip.is_loopback and reach.loopback) or _is_listed(ip, reach))


def _is_listed(ip: Address, reach: AllowedNetworks) -> bool:
    return any(ip in ip_network(network) for network in reach.networks)


def literal_address(host: str) -> str | None:
    """The host, if it is an IP address."""
    try:
        return str(ip_address(host.strip("[]")))
    except ValueError:
        return None


class GuardedBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, reach: AllowedNetworks, what: str, *, plain: bool | None = None) -> None:
        self._reach = reach
        self._what = what
        self._is_allowed = is_allowed_without_tls if plain else is_allowed
        self._inner: Any = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first allowed address of the host that answers."""
        fault: Exception = AddressRefused("the host name has no address")
        for address in await resolve_host(host, port):
            if not self._is_allowed(address, self._reach):
                fault = AddressRefused(f"the host has an address where {self._what} do not go")
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
        raise AddressRefused(f"{self._what} do not go to Unix sockets")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def resolve_host(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        raise httpcore.ConnectError("the host name cannot be resolved") from fault
    return list(dict.fromkeys(str(each[4][0]) for each in found))
