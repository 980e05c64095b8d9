"""The bounds of a repository: what a pipeline may ask for.

Law: a job that asks for more than the settings allow is a problem of the pipeline, with its line and column. Nothing is cut down silently, with
one exception: a secret that this ref does not get is withheld, so that a pull request can run the jobs of its repository without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenure.ci.job import JobLimits
from tenure.ci.pipeline import PipelineJob
from tenure.ci.settings import JobBounds
from tenure.expressions import templates
from tenure.expressions.yaml_document import FileProblems, YamlPath

DEFAULT_LIMITS = JobLimits()
_LIMIT_WORDS = {"memory_bytes": "memory", "processes": "processes", "disk_bytes": "disk", "log_bytes": "log"}
WEB_PORTS = ("80", "443")
"""The ports of a host that is allowed without a port."""


def check_bounds(job: PipelineJob, bounds: JobBounds, problems: FileProblems) -> None:
    """Add a problem for everything that a job asks for and does not get."""
    for at, problem in find_bound_problems(job, bounds):
        problems.add(("jobs", job.id, *at), problem)


def find_bound_problems(job: PipelineJob, bounds: JobBounds) -> Iterator[tuple[YamlPath, str]]:
    for i, label in enumerate(job.labels):
        if templates.OPEN not in label:
            yield from (((("labels", i)), problem) for problem in find_label_problems(label, bounds))
    for i, host in enumerate(job.network):
        if not any(covers_host(allowed, host) for allowed in bounds.network):
            yield ("network", i), f"host {host!r} is not allowed by the settings of the repository"
    for i, name in enumerate(job.secrets):
        if name not in bounds.secrets and "*" not in bounds.secrets:
            yield ("secrets", i), f"secret {name!r} is not in the settings of the repository"
    if job.caches and not bounds.caches:
        yield ("caches",), "the settings of the repository allow no caches"
    if job.services and not bounds.services:
        yield ("services",), "the settings of the repository allow no services"
    if job.timeout_seconds is not None and job.timeout_seconds > bounds.timeout_seconds:
        yield (
            ("timeout",),
            f"{job.timeout_seconds:g} seconds are longer than the {bounds.timeout_seconds:g} that the settings of the repository allow",
        )
    if job.retry.max is not None and job.retry.max > bounds.retries:
        yield ("retry", "max"), f"the settings of the repository allow at most {bounds.retries} retries"
    for field, size in job.limits.items():
        most = getattr(bounds.limits, field)
        if size > most:
            yield (
                ("limits", _LIMIT_WORDS[field]),
                f"{size} is above the {most} that the settings of the repository allow",
            )
    for i, artifact in enumerate(job.artifacts):
        if artifact.retention_seconds is not None and artifact.retention_seconds > bounds.retention_seconds:
            yield (
                ("artifacts", i, "retention"),
                f"the settings of the repository keep artifacts for at most {bounds.retention_seconds} seconds",
            )


def find_label_problems(label: str, bounds: JobBounds) -> Iterator[str]:
    if label not in bounds.labels and "*" not in bounds.labels:
        allowed = f": it allows {', '.join(bounds.labels)}" if bounds.labels else ""
        yield f"label {label!r} is not allowed by the settings of the repository{allowed}"


def covers_host(allowed: str, asked: str) -> bool:
    """Whether a host of the settings covers one of a job. A host without a port has the ports of the web."""
    if allowed == "*":
        return True
    allowed_name, _, allowed_port = allowed.lower().partition(":")
    name, _, port = asked.lower().partition(":")
    if allowed_port != port and (allowed_port or port not in WEB_PORTS):
        return False
    if allowed_name.startswith("*."):
        return name.removeprefix("*").endswith(allowed_name[1:])
    return name == allowed_name


def choose_limits(asked: dict[str, int], bounds: JobBounds) -> JobLimits:
    """The limits of a job: what it asks for, or the smaller of the default and the bound."""
    chosen: dict[str, Any] = {
        field: asked.get(field, min(getattr(DEFAULT_LIMITS, field), getattr(bounds.limits, field)))
        for field in _LIMIT_WORDS
    }
    return JobLimits(**chosen)
