"""The messages about logs, uploads, caches and test reports, as `docs/runner-protocol.md` describes them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tenure.limits import (
    ARTIFACT_PART_BYTES_MAX,
    ARTIFACT_PARTS_MAX,
    CACHE_KEY_CHARS_MAX,
    LABEL_CHARS_MAX,
    TESTS_ASKED_MAX,
)
from tenure.shapes.test_reports import TestHistory

DIGEST_HEADER = "Tenure-Digest"
CACHE_KEY_HEADER = "Tenure-Cache-Key"

_Digest = Annotated[str, msgspec.Meta(max_length=100)]


class LogChunkReply(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    size: int
    """The bytes of the whole log so far."""
    late: bool = False


class UploadBegin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["artifact", "cache"]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=CACHE_KEY_CHARS_MAX)]
    """The artifact's name, or the cache's key."""
    nonce: Annotated[str, msgspec.Meta(max_length=64)]
    """A random text of your own, new for each upload: the same one again finds the same upload."""
    retention_seconds: int | None = None
    """When an artifact may be deleted, counted from its completion. Absent: with its run."""


class UploadBegun(msgspec.Struct, frozen=True, kw_only=True):
    upload: str
    exists: bool = False
    """For a cache: the key has one already. Upload nothing."""
    part_bytes_max: int = ARTIFACT_PART_BYTES_MAX
    parts_max: int = ARTIFACT_PARTS_MAX


class UploadPartReply(msgspec.Struct, frozen=True, kw_only=True):
    part: int


class UploadComplete(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["artifact", "cache"]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=CACHE_KEY_CHARS_MAX)]
    parts: Annotated[int, msgspec.Meta(ge=1, le=ARTIFACT_PARTS_MAX)]
    size: Annotated[int, msgspec.Meta(ge=1, le=ARTIFACT_PARTS_MAX * ARTIFACT_PART_BYTES_MAX)]
    digest: _Digest
    """That of the only part; or `sha256-parts:` and the SHA-256 of the parts' digests, joined by line feeds."""


class UploadCompleted(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: int
    digest: str
    late: bool = False
    kept: bool = True
    """False: another cache of this key was complete before, or there is no room for it."""


class ReportReply(msgspec.Struct, frozen=True, kw_only=True):
    late: bool = False


class HistoryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tests: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=LABEL_CHARS_MAX)], ...],
        msgspec.Meta(max_length=TESTS_ASKED_MAX),
    ]


class HistoryReply(msgspec.Struct, frozen=True, kw_only=True):
    tests: dict[str, TestHistory]
