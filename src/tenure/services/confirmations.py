"""Confirmation by a second person of what others have created or changed."""

from __future__ import annotations

from tenure.errors import TenureError
from tenure.services.identity.validation import is_id
from tenure.services.scope import Service
from tenure.shapes.identity import Confirmable, ConfirmationResult, check_version_named
from tenure.store.confirmations import Confirmation, ConfirmationRecords
from tenure.store.identity import Identity


class Confirmations(Service):
    """Confirmations by a scope's actor in its tenant."""

    async def confirm(
        self,
        kind: Confirmable,
        name: str,
        *,
        revision: int | None = None,
        version: str | None = None,
        digest: str | None = None,
    ) -> ConfirmationResult:
        """Confirm what others have created or changed. Their change alone no longer involves them in its runs.

        Nobody can confirm their own changes. `revision` is the revision that was looked at; a workflow has `version` and `digest`.
        """
        check_version_named(kind, revision, version, digest)
        seen = {"workflow": digest, "key": None}.get(kind, revision)
        made = await self.confirm_row(kind, name, seen, version=version or "")
        left = made.row.unconfirmed.split()
        return ConfirmationResult(kind=kind, name=name, confirmed=made.people, unconfirmed=left)

    async def confirm_row(
        self, kind: Confirmable, name: str, seen: int | str | None = None, *, version: str = ""
    ) -> Confirmation:
        """Confirm a row as it was seen: a revision; the version and digest of a workflow; nothing for a key."""
        scope, caller = self._scope, self._scope.caller
        scope.orchestrator  # noqa: B018 - refuses if the engine was opened for reading only
        if caller is not None and caller.kind == "client":
            raise TenureError("FORBIDDEN", "only a person can confirm, with a key or session of their own")
        if kind in ("client", "key", "person") and not is_id(name):
            name = ""  # nothing has this id
        records = ConfirmationRecords(Identity(scope.store), scope.tenant, scope.admin_actor)
        return await records.confirm(kind, name, seen, version=version)
