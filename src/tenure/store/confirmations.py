"""Confirmations: a second person confirms what another person has created or changed.

Laws:
1. A row that can be confirmed has a list, `unconfirmed`: the people who have created or changed it since the last
   confirmation, as `id id`. They are involved in the runs that are started through it (`kernel.separation_of_duties`); if the
   row is a person, they are treated as the same person as that person.
2. A confirmation removes everybody from the list who is not treated as the same person as the person who confirms. Nobody
   confirms their own work, their own row, or the row of a person who is treated as the same person. Links of the row itself are ignored:
   otherwise two administrators who have both changed a person could not confirm each other.
3. A confirmation names what was looked at: the revision, or the digest of a workflow's version. Another one is CHANGED_MEANWHILE.
4. A confirmation and its line in the tenant's admin chain are one transaction. The installation's operator and the owner of the
   database may break the glass: the line says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.kernel.identity_rows import UnconfirmedPerson
from tenure.kernel.separation_of_duties import LinkedPeople
from tenure.store.identity import DATABASE_OWNER, AdminActor, AdminChange, ChangeResult, Identity, save_rows
from tenure.store.port import Query, Transaction

_QUERIES: dict[str, tuple[str, Callable[[str], TenureError]]] = {
    "client": (
        "client_named",
        lambda name: TenureError("CLIENT_NOT_FOUND", f"there is no client {name!r}"),
    ),
    "key": ("key_named", lambda name: TenureError("KEY_NOT_FOUND", f"there is no key {name!r}")),
    "person": (
        "person_named",
        lambda name: TenureError("PERSON_NOT_FOUND", f"there is no person {name!r}"),
    ),
    "hook": ("hook_named", lambda _: TenureError("HOOK_NOT_FOUND")),  # a hook's id is a secret
    "schedule": (
        "schedule_named",
        lambda name: TenureError("SCHEDULE_NOT_FOUND", f"there is no schedule {name!r}"),
    ),
    "workflow": (
        "workflow_version",
        lambda name: TenureError(
            "WORKFLOW_NOT_FOUND", f"the tenant has registered no such version of {name!r}"
        ),
    ),
}
"""What can be confirmed -> the query of its row, and the error if there is none."""


class Confirmation(msgspec.Struct, frozen=True):
    row: Any
    """The row as it is now: a ClientRow, ApiKeyRow, PersonRow, HookRow, ScheduleRow or WorkflowRow."""
    people: list[str]
    """Ids of the people whose work was confirmed; empty if nothing was unconfirmed."""


class ConfirmationRecords:
    """The confirmations of one tenant; see the laws above."""

    def __init__(self, identity: Identity, tenant: str, by: AdminActor) -> None:
        self._identity = identity
        self._tenant = tenant
        self._by = by

    async def confirm(
        self, what: str, name: str, seen: int | str | None = None, *, version: str = ""
    ) -> Confirmation:
        """Confirm a client, key, person, hook, schedule or workflow. `seen` is its revision, or the digest of a workflow's
        `version` (law 3). A key has none."""
        query, not_found = _QUERIES[what]
        label = f"{name}@{version}" if what == "workflow" else name
        scalars = (self._tenant, name, version) if what == "workflow" else (self._tenant, name)

        def make(_now: int) -> Transaction[ChangeResult[Confirmation]]:
            found = yield Query(query, scalars=(name,) if what == "hook" else scalars)
            if not found or found[0].tenant != self._tenant:
                raise not_found(name[:200])
            row = found[0]
            mark = "digest" if what == "workflow" else "revision"
            current = getattr(row, mark, None)
            if seen not in (None, current):
                raise TenureError(
                    "CHANGED_MEANWHILE",
                    f"{what} {label} is at {mark} {current}, not {seen}; look at it again, then confirm {mark} {current}",
                )
            left = yield from self._left(what, row)
            everybody = row.unconfirmed.split()
            if left == everybody:
                return Confirmation(row, []), []
            people = [one for one in everybody if one not in left]
            about: dict[str, Any] = {what: label, "of": people, "left": left}
            row = yield from _write_unconfirmed(row, " ".join(left))
            if self._by.breaks_glass:
                about["break_glass"] = True
            line = AdminChange(
                tenant=self._tenant, kind=f"{what}.confirmed", actor=self._by.actor, about=about
            )
            return Confirmation(row, people), [line]

        return await self._identity.change(self._tenant, make)

    def _left(self, what: str, row: Any) -> Transaction[list[str]]:
        """The people whose work still needs another person (law 2); SECOND_PERSON_NEEDED if that is everybody."""
        everybody = row.unconfirmed.split()
        rows: list[UnconfirmedPerson] = yield Query("people_unconfirmed", scalars=(self._tenant,))
        ties = LinkedPeople(one for one in rows if what != "person" or one.id != row.id)
        mine = ties.linked_with(*self._by.people.split())
        concerned = what == "person" and f"person:{row.id}" in mine
        left = [one for one in everybody if concerned or ties.linked_with(one) & mine]
        if everybody and left == everybody:
            how = (
                " over a server, with a key of their own" if self._by.actor.startswith(DATABASE_OWNER) else ""
            )
            raise TenureError(
                "SECOND_PERSON_NEEDED",
                f"{self._by.actor}, or somebody who is treated as the same person, has created or changed this {what}:"
                f" another person must confirm it{how}",
            )
        return left


def _write_unconfirmed(row: Any, unconfirmed: str) -> Transaction[Any]:
    """Write the row's list, unless the row has changed meanwhile."""
    if row.table in ("client", "person", "api_key"):  # changed under the lock that the caller holds
        row = msgspec.structs.replace(row, unconfirmed=unconfirmed)
        yield from save_rows(row)
        return row
    query, *columns = {
        "hook": ("confirm_hook", "id", "revision"),
        "schedule": ("confirm_schedule", "name", "revision"),
        "workflow": ("confirm_workflow", "name", "version", "digest"),
    }[row.table]
    seen = [getattr(row, column) for column in columns]
    written = yield Query(query, scalars=(row.tenant, *seen, unconfirmed))
    if not written:
        raise TenureError(
            "CHANGED_MEANWHILE", f"the {row.table} has changed meanwhile: look at it again, then confirm it"
        )
    return written[0]


def load_ties(tenant: str) -> Transaction[LinkedPeople]:
    """Which people count as one, as a part of a transaction."""
    return LinkedPeople((yield Query("people_unconfirmed", scalars=(tenant,))))
