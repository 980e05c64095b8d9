"""The settings of repositories: a file on the server's side that says what CI fetches, whom it trusts, and what a commit may ask for.

Laws:
1. A commit never widens its own bounds: everything that a pipeline asks for is checked against the settings here (`tenure.ci.bounds`).
   What the settings do not list is refused.
2. Only pushes to the branches in `trusted_branches` are trusted.
3. The settings hold no secret: credentials are references (`env:NAME`, `file:/PATH`) that the fetching host resolves.
4. A change carries a copy of its repository's settings, so that a running plan never sees half of an edit.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from tenure.ci.globs import find_glob_problem, find_path_problem, matches_branch
from tenure.ci.job import JobFailureRule, JobLimits
from tenure.declared.pipeline_grammar import (
    HOST_PATTERN,
    HOST_SAYS,
    ID_PATTERN,
    ID_SAYS,
    LABEL_PATTERN,
    LABEL_SAYS,
    NAME_PATTERN,
    NAME_SAYS,
)
from tenure.errors import TenureError
from tenure.expressions.schema import (
    MISSING,
    Boolean,
    ByteSize,
    Duration,
    Integer,
    ListOf,
    MapOf,
    Record,
    SchemaField,
    Text,
)
from tenure.expressions.yaml_document import FileProblems, YamlPath, read_yaml, read_yaml_text
from tenure.limits import CI_JOBS_MAX, RETRIES_MAX
from tenure.secrets import REFERENCE_FORM, is_reference

CONFIG_PATH = ".tenure/ci.yaml"
PROTOCOLS = ("https", "ssh", "http", "file")
PHASES = ("checkout", "restore", "services", "commands", "upload")
REPOSITORIES_MAX = 1_000

Supersede = Literal["pull_requests", "refs", "never"]


class SecretGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who gets a secret."""

    branches: tuple[str, ...] | None = None
    """Globs of branches whose pushes get it. None: every trusted branch."""
    pull_requests: bool = False
    """Whether a pull request gets it after an approval."""


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    timeout_seconds: float = 300.0
    size_bytes: int = 10 << 30
    """The most that one fetch may bring."""
    credential: str = ""
    """A reference to a token for HTTPS."""
    user: str = "x-access-token"
    """The user name that is sent with the token."""


class JobBounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pipeline may ask for."""

    labels: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    """`HOST`, `*.DOMAIN` or `HOST:PORT`."""
    secrets: dict[str, SecretGrant] = {}
    caches: bool = True
    services: bool = False
    timeout_seconds: float = 3_600.0
    jobs: int = 1_000
    retries: int = 5
    limits: JobLimits = JobLimits()
    retention_seconds: int = 30 * 86_400


class RepositorySettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    url: str
    """A URL, or the absolute path of a folder if `file` is among the protocols."""
    tenant: str = "default"
    """Whose runs it starts."""
    github: str = ""
    """`OWNER/NAME` at GitHub."""
    default_branch: str = "main"
    trusted_branches: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ("https", "ssh")
    config: str = CONFIG_PATH
    planning_seconds: float = 120.0
    supersede: Supersede = "pull_requests"
    """Which runs a newer push cancels: those of the same pull request, of the same ref, or none."""
    fetch: FetchSettings = FetchSettings()
    allow: JobBounds = JobBounds()
    failure_rules: tuple[JobFailureRule, ...] = ()

    def trusts(self, event: str, ref: str) -> bool:
        """Whether a change is trusted: a push to a listed branch (law 2)."""
        branch = ref.removeprefix("refs/heads/")
        return event != "pull_request" and branch != ref and matches_branch(self.trusted_branches, branch)

    def grants_secret(self, name: str, branch: str, pull_request: bool) -> bool:
        """Whether a trusted push to a branch, or an approved pull request, gets a secret."""
        grant = self.allow.secrets.get(name)
        if grant is None:
            return False
        if pull_request:
            return grant.pull_requests
        return grant.branches is None or matches_branch(grant.branches, branch)


class CiSettings(msgspec.Struct, frozen=True, kw_only=True):
    repositories: dict[str, RepositorySettings]

    def find(self, name: str, tenant: str | None = None) -> RepositorySettings:
        """The settings of a repository by its name or by its name at GitHub, among those of a tenant or among all."""
        own = [one for one in self.repositories.values() if tenant in (None, one.tenant)]
        found = next((one for one in own if one.name == name), None) or next(
            (one for one in own if one.github and one.github.lower() == name.lower()), None
        )
        if found is None:
            raise TenureError("REPOSITORY_UNKNOWN", f"the CI settings have no repository {name!r}")
        return found


def local_settings(path: str, config: str = CONFIG_PATH) -> RepositorySettings:
    """Settings for a look at a local checkout: everything that a pipeline may ask for is allowed."""
    return RepositorySettings(name="local", url=path, protocols=("file",), config=config, allow=UNBOUNDED)


UNBOUNDED = JobBounds(
    labels=("*",),
    network=("*",),
    secrets={"*": SecretGrant()},
    services=True,
    timeout_seconds=7 * 86_400.0,
    jobs=CI_JOBS_MAX,
    retries=RETRIES_MAX,
    limits=JobLimits(memory_bytes=1 << 50, processes=100_000, disk_bytes=1 << 50, log_bytes=1 << 50),
    retention_seconds=366 * 86_400,
)
"""Bounds for local plans. A settings file cannot express them: `*` alone is not a label, host or name there."""

# ------------------------------------------------------------------------------------------- grammar

_branch_globs = ListOf(item=Text(what="a branch", most=200), most=100, what="a list of branches")
_limits = Record(
    what="limits",
    doc="The most of each that a job may use; the default of a job that says nothing is the smaller of this and 4GiB memory, 512"
    " processes, 10GiB disk, 1GiB log.",
    fields=(
        SchemaField(name="memory", shape=ByteSize()),
        SchemaField(name="processes", shape=Integer(least=1, most=100_000)),
        SchemaField(name="disk", shape=ByteSize()),
        SchemaField(name="log", shape=ByteSize()),
    ),
)
_allow = Record(
    what="allow",
    doc="What a pipeline may ask for. What is not listed is refused.",
    fields=(
        SchemaField(
            name="labels",
            shape=ListOf(
                item=Text(what="a label", pattern=LABEL_PATTERN, says=LABEL_SAYS, most=32), most=100
            ),
        ),
        SchemaField(
            name="network",
            shape=ListOf(item=Text(what="a host", pattern=HOST_PATTERN, says=HOST_SAYS, most=260), most=200),
        ),
        SchemaField(
            name="secrets",
            shape=MapOf(
                key=NAME_PATTERN,
                says=NAME_SAYS,
                value=Record(
                    what="a secret",
                    fields=(
                        SchemaField(name="branches", shape=_branch_globs),
                        SchemaField(
                            name="pull_requests",
                            shape=Boolean(doc="true: an approved pull request gets it. Default: false."),
                        ),
                    ),
                ),
                most=200,
                doc="Names of secrets, each with who gets it. Default: pushes to trusted branches.",
            ),
        ),
        SchemaField(name="caches", shape=Boolean(doc="Default: true.")),
        SchemaField(name="services", shape=Boolean(doc="Default: false.")),
        SchemaField(
            name="timeout", shape=Duration(doc="The longest timeout of a job, and its default. Default: 1h.")
        ),
        SchemaField(
            name="jobs",
            shape=Integer(least=1, most=CI_JOBS_MAX, doc="The most jobs of one plan. Default: 1000."),
        ),
        SchemaField(name="retries", shape=Integer(least=0, most=RETRIES_MAX, doc="Default: 5.")),
        SchemaField(name="limits", shape=_limits),
        SchemaField(
            name="retention",
            shape=Duration(doc="The longest retention of an artifact, and its default. Default: 30d."),
        ),
    ),
)
_rule = Record(
    what="a failure rule",
    fields=(
        SchemaField(
            name="code",
            shape=Text(
                what="a code",
                pattern=r"[A-Z][A-Z0-9_]{0,63}",
                says="capital letters, digits and _; at most 64",
            ),
            required=True,
        ),
        SchemaField(name="exit_codes", shape=ListOf(item=Integer(least=0, most=255), least=1, most=50)),
        SchemaField(
            name="signals",
            shape=ListOf(
                item=Text(what="a signal", pattern=r"SIG[A-Z0-9]{1,12}", says="a name such as SIGKILL"),
                least=1,
                most=20,
            ),
        ),
        SchemaField(name="output", shape=Text(what="a regular expression", most=500)),
        SchemaField(name="phase", shape=Text(what="a phase", choices=PHASES)),
    ),
    doc="The code of a failure that meets every condition that is set.",
)
REPOSITORY = Record(
    what="a repository",
    fields=(
        SchemaField(name="url", shape=Text(what="a URL", most=1_000)),
        SchemaField(name="path", shape=Text(what="an absolute path", most=1_000)),
        SchemaField(
            name="tenant", shape=Text(what="a tenant", doc="Whose runs it starts. Default: default.")
        ),
        SchemaField(
            name="github",
            shape=Text(
                what="a repository",
                pattern=r"[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}",
                says="OWNER/NAME",
                most=201,
            ),
        ),
        SchemaField(name="default_branch", shape=Text(what="a branch", doc="Default: main.")),
        SchemaField(name="trusted_branches", shape=_branch_globs),
        SchemaField(
            name="protocols",
            shape=ListOf(
                item=Text(what="a protocol", choices=PROTOCOLS),
                least=1,
                most=4,
                doc="Default: https and ssh.",
            ),
        ),
        SchemaField(name="config", shape=Text(what="a path", most=500, doc=f"Default: {CONFIG_PATH}.")),
        SchemaField(name="planning_timeout", shape=Duration(doc="For fetching and planning. Default: 2m.")),
        SchemaField(
            name="supersede",
            shape=Text(
                what="a policy",
                choices=("pull_requests", "refs", "never"),
                doc="Which unfinished runs a newer push cancels. Default: those of the same pull request.",
            ),
        ),
        SchemaField(
            name="fetch",
            shape=Record(
                what="fetch",
                fields=(
                    SchemaField(name="timeout", shape=Duration(doc="Default: 5m.")),
                    SchemaField(
                        name="size", shape=ByteSize(doc="The most that one fetch may bring. Default: 10GiB.")
                    ),
                    SchemaField(
                        name="credential",
                        shape=Text(
                            what="a reference", most=1_000, doc="A token for HTTPS: env:NAME or file:/PATH."
                        ),
                    ),
                    SchemaField(name="user", shape=Text(what="a user name", most=200)),
                ),
            ),
        ),
        SchemaField(name="allow", shape=_allow),
        SchemaField(name="failure_rules", shape=ListOf(item=_rule, most=100)),
    ),
)
SETTINGS = Record(
    what="CI settings",
    doc="The repositories that Tenure's CI serves.",
    fields=(
        SchemaField(
            name="repositories",
            shape=MapOf(key=ID_PATTERN, says=ID_SAYS, value=REPOSITORY, most=REPOSITORIES_MAX),
            required=True,
        ),
    ),
)


def settings_json_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tenure CI settings",
        **SETTINGS.described(),
    }


# ------------------------------------------------------------------------------------------- loading


def load_settings(text: str, source: str = "<text>") -> CiSettings:
    """Settings from the text of their file; CI_SETTINGS_INVALID names every problem with its line and column."""
    problems = FileProblems(source, "CI_SETTINGS_INVALID", "file with CI settings", "repositories")
    root = read_yaml(text, problems)
    data = SETTINGS.read(root, (), problems)
    if data is MISSING:
        raise problems.error()
    repositories: dict[str, RepositorySettings] = {}
    places: dict[str, str] = {}
    for name, values in data.get("repositories", {}).items():
        _check_repository(values, ("repositories", name), problems)
        github = values.get("github", "").lower()
        if github and places.setdefault(github, name) != name:
            problems.add(
                ("repositories", name, "github"), f"{github} is already the repository {places[github]!r}"
            )
        if "url" in values or "path" in values:
            repositories[name] = _build_repository(name, values)
    problems.raise_any()
    return CiSettings(repositories=repositories)


def load_settings_file(path: Path) -> CiSettings:
    return load_settings(read_yaml_text(path, "CI_SETTINGS_INVALID"), str(path))


def url_protocol(url: str) -> str:
    """The protocol that git uses for a URL; empty if we do not know one."""
    if url.startswith("/"):
        return "file"
    if re.fullmatch(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:(?!/)[^\s]+", url):  # git@host:path
        return "ssh"
    scheme = urlsplit(url).scheme.lower()
    return scheme if scheme in PROTOCOLS else ""


def find_url_problem(url: str, protocols: tuple[str, ...]) -> str:
    """Why a repository cannot be fetched from a URL; empty if it can."""
    if url.startswith("-") or not url.isprintable() or " " in url:
        return "must be a URL such as https://HOST/PATH.git, without blanks"
    protocol = url_protocol(url)
    if not protocol:
        return f"must be a URL with one of {', '.join(PROTOCOLS)}"
    if protocol not in protocols:
        return f"uses {protocol}; the protocols of this repository are {', '.join(protocols)}"
    if protocol in ("https", "http") and "@" in urlsplit(url).netloc:
        return "must not contain credentials: use fetch.credential, a reference"
    if protocol != "file" and "::" in url:
        return "must not contain '::', which would start a helper program"
    return ""


def _check_repository(values: dict[str, Any], at: YamlPath, problems: FileProblems) -> None:
    if ("url" in values) == ("path" in values):
        problems.add(at, "a repository needs either a url or a path")
    if "path" in values and not values["path"].startswith("/"):
        problems.add((*at, "path"), "must be absolute")
    protocols = tuple(values.get("protocols", ("https", "ssh")))
    if "url" in values and (problem := find_url_problem(values["url"], protocols)):
        problems.add((*at, "url"), problem)
    if "config" in values and (problem := find_path_problem(values["config"])):
        problems.add((*at, "config"), problem)
    for i, branch in enumerate(values.get("trusted_branches", ())):
        if problem := find_glob_problem(branch):
            problems.add((*at, "trusted_branches", i), problem)
    for name, grant in values.get("allow", {}).get("secrets", {}).items():
        for i, branch in enumerate(grant.get("branches", ())):
            if problem := find_glob_problem(branch):
                problems.add((*at, "allow", "secrets", name, "branches", i), problem)
    credential = values.get("fetch", {}).get("credential")
    if credential is not None and not is_reference(credential):
        problems.add((*at, "fetch", "credential"), REFERENCE_FORM)
    for i, rule in enumerate(values.get("failure_rules", ())):
        if "output" in rule:
            try:
                re.compile(rule["output"])
            except re.error as fault:
                problems.add((*at, "failure_rules", i, "output"), f"is not a regular expression: {fault}")


def _build_repository(name: str, values: dict[str, Any]) -> RepositorySettings:
    own_path = "path" in values
    fetch, allow = values.get("fetch", {}), values.get("allow", {})
    made = {
        "name": name,
        "url": values["path"] if own_path else values["url"],
        "planning_seconds": values.get("planning_timeout"),
        "protocols": ("file",) if own_path else values.get("protocols"),
        **{
            key: values.get(key)
            for key in (
                "tenant",
                "github",
                "default_branch",
                "trusted_branches",
                "config",
                "supersede",
                "failure_rules",
            )
        },
        "fetch": _given(
            timeout_seconds=fetch.get("timeout"),
            size_bytes=fetch.get("size"),
            credential=fetch.get("credential"),
            user=fetch.get("user"),
        ),
        "allow": _given(
            timeout_seconds=allow.get("timeout"),
            retention_seconds=None if "retention" not in allow else int(allow["retention"]),
            limits=job_limits(allow.get("limits", {})),
            **{
                key: allow.get(key)
                for key in ("labels", "network", "secrets", "caches", "services", "jobs", "retries")
            },
        ),
    }
    return msgspec.convert(_given(**made), RepositorySettings)


def job_limits(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of `JobLimits` from the words of a file."""
    return _given(
        memory_bytes=values.get("memory"),
        processes=values.get("processes"),
        disk_bytes=values.get("disk"),
        log_bytes=values.get("log"),
    )


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
