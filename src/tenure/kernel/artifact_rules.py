"""What counts of a run's artifacts: names, lateness, and which of several files with one name is the accepted one.

Laws:
1. An artifact belongs to the attempt that uploaded it. Files of two attempts, or of two steps, never replace each other.
2. What arrives after its lease has ended is late. It is kept beside what came in time, and is never the accepted one.
3. Accepted is what the attempt that succeeded has uploaded. Attempts that go on with each other's work count as one: those that
   were suspended, and those of a code-first body, whose checkpoints outlive them.
"""

from __future__ import annotations

from typing import Literal

from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.model import CLOSED_STEP, Attempt
from tenure.limits import NAME_CHARS_MAX

ArtifactState = Literal["accepted", "pending", "failed", "late"]


def name_problem(name: str) -> str | None:
    """What is wrong with the name of an artifact. Slashes divide it into parts that could be a file's path."""
    if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        return f"an artifact's name has 1 to {NAME_CHARS_MAX} printable characters"
    if "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        return "an artifact's name has no backslash, and no part between slashes that is empty, `.` or `..`"
    return None


def over_since(attempt: Attempt, now: int) -> int | None:
    """When an attempt's lease ended; None while it is live. One that has expired is over before anybody sweeps it."""
    if attempt.lease not in LIVE_LEASE:
        return attempt.ended_at if attempt.ended_at is not None else attempt.expires_at
    return attempt.expires_at if attempt.expires_at <= now else None


def state_of(*, late: bool, kind: str, step: str, attempt: str) -> ArtifactState:
    """What an artifact counts: by its mark, its step's kind and state, and the state of its attempt."""
    if late:
        return "late"
    if attempt == "succeeded":
        return "accepted"
    if kind == "body" or attempt == "suspended":  # law 3
        return "accepted" if step == "succeeded" else "failed" if step in CLOSED_STEP else "pending"
    ended = attempt in ("failed", "timed_out", "stale", "canceled", "released")
    return "failed" if ended else "pending"
