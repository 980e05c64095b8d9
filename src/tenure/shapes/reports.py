"""Where a run is reported, and what its report looks like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

REPOSITORY = r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}"
SHA = r"[0-9a-f]{40}"


class VcsTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The commit whose checks show a run. The server sets it when the run is created; no request contains it.

    The installation, the address of the API and the links come from the server's settings, so that they can change during a run.
    """

    provider: Literal["github"] = "github"
    repository: Annotated[str, msgspec.Meta(pattern=f"^{REPOSITORY}$")]
    """owner/name."""
    head_sha: Annotated[str, msgspec.Meta(pattern=f"^{SHA}$")]
    pull_request: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __str__(self) -> str:
        return f"{self.provider}:{self.repository}@{self.head_sha[:12]}"

    @property
    def commit_subject(self) -> str:
        """What the subjects of all reports of the commit begin with."""
        return f"{self.provider}:{self.repository.lower()}@{self.head_sha}:"


class CheckAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """A remark about a line of a file, shown with a check. A step returns them as `annotations` in its output."""

    path: str
    """Relative to the repository."""
    line: int
    end_line: int | None = None
    level: Literal["notice", "warning", "failure"] = "failure"
    title: str = ""
    message: str


class VcsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a run to the VCS."""

    run_id: str
    workflow: str
    repository: str
    head_sha: str
    pull_request: int | None
    state: str
    """open, reported (the VCS has accepted the final state) or refused (it refuses for good; a person can retry)."""
    tries: int
    """Failed tries since the last success."""
    error: str | None
    next_try_at: datetime | None
    updated_at: datetime
