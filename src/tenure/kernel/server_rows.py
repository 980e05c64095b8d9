"""The rows of the server: hooks and their deliveries, the feed, subscriptions and notices, leases and artifacts of remote
runners; `SERVER_ROWS` also has the rows of `identity_rows` and `ci_rows`.

Laws:
1. As in `kernel.registry_rows`: none of them is a run's state, and times are whole microseconds by the store's clock.
2. They hold no secrets. Of a secret that Tenure makes (keys, enrolment codes, sessions, lease tokens) they have the
   SHA-256; of a secret from outside (hook secrets) the reference to read it by (`env:NAME`, `file:PATH`).
3. Only these rows have the names of people and clients. Everything else refers to them by opaque ids.
"""

from __future__ import annotations

from tenure.kernel.ci_rows import CI_ROWS
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
from tenure.kernel.row import Row, RunPartRow, table

# ---------------------------------------------------------------------------------------------------- hooks


@table("hook", key=("id",))
class HookRow(Row):
    """An address that other services send deliveries to. Its id cannot be guessed, and determines the tenant."""

    id: str
    tenant: str
    workspace: str
    kind: str
    """github, slack, generic or servicenow."""
    name: str
    secrets: str
    """References to its secrets, newest first, as a JSON list of one or two."""
    rules: str
    """What a delivery does, as a JSON list."""
    owner: str
    """The requester of the runs that it starts."""
    settings: str
    created_at: int
    updated_at: int
    revision: int = 1
    disabled: bool = False
    unconfirmed: str = ""
    """Who has created or changed it since a second person confirmed it, as `id id`."""


@table("delivery", key=("hook_id", "id"))
class DeliveryRow(Row):
    """One delivery to a hook."""

    hook_id: str
    id: str
    """The sender's id: GitHub's delivery id, the webhook-id, a CloudEvent's source and id, Slack's trigger."""
    tenant: str
    name: str
    """Its idempotency key."""
    event: str
    digest: bytes
    """The SHA-256 of the raw bytes."""
    fingerprint: str | None
    """Deliveries with the same fingerprint within seconds are duplicates."""
    headers: str
    body: bytes
    received_at: int
    status: str = "received"
    """received, done, ignored (no rule matches), duplicate, failed, or set_aside (too many tries; only a replay tries again)."""
    run_id: int | None = None
    note: str = ""
    replays: int = 0
    tries: int = 1
    """How often it was processed. A try is counted before it begins, so one that crashes its process counts."""
    replayed_by: str = ""
    """For a replay: who asked for it, as `id id`."""


# ----------------------------------------------------------------------------------------- feed and webhooks


@table("feed", key=("pos",))
class FeedRow(Row):
    """The feed lines of one commit. Positions become visible in order."""

    pos: int
    at: int
    body: bytes
    """See `tenure.kernel.feed`."""


@table("subscription", key=("tenant", "id"))
class SubscriptionRow(Row):
    """A subscriber to webhooks."""

    tenant: str
    id: str
    url: str
    secret: str
    """The reference of the signing secret."""
    types: str
    """The event types, as a JSON list. Empty: all."""
    workflow: str | None
    owner: str
    pos: int
    """The last feed position for which it got notices."""
    created_at: int
    updated_at: int
    revision: int = 1
    disabled: bool = False


@table("notice", key=("tenant", "subscription", "pos", "part"))
class NoticeRow(Row):
    """One webhook that is due to one subscriber. It is deleted after delivery."""

    tenant: str
    subscription: str
    pos: int
    part: int
    run_id: int
    type: str
    body: bytes
    created_at: int
    due_at: int | None
    """When it is sent next. None: it is dead."""
    tries: int = 0
    error: str | None = None


# ---------------------------------------------------------------------------------------- published documents


@table("publication", key=("id",))
class PublicationRow(Row):
    """A folder or bucket that documents are published to, and the process that publishes them."""

    id: str
    """Its address, without credentials."""
    holder: str
    fence: int
    """Grows with every change of the holder."""
    until: int
    """When the holder's lease ends."""
    pos: int
    """The feed is published up to this position. -1: never; the next holder begins with the rows of all runs."""


@table("publication_deletion", key=("publication", "run_id"))
class PublicationDeletionRow(Row):
    """A deleted run whose documents are still to be deleted from a publication. The deletion of the run writes it."""

    publication: str
    run_id: int
    tenant: str
    due_at: int
    rounds: int = 0
    """How often its documents were deleted. The second time is after every older lease of a publisher has ended."""
    tries: int = 0
    error: str | None = None


# ------------------------------------------------------------------------------------------ remote runners


@table("remote_lease", key=("run_id", "idx", "n"))
class RemoteLeaseRow(RunPartRow):
    """A lease of a remote runner, with the claim that got it and the hash of its token."""

    idx: int
    n: int
    tenant: str
    claim: str
    """`<key id>/<claim id>`."""
    token_hash: bytes


@table("artifact", key=("run_id", "name", "idx", "n", "late"))
class ArtifactRow(RunPartRow):
    """A named file of an attempt. The artifact store has its bytes, by digest."""

    name: str
    idx: int
    n: int
    late: bool
    """Whether it was uploaded after its lease had ended."""
    tenant: str
    step: str
    worker: str
    size: int
    digest: str
    content_type: str
    at: int
    events: int
    """How many events the run had then. A file that came in time precedes the event that ended its lease."""
    upload: str = ""
    """The upload whose parts are its bytes. Empty: the bytes are one body, stored by digest."""
    expires_at: int | None = None
    """When its bytes may be deleted. None: with its run."""
    deleted_at: int | None = None
    """When they were."""


# --------------------------------------------------------------------------------------------- VCS reports


@table("vcs_report", key=("run_id",))
class VcsReportRow(RunPartRow):
    """What the status reporter has done for a run that has a VCS target."""

    tenant: str
    subject: str
    """The commit and the workflow. Reports of one subject are finished in the order of their runs."""
    state: str
    """open, reported (the VCS has accepted the final state) or refused (the VCS refuses for good)."""
    seen: int
    """The version of the run up to which everything was written."""
    fence: int
    """Grows whenever a process takes the report. Only its holder writes."""
    due_at: int | None
    """When a process may take it next. None: it is finished."""
    created_at: int
    updated_at: int
    holder: str = ""
    """The process that has taken it, as the JSON of a `ProcessIdentity`."""
    tries: int = 0
    """Failed tries since the last success."""
    error: str | None = None


@table("vcs_check", key=("run_id", "part"))
class VcsCheckRow(RunPartRow):
    """A check run or commit status that the status reporter has written."""

    part: str
    """`run`, `job:NAME` or `status`."""
    check_id: int | None
    """The VCS's id. None: it is being created, or may have been."""
    phase: int
    """0 queued, 1 in progress, 2 completed. It never falls."""
    digest: bytes
    """The SHA-256 of what was last written. Empty: something is being written."""


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
        PublicationRow,
        PublicationDeletionRow,
        RemoteLeaseRow,
        ArtifactRow,
        VcsReportRow,
        VcsCheckRow,
    )
} | CI_ROWS
