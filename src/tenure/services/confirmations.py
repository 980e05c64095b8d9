"""Confirmation, by a second person, of what others have made or changed."""

from __future__ import annotations

from typing import Any

from tenure.errors import TenureError
from tenure.services.identity.validation import is_id
from tenure.services.scope import Scope
from tenure.shapes.identity import Confirmable, ConfirmationResult, check_version_named
from tenure.store.confirmations import Confirmation, ConfirmationRecords
from tenure.store.identity import Identity


class Confirmations:
    """What the actor of a scope confirms in its tenant."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def confirm(
        self,
        kind: Confirmable,
        name: str,
        *,
        revision: int | None = None,
        version: str | None = None,
        digest: str | None = None,
    ) -> ConfirmationResult:
        """Confirm what others have made or changed. Their change alone no longer involves them in its runs.

        Nobody confirms their own changes. `revision` names what was looked at; for a workflow `version` and `digest` do.
        """
        check_version_named(kind, revision, version, digest)
        seen: list[Any] = [version, digest] if kind == "workflow" else [] if kind == "key" else [revision]
        made = await self.confirm_row(kind, name, *seen)
        left = made.row.unconfirmed.split()
        return ConfirmationResult(kind=kind, name=name, confirmed=made.people, unconfirmed=left)

    async def confirm_row(self, kind: Confirmable, name: str, *seen: Any) -> Confirmation[Any]:
        """Confirm a row as it was seen: a revision; the version and digest of a workflow; nothing for a key."""
        scope, caller = self._scope, self._scope.caller
        scope.orchestrator  # noqa: B018 - refuses if the engine was opened to read only
        if caller is not None and caller.kind == "client":
            raise TenureError("FORBIDDEN", "a second person confirms, with a key or session of their own")
        if kind in ("client", "key", "person") and not is_id(name):
            name = ""  # nothing has this id
        records = ConfirmationRecords(Identity(scope.store), scope.tenant, scope.admin_actor)
        made: Confirmation[Any] = await getattr(records, kind)(name, *seen)
        return made
