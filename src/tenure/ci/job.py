"""A job as the planner writes it and a runner executes it: the input of a step with the tool `ci.job`.

Laws:
1. A job is data. Every expression of the pipeline was evaluated before; a runner evaluates nothing.
2. A job names secrets and never holds their values. The values are at the runner.
3. Paths are relative to the workspace and never leave it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

JOB_TOOL = "ci.job"
"""The tool of a step whose input is a `CiJob`."""
PLAN_TOOL = "ci.plan"
"""The tool of a plan step whose input is a `ci.change.Change`."""


def queue_for(labels: Iterable[str]) -> str:
    """The queue of the jobs that need these labels."""
    return "ci" + "".join("+" + label for label in sorted(labels))


class JobCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One command of a job. Commands run one after another; the first that fails ends the job."""

    run: tuple[str, ...] | str
    """A list is a program and its arguments. A text is a script for `sh -e`."""
    name: str = ""
    cwd: str = ""


class JobCheckout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The commit that a job works on."""

    repository: str
    """The name of the repository in the settings."""
    url: str
    commit: str
    ref: str = ""
    paths: tuple[str, ...] | None = None
    """Globs of the files that the workspace holds. None: all of them."""


class JobCache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    paths: tuple[str, ...]
    fallback: tuple[str, ...] = ()
    """Prefixes of keys; the newest cache whose key begins with one is restored if `key` itself is missing."""


class JobArtifact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    paths: tuple[str, ...]
    retention_seconds: int | None = None
    always: bool = False
    """Upload it after a failure, too."""


class JobDownload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An artifact of a job before this one, put into the workspace."""

    job: str
    artifact: str
    to: str = "."


class JobService(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program that runs in the sandbox beside the commands."""

    name: str
    run: tuple[str, ...] | str
    ready: tuple[str, ...] | str | None = None
    """A command that succeeds as soon as the service can be used."""
    ready_seconds: float = 30.0


class JobLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    memory_bytes: int = 4 << 30
    processes: int = 512
    disk_bytes: int = 10 << 30
    log_bytes: int = 1 << 30


class JobReuse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What decides whether an earlier result serves: the digest of everything that is known when the plan is made. The
    digests of the outputs of the jobs before it and of the restored caches are added when the job's turn comes."""

    digest: str
    scope: str
    """Where the result may serve: `trusted:REPOSITORY`, `pull:REPOSITORY:NUMBER` or `ref:REPOSITORY:REF`. A job finds results of
    its own scope and of `trusted:REPOSITORY`."""


class CiJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    checkout: JobCheckout
    commands: tuple[JobCommand, ...]
    env: dict[str, str] = {}
    labels: tuple[str, ...] = ()
    """What the runner must have."""
    services: tuple[JobService, ...] = ()
    network: tuple[str, ...] = ()
    """`HOST` or `HOST:PORT`. Empty: no network."""
    secrets: tuple[str, ...] = ()
    """Names of secrets, which become environment variables of that name."""
    trusted: bool = False
    """Whether the ref is one that the settings trust with secrets."""
    scope: str = ""
    """Where its caches, results and test histories may serve: `trusted:REPOSITORY`, `pull:REPOSITORY:NUMBER` or `ref:REPOSITORY:REF`."""
    caches: tuple[JobCache, ...] = ()
    artifacts: tuple[JobArtifact, ...] = ()
    downloads: tuple[JobDownload, ...] = ()
    reports: tuple[str, ...] = ()
    """Globs of JUnit XML files."""
    toolchain: dict[str, str] = {}
    """Names and versions of the tools that the job relies on. They are part of its digest."""
    limits: JobLimits = JobLimits()
    reuse: JobReuse | None = None
    failure_rules: tuple[JobFailureRule, ...] = ()
    """The repository's own rules, tried before the built-in ones."""
    why: str = ""
    """Why the plan has this job, for people."""


class JobFailureRule(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The code of a failure that matches every condition that is set."""

    code: str
    exit_codes: tuple[int, ...] = ()
    signals: tuple[str, ...] = ()
    output: str = ""
    """A regular expression over the end of the output."""
    phase: Literal["", "checkout", "restore", "services", "commands", "upload"] = ""
