"""The rows of the service: who may ask (tenants, clients, people, keys), what comes in (hooks and their deliveries), what
goes out (the feed, subscriptions and notices), and what remote runners hold.

Laws:
1. As in `kernel.beside`: none of them is a run's state, a row's fields are its table's columns in order, and times are
   whole microseconds by the store's clock.
2. No secret is in any of them. Of what we make (keys, enrolment codes, sessions, lease tokens) they keep a SHA-256; of
   what others give us (hook secrets) the reference it is read by (`env:NAME`, `file:PATH`).
3. People and clients are known by opaque ids everywhere else; only here they have names.
"""

from __future__ import annotations

from typing import ClassVar

from tenure.kernel.identity_rows import (
    AccountLinkRow,
    AdminEventRow,
    ApiKeyRow,
    ClientRow,
    PersonRow,
    SessionRow,
    SlackAppRow,
    SlackCodeRow,
    TenantRow,
)
from tenure.kernel.run_rows import Row

# ------------------------------------------------------------------------------------------------ who


# ------------------------------------------------------------------------------------------- what comes in


class HookRow(Row, gc=False):
    """A place where others tell us of something. Its id is unguessable and names the tenant."""

    table: ClassVar[str] = "hook"
    key: ClassVar[tuple[str, ...]] = ("id",)

    id: str
    tenant: str
    workspace: str
    kind: str
    """github, slack or generic."""
    name: str
    secrets: str
    """References, newest first, as a JSON list of one or two."""
    rules: str
    """What becomes of a delivery, as a JSON list."""
    owner: str
    """Who asks for the runs it starts."""
    settings: str
    created_at: int
    updated_at: int
    revision: int = 1
    disabled: bool = False
    unconfirmed: str = ""
    """Who has made or changed it since a second person confirmed it, as `id id`."""


class DeliveryRow(Row, gc=False):
    """Something a hook was told."""

    table: ClassVar[str] = "delivery"
    key: ClassVar[tuple[str, ...]] = ("hook_id", "id")

    hook_id: str
    id: str
    """The sender's: GitHub's delivery id, the webhook-id, a CloudEvent's source and id, Slack's trigger."""
    tenant: str
    name: str
    """The idempotency key it has."""
    event: str
    digest: bytes
    """SHA-256 of the raw bytes."""
    fingerprint: str | None
    """What makes two deliveries the same within seconds."""
    headers: str
    body: bytes
    received_at: int
    status: str = "received"
    """received, done, ignored (no rule fits), duplicate, failed, set_aside (tried too often; only a replay begins it again)."""
    run_id: int | None = None
    note: str = ""
    replays: int = 0
    tries: int = 1
    """How often it was begun to be carried out: counted before, so that a try that ended its process counts."""
    replayed_by: str = ""
    """Of a replay: who wanted it, as `id id`."""


# ------------------------------------------------------------------------------------------ what goes out


class FeedRow(Row, gc=False):
    """What one commit has to tell the world. Positions become visible in their order."""

    table: ClassVar[str] = "feed"
    key: ClassVar[tuple[str, ...]] = ("pos",)

    pos: int
    at: int
    body: bytes
    """See `tenure.kernel.feed`."""


class SubscriptionRow(Row, gc=False):
    """Somebody who is told by webhooks."""

    table: ClassVar[str] = "subscription"
    key: ClassVar[tuple[str, ...]] = ("tenant", "id")

    tenant: str
    id: str
    url: str
    secret: str
    """A reference."""
    types: str
    """Which events, as a JSON list; an empty one: all."""
    workflow: str | None
    owner: str
    pos: int
    """Up to where in the feed notices were made for it."""
    created_at: int
    updated_at: int
    revision: int = 1
    disabled: bool = False


class NoticeRow(Row, gc=False):
    """One thing to be told to one subscriber; deleted when it was."""

    table: ClassVar[str] = "notice"
    key: ClassVar[tuple[str, ...]] = ("tenant", "subscription", "pos", "part")

    tenant: str
    subscription: str
    pos: int
    part: int
    run_id: int
    type: str
    body: bytes
    created_at: int
    due_at: int | None
    """When it is tried (again); None: it is dead."""
    tries: int = 0
    error: str | None = None


# ------------------------------------------------------------------------------------------ remote runners


class RemoteLeaseRow(Row, gc=False):
    """A lease that a remote runner holds: which claim got it, and the hash of its token."""

    table: ClassVar[str] = "remote_lease"
    key: ClassVar[tuple[str, ...]] = ("run_id", "idx", "n")

    run_id: int
    idx: int
    n: int
    tenant: str
    claim: str
    """`<key id>/<claim id>`."""
    token_hash: bytes


class ArtifactRow(Row, gc=False):
    """A named file of an attempt; its bytes lie in the artifact store by their digest."""

    table: ClassVar[str] = "artifact"
    key: ClassVar[tuple[str, ...]] = ("run_id", "name", "idx", "n", "late")

    run_id: int
    name: str
    idx: int
    n: int
    """The attempt that uploaded it: its fence."""
    late: bool
    """Uploaded after its lease had ended."""
    tenant: str
    step: str
    worker: str
    """Who uploaded it."""
    size: int
    digest: str
    content_type: str
    at: int
    events: int
    """How many events the run had: a file in time is older than the event that ended its lease."""


SERVER_ROWS: dict[str, type[Row]] = {
    row.table: row
    for row in (
        TenantRow,
        ClientRow,
        PersonRow,
        ApiKeyRow,
        SessionRow,
        SlackCodeRow,
        AccountLinkRow,
        SlackAppRow,
        AdminEventRow,
        HookRow,
        DeliveryRow,
        FeedRow,
        SubscriptionRow,
        NoticeRow,
        RemoteLeaseRow,
        ArtifactRow,
    )
}
