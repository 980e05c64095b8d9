"""Confirmations: a second person confirms what somebody has created or changed.

Laws:
1. A row that can be confirmed has a list, `unconfirmed`: who has created or changed it since, as `id id`. They stand behind
   the runs that are started through it (`kernel.separation_of_duties`); if the row is a person, they count as one with that person.
2. A confirmation removes everybody from the list who does not count as one with the person who confirms. Nobody confirms
   their own work, or a row of a person that is themselves or counts as one with them. The ties of the row itself do not count:
   else two administrators who have both changed a person could not confirm each other.
3. A confirmation names what was looked at: the revision, or the digest of a workflow's version. Another one is CHANGED_MEANWHILE.
4. A confirmation and its line in the tenant's admin chain are one transaction. The installation's operator and the owner of the
   database may break the glass: the line says so.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from tenure.errors import TenureError
from tenure.kernel.identity_rows import ApiKeyRow, ClientRow, PersonRow, UnconfirmedPerson
from tenure.kernel.registry_rows import ScheduleRow, WorkflowRow
from tenure.kernel.separation_of_duties import LinkedPeople
from tenure.kernel.server_rows import HookRow
from tenure.store.identity import DATABASE_OWNER, AdminActor, AdminChange, ChangeResult, Identity, save_rows
from tenure.store.port import Query, Transaction

R = TypeVar("R", ClientRow, PersonRow, ApiKeyRow, HookRow, ScheduleRow, WorkflowRow)


class Confirmation(msgspec.Struct, Generic[R], frozen=True):
    """What was confirmed."""

    row: R
    people: list[str]
    """Ids of the people whose work was confirmed; empty where nothing was unconfirmed."""


class ConfirmationRecords:
    """The confirmations of one tenant; see the laws above."""

    def __init__(self, identity: Identity, tenant: str, by: AdminActor) -> None:
        self._identity = identity
        self._tenant = tenant
        self._by = by

    async def client(self, client: str, revision: int) -> Confirmation[ClientRow]:
        """A client, with its owner and its roles."""
        missing = TenureError("CLIENT_NOT_FOUND", f"there is no client {client[:64]!r}")
        return await self._confirm(ClientRow, "client", client, ("client_named", client), revision, missing)

    async def key(self, key_id: str) -> Confirmation[ApiKeyRow]:
        """A key: its creator has handed it to the people of its client."""
        missing = TenureError("KEY_NOT_FOUND", f"there is no key {key_id[:64]!r}")
        return await self._confirm(ApiKeyRow, "key", key_id, ("key_named", key_id), None, missing)

    async def person(self, person: str, revision: int) -> Confirmation[PersonRow]:
        """A person: they have enrolled themselves, with these roles, groups and login."""
        missing = TenureError("PERSON_NOT_FOUND", f"there is no person {person[:64]!r}")
        return await self._confirm(PersonRow, "person", person, ("person_named", person), revision, missing)

    async def hook(self, hook_id: str, revision: int) -> Confirmation[HookRow]:
        """A hook, with its rules and settings."""
        missing = TenureError("HOOK_NOT_FOUND")
        return await self._confirm(HookRow, "hook", hook_id, ("hook_named", hook_id), revision, missing)

    async def schedule(self, name: str, revision: int) -> Confirmation[ScheduleRow]:
        """A schedule, with its plan and input."""
        missing = TenureError("SCHEDULE_NOT_FOUND", f"there is no schedule {name[:200]!r}")
        return await self._confirm(ScheduleRow, "schedule", name, ("schedule_named", name), revision, missing)

    async def workflow(self, name: str, version: str, digest: str) -> Confirmation[WorkflowRow]:
        """A version of a workflow that the tenant has registered."""
        missing = TenureError(
            "WORKFLOW_NOT_FOUND", f"the tenant has registered no such version of {name[:200]!r}"
        )
        named, asked = f"{name}@{version}", ("workflow_version", name, version)
        return await self._confirm(WorkflowRow, "workflow", named, asked, digest, missing)

    async def _confirm(
        self,
        _kind: type[R],
        what: str,
        name: str,
        asked: tuple[str, ...],
        seen: int | str | None,
        missing: TenureError,
    ) -> Confirmation[R]:
        def make(_now: int) -> Transaction[ChangeResult[Confirmation[R]]]:
            query, *key = asked
            scalars = tuple(key) if what == "hook" else (self._tenant, *key)
            found: list[R] = yield Query(query, scalars=scalars)
            if not found or found[0].tenant != self._tenant:
                raise missing
            row = found[0]
            _check_seen(what, name, row, seen)
            left = yield from self._left(what, row)
            if left == row.unconfirmed.split():
                return Confirmation(row, []), []
            of = [one for one in row.unconfirmed.split() if one not in left]
            about: dict[str, Any] = {what: name, "of": of, "left": left}
            row = yield from _written(row, " ".join(left))
            if self._by.breaks_glass:
                about["break_glass"] = True
            line = AdminChange(
                tenant=self._tenant, kind=f"{what}.confirmed", actor=self._by.actor, about=about
            )
            return Confirmation(row, of), [line]

        return await self._identity.change(self._tenant, make)

    def _left(self, what: str, row: Any) -> Transaction[list[str]]:
        """Whose work still needs another person (law 2); SECOND_PERSON_NEEDED if that is everybody's."""
        everybody = row.unconfirmed.split()
        rows: list[UnconfirmedPerson] = yield Query("people_unconfirmed", scalars=(self._tenant,))
        ties = LinkedPeople(one for one in rows if what != "person" or one.id != row.id)
        mine = ties.linked_with(*self._by.people.split())
        concerned = what == "person" and f"person:{row.id}" in mine
        left = [one for one in everybody if concerned or ties.linked_with(one) & mine]
        if everybody and left == everybody:
            beside = self._by.actor.startswith(DATABASE_OWNER)
            how = " over a server, with a key of their own" if beside else ""
            raise TenureError(
                "SECOND_PERSON_NEEDED",
                f"{self._by.actor} has created or changed this {what}, or counts as one with a person who did:"
                f" another person has to confirm it{how}",
            )
        return left


