"""The VCS settings file: the GitHub App that reports runs, and which tenant may report to which repository.

Laws:
1. The file belongs to the operator. It contains references to secrets, never secrets. It is checked as a whole, and each problem has its
   line.
2. A tenant's runs are reported only to repositories that the file lists for that tenant, whatever a hook of the tenant says: the App may
   be installed for other tenants, too.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tenure.expressions.schema import MISSING, Boolean, Integer, ListOf, Record, SchemaField, Text
from tenure.expressions.yaml_document import FileProblems, read_yaml, read_yaml_text
from tenure.govern.connectors.settings import REFERENCE_TEXT, find_network_problem
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.github_app import BASE_URL, GitHubApp
from tenure.outbound.urls import URL_CHARS_MAX, OutboundRoute
from tenure.shapes.reports import VcsTarget

CODE = "VCS_SETTINGS_INVALID"
_ID = Integer(least=1, most=2**53)

_TARGET = Record(
    what="a target",
    fields=(
        SchemaField(name="tenant", shape=Text(what="a tenant's id", most=100), required=True),
        SchemaField(name="installation", shape=_ID, required=True),
        SchemaField(
            name="repositories",
            shape=ListOf(
                item=Text(
                    what="a repository",
                    most=200,
                    pattern=r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.*-]+",
                    says="owner/name; the name may contain `*`",
                ),
                least=1,
            ),
            required=True,
        ),
        SchemaField(name="statuses", shape=Boolean()),
    ),
)
_GITHUB = Record(
    what="the settings of GitHub",
    fields=(
        SchemaField(name="app_id", shape=_ID, required=True),
        SchemaField(name="private_key", shape=REFERENCE_TEXT, required=True),
        SchemaField(
            name="base_url",
            shape=Text(
                what="a URL", most=URL_CHARS_MAX, pattern="https?://[^?#@]+", says="https://HOST/PATH"
            ),
        ),
        SchemaField(
            name="ca_file", shape=Text(what="a path", most=1_000, pattern="/.+", says="it must begin with /")
        ),
        SchemaField(name="allow_private", shape=ListOf(item=Text(what="an address or a network", most=60))),
        SchemaField(name="targets", shape=ListOf(item=_TARGET, least=1), required=True),
    ),
)
_FILE = Record(what="a VCS settings file", fields=(SchemaField(name="github", shape=_GITHUB, required=True),))


class VcsInstallation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tenant may report."""

    tenant: str
    installation: int
    repositories: tuple[str, ...]
    """`owner/name`; the name may contain `*`."""
    statuses: bool = False
    """Whether the run also sets a commit status."""


class VcsSettings:
    """The App and the targets of a server."""

    def __init__(self, app: GitHubApp, targets: tuple[VcsInstallation, ...]) -> None:
        self.app = app
        self.targets = targets

    def find(self, tenant: str, target: VcsTarget) -> VcsInstallation | None:
        """The installation that reports a tenant's runs to a repository (law 2)."""
        name = target.repository.lower()
        for one in self.targets:
            if one.tenant == tenant and any(fnmatchcase(name, rule.lower()) for rule in one.repositories):
                return one
        return None


def load_vcs_settings(path: str | Path) -> VcsSettings:
    """The settings of a file; VCS_SETTINGS_INVALID names all problems."""
    return parse_vcs_settings(read_yaml_text(path, CODE), str(path))


def parse_vcs_settings(text: str, source: str = "vcs.yaml") -> VcsSettings:
    problems = FileProblems(source, CODE, "VCS settings file", "`github`")
    data = _FILE.read(read_yaml(text, problems), (), problems)
    given: dict[str, Any] = {} if data is MISSING else data.get("github", {})
    url = given.get("base_url", BASE_URL).rstrip("/")
    networks = tuple(given.get("allow_private", ()))
    for i, network in enumerate(networks):
        if problem := find_network_problem(network):
            problems.add(("github", "allow_private", i), problem)
    if url.startswith("http:") and not networks:
        problems.add(
            ("github", "base_url"), "must be an https URL; http is only for addresses in allow_private"
        )
    ca_file = given.get("ca_file")
    if ca_file is not None and not Path(ca_file).is_file():
        problems.add(("github", "ca_file"), f"file {ca_file} does not exist")
    problems.raise_any()
    way = OutboundRoute(
        hosts=(httpx.URL(url).netloc.decode(),), reach=AllowedNetworks(networks=networks), ca_file=ca_file
    )
    app = GitHubApp(app_id=given["app_id"], private_key=given["private_key"], base_url=url, way=way)
    targets = tuple(
        msgspec.convert({**one, "repositories": tuple(one["repositories"])}, VcsInstallation)
        for one in given["targets"]
    )
    return VcsSettings(app, targets)
