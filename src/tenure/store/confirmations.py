"""Confirmations: a second person says that what somebody has made or changed is as it should be.

Laws:
1. What can be confirmed is a row with `unconfirmed`: who has made or changed it since, as `id id`. They stand behind the runs that
   are made through it (`kernel.behind`); of a person they count as one with that person.
2. Whoever confirms takes everybody off that list who does not count as one with them. Nobody confirms what they did themselves, nor
   a person what concerns them or somebody who counts as one with them. The ties of the row that is confirmed do not count against
   whoever confirms it: else two administrators who have both had a hand in a person could not confirm each other.
3. What is confirmed is what was looked at: its revision, of a workflow's version its digest. Anything else is CHANGED_MEANWHILE.
4. A confirmation is a line of the tenant's admin chain, in one transaction with it. The installation's operator and whoever has the
   database break the glass: the line says so.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from tenure.errors import TenureError
from tenure.kernel.behind import Ties
from tenure.kernel.beside import RegisteredWorkflow, Schedule
from tenure.kernel.service import ApiKey, Client, Hook, Person, UnconfirmedPerson
from tenure.store.identity import Change, Identity, Told, saved
from tenure.store.port import Query, Transaction

DATABASE_OWNER = "database-owner"
"""How the chain names whoever has the database: `database-owner:uid:1000`."""
R = TypeVar("R", Client, Person, ApiKey, Hook, Schedule, RegisteredWorkflow)


class Confirming(msgspec.Struct, frozen=True, kw_only=True):
    """Who confirms something."""

    actor: str
    """As the chain names them."""
    people: str
    """The person, with those who answer for the credential, as `id id`."""
    breaks_glass: bool = False
    """Whether it is the installation's operator, or whoever has the database: they may confirm what is not their own alone."""


class Confirmation(msgspec.Struct, Generic[R], frozen=True):
    """What was confirmed."""

    row: R
    people: list[str]
    """Whose work was confirmed, as `id`; nobody's where nothing was unconfirmed."""


class Confirmations:
    """The confirmations of one tenant; see the laws above."""

    def __init__(self, identity: Identity, tenant: str, by: Confirming) -> None:
        self._identity = identity
        self._tenant = tenant
        self._by = by

    async def client(self, client: str, revision: int) -> Confirmation[Client]:
        """A client, with its owner and its roles."""
        missing = TenureError("CLIENT_NOT_FOUND", f"there is no client {client[:64]!r}")
        return await self._confirm(Client, "client", client, ("client_named", client), revision, missing)

    async def key(self, key_id: str) -> Confirmation[ApiKey]:
        """A key: that whoever made it has handed it to its client's people."""
        missing = TenureError("KEY_NOT_FOUND", f"there is no key {key_id[:64]!r}")
        return await self._confirm(ApiKey, "key", key_id, ("key_named", key_id), None, missing)

    async def person(self, person: str, revision: int) -> Confirmation[Person]:
        """A person: that it is them who have enrolled, with these roles, groups and login."""
        missing = TenureError("PERSON_NOT_FOUND", f"there is no person {person[:64]!r}")
        return await self._confirm(Person, "person", person, ("person_named", person), revision, missing)

    async def hook(self, hook_id: str, revision: int) -> Confirmation[Hook]:
        """A hook, with its rules and settings."""
        missing = TenureError("HOOK_NOT_FOUND")
        return await self._confirm(Hook, "hook", hook_id, ("hook_named", hook_id), revision, missing)

    async def schedule(self, name: str, revision: int) -> Confirmation[Schedule]:
        """A schedule, with its plan and input."""
        missing = TenureError("SCHEDULE_NOT_FOUND", f"there is no schedule {name[:200]!r}")
        return await self._confirm(Schedule, "schedule", name, ("schedule_named", name), revision, missing)

    async def workflow(self, name: str, version: str, digest: str) -> Confirmation[RegisteredWorkflow]:
        """A version of a workflow that the tenant has registered."""
        missing = TenureError(
            "WORKFLOW_NOT_FOUND", f"the tenant has registered no such version of {name[:200]!r}"
        )
        named, asked = f"{name}@{version}", ("workflow_version", name, version)
        return await self._confirm(RegisteredWorkflow, "workflow", named, asked, digest, missing)

    async def _confirm(
        self,
        _kind: type[R],
        what: str,
        name: str,
        asked: tuple[str, ...],
        seen: int | str | None,
        missing: TenureError,
    ) -> Confirmation[R]:
        def make(_now: int) -> Transaction[Told[Confirmation[R]]]:
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
            line = Change(tenant=self._tenant, kind=f"{what}.confirmed", actor=self._by.actor, about=about)
            return Confirmation(row, of), [line]

        return await self._identity.change(self._tenant, make)

    def _left(self, what: str, row: Any) -> Transaction[list[str]]:
        """Who is still to be confirmed by somebody else (law 2); SECOND_PERSON_NEEDED where that is all of them."""
        everybody = row.unconfirmed.split()
        rows: list[UnconfirmedPerson] = yield Query("people_unconfirmed", scalars=(self._tenant,))
        ties = Ties(one for one in rows if what != "person" or one.id != row.id)
        mine = ties.one_with(*self._by.people.split())
        concerned = what == "person" and f"person:{row.id}" in mine
        left = [one for one in everybody if concerned or ties.one_with(one) & mine]
        if everybody and left == everybody:
            beside = self._by.actor.startswith(DATABASE_OWNER)
            how = " over a server, with a key of their own" if beside else ""
            raise TenureError(
                "SECOND_PERSON_NEEDED",
                f"{self._by.actor} has made or changed this {what}, or counts as one with who did: another person confirms it{how}",
            )
        return left


def _check_seen(what: str, name: str, row: Any, seen: int | str | None) -> None:
    """Refuse to confirm what has changed since it was looked at."""
    mark = "digest" if what == "workflow" else "revision"
    has = getattr(row, mark, None)
    if seen is not None and seen != has:
        raise TenureError(
            "CHANGED_MEANWHILE",
            f"{what} {name} is at {mark} {has}, not {seen}; look at it again, then confirm {mark} {has}",
        )


def _written(row: Any, unconfirmed: str) -> Transaction[Any]:
    """Write the row's list; whoever has changed the row meanwhile comes first."""
    if row.table in ("client", "person", "api_key"):  # changed under the lock that the caller holds
        row = msgspec.structs.replace(row, unconfirmed=unconfirmed)
        yield from saved(row)
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
        raise TenureError("CHANGED_MEANWHILE", f"the {row.table} is not what it was a moment ago")
    return written[0]


def ties_in(tenant: str) -> Transaction[Ties]:
    """Who counts as one, within a transaction of its own."""
    return Ties((yield Query("people_unconfirmed", scalars=(tenant,))))
