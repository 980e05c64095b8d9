"""The connectors file: the connectors, the addresses of their services, and the tokens to use.

Laws:
1. The file belongs to the operator. It contains references to secrets, never secrets. It is checked as a whole, and each problem has its line.
2. Requests go only to listed hosts. The host of `base_url` is listed implicitly.
3. `allow_private` lets workflows reach addresses of this machine and its network through that connector. It is empty by default.
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

from tenure.expressions.schema import MISSING, Duration, Integer, ListOf, MapOf, Record, SchemaField, Text
from tenure.expressions.yaml_document import FileProblems, read_yaml, read_yaml_text
from tenure.govern.connector import Connector
from tenure.govern.connectors import github, slack
from tenure.govern.connectors.command import CommandConnector, Program
from tenure.govern.connectors.http import HttpConnector
from tenure.govern.connectors.http_service import EVERY_TENANT, HttpService
from tenure.govern.connectors.registry import NAME, Connectors
from tenure.govern.connectors.servicenow import ServiceNowConnector
from tenure.outbound.address_rules import AllowedNetworks, is_allowed
from tenure.outbound.github_app import BASE_URL, GitHubApp
from tenure.outbound.urls import URL_CHARS_MAX, OutboundRoute
from tenure.secrets import REFERENCE_CHARS_MAX, Secrets

CODE = "CONNECTORS_INVALID"

REFERENCE_TEXT = Text(
    what="a reference",
    most=REFERENCE_CHARS_MAX,
    pattern=r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+",
    says="`env:NAME` or `file:/PATH`, never the secret itself",
)
_HOST = Text(
    what="a host",
    most=260,
    pattern=r"(?:(?:\*\.)?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?",
    says="`api.example.com`, `api.example.com:8443` or `*.example.com`",
)
_ID_MAX = 2**53
_INSTALLATION = Integer(least=1, most=_ID_MAX)
_PROGRAM = Record(
    what="a program",
    fields=(
        SchemaField(
            name="path",
            shape=Text(what="a path", most=1_000, pattern="/.+", says="it must begin with /"),
            required=True,
        ),
        SchemaField(name="summary", shape=Text(most=200)),
        SchemaField(name="args", shape=ListOf(item=Text(what="an argument", least=0, most=8_000), most=100)),
        SchemaField(
            name="env",
            shape=ListOf(
                item=Text(
                    what="a variable",
                    pattern="[A-Z_][A-Z0-9_]*",
                    says="upper-case letters, digits and underscores",
                ),
                most=50,
            ),
        ),
        SchemaField(name="timeout", shape=Duration()),
        SchemaField(
            name="cwd", shape=Text(what="a path", most=1_000, pattern="/.+", says="it must begin with /")
        ),
        SchemaField(name="repeats", shape=Text(choices=("native_key", "sets_state", "none"))),
        SchemaField(name="tenants", shape=ListOf(item=Text(what="a tenant"))),
    ),
)
_FIELDS: dict[str, SchemaField] = {
    field.name: field
    for field in (
        SchemaField(name="kind", shape=Text(what="a kind", most=200)),
        SchemaField(
            name="base_url",
            shape=Text(
                what="a URL", most=URL_CHARS_MAX, pattern="https?://[^?#@]+", says="https://HOST/PATH"
            ),
        ),
        SchemaField(name="hosts", shape=ListOf(item=_HOST, most=1_000)),
        SchemaField(name="allow_private", shape=ListOf(item=Text(what="an address or a network", most=60))),
        SchemaField(
            name="ca_file", shape=Text(what="a path", most=1_000, pattern="/.+", says="it must begin with /")
        ),
        SchemaField(name="token", shape=REFERENCE_TEXT),
        SchemaField(name="tokens", shape=MapOf(value=REFERENCE_TEXT, key=".{1,100}", says="a tenant's id")),
        SchemaField(name="app_id", shape=Integer(least=1, most=_ID_MAX)),
        SchemaField(name="private_key", shape=REFERENCE_TEXT),
        SchemaField(name="installation", shape=_INSTALLATION),
        SchemaField(
            name="installations", shape=MapOf(value=_INSTALLATION, key=".{1,100}", says="a tenant's id")
        ),
        SchemaField(name="auth", shape=Text(choices=("bearer", "basic"))),
        SchemaField(name="repeats", shape=Text(choices=("native_key", "marker", "none"))),
        SchemaField(name="lookup", shape=Text(what="a URL that contains {key}", most=URL_CHARS_MAX)),
        SchemaField(
            name="programs",
            shape=MapOf(value=_PROGRAM, key=NAME.pattern, says="lower-case letters, digits and underscores"),
        ),
    )
}
_WEB = ("kind", "base_url", "hosts", "allow_private", "ca_file", "token", "tokens")
_APP = ("app_id", "private_key", "installation", "installations")


def _command(name: str, given: dict[str, Any], link: HttpService) -> Connector:
    programs = {
        each: msgspec.convert(
            {"seconds" if key == "timeout" else key: value for key, value in fields.items()}, Program
        )
        for each, fields in given.get("programs", {}).items()
        if "path" in fields  # otherwise reported already
    }
    return CommandConnector(name, programs, link.secrets)


def _github(name: str, given: dict[str, Any], link: HttpService) -> Connector:
    if "app_id" not in given:
        return github.GitHubConnector(name, link)
    app = GitHubApp(
        app_id=given["app_id"], private_key=given["private_key"], base_url=link.base_url, way=link.way
    )
    usual = {EVERY_TENANT: given["installation"]} if "installation" in given else {}
    return github.GitHubConnector(
        name, link, app=app, installations={**given.get("installations", {}), **usual}
    )


def _find_app_problem(given: dict[str, Any]) -> str | None:
    """What is missing or too much in the settings of a GitHub App."""
    named = [key for key in _APP if key in given]
    if not named:
        return None
    if "token" in given or "tokens" in given:
        return f"has a token and `{named[0]}`: use either a token or a GitHub App"
    for key in ("app_id", "private_key"):
        if key not in given:
            return f"needs `{key}`, because it has `{named[0]}`"
    if "installation" not in given and "installations" not in given:
        return "needs `installation`, or `installations` with one for each tenant"
    return None


KINDS: dict[str, tuple[tuple[str, ...], str, Callable[[str, dict[str, Any], HttpService], Connector]]] = {
    "github": ((*_WEB, *_APP), BASE_URL, _github),
    "slack": (_WEB, slack.BASE_URL, lambda name, _given, link: slack.SlackConnector(name, link)),
    "servicenow": (
        (*_WEB, "auth"),
        "",
        lambda name, given, link: ServiceNowConnector(name, link, auth=given.get("auth", "bearer")),
    ),
    "http": (
        (*_WEB, "repeats", "lookup"),
        "",
        lambda name, given, link: HttpConnector(
            name, link, repeats=given.get("repeats", "none"), lookup=given.get("lookup", "")
        ),
    ),
    "command": (("kind", "programs"), "", _command),
}
"""Kind -> its keys, its default URL, and its constructor."""

_FILE = Record(
    what="a connectors file",
    fields=(
        SchemaField(
            name="connectors",
            shape=MapOf(
                value=Record(what="a connector", fields=tuple(_FIELDS.values())),
                key=NAME.pattern,
                says="lower-case letters, digits and underscores",
                most=200,
            ),
            required=True,
        ),
    ),
)


def load_connectors(path: str | Path, *, secrets: Secrets | None = None) -> Connectors:
    """The connectors of a file; CONNECTORS_INVALID names all problems."""
    return parse_connectors(read_yaml_text(path, CODE), str(path), secrets=secrets)


def parse_connectors(
    text: str, source: str = "connectors.yaml", *, secrets: Secrets | None = None
) -> Connectors:
    problems = FileProblems(source, CODE, "connectors file", "`connectors`")
    data = _FILE.read(read_yaml(text, problems), (), problems)
    if secrets is None:  # those that tenants may reference; a server has options for this
        secrets = Secrets(
            folder=os.environ.get("TENURE_SECRETS") or None,
            shared=os.environ.get("TENURE_SHARED_SECRETS", "").lower() in ("1", "true", "yes", "on"),
        )
    listed = {} if data is MISSING else data.get("connectors", {})
    made = [_build_connector(name, given, problems, secrets) for name, given in listed.items()]
    problems.raise_any()
    return Connectors(connector for connector in made if connector is not None)


def _build_connector(
    name: str, given: dict[str, Any], problems: FileProblems, secrets: Secrets
) -> Connector | None:
    at = ("connectors", name)
    kind = given.get("kind", name)
    if ":" in kind:
        return _import_connector(name, kind, given, problems)
    if kind not in KINDS:
        known = [*KINDS, "MODULE:NAME"]
        guess = problems.close_to(kind, known)
        problems.add((*at, "kind"), f"unknown kind {kind!r}{guess}; the kinds are {', '.join(known)}")
        return None
    keys, usual_url, maker = KINDS[kind]
    for key in given:
        if key not in keys:
            problems.add((*at, key), f"is not a key of the kind {kind}, which has {', '.join(keys)}")
            return None
    given = {"base_url": usual_url, **given}
    if kind == "servicenow" and not given["base_url"]:
        problems.add(at, "needs 'base_url', the URL of the instance")
    if kind == "github" and (problem := _find_app_problem(given)):
        problems.add(at, problem)
        return None
    if kind == "http" and not (given["base_url"] or given.get("hosts")):
        problems.add(at, "needs 'base_url' or 'hosts': requests go only to listed hosts")
    if given.get("repeats") == "marker" and "{key}" not in given.get("lookup", ""):
        problems.add(at, "needs 'lookup', a URL that contains {key}, because `repeats` is marker")
        return None
    return maker(name, given, _build_service(given, at, problems, secrets))


def _build_service(
    given: dict[str, Any], at: tuple[str, ...], problems: FileProblems, secrets: Secrets
) -> HttpService:
    url = given["base_url"].rstrip("/")
    networks = tuple(given.get("allow_private", ()))
    for i, network in enumerate(networks):
        if problem := find_network_problem(network):
            problems.add((*at, "allow_private", i), problem)
            networks = ()
    if url.startswith("http:") and not networks:
        problems.add((*at, "base_url"), "must be an https URL; http is only for addresses in allow_private")
    ca_file = given.get("ca_file")
    if ca_file is not None and not Path(ca_file).is_file():
        problems.add((*at, "ca_file"), f"file {ca_file} does not exist")
    own = (httpx.URL(url).netloc.decode(),) if url else ()
    return HttpService(
        base_url=url,
        way=OutboundRoute(
            hosts=(*own, *given.get("hosts", ())), reach=AllowedNetworks(networks=networks), ca_file=ca_file
        ),
        tokens=given.get("tokens", {}) | ({EVERY_TENANT: given["token"]} if "token" in given else {}),
        secrets=secrets,
    )


def find_network_problem(network: str) -> str | None:
    try:
        there = ip_network(network)
    except ValueError:
        return f"{network!r} is not an address or a network such as fd12:3456:789a::/48"
    if not is_allowed(str(there.network_address), AllowedNetworks(networks=(network,))) and there.prefixlen:
        return (
            f"{network} can never be allowed: link-local, multicast and reserved addresses are always refused"
        )
    return None


def _import_connector(
    name: str, kind: str, given: dict[str, Any], problems: FileProblems
) -> Connector | None:
    """A custom connector: MODULE:NAME is called with the connector's name."""
    at = ("connectors", name)
    for key in given:
        if key != "kind":
            problems.add(
                (*at, key), f"is not a key of the kind {kind}: a custom connector has its own settings"
            )
            return None
    module, _, attribute = kind.partition(":")
    try:
        made: Connector = getattr(import_module(module), attribute)(name)
        Connectors([made])
    except Exception as fault:  # any exception of the module
        problems.add((*at, "kind"), f"{kind} returned no connector: {type(fault).__name__}: {fault}")
        return None
    return made


def builtin_connectors() -> Connectors:
    """The connectors of Tenure without settings, for the documentation and for policy checks without a file."""
    return Connectors(
        (
            github.GitHubConnector(),
            slack.SlackConnector(),
            ServiceNowConnector(),
            HttpConnector(),
            CommandConnector(),
        )
    )
