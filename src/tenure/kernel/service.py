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

import msgspec

from tenure.kernel.model import Row

# ------------------------------------------------------------------------------------------------ who


class Tenant(Row, gc=False):
    """Whose runs they are."""

    table: ClassVar[str] = "tenant"
    key: ClassVar[tuple[str, ...]] = ("id",)

    id: str
    name: str
    settings: str
    """What this tenant has otherwise than the installation, as a JSON object."""
    created_at: int
    closed_at: int | None = None


class Client(Row, gc=False):
    """A program that asks: it owns idempotency keys, and its API keys rotate beneath it."""

    table: ClassVar[str] = "client"
    key: ClassVar[tuple[str, ...]] = ("tenant", "id")

    tenant: str
    id: str
    name: str
    roles: str
    """As a sorted JSON list."""
    owner: str | None
    """The person who answers for it."""
    created_at: int
    closed_at: int | None = None
    revision: int = 1
    """Grows with every change, so that what is confirmed is what was looked at."""
    unconfirmed: str = ""
    """Who has made or changed it since a second person confirmed it, as `id id`."""


class Person(Row, gc=False):
    """Somebody who asks and decides."""

    table: ClassVar[str] = "person"
    key: ClassVar[tuple[str, ...]] = ("tenant", "id")

    tenant: str
    id: str
    name: str
    roles: str
    """As a sorted JSON list."""
    groups: str
    """Likewise: whose approvals this person can give."""
    slack: str | None
    """`team/user`, linked by that person while signed in."""
    enrol_hash: bytes | None
    """Of the one-time code by which this person gets a first key."""
    enrol_until: int | None
    created_at: int
    closed_at: int | None = None
    github: str | None = None
    """The login at GitHub, in lower case: who it is that opened a pull request, or pushed."""
    revision: int = 1
    """As of a client."""
    unconfirmed: str = ""
    """Who has made, enrolled or promoted this person since a second administrator confirmed it, as `id id`: they count as one."""
    enrol_by: str = ""
    """Who has made the enrolment code, likewise: they have enrolled this person when it is used."""


class UnconfirmedPerson(msgspec.Struct, gc=False):
    """A person who counts as one with others."""

    id: str
    unconfirmed: str


class ApiKey(Row, gc=False):
    """A credential `tn_<id>_<secret>` of a client, a person or (with the tenant '') the installation's operator."""

    table: ClassVar[str] = "api_key"
    key: ClassVar[tuple[str, ...]] = ("id",)

    id: str
    tenant: str
    owner_kind: str
    """client, person or operator."""
    owner_id: str
    name: str
    hash: bytes
    """SHA-256 of the secret."""
    roles: str | None
    """Fewer roles than its owner has, as a JSON list; None: all of them."""
    created_by: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None = None
    used_at: int | None = None
    """The hour in which it was last used."""
    replaced_until: int | None = None
    """Of one that was rotated: how long it still works."""
    unconfirmed: str = ""
    """Who has made it, as `id id`, until a second person confirms it."""


class Session(Row, gc=False):
    """A browser's session: a cookie instead of the key."""

    table: ClassVar[str] = "session"
    key: ClassVar[tuple[str, ...]] = ("hash",)

    hash: bytes
    key_id: str
    tenant: str
    created_at: int
    expires_at: int


class SlackCode(Row, gc=False):
    """What proves that somebody has a Slack account: `/tenure link` hands it out there, and it is given once here."""

    table: ClassVar[str] = "slack_code"
    key: ClassVar[tuple[str, ...]] = ("hash",)

    hash: bytes
    tenant: str
    slack: str
    """`team/user`."""
    expires_at: int


class AccountLink(Row, gc=False):
    """That an account elsewhere is, or once was, a person's: it outlives the link, so that unlinking hides nobody."""

    table: ClassVar[str] = "account_link"
    key: ClassVar[tuple[str, ...]] = ("tenant", "account", "person")

    tenant: str
    account: str
    """`slack:TEAM/USER` or `github:LOGIN`, the login in lower case."""
    person: str
    linked_at: int
    """The last time."""


class SlackApp(Row, gc=False):
    """A Slack app that the installation's operator has registered for a tenant: through it people link accounts and decide."""

    table: ClassVar[str] = "slack_app"
    key: ClassVar[tuple[str, ...]] = ("tenant", "team")

    tenant: str
    team: str
    """Slack's id of the workspace it is installed in."""
    secrets: str
    """References of its signing secret, newest first, as a JSON list of one or two."""
    registered_by: str
    registered_at: int


class AdminEvent(Row, gc=False):
    """A change of who may do what, in a chain per tenant ('' for the installation's own)."""

    table: ClassVar[str] = "admin_event"
    key: ClassVar[tuple[str, ...]] = ("tenant", "seq")

    tenant: str
    seq: int
    kind: str
    at: int
    actor: str
    body: bytes
    """The exact bytes that were hashed: a JSON object without secrets and without names."""
    hash: bytes


# ------------------------------------------------------------------------------------------- what comes in


class Hook(Row, gc=False):
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


class Delivery(Row, gc=False):
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


class Feed(Row, gc=False):
    """What one commit has to tell the world. Positions become visible in their order."""

    table: ClassVar[str] = "feed"
    key: ClassVar[tuple[str, ...]] = ("pos",)

    pos: int
    at: int
    body: bytes
    """See `tenure.kernel.feed`."""


class Subscription(Row, gc=False):
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


class Notice(Row, gc=False):
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


class RemoteLease(Row, gc=False):
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


class Artifact(Row, gc=False):
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


SERVICE: dict[str, type[Row]] = {
    row.table: row
    for row in (
        Tenant,
        Client,
        Person,
        ApiKey,
        Session,
        SlackCode,
        AccountLink,
        SlackApp,
        AdminEvent,
        Hook,
        Delivery,
        Feed,
        Subscription,
        Notice,
        RemoteLease,
        Artifact,
    )
}
