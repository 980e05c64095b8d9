"""Requests for CI runs."""

from __future__ import annotations

import msgspec


class CiTrigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to run CI for."""

    repository: str
    """Its name in the CI settings, or its name at GitHub."""
    ref: str = ""
    """A branch, or a full ref such as refs/tags/v1. Empty: the default branch."""
    head: str = ""
    """The commit. Empty: the newest of the ref."""
    base: str = ""
    """The commit to compare with. Empty: where the ref left the default branch."""


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a pipeline, and why it is in a plan or not."""

    name: str
    included: bool
    reasons: list[str]
    needs: list[str]
    """The jobs of the pipeline that it needs."""


class PlanExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """How the plan of a CI run was made."""

    base: str | None
    """The commit that the head was compared with. None: there was none, and everything was planned."""
    head: str
    jobs: list[PlannedJob]
    jobs_left_out: int
    """Jobs beyond those that are listed."""
    withheld_secrets: list[str]
    """Secrets that jobs ask for, and that this change does not get."""
