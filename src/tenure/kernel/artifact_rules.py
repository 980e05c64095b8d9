"""Rules of a run's artifacts: names, lateness, places, and which of several files with one name is the accepted one.
Laws:
1. An artifact belongs to the attempt that uploaded it. Files of two attempts, or of two steps, never replace each
   other.
2. A file that arrives after its lease has ended is late. It is stored in addition to the files that came in time, and is
   never accepted.
3. Accepted are the files of the attempt that succeeded. Attempts that continue each other's work count as one:
   suspended attempts, and those of a code-first body, whose checkpoints outlive them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Literal

from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import CLOSED_STEP, AttemptRow
from tenure.limits import NAME_CHARS_MAX
from tenure.shapes.runs import ArtifactState

CACHE_FOLDER = "caches"
"""The folder of caches, which outlive their runs. No run id looks like it."""


def artifact_name_problem(name: str) -> str | None:
    """What is wrong with an artifact's name. Slashes divide it into the parts of a file path."""
    if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        return f"an artifact's name has 1 to {NAME_CHARS_MAX} printable characters"
    if "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        return "an artifact's name has no backslash, and no part between slashes that is empty, `.` or `..`"
    return None


def lease_ended_at(attempt: AttemptRow, now: int) -> int | None:
    """When an attempt's lease ended; None while it is live. An expired lease has ended even before a sweep."""
    if attempt.lease not in LIVE_LEASE:
        return attempt.ended_at if attempt.ended_at is not None else attempt.expires_at
    return attempt.expires_at if attempt.expires_at <= now else None


def artifact_state(*, late: bool, kind: str, step: str, attempt: str) -> ArtifactState:
    """Whether an artifact is accepted, by its mark, its step's kind and state, and the state of its attempt."""
    if late:
        return "late"
    if attempt == "succeeded":
        return "accepted"
    if kind == "body" or attempt == "suspended":  # law 3
        return "accepted" if step == "succeeded" else "failed" if step in CLOSED_STEP else "pending"
    return "failed" if attempt in ("failed", "timed_out", "stale", "canceled", "released") else "pending"


# ------------------------------------------------------------------------------------- files in the artifact store

UploadKind = Literal["artifact", "cache"]
_SHA256 = "sha256:"


def upload_folder(kind: str, run: str, upload: str) -> str:
    """The folder of an upload's parts. Those of an artifact are in the folder of its run, which is deleted with the run."""
    return f"{run}/uploads/{upload}/" if kind == "artifact" else f"{CACHE_FOLDER}/{upload}/"


def part_path(folder: str, no: int, digest: str) -> str:
    """The file of a part. Its name has the digest, so that bytes that were accepted are never overwritten."""
    return f"{folder}{no}-{digest.removeprefix(_SHA256)}"


def log_chunk_path(run: str, idx: int, n: int, seq: int, digest: str) -> str:
    return f"{run}/log/{idx}.{n}/{seq}-{digest.removeprefix(_SHA256)}"


def digest_of_parts(digests: Sequence[str]) -> str:
    """The digest of a file by the digests of its parts: the SHA-256 of the bytes if there is one part, else of the list."""
    if len(digests) == 1:
        return digests[0]
    return f"sha256-parts:{sha256(chr(10).join(digests).encode()).hexdigest()}"
