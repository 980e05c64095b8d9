"""The client address of a request behind proxies.

Laws:
1. Every proxy appends the address that it sees to the header. So the entries at the right come from trusted proxies, and those left of
   them from anybody. With N trusted proxies the client is the N-th entry from the right; no other entry is read.
2. A header with fewer entries, or without an address in that place, is not trusted: then the client is the peer of the connection. Only
   the configured header is read, because proxies pass the other one on unchanged.
3. Clients are distinguished by IPv4 address, and by /64 network for IPv6, because one machine has all addresses of its network.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

X_FORWARDED_FOR, FORWARDED = "x-forwarded-for", "forwarded"
_ADDRESS_CHARS_MAX = 64

Headers = Iterable[tuple[bytes, bytes]]


def client_address(headers: Headers, proxies: int, header: str = X_FORWARDED_FOR) -> str | None:
    """The client's address in a header (laws 1 and 2); None if it is not trusted."""
    wanted = header.encode()
    written = b",".join([value for name, value in headers if name == wanted])
    entries = written.rsplit(b",", proxies)[-proxies:] if written else []
    if len(entries) < proxies:
        return None
    text = entries[0].decode("latin-1").strip()
    return parse_address(text if header == X_FORWARDED_FOR else _node(text))


def _node(element: str) -> str:
    """The `for` of one element of `Forwarded` (RFC 7239)."""
    found = ""
    for pair in element.split(";"):
        name, _, value = pair.partition("=")
        if name.strip().lower() == "for":
            if found:
                return ""
            found = value.strip()
    if len(found) > 1 and found[0] == found[-1] == '"':
        found = found[1:-1]
    return found


def parse_address(text: str) -> str | None:
    """An address with or without a port, without the port; None for anything else."""
    if len(text) > _ADDRESS_CHARS_MAX:
        return None
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not (port[0] == ":" and port[1:].isascii() and port[1:].isdigit())):
            return None
    else:
        host = text
        if text.count(":") == 1:
            host, _, port = text.partition(":")
            if not (port.isascii() and port.isdigit()):
                return None
    try:
        return str(_plain(ip_address(host)))
    except ValueError:
        return None


def forwarded_scheme(headers: Headers) -> str | None:
    """The scheme that the nearest proxy reports: `https`, `http` or None."""
    protocols = [value for name, value in headers if name == b"x-forwarded-proto"]
    last = protocols[-1].rpartition(b",")[2].strip().lower() if protocols else b""
    return last.decode() if last in (b"http", b"https") else None


@lru_cache(maxsize=4096)
def address_group(address: str) -> str:
    """The group that an address is counted in (law 3)."""
    if len(address) > _ADDRESS_CHARS_MAX:
        return address[:_ADDRESS_CHARS_MAX]
    try:
        ip = _plain(ip_address(address.partition("%")[0]))
    except ValueError:
        return address
    if isinstance(ip, IPv4Address):
        return str(ip)
    return f"{IPv6Address(int(ip) >> 64 << 64)}/64"


def _plain(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip
