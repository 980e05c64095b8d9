"""Tenants, clients, people and their keys: every change of them, for the routes and for the command line.

Laws:
1. A change is checked, written and told to the tenant's chain in one transaction (`Identity.change`); one that is refused
   leaves no trace.
2. A secret is in the answer of the one call that makes it, for whoever it is for. Nobody makes a key for a person: a
   person gets one by an enrolment code, and whatever keys that person had before end with it.
3. Nobody changes their own roles or groups, nor the login at GitHub by which their own pull requests are known: neither with
   their own key, nor by a client of theirs, nor by somebody who counts as one with them.
4. A closed client, person or tenant stops asking; what it did stays readable, and its id is not used again.
5. A key gives nobody more than it has: one with fewer roles than another of its owner neither replaces nor revokes that
   one, and one that replaces itself does not live longer for it.
6. Whoever makes, enrols or promotes a person counts as one with them, and whoever makes or changes a client or a key stands behind
   what is asked with it, until a second administrator confirms that (`store.confirmations`). What the installation's operator and
   whoever has the database do with people needs nobody's confirmation: it breaks the glass, and its line says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.behind import Ties, joined
from tenure.kernel.service import AccountLink, ApiKey, Client, Person
from tenure.orchestrator.step_views import moment
from tenure.server.identity.checks import (
    check_span,
    checked_groups,
    checked_login,
    checked_name,
    checked_roles,
    chosen_id,
    invalid,
    is_id,
    no_key,
    taken,
    until_of,
)
from tenure.server.identity.principals import (
    OPERATOR_ID,
    OPERATOR_TENANT,
    Principal,
    new_key,
    new_secret,
)
from tenure.server.identity.views import (
    ClientView,
    EnrolmentView,
    KeyView,
    NewKeyView,
    PersonView,
    client_view,
    key_view,
    listed,
    new_key_view,
    person_view,
)
from tenure.store.confirmations import ties_in
from tenure.store.identity import Change, Identity, Told, digest_of, no_tenant, saved
from tenure.store.port import Query, Transaction

OVERLAP_SECONDS = 24 * 3600.0
OVERLAP_SECONDS_MAX = 30 * 86_400.0
ENROLMENT_SECONDS = 72 * 3600.0
ENROLMENT_SECONDS_MAX = 30 * 86_400.0
KEYS_PER_OWNER_MAX = 100
"""Of one client or person, not counting those that are over."""
T = TypeVar("T")


class Directory:
    """The changes of one tenant; see the laws above.

    They are asked for by `actor` (as histories name it), behind whom stand `people`, as `id id`.
    """

    def __init__(
        self, identity: Identity, tenant: str, actor: str, *, people: str, breaks_glass: bool = False
    ) -> None:
        self._identity = identity
        self._tenant = tenant
        self._actor = actor
        self._people = people
        self._breaks_glass = breaks_glass

    # ------------------------------------------------------------------------------------------ clients

    async def add_client(
        self, *, name: str, roles: Collection[str], owner: str | None = None, client: str | None = None
    ) -> ClientView:
        """Make a client; `owner` is the person who answers for it, else whoever makes it."""
        chosen = chosen_id(client, "cli_")
        values = (checked_name(name), checked_roles(roles))

        def make(now: int) -> Transaction[Told[Client]]:
            yield from self._open_tenant()
            yield from self._free(chosen)
            answers = yield from self._answering(owner)
            row = Client(self._tenant, chosen, *values, answers, now, unconfirmed=self._people)
            yield from saved(row)
            return row, [self._line("client.created", client=chosen, roles=listed(row.roles), owner=answers)]

        return client_view(await self._change(make))

    async def set_client(
        self, client: str, *, name: str, roles: Collection[str], owner: str | None = None
    ) -> ClientView:
        """Change a client."""
        values = (checked_name(name), checked_roles(roles))

        def make(_now: int) -> Transaction[Told[Client]]:
            before = yield from self._client(client, is_open=True)
            if before.roles != values[1]:
                self._check_other(f"client:{client}", (yield from ties_in(self._tenant)))
            answers = owner
            if owner is None or owner != before.owner:
                answers = yield from self._answering(owner)
            row = msgspec.structs.replace(
                before, name=values[0], roles=values[1], owner=answers, revision=before.revision + 1
            )
            if (row.roles, row.owner) != (before.roles, before.owner):
                row = msgspec.structs.replace(row, unconfirmed=joined(before.unconfirmed, self._people))
            yield from saved(row)
            return row, [self._line("client.changed", client=client, roles=listed(row.roles), owner=answers)]

        return client_view(await self._change(make))

    async def close_client(self, client: str) -> ClientView:
        """Close a client: none of its keys works any more."""

        def make(now: int) -> Transaction[Told[Client]]:
            row = yield from self._client(client)
            if row.closed_at is not None:
                return row, []
            row = msgspec.structs.replace(row, closed_at=now)
            yield from saved(row)
            return row, [self._line("client.closed", client=client)]

        return client_view(await self._change(make))

    # ------------------------------------------------------------------------------------------- people

    async def add_person(
        self, *, name: str, roles: Collection[str], groups: Collection[str] = (), person: str | None = None,
        github: str | None = None,
    ) -> PersonView:  # fmt: skip
        """Make a person. To get a key, the person needs an enrolment code (`invite`)."""
        chosen = chosen_id(person, "per_")
        values = (checked_name(name), checked_roles(roles), checked_groups(groups))
        login = checked_login(github)

        def make(now: int) -> Transaction[Told[Person]]:
            yield from self._open_tenant()
            yield from self._free(chosen)
            yield from self._free_login(login, chosen)
            row = Person(
                self._tenant,
                chosen,
                *values,
                None,
                None,
                None,
                now,
                github=login,
                unconfirmed=self._vouchers(),
            )
            yield from saved(row, *_logins(row, now))
            return row, [self._person_line("person.created", row)]

        return person_view(await self._change(make))

    async def set_person(
        self, person: str, *, name: str, roles: Collection[str], groups: Collection[str] = (),
        github: str | None = None,
    ) -> PersonView:  # fmt: skip
        """Change a person."""
        values = (checked_name(name), checked_roles(roles), checked_groups(groups))
        login = checked_login(github)

        def make(now: int) -> Transaction[Told[Person]]:
            before = yield from self._person(person, is_open=True)
            if (before.roles, before.groups, before.github) != (*values[1:], login):
                self._check_other(f"person:{person}", (yield from ties_in(self._tenant)))
            yield from self._free_login(login, person)
            row = msgspec.structs.replace(
                before,
                name=values[0],
                roles=values[1],
                groups=values[2],
                github=login,
                revision=before.revision + 1,
            )
            if _promotes(before, row):
                row = msgspec.structs.replace(row, unconfirmed=joined(before.unconfirmed, self._vouchers()))
            yield from saved(row, *_logins(row, now))
            return row, [self._person_line("person.changed", row)]

        return person_view(await self._change(make))

    async def close_person(self, person: str) -> PersonView:
        """Close a person: no key works any more, an enrolment code is void, and the Slack account is free again."""

        def make(now: int) -> Transaction[Told[Person]]:
            row = yield from self._person(person)
            if row.closed_at is not None:
                return row, []
            row = msgspec.structs.replace(
                row, closed_at=now, enrol_hash=None, enrol_until=None, enrol_by="", slack=None, github=None
            )
            yield from saved(row)
            return row, [self._line("person.closed", person=person)]

        return person_view(await self._change(make))

    async def invite(self, person: str, seconds: float = ENROLMENT_SECONDS) -> EnrolmentView:
        """An enrolment code for a person; an earlier one is void."""
        check_span("expires_in", seconds, 60.0, ENROLMENT_SECONDS_MAX)
        code = new_secret("tne_")

        def make(now: int) -> Transaction[Told[int]]:
            row = yield from self._person(person, is_open=True)
            until = now + us(seconds)
            yield from saved(
                msgspec.structs.replace(
                    row, enrol_hash=digest_of(code), enrol_until=until, enrol_by=self._vouchers()
                )
            )
            return until, [self._line("person.invited", person=person, until=until, **self._glass())]

        return EnrolmentView(person=person, code=code, expires_at=moment(await self._change(make)))

    # --------------------------------------------------------------------------------------------- keys

    async def add_key(
        self,
        client: str,
        *,
        name: str = "",
        roles: Collection[str] | None = None,
        expires_at: datetime | None = None,
    ) -> NewKeyView:
        """Make a key of a client, perhaps with fewer roles than it has."""
        fewer = None if roles is None else checked_roles(roles)
        named, made = checked_name(name, fewest=0), new_key()

        def make(now: int) -> Transaction[Told[ApiKey]]:
            owner = yield from self._client(client, is_open=True, at="client")
            yield from self._room("client", client, now)
            if fewer is not None and not set(listed(fewer)) <= set(listed(owner.roles)):
                raise invalid("roles", f"the client has only {', '.join(listed(owner.roles))}")
            until = until_of(expires_at, now)
            row = ApiKey(
                made.id, self._tenant, "client", client, named, made.hash, fewer, self._actor, now, until,
                unconfirmed=self._people,
            )  # fmt: skip
            yield from saved(row)
            return row, [self._key_line("key.created", row)]

        return new_key_view(await self._change(make), made.text)

    async def add_operator_key(self, *, name: str = "", expires_at: datetime | None = None) -> NewKeyView:
        """Make a key of the installation's operator. (Only the command line does: whoever has the database.)"""
        named, made = checked_name(name, fewest=0), new_key()

        def make(now: int) -> Transaction[Told[ApiKey]]:
            row = ApiKey(
                made.id, OPERATOR_TENANT, "operator", OPERATOR_ID, named, made.hash, None, self._actor, now,
                until_of(expires_at, now),
            )  # fmt: skip
            yield from saved(row)
            return row, [self._key_line("key.created", row)]

        return new_key_view(await self._change(make), made.text)

    async def rotate_key(
        self,
        key_id: str,
        *,
        overlap: float = OVERLAP_SECONDS,
        expires_at: datetime | None = None,
        of: Principal | None = None,
    ) -> NewKeyView:
        """A new key in the place of one that works `overlap` seconds longer; the new one lives as long as the old one
        was to, unless `expires_at` says otherwise. `of` is who asks for a key of their own (law 5); without it, it must
        not be a person's (law 2)."""
        check_span("overlap", overlap, 0.0, OVERLAP_SECONDS_MAX)
        made = new_key()

        def make(now: int) -> Transaction[Told[ApiKey]]:
            old = yield from self._key(key_id, of)
            if of is None and old.owner_kind == "person":
                raise TenureError(
                    "FORBIDDEN",
                    "a person's key is rotated by that person alone; `tenure people enrol` gives them a new one",
                )
            if _is_over(old, now):
                raise invalid("key_id", "this key is over: make a new one instead")
            yield from self._room(old.owner_kind, old.owner_id, now)
            until = until_of(expires_at, now)
            if old.expires_at is not None:
                usual = now + (old.expires_at - old.created_at)
                if of is not None and until is not None and until > usual:
                    raise invalid("expires_at", "it may live as long as the old one was to, not longer")
                until = usual if until is None else until
            row = msgspec.structs.replace(
                old, id=made.id, hash=made.hash, created_by=self._actor, created_at=now, expires_at=until,
                used_at=None, replaced_until=None,
                # Whoever replaces their own has had it before; anybody else has seen a new secret.
                unconfirmed=old.unconfirmed if of is not None else joined(old.unconfirmed, self._people),
            )  # fmt: skip
            ends = now + us(overlap)
            ends = ends if old.replaced_until is None else min(ends, old.replaced_until)
            yield from saved(row, msgspec.structs.replace(old, replaced_until=ends))
            return row, [self._key_line("key.rotated", row, instead_of=key_id, until=ends)]

        return new_key_view(await self._change(make), made.text)

    async def revoke_key(self, key_id: str, *, of: Principal | None = None) -> KeyView:
        """End a key, and with it its sessions and streams."""

        def make(now: int) -> Transaction[Told[ApiKey]]:
            row = yield from self._key(key_id, of)
            if row.revoked_at is not None:
                return row, []
            row = msgspec.structs.replace(row, revoked_at=now)
            yield from saved(row)
            return row, [self._line("key.revoked", key=key_id, owner=f"{row.owner_kind}:{row.owner_id}")]

        return key_view(await self._change(make))

    # -------------------------------------------------------------------------------------------- Slack

    async def link_slack(self, person: str, code: str) -> PersonView:
        """Link the Slack account that a code from there proves; whoever had it linked before has not any more."""

        def make(now: int) -> Transaction[Told[Person]]:
            row = yield from self._person(person, is_open=True)
            taken = yield Query("take_slack_code", scalars=(digest_of(code), self._tenant, now))
            if not taken:
                raise TenureError("SLACK_CODE_INVALID")
            lines = []
            for other in (yield Query("person_of_slack", scalars=(self._tenant, taken[0].slack))):
                if other.id != person:
                    yield from saved(msgspec.structs.replace(other, slack=None))
                    lines.append(self._line("person.slack_unlinked", person=other.id))
            row = msgspec.structs.replace(row, slack=taken[0].slack)
            yield from saved(row, AccountLink(self._tenant, f"slack:{taken[0].slack}", person, now))
            return row, [*lines, self._line("person.slack_linked", person=person)]

        return person_view(await self._change(make))

    async def unlink_slack(self, person: str) -> None:
        """Forget a person's Slack account."""

        def make(_now: int) -> Transaction[Told[None]]:
            row = yield from self._person(person)
            if row.slack is None:
                return None, []
            yield from saved(msgspec.structs.replace(row, slack=None))
            return None, [self._line("person.slack_unlinked", person=person)]

        await self._change(make)

    # ------------------------------------------------------------------------------------------- inside

    async def _change(self, make: Callable[[int], Transaction[Told[T]]]) -> T:
        return await self._identity.change(self._tenant, make)

    def _line(self, kind: str, **about: Any) -> Change:
        return Change(tenant=self._tenant, kind=kind, actor=self._actor, about=about)

    def _person_line(self, kind: str, row: Person) -> Change:
        github = row.github is not None  # the login itself is a name
        return self._line(
            kind,
            person=row.id,
            roles=listed(row.roles),
            groups=listed(row.groups),
            github=github,
            unconfirmed=row.unconfirmed.split(),
            **self._glass(),
        )

    def _key_line(self, kind: str, row: ApiKey, **about: Any) -> Change:
        fewer = None if row.roles is None else listed(row.roles)
        owner = f"{row.owner_kind}:{row.owner_id}"
        return self._line(kind, key=row.id, owner=owner, roles=fewer, expires_at=row.expires_at, **about)

    def _check_other(self, whose: str, ties: Ties) -> None:
        """Refuse to change what is one's own (law 3)."""
        if whose in ties.one_with(self._actor, *self._people.split()):
            raise TenureError(
                "FORBIDDEN", "nobody changes their own roles, groups or GitHub login: ask another admin"
            )

    def _vouchers(self) -> str:
        """Who counts as one with a person that is changed here (law 6)."""
        return "" if self._breaks_glass else self._people

    def _glass(self) -> dict[str, Any]:
        return {"break_glass": True} if self._breaks_glass else {}

    def _open_tenant(self) -> Transaction[None]:
        found = yield Query("tenant_named", scalars=(self._tenant,))
        if not found:
            raise no_tenant(self._tenant)
        if found[0].closed_at is not None:
            raise invalid("tenant", "the tenant is closed")

    def _free(self, chosen: str) -> Transaction[None]:
        """Clients and people share their ids: what belongs to one by its id is never another's."""
        for kind in ("client", "person"):
            if (yield Query(f"{kind}_named", scalars=(self._tenant, chosen))):
                raise taken(kind, chosen)

    def _free_login(self, login: str | None, person: str) -> Transaction[None]:
        """One login at GitHub is one person's."""
        if login is not None:
            for other in (yield Query("person_of_github", scalars=(self._tenant, login))):
                if other.id != person:
                    raise taken("person with the GitHub login", login)

    def _client(self, client: str, *, is_open: bool = False, at: str | None = None) -> Transaction[Client]:
        """A client of this tenant; where `at` a body names it, that it is not there is the body's fault."""
        known = (yield Query("client_named", scalars=(self._tenant, client))) if is_id(client) else []
        if not known and at is not None:
            raise invalid(at, f"there is no client {client[:64]!r}")
        if not known:
            raise TenureError("CLIENT_NOT_FOUND", f"there is no client {client[:64]!r}")
        found: Client = known[0]
        if is_open and found.closed_at is not None:
            raise invalid(at or "client_id", "the client is closed")
        return found

    def _person(self, person: str, *, is_open: bool = False) -> Transaction[Person]:
        known = (yield Query("person_named", scalars=(self._tenant, person))) if is_id(person) else []
        if not known:
            raise TenureError("PERSON_NOT_FOUND", f"there is no person {person[:64]!r}")
        found: Person = known[0]
        if is_open and found.closed_at is not None:
            raise invalid("person_id", "the person is closed")
        return found

    def _key(self, key_id: str, of: Principal | None) -> Transaction[ApiKey]:
        known = (yield Query("key_named", scalars=(self._tenant, key_id))) if is_id(key_id) else []
        if not known or (of is not None and (known[0].owner_kind, known[0].owner_id) != (of.kind, of.id)):
            raise no_key(key_id)
        found: ApiKey = known[0]
        if of is not None and of.kind != "operator":
            [owner] = yield Query(f"{of.kind}_named", scalars=(self._tenant, of.id))
            if not set(listed(found.roles or owner.roles)) & set(listed(owner.roles)) <= of.roles:
                raise TenureError("FORBIDDEN", "that key may do more than the one you ask with")
        return found

    def _answering(self, owner: str | None) -> Transaction[str | None]:
        """Who answers for a client: a person of its tenant. Where none is named, the person who asks: else they could
        approve what a client of their own making has asked for."""
        if owner is None:
            kind, _, asking = self._actor.partition(":")
            if kind == "client":
                makers = yield Query("client_named", scalars=(self._tenant, asking))
                return makers[0].owner if makers else None
            return asking if kind == "person" else None
        found = (yield Query("person_named", scalars=(self._tenant, owner))) if is_id(owner) else []
        if not found or found[0].closed_at is not None:
            raise invalid("owner", f"there is no person {owner[:64]!r}")
        return owner

    def _room(self, kind: str, owner: str, now: int) -> Transaction[None]:
        """Refuse a key too many."""
        keys = yield Query("keys_owned", scalars=(self._tenant, kind, owner))
        live = [key for key in keys if not _is_over(key, now)]
        if len(live) >= KEYS_PER_OWNER_MAX:
            raise TenureError("LIMIT_EXCEEDED", f"{kind} {owner} has {len(live)} keys: revoke some first")


def _logins(row: Person, now: int) -> list[AccountLink]:
    """What is remembered of a person's login at GitHub."""
    return (
        [] if row.github is None else [AccountLink(row.tenant, f"github:{row.github.lower()}", row.id, now)]
    )


def _promotes(before: Person, row: Person) -> bool:
    """Whether somebody may do more, or is known by another login, than before."""
    more = set(listed(row.roles)) - set(listed(before.roles)) or set(listed(row.groups)) - set(
        listed(before.groups)
    )
    return bool(more) or row.github != before.github


def _is_over(key: ApiKey, now: int) -> bool:
    ends = [at for at in (key.expires_at, key.replaced_until) if at is not None]
    return key.revoked_at is not None or any(at <= now for at in ends)
