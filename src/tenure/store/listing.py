"""Lists of runs and of what people are asked, a page at a time; and quick looks at many runs at once.

Laws:
1. A page begins behind a place, (moment, id) of the last row before it: no row is lost or repeated, also where many share
   one moment. Newest first, unless a comment says otherwise.
2. Nothing here writes.
"""

from __future__ import annotations

import msgspec

from tenure.kernel.model import Run
from tenure.store.port import Answer


class Glance(msgspec.Struct, gc=False):
    """What is asked most often about a run: how it is."""

    id: int
    tenant: str
    workflow: str
    profile: str
    created_at: int
    status: str
    version: int
    event_at: int
    started_at: int | None
    finished_at: int | None
    reason: str | None
    paused: bool
    parked: str | None
    cancel_at: int | None
    reported_at: int | None
    steps_total: int
    steps_done: int
    waits_open: int
    output_ref: int | None
    error_ref: int | None
    steps_skipped: int


class Question(msgspec.Struct, gc=False):
    """An approval or a proposal, with the wait behind it."""

    run_id: int
    no: int
    tenant: str
    tier: str
    people: int
    requester: str
    digest: bytes
    revision: int
    requested_at: int
    expires_at: int | None
    question_ref: int | None
    status: str
    votes: str
    decided_at: int | None
    decided_by: str | None
    reason_ref: int | None
    people_in: str
    """The group that those who decide belong to; empty: anybody."""
    reminded_at: int | None
    used_no: int | None
    """The receipt that used it up."""
    kind: str
    """approval or proposal."""
    label: str
    action: str
    workflow: str
    """Of its run."""


class Count(msgspec.Struct, gc=False):
    """How many questions of a kind are open, and since when."""

    kind: str
    open: int
    oldest_at: int


READS: dict[str, Answer] = {
    "runs_page": Run,  # () ; tenant, before_created_at, before_id, limit
    "runs_page_by_status": Run,  # () ; tenant, status, before_created_at, before_id, limit
    "runs_page_by_repo": Run,  # () ; tenant, repo, before_created_at, before_id, limit
    "glances": Glance,  # (id) -> those that are there, in any order
    "questions_page": Question,  # () ; tenant, kind, before_requested_at, before_run_id, before_no, limit -> open ones,
    # of a kind or of `any`
    "questions_of": Question,  # () ; run_id -> all of a run, in the order they were asked
    "question_at": Question,  # () ; run_id, no
    "questions_counted": Count,  # () ; tenant -> a row for each kind that has open ones
}
"""Queries used on their own; `listing.sql` has their texts."""

WRITES: dict[str, Answer] = {}
"""None: see law 2."""
