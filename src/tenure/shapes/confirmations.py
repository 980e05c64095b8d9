"""What a confirmation by a second person answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenure.errors import Detail, TenureError

Confirmable = Literal["hook", "schedule", "workflow", "client", "key", "person"]


class ConfirmationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of something that somebody confirmed."""

    kind: str
    name: str
    confirmed: list[str]
    """Whose work this has confirmed; nobody's where nothing was unconfirmed."""
    unconfirmed: list[str]
    """Who is still to be confirmed, by somebody else."""


def check_version_named(kind: str, revision: int | None, version: str | None, digest: str | None) -> None:
    """Refuse a confirmation that does not name the version that was looked at."""
    wanted = {"workflow": {"version": version, "digest": digest}, "key": {}}.get(kind, {"revision": revision})
    missing = [word for word, value in wanted.items() if value is None]
    if missing:
        group = {"person": "people", "schedule": "schedule"}.get(kind, f"{kind}s")
        marks, options = " and ".join(missing), " ".join(f"--{word}" for word in missing)
        problem = (
            f"name the {marks} of the {kind} that you looked at ({options}); `tenure {group} show` prints it"
        )
        raise TenureError("INVALID_INPUT", problem, tuple(Detail(word, "is needed") for word in missing))
