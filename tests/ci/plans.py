"""Requests to the planner, in short."""

from typing import Any

import msgspec

from tenure.ci.change import Change
from tenure.ci.job import CiJob
from tenure.ci.planner import CommitFile, PlannedChange, PlanRequest, plan_change
from tenure.ci.settings import RepositorySettings, local_settings

CONFIG = ".tenure/ci.yaml"


def request(
    config: str,
    changed: list[str] | None = None,
    files: dict[str, str] | None = None,
    *,
    settings: RepositorySettings | None = None,
    base_config: str | None = None,
    **change: Any,
) -> PlanRequest:
    """A request. `files` maps each path of the commit to the id of its content."""
    facts: dict[str, Any] = {"event": "push", "ref": "refs/heads/main", **change}
    return PlanRequest(
        change=Change(repository=settings or local_settings("/repository"), **facts),
        head="a" * 40,
        base="" if changed is None else "b" * 40,
        config=config,
        base_config=base_config,
        changed=None if changed is None else tuple(changed),
        files=tuple(CommitFile(path, "100644", blob) for path, blob in (files or {}).items()),
    )


def plan(
    config: str, changed: list[str] | None = None, files: dict[str, str] | None = None, **rest: Any
) -> PlannedChange:
    made = plan_change(request(config, changed, files, **rest))
    assert isinstance(made, PlannedChange)
    return made


def included(planned: PlannedChange) -> list[str]:
    return [step.name for step in planned.steps]


def reasons(planned: PlannedChange) -> dict[str, tuple[str, ...]]:
    return {job.name: job.reasons for job in planned.jobs}


def jobs(planned: PlannedChange) -> dict[str, CiJob]:
    return {step.name: msgspec.json.decode(step.input or b"", type=CiJob) for step in planned.steps}