def _check_seen(what: str, name: str, row: Any, seen: int | str | None) -> None:
    """Refuse to confirm a row that has changed since it was looked at."""
    mark = "digest" if what == "workflow" else "revision"
    has = getattr(row, mark, None)
    if seen is not None and seen != has:
        raise TenureError(
            "CHANGED_MEANWHILE",
            f"{what} {name} is at {mark} {has}, not {seen}; look at it again, then confirm {mark} {has}",
        )


def _written(row: Any, unconfirmed: str) -> Transaction[Any]:
    """Write the row's list, unless somebody has changed the row meanwhile."""
    if row.table in ("client", "person", "api_key"):  # changed under the lock that the caller holds
        row = msgspec.structs.replace(row, unconfirmed=unconfirmed)
        yield from save_rows(row)
        return row
    if row.table == "hook":
        asked = Query("confirm_hook", scalars=(row.tenant, row.id, row.revision, unconfirmed))
    elif row.table == "schedule":
        asked = Query("confirm_schedule", scalars=(row.tenant, row.name, row.revision, unconfirmed))
    else:
        of = (row.tenant, row.name, row.version, row.digest)
        asked = Query("confirm_workflow", scalars=(*of, unconfirmed))
    written = yield asked
    if not written:
        raise TenureError(
            "CHANGED_MEANWHILE", f"the {row.table} has changed meanwhile: look at it again, then confirm it"
        )
    return written[0]


def load_ties(tenant: str) -> Transaction[LinkedPeople]:
    """Which people count as one, as a part of a transaction."""
    return LinkedPeople((yield Query("people_unconfirmed", scalars=(tenant,))))
