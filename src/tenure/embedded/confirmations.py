"""Confirming, as a second person, what others have made or changed: beside the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from tenure.errors import Detail, TenureError
from tenure.store.confirmations import DATABASE_OWNER, Confirmations, Confirming
from tenure.store.identity import Identity

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine

Confirmable = Literal["hook", "schedule", "workflow", "client", "key", "person"]


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of something that somebody confirmed."""

    kind: str
    name: str
    confirmed: list[str]
    """Whose work this has confirmed; nobody's where nothing was unconfirmed."""
    unconfirmed: list[str]
    """Who is still to be confirmed, by somebody else."""


class LocalConfirmations:
    """What the local person confirms; a part of an engine."""

    async def confirm(
        self,
        kind: Confirmable,
        name: str,
        *,
        by: str,
        revision: int | None = None,
        version: str | None = None,
        digest: str | None = None,
    ) -> Confirmed:
        """Confirm what others have made or changed: from now on they do not stand behind its runs for that reason alone, and do not
        count as one with a person. `by` is the local person, who confirms nothing of their own. `revision` is that of what was
        looked at; of a workflow its `version` and `digest` are."""
        engine = cast("Engine", self)
        engine.orchestrator  # noqa: B018 - refuses where the engine was opened to read only
        check_seen(kind, revision, version, digest)
        who = Confirming(actor=f"{DATABASE_OWNER}:{by}", people=by, breaks_glass=True)
        confirmations = Confirmations(Identity(engine.store), engine.tenant, who)
        seen: list[Any] = [version, digest] if kind == "workflow" else [] if kind == "key" else [revision]
        made = await getattr(confirmations, kind)(name, *seen)
        left = made.row.unconfirmed.split()
        return Confirmed(kind=kind, name=name, confirmed=made.people, unconfirmed=left)


def check_seen(kind: str, revision: int | None, version: str | None, digest: str | None) -> None:
    """Refuse to confirm something without saying how it was looked at."""
    wanted = {"workflow": {"version": version, "digest": digest}, "key": {}}.get(kind, {"revision": revision})
    missing = [word for word, value in wanted.items() if value is None]
    if missing:
        group = {"person": "people", "schedule": "schedule"}.get(kind, f"{kind}s")
        marks, options = " and ".join(missing), " ".join(f"--{word}" for word in missing)
        problem = f"a {kind} is confirmed as it was looked at: say its {marks} ({options}); `tenure {group} show` says it"
        raise TenureError("INVALID_INPUT", problem, tuple(Detail(word, "is needed") for word in missing))
