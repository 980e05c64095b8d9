"""What hooks and their deliveries look like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook as it is shown."""

    id: str
    kind: str
    name: str
    address: str
    """Where its deliveries are sent; Slack's clicks go to `.../actions` instead of `.../commands`."""
    workspace: str
    secrets: list[str]
    """References."""
    rules: list[HookRule]
    owner: str
    settings: HookSettings
    disabled: bool
    revision: int
    unconfirmed: list[str]
    """Who has made or changed it since a second person confirmed it: they stand behind its runs and signals."""
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
    """received, done, ignored, duplicate, failed or set_aside (tried too often: replay it)."""
    run_id: str | None
    note: str
    """Why it is so, or was put off."""
    replays: int
    tries: int
    """How often it was begun to be carried out."""


class Delivery(DeliveryListItem, frozen=True, kw_only=True):
    """A delivery with what it said."""

    headers: dict[str, str]
    body: Any


class HookTrigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the run's trigger says, as templates; for GitHub what is left out is taken from the event."""

    ref: str | None = None
    repo: str | None = None
    pr_id: str | None = None
    pr_url: str | None = None
    commit: str | None = None
    correlation_id: str | None = None


class HookRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start a run of `workflow`, or deliver `signal` to the run that `run` names."""

    when: str = "true"
    workflow: str | None = None
    version: str | None = None
    input: dict[str, Any] = {}
    labels: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    priority: int = 0
    concurrency_key: str | None = None
    supersede: bool = False
    """Whether a newer run with the same key ends the older one; else it waits for it."""
    workspace: str | None = None
    profile: str | None = None
    trigger: HookTrigger = HookTrigger()
    signal: str | None = None
    run: str | None = None
    """An expression: the id of the run that gets the signal."""
    data: Any = None
    """What the signal says, as a template; nothing: the body."""


class HookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a hook differs from others."""

    same_pr_within_5s: bool = False
    """GitHub: any two deliveries for one pull request and one type of event within 5 seconds are one, whatever their
    action and commit; else these count too."""
    known_authors_only: bool = False
    """GitHub: nobody approves a run that an author, a pusher or a sender has caused whose login no person has."""
    linked_only: bool = False
    """Slack: commands are taken only from people who have linked their account."""
    channel: str | None = None
    """Slack: the id of the channel in which open approvals are shown as cards, like C0123456789; with `token`."""
    token: str | None = None
    """Slack: the reference of the app's bot token (`chat:write`, and `channels:history` to look for what may have been posted)."""
