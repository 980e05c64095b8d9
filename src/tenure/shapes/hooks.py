"""What hooks and their deliveries look like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

HookKind = Literal["github", "slack", "generic", "servicenow"]


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """An address where another system reports events, and the rules for them."""

    id: str
    kind: str
    name: str
    address: str
    """The path that deliveries are sent to. Clicks in Slack go to `.../actions` instead of `.../commands`."""
    workspace: str
    secrets: list[str]
    """References, never values."""
    rules: list[HookRule]
    owner: str
    settings: HookSettings
    disabled: bool
    revision: int
    unconfirmed: list[str]
    """Who has created or changed it since a second person confirmed it. They are involved in its runs and signals."""
    created_at: datetime
    updated_at: datetime


class DeliveryListItem(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery in a list."""

    id: str
    key: str
    """The idempotency key of its run."""
    event: str
    received_at: datetime
    status: str
    """received, done, ignored, duplicate, failed or set_aside (tried too often; a replay tries again)."""
    run_id: str | None
    note: str
    """The reason for the status, or for a postponement."""
    replays: int
    tries: int
    """How often processing has begun."""


class Delivery(DeliveryListItem, frozen=True, kw_only=True):
    """A delivery with its headers and body."""

    headers: dict[str, str]
    body: Any


class DeliveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a delivery."""

    delivery: str = ""
    """Its id. Empty if only another request, in process under the same key, knows it."""
    status: str
    """received (being processed), done, ignored (no rule matches), duplicate, failed or set_aside (tried too often)."""
    run_id: str | None = None
    duplicate: bool = False
    """Whether it was received before. The status is that of the first delivery."""
    note: str = ""


class HookTrigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of the run's trigger, as templates. For GitHub the event provides missing fields."""

    ref: str | None = None
    repo: str | None = None
    pr_id: str | None = None
    pr_url: str | None = None
    commit: str | None = None
    correlation_id: str | None = None


class HookRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start a run of `workflow`, deliver `signal` to the run that `run` names, or start a CI run."""

    when: str = "true"
    workflow: str | None = None
    version: str | None = None
    input: dict[str, Any] = {}
    labels: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    priority: int = 0
    concurrency_key: str | None = None
    supersede: bool = False
    """A newer run with the same key cancels the older one, instead of waiting for it."""
    workspace: str | None = None
    profile: str | None = None
    trigger: HookTrigger = HookTrigger()
    signal: str | None = None
    run: str | None = None
    """An expression for the id of the run that gets the signal."""
    ci: bool = False
    """GitHub: start a CI run for the pushed commits or the pull request. The server's CI settings have the repository."""
    data: Any = None
    """The data of the signal, as a template. Default: the body."""


class HookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of a hook."""

    same_pr_within_5s: bool = False
    """GitHub: two deliveries for the same pull request and type of event within 5 seconds are duplicates, even if their actions or
    commits differ."""
    known_authors_only: bool = False
    """GitHub: a run cannot be approved if its author, pusher or sender has a login that belongs to no person."""
    reports: bool = False
    """GitHub: report the states of its runs as checks of their commit, and obey Re-run and Cancel of these checks."""
    linked_only: bool = False
    """Slack: only people who have linked their account may send commands."""
    channel: str | None = None
    """Slack: the id of the channel that shows open approvals as cards, such as C0123456789. Needs `token`."""
    token: str | None = None
    """Slack: the reference of the app's bot token (`chat:write`, and `channels:history` to find cards that may have been posted)."""
    secret_header: str | None = None
    """ServiceNow: the header that has the shared secret. Without it, `Authorization` has basic credentials, and the secret is
    `user:password`."""
    event_id: tuple[str, ...] = ()
    """ServiceNow: where the id of an event is, `header:NAME` or `body:FIELD` (`body:record.sys_id`); several are joined. An event with the
    same id counts once."""
