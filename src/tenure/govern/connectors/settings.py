"""The file of connectors: which there are, where their services are, and who we are there.

Laws:
1. The file is the operator's. It has references to secrets, never secrets, and is checked as a whole, each problem with its line.
2. A host is listed, or no request goes there; a connector's own `base_url` is.
3. `allow_private` opens addresses of this machine and its network to whatever a workflow asks of that connector. It is empty unless somebody
   says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tenure.declared.document import Problems, read
from tenure.declared.shapes import MISSING, Field, Length, ListOf, MapOf, Record, Text
from tenure.errors import TenureError
from tenure.govern.addresses import Reach, is_allowed
from tenure.govern.connector import Connector
from tenure.govern.connectors import github, slack
from tenure.govern.connectors.command import CommandConnector, Program
from tenure.govern.connectors.http import HttpConnector
from tenure.govern.connectors.link import EVERY_TENANT, Link
from tenure.govern.connectors.registry import NAME, Connectors
from tenure.govern.connectors.servicenow import ServiceNowConnector
from tenure.govern.outgoing import URL_CHARS_MAX, Way
from tenure.secrets import REFERENCE_CHARS_MAX, Secrets

CODE = "CONNECTORS_INVALID"

_REFERENCE = Text(
    what="a reference",
    most=REFERENCE_CHARS_MAX,
    pattern=r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+",
    says="`env:NAME` or `file:/PATH`; the secret itself is never here",
)
_HOST = Text(
    what="a host",
    most=260,
    pattern=r"(?:(?:\*\.)?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?",
    says="`api.example.com`, `api.example.com:8443` or `*.example.com`",
)
_PROGRAM = Record(
    what="a program",
    fields=(
        Field(
            name="path",
            shape=Text(what="a path", most=1_000, pattern="/.+", says="it begins at the root"),
            required=True,
        ),
        Field(name="summary", shape=Text(most=200)),
        Field(name="args", shape=ListOf(item=Text(what="an argument", least=0, most=8_000), most=100)),
        Field(
            name="env",
            shape=ListOf(
                item=Text(
                    what="a variable",
                    pattern="[A-Z_][A-Z0-9_]*",
                    says="capital letters, digits and underscores",
                ),
                most=50,
            ),
        ),
        Field(name="timeout", shape=Length()),
        Field(name="cwd", shape=Text(what="a path", most=1_000, pattern="/.+", says="it begins at the root")),
        Field(name="repeats", shape=Text(choices=("native_key", "sets_state", "none"))),
        Field(name="tenants", shape=ListOf(item=Text(what="a tenant"))),
    ),
)
_FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        Field(name="kind", shape=Text(what="a kind", most=200)),
        Field(
            name="base_url",
            shape=Text(
                what="a URL", most=URL_CHARS_MAX, pattern="https?://[^?#@]+", says="https://HOST/PATH"
            ),
        ),
        Field(name="hosts", shape=ListOf(item=_HOST, most=1_000)),
        Field(name="allow_private", shape=ListOf(item=Text(what="an address or a network", most=60))),
        Field(
            name="ca_file", shape=Text(what="a path", most=1_000, pattern="/.+", says="it begins at the root")
        ),
        Field(name="token", shape=_REFERENCE),
        Field(name="tokens", shape=MapOf(value=_REFERENCE, key=".{1,100}", says="a tenant's id")),
        Field(name="auth", shape=Text(choices=("bearer", "basic"))),
        Field(name="repeats", shape=Text(choices=("native_key", "marker", "none"))),
        Field(name="lookup", shape=Text(what="an address with {key} in it", most=URL_CHARS_MAX)),
        Field(
            name="programs",
            shape=MapOf(value=_PROGRAM, key=NAME.pattern, says="small letters, digits and underscores"),
        ),
    )
}
_WEB = ("kind", "base_url", "hosts", "allow_private", "ca_file", "token", "tokens")


def _http(name: str, given: dict[str, Any], link: Link) -> Connector:
    return HttpConnector(name, link, repeats=given.get("repeats", "none"), lookup=given.get("lookup", ""))


def _command(name: str, given: dict[str, Any], link: Link) -> Connector:
    programs = {
        each: msgspec.convert(
            {"seconds" if key == "timeout" else key: value for key, value in said.items()}, Program
        )
        for each, said in given.get("programs", {}).items()
        if "path" in said  # else that has been told
    }
    return CommandConnector(name, programs, link.secrets)


_Maker = Callable[[str, dict[str, Any], Link], Connector]
KINDS: dict[str, tuple[tuple[str, ...], str, _Maker]] = {
    "github": (_WEB, github.BASE_URL, lambda name, _given, link: github.GitHubConnector(name, link)),
    "slack": (_WEB, slack.BASE_URL, lambda name, _given, link: slack.SlackConnector(name, link)),
    "servicenow": (
        (*_WEB, "auth"),
        "",
        lambda name, given, link: ServiceNowConnector(name, link, auth=given.get("auth", "bearer")),
    ),
    "http": ((*_WEB, "repeats", "lookup"), "", _http),
    "command": (("kind", "programs"), "", _command),
}
"""Kind -> the keys it has, where its service is unless something else is said, and how it is made."""

_FILE = Record(
    what="a file of connectors",
    fields=(
        Field(
            name="connectors",
            shape=MapOf(
                value=Record(what="a connector", fields=tuple(_FIELDS.values())),
                key=NAME.pattern,
                says="small letters, digits and underscores",
                most=200,
            ),
            required=True,
        ),
    ),
)


def load_connectors(path: str | Path, *, secrets: Secrets | None = None) -> Connectors:
    """The connectors of a file; CONNECTORS_INVALID names all that is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        why = (fault.strerror if isinstance(fault, OSError) else "") or "it is no text"
        raise TenureError(CODE, f"{path} cannot be read: {why}") from fault
    return read_connectors(text, str(path), secrets=secrets)


