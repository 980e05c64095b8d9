"""Rules of a run's artifacts: names, lateness, and which of several files with one name is the accepted one.
Laws:
1. An artifact belongs to the attempt that uploaded it. Files of two attempts, or of two steps, never replace each
   other.
2. A file that arrives after its lease has ended is late. It is stored in addition to the files that came in time, and is
   never accepted.
3. Accepted are the files of the attempt that succeeded. Attempts that continue each other's work count as one:
   suspended attempts, and those of a code-first body, whose checkpoints outlive them.
"""

from __future__ import annotations

from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import CLOSED_STEP, AttemptRow
from tenure.limits import NAME_CHARS_MAX
from tenure.shapes.runs import ArtifactState


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
