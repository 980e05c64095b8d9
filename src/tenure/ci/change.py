"""A change: the input of a plan step.

Laws:
1. The server fills in everything that decides about trust (settings, event, fork, trusted, approved). Nothing of it comes from the commit.
2. Changes are built by the functions here, so that trust is decided in one place: a push to a branch that the settings trust, or a manual
   change of such a branch. A pull request is never trusted; it may be approved.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenure.ci.settings import RepositorySettings

ChangeEvent = Literal["push", "pull_request", "manual"]
NO_COMMIT = "0" * 40
"""What git hosts send as the commit before a new branch, and after a deleted one."""


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    repository: RepositorySettings
    event: ChangeEvent
    ref: str
    """The full ref that has the head: `refs/heads/main`, `refs/tags/v1`, `refs/pull/7/head`."""
    head: str = ""
    """The commit to plan. Empty: the commit that `ref` has when it is fetched."""
    base: str = ""
    """The commit to compare with. Empty or zeros: the place where the ref left the default branch."""
    base_ref: str = ""
    """The branch that a pull request wants to change, as a full ref."""
    pull_request: int | None = None
    fork: bool = False
    """Whether a pull request comes from another repository."""
    author: str = ""
    trusted: bool = False
    """A push to a branch that the settings trust (`RepositorySettings.trusts`)."""
    approved: bool = False
    """Somebody approved this head and this pipeline for secrets."""

    @property
    def branch(self) -> str:
        return self.ref.removeprefix("refs/heads/") if self.ref.startswith("refs/heads/") else ""

    @property
    def tag(self) -> str:
        return self.ref.removeprefix("refs/tags/") if self.ref.startswith("refs/tags/") else ""

    @property
    def scope(self) -> str:
        """Where results and caches of this change may serve."""
        name = self.repository.name
        if self.trusted:
            return f"trusted:{name}"
        if self.pull_request is not None:
            return f"pull:{name}:{self.pull_request}"
        return f"ref:{name}:{self.ref}"

    @property
    def supersede_key(self) -> str:
        """Unfinished runs with the same key are canceled by a run of a newer change. Empty: none is."""
        name, policy = self.repository.name, self.repository.supersede
        if policy == "never" or (policy == "pull_requests" and self.pull_request is None):
            return ""
        return f"{name}:{self.ref}"

    def facts(self, files: list[str]) -> dict[str, Any]:
        """What expressions see as `change`."""
        return {
            "event": self.event,
            "ref": self.ref,
            "branch": self.branch,
            "tag": self.tag,
            "base_branch": self.base_ref.removeprefix("refs/heads/"),
            "pull_request": self.pull_request,
            "fork": self.fork,
            "author": self.author,
            "trusted": self.trusted,
            "repository": self.repository.name,
            "files": files,
        }


CHANGE_FACTS = (
    "event",
    "ref",
    "branch",
    "tag",
    "base_branch",
    "pull_request",
    "fork",
    "author",
    "trusted",
    "repository",
    "files",
)


def build_push_change(
    settings: RepositorySettings, *, ref: str, before: str, head: str, author: str = ""
) -> Change | None:
    """The change of a push; None if the push deleted the ref."""
    if head == NO_COMMIT:
        return None
    return Change(
        repository=settings,
        event="push",
        ref=ref,
        base="" if before == NO_COMMIT else before,
        head=head,
        author=author,
        trusted=settings.trusts("push", ref),
    )


def build_pull_request_change(
    settings: RepositorySettings,
    *,
    number: int,
    head: str,
    base: str,
    base_branch: str,
    fork: bool,
    author: str = "",
    approved: bool = False,
) -> Change:
    """The change of a pull request. `base` is the commit of its base branch."""
    return Change(
        repository=settings,
        event="pull_request",
        ref=f"refs/pull/{number}/head",
        base=base,
        head=head,
        base_ref=f"refs/heads/{base_branch}",
        pull_request=number,
        fork=fork,
        author=author,
        approved=approved,
    )


def build_manual_change(
    settings: RepositorySettings, *, ref: str, head: str = "", base: str = "", author: str = ""
) -> Change:
    """A change that a person asked for. Without a head, it is the commit that the ref has; a head must be part of the ref."""
    full = ref if ref.startswith("refs/") else f"refs/heads/{ref}"
    return Change(
        repository=settings,
        event="manual",
        ref=full,
        head=head,
        base=base,
        author=author,
        trusted=settings.trusts("manual", full),
    )
