"""URLs of requests: the checks that need no connection.

`tenure.outbound.address_rules` checks the address when the connection is made.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

import httpx
import msgspec

from tenure.outbound.address_rules import AllowedNetworks

URL_CHARS_MAX = 2_000
UNQUOTED_MAX = 4
"""How often a path is unquoted when it is checked: some servers do it more than once."""
_DEFAULT_PORTS = {"https": 443, "http": 80}
_HOST_RULE = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?")


class OutboundRoute(msgspec.Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...] = ()
    """`api.example.com` (default port), `api.example.com:8443`, `*.example.com`."""
    reach: AllowedNetworks = AllowedNetworks()
    ca_file: str | None = None
    """Certificates to trust instead of the usual ones."""


def parse_url(url: str) -> httpx.URL:
    """The URL, or ValueError with the reason why no request may go to it."""
    if len(url) > URL_CHARS_MAX or not url.isprintable() or " " in url:
        raise ValueError(f"must have at most {URL_CHARS_MAX} printable characters and no blanks")
    try:
        parsed = httpx.URL(url)
        port = parsed.port
    except (httpx.InvalidURL, ValueError, UnicodeError):
        raise ValueError("is not a URL") from None
    if parsed.scheme not in _DEFAULT_PORTS or not parsed.host:
        raise ValueError("must be an https URL with a host")
    if port is not None and not 0 < port < 1 << 16:
        raise ValueError("is not a URL: its port is out of range")
    if parsed.userinfo or parsed.fragment:
        raise ValueError("must not have a user or a fragment")
    return parsed


def find_url_problem(url: str, route: OutboundRoute) -> str | None:
    """Why a connector may not send a request to a URL, or None if it may."""
    try:
        parsed = parse_url(url)
    except ValueError as refused:
        return str(refused)
    if not url.isascii() or "\\" in url:
        return "must be ASCII without backslashes"
    if _has_dot_segments(re.split(r"[?#]", url)[0].split("/", 3)[3:]):
        return "must not have `.` or `..` in its path"
    if parsed.scheme == "http" and not (route.reach.networks or route.reach.loopback):
        return "must be an https URL"
    host, port = parsed.host.lower().rstrip("."), parsed.port or _DEFAULT_PORTS[parsed.scheme]
    if any(_matches(host, port, parsed.scheme, rule.lower()) for rule in route.hosts):
        return None
    return f"has the host {parsed.netloc.decode()}, which is not listed: add it to `hosts` of the connector"


def _has_dot_segments(path: list[str]) -> bool:
    """Whether a path has `.` or `..` segments for any server: servers unquote more than once, read backslashes as slashes, or
    ignore what follows a semicolon."""
    text = "/".join(path)
    for _ in range(UNQUOTED_MAX):
        if any(part.partition(";")[0] in (".", "..") for part in re.split(r"[/\\]", text)):
            return True
        text = unquote(text)
    return False


def _matches(host: str, port: int, scheme: str, rule: str) -> bool:
    found = _HOST_RULE.fullmatch(rule)
    if found is None or port != int(found["port"] or _DEFAULT_PORTS[scheme]):
        return False
    name = found["name"].strip("[]")
    return host.endswith(name[1:]) if name.startswith("*.") else host == name
