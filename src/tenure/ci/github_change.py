"""The change that an event of GitHub is about.

Laws:
1. Pure. The event's signature was verified before.
2. What the event says about refs and commits is used to fetch; whom to trust is decided by the settings alone (`ci.change`).
3. A pull request whose source is another repository, or is gone, comes from a fork.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.ci.change import Change, build_pull_request_change, build_push_change
from tenure.ci.git_commands import COMMIT, check_ref
from tenure.ci.settings import RepositorySettings
from tenure.errors import TenureError

PULL_REQUEST_ACTIONS = frozenset({"opened", "synchronize", "reopened"})
"""What changes the commits of a pull request, or makes them interesting again."""


class _Repository(msgspec.Struct, frozen=True):
    full_name: str


class _Account(msgspec.Struct, frozen=True):
    login: str = ""


class _Source(msgspec.Struct, frozen=True):
    sha: str
    ref: str
    repo: _Repository | None = None


class _PullRequest(msgspec.Struct, frozen=True):
    number: int
    head: _Source
    base: _Source
    user: _Account = _Account()


class _PullRequestEvent(msgspec.Struct, frozen=True):
    action: str
    pull_request: _PullRequest
    repository: _Repository


class _PushEvent(msgspec.Struct, frozen=True):
    ref: str
    before: str
    after: str
    repository: _Repository
    sender: _Account = _Account()


def read_repository_name(body: Any) -> str:
    """The repository that an event is about."""
    repository = body.get("repository") if isinstance(body, dict) else None
    name = repository.get("full_name") if isinstance(repository, dict) else None
    if not isinstance(name, str):
        raise TenureError("REQUEST_MALFORMED", "the event names no repository")
    return name


def read_github_change(settings: RepositorySettings, event: str, body: Any) -> Change | None:
    """The change to plan; None if the event needs no run."""
    try:
        if event == "push":
            return _read_push(settings, msgspec.convert(body, _PushEvent))
        if event == "pull_request":
            return _read_pull_request(settings, msgspec.convert(body, _PullRequestEvent))
    except msgspec.ValidationError as fault:
        raise TenureError(
            "REQUEST_MALFORMED", f"the {event} event is not as GitHub sends it: {fault}"
        ) from fault
    return None


def _read_push(settings: RepositorySettings, event: _PushEvent) -> Change | None:
    return build_push_change(
        settings,
        ref=check_ref(event.ref),
        before=_check_commit(event.before),
        head=_check_commit(event.after),
        author=event.sender.login,
    )


def _read_pull_request(settings: RepositorySettings, event: _PullRequestEvent) -> Change | None:
    if event.action not in PULL_REQUEST_ACTIONS:
        return None
    asked = event.pull_request
    source = asked.head.repo
    check_ref(f"refs/heads/{asked.base.ref}")
    return build_pull_request_change(
        settings,
        number=asked.number,
        head=_check_commit(asked.head.sha),
        base="",  # the event's may be older than the branch
        base_branch=asked.base.ref,
        fork=source is None or source.full_name.lower() != event.repository.full_name.lower(),
        author=asked.user.login,
    )


def _check_commit(text: str) -> str:
    if not COMMIT.fullmatch(text):
        raise TenureError("REQUEST_MALFORMED", f"{text[:80]!r} is not the id of a commit")
    return text