def read_connectors(
    text: str, source: str = "connectors.yaml", *, secrets: Secrets | None = None
) -> Connectors:
    """The connectors of a text."""
    problems = Problems(source, CODE, "file of connectors", "`connectors`")
    data = _FILE.read(read(text, problems), (), problems)
    made: list[Connector] = []
    for name, given in ({} if data is MISSING else data.get("connectors", {})).items():
        connector = _made(name, given, problems, secrets or _secrets_here())
        if connector is not None:
            made.append(connector)
    problems.raise_any()
    return Connectors(made)


def _secrets_here() -> Secrets:
    """What tenants may name, as the environment says it; a server has options for it."""
    return Secrets(
        folder=os.environ.get("TENURE_SECRETS") or None,
        shared=os.environ.get("TENURE_SHARED_SECRETS", "").lower() in ("1", "true", "yes", "on"),
    )


def _made(name: str, given: dict[str, Any], problems: Problems, secrets: Secrets) -> Connector | None:
    at = ("connectors", name)
    kind = given.get("kind", name)
    if ":" in kind:
        return _imported(name, kind, given, problems)
    if kind not in KINDS:
        known = [*KINDS, "MODULE:NAME"]
        said = f"there is no kind {kind!r}{problems.close_to(kind, known)}; there are {', '.join(known)}"
        problems.add((*at, "kind"), said)
        return None
    keys, usual_url, maker = KINDS[kind]
    for key in given:
        if key not in keys:
            problems.add((*at, key), f"does not belong to the kind {kind}; it has {', '.join(keys)}")
            return None
    given = {"base_url": usual_url, **given}
    if kind == "servicenow" and not given["base_url"]:
        problems.add(at, "needs 'base_url', the address of the instance")
    if kind == "http" and not (given["base_url"] or given.get("hosts")):
        problems.add(at, "needs 'base_url' or 'hosts': no request goes to a host that is not listed")
    if given.get("repeats") == "marker" and "{key}" not in given.get("lookup", ""):
        problems.add(at, "needs 'lookup', an address with {key} in it, where it repeats by marker")
        return None
    return maker(name, given, _link(given, at, problems, secrets))


def _link(given: dict[str, Any], at: tuple[str, ...], problems: Problems, secrets: Secrets) -> Link:
    url = given["base_url"].rstrip("/")
    networks = tuple(given.get("allow_private", ()))
    for i, network in enumerate(networks):
        said = _not_opened(network)
        if said:
            problems.add((*at, "allow_private", i), said)
            networks = ()
    if url.startswith("http:") and not networks:
        problems.add((*at, "base_url"), "is an https URL; http is for addresses in allow_private only")
    ca_file = given.get("ca_file")
    if ca_file is not None and not Path(ca_file).is_file():
        problems.add((*at, "ca_file"), f"there is no file {ca_file}")
    tokens = dict(given.get("tokens", {}))
    if "token" in given:
        tokens[EVERY_TENANT] = given["token"]
    own = (httpx.URL(url).netloc.decode(),) if url else ()
    return Link(
        base_url=url,
        way=Way(hosts=(*own, *given.get("hosts", ())), reach=Reach(networks=networks), ca_file=ca_file),
        tokens=tokens,
        secrets=secrets,
    )


def _not_opened(network: str) -> str | None:
    """Why a network is not opened."""
    try:
        there = ip_network(network)
    except ValueError:
        return f"{network!r} is no address and no network such as fd12:3456:789a::/48"
    if not is_allowed(str(there.network_address), Reach(networks=(network,))) and there.prefixlen:
        return f"{network} is out of reach for good: link-local, multicast and reserved addresses are"
    return None


def _imported(name: str, kind: str, given: dict[str, Any], problems: Problems) -> Connector | None:
    """A connector of your own: what the name in the module makes, called with the connector's name."""
    at = ("connectors", name)
    others = [key for key in given if key != "kind"]
    if others:
        problems.add((*at, others[0]), f"does not belong to the kind {kind}: its module knows its settings")
        return None
    module, _, attribute = kind.partition(":")
    try:
        made: Connector = getattr(import_module(module), attribute)(name)
        Connectors([made])
    except Exception as fault:  # whatever its module raises
        problems.add((*at, "kind"), f"{kind} makes no connector: {type(fault).__name__}: {fault}")
        return None
    return made


def catalog() -> Connectors:
    """All that come with Tenure, set up for nowhere: for the docs, and for whoever checks a policy without a file."""
    return Connectors(
        (
            github.GitHubConnector(),
            slack.SlackConnector(),
            ServiceNowConnector(),
            HttpConnector(),
            CommandConnector(),
        )
    )
