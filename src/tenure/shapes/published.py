"""Documents that are published for readers without a database, and their paths.

Laws:
1. A path begins with the tenant's folder, except for the digests of keys: a reader finds the tenant by the key.
2. A run's folder has `steps/N.json`, `manifest.json` and `status.json`, written in this order. `status.json` is `StatusDocument`.
3. Events have numbers, from 1, for each tenant. `events/head.json` names the segments that have them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

READING_ROLES = frozenset({"viewer", "operator", "approver", "admin"})
"""The roles that may read what was published: those that may read it at the server."""
TERMINAL_WORDS = frozenset({"completed", "failed"})
KEYS_FOLDER = "keys"


class PublishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """steps/N.json."""

    run_id: str
    step: int
    """N: its place in the order in which steps were completed."""
    name: str
    status: str
    """completed, or skipped because its condition was false."""
    tries: int
    completed_at: datetime
    output: Any = None
    condition: str | None = None


class ManifestStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in the manifest."""

    step: int
    name: str
    path: str


class RunManifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json: what a run that has ended has left."""

    run_id: str
    agent_slug: str
    status: str
    started_at: datetime | None
    finished_at: datetime | None
    steps: list[ManifestStep]
    proposals_created: list[str]
    output: Any = None


class KeyDigest(msgspec.Struct, frozen=True, kw_only=True):
    """keys/ID.json: what is needed to check an API key."""

    id: str
    tenant: str
    sha256: str
    """The digest of its secret, in hexadecimal digits."""
    roles: list[str]
    expires_at: datetime | None


class EventSegment(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    first: int
    last: int


class EventsHead(msgspec.Struct, frozen=True, kw_only=True):
    """events/head.json."""

    next: int = 1
    """The number of the next event."""
    pos: int = -1
    """The events of the feed up to this position are in the segments."""
    segments: list[EventSegment] = []


class PublishedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a segment."""

    n: int
    data: dict[str, Any]


def tenant_folder(tenant: str) -> str:
    """The folder of a tenant. Nothing in a tenant's name leads out of it."""
    return quote(tenant, safe="").replace(".", "%2E") or "%"


def run_folder(tenant: str, run_id: str) -> str:
    return f"{tenant_folder(tenant)}/runs/{run_id}"


def status_path(tenant: str, run_id: str) -> str:
    return f"{run_folder(tenant, run_id)}/status.json"


def manifest_path(tenant: str, run_id: str) -> str:
    return f"{run_folder(tenant, run_id)}/manifest.json"


def step_path(tenant: str, run_id: str, number: int) -> str:
    return f"{run_folder(tenant, run_id)}/steps/{number}.json"


def inbox_path(tenant: str) -> str:
    return f"{tenant_folder(tenant)}/inbox.json"


def proposals_path(tenant: str) -> str:
    return f"{tenant_folder(tenant)}/proposals.json"


def events_head_path(tenant: str) -> str:
    return f"{tenant_folder(tenant)}/events/head.json"


def segment_path(tenant: str, name: str) -> str:
    return f"{tenant_folder(tenant)}/events/{name}.jsonl"


def key_path(key_id: str) -> str:
    return f"{KEYS_FOLDER}/{key_id}.json"
