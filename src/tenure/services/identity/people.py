"""People: who makes requests to a server, and who decides."""

from __future__ import annotations

import hmac
from collections.abc import Collection

import msgspec

from tenure.clock import to_datetime, us
from tenure.errors import TenureError
from tenure.kernel.identity_rows import AccountLinkRow, ApiKeyRow, PersonRow
from tenure.kernel.separation_of_duties import join_people
from tenure.reads.identity import show_issued_key, show_person, split_list
from tenure.services.identity.changes import IdentityService, person_not_found
from tenure.services.identity.principals import new_key, new_secret
from tenure.services.identity.validation import (
    already_exists,
    check_groups,
    check_login,
    check_name,
    check_or_make_id,
    check_roles,
    check_seconds,
)
from tenure.services.paging import ROWS_MAX
from tenure.shapes.identity import ENROLMENT_SECONDS, EnrolledPerson, Enrolment, Person
from tenure.shapes.pages import Page
from tenure.store.identity import AdminChange, ChangeResult, hash_secret, save_rows
from tenure.store.port import Query, Transaction

ENROLMENT_SECONDS_MAX = 30 * 86_400.0
_List = list  # `People.list` hides the builtin in annotations of the class


class People(IdentityService):
    """The people of a scope's tenant; `services.identity.changes` has the laws."""

    async def list(self) -> _List[Person]:
        """The people, newest first, including closed ones."""
        return (await self.page(ROWS_MAX)).items

    async def page(self, limit: int, cursor: str | None = None) -> Page[Person]:
        return await self._page("people_before", show_person, limit, cursor)

    async def get(self, person: str) -> Person:
        return show_person(await self._find("person_named", person, person_not_found(person)))

    async def create(
        self, *, name: str, roles: Collection[str], groups: Collection[str] = (), person: str | None = None,
        github: str | None = None,
    ) -> Person:  # fmt: skip
        """Create a person. To get a key, the person needs an enrolment code (`invite`)."""
        chosen = check_or_make_id(person, "per_")
        values = (check_name(name), check_roles(roles), check_groups(groups))
        login = check_login(github)

        def make(now: int) -> Transaction[ChangeResult[PersonRow]]:
            yield from self._check_tenant_open()
            yield from self._check_id_free(chosen)
            yield from self._check_login_free(login, chosen)
            row = PersonRow(
                self._scope.tenant, chosen, *values, None, None, None, now, github=login, unconfirmed=self._vouchers()
            )  # fmt: skip
            yield from save_rows(row, *_account_links(row, now))
            return row, [self._person_entry("person.created", row)]

        return show_person(await self._change(make))

    async def update(
        self, person: str, *, name: str, roles: Collection[str], groups: Collection[str] = (),
        github: str | None = None,
    ) -> Person:  # fmt: skip
        """Replace a person's name, roles, groups and GitHub login."""
        values = (check_name(name), check_roles(roles), check_groups(groups))
        login = check_login(github)

        def make(now: int) -> Transaction[ChangeResult[PersonRow]]:
            before = yield from self._person(person, is_open=True)
            if (before.roles, before.groups, before.github) != (*values[1:], login):
                yield from self._check_other(f"person:{person}")
            yield from self._check_login_free(login, person)
            row = msgspec.structs.replace(
                before,
                name=values[0],
                roles=values[1],
                groups=values[2],
                github=login,
                revision=before.revision + 1,
            )
            if _is_promotion(before, row):
                linked = join_people(before.unconfirmed, self._vouchers())
                row = msgspec.structs.replace(row, unconfirmed=linked)
            yield from save_rows(row, *_account_links(row, now))
            return row, [self._person_entry("person.changed", row)]

        return show_person(await self._change(make))

    async def close(self, person: str) -> Person:
        """Close a person permanently: their keys and enrolment codes stop working, and their Slack account is free again."""

        def make(now: int) -> Transaction[ChangeResult[PersonRow]]:
            row = yield from self._person(person)
            if row.closed_at is not None:
                return row, []
            row = msgspec.structs.replace(
                row, closed_at=now, enrol_hash=None, enrol_until=None, enrol_by="", slack=None, github=None
            )
            yield from save_rows(row)
            return row, [self._entry("person.closed", person=person)]

        return show_person(await self._change(make))

    # ------------------------------------------------------------------------------------------- enrolment

    async def invite(self, person: str, seconds: float = ENROLMENT_SECONDS) -> Enrolment:
        """Create an enrolment code for a person. An earlier code stops working."""
        check_seconds("expires_in", seconds, 60.0, ENROLMENT_SECONDS_MAX)
        code = new_secret("tne_")

        def make(now: int) -> Transaction[ChangeResult[int]]:
            row = yield from self._person(person, is_open=True)
            until = now + us(seconds)
            row = msgspec.structs.replace(
                row, enrol_hash=hash_secret(code), enrol_until=until, enrol_by=self._vouchers()
            )
            yield from save_rows(row)
            return until, [self._entry("person.invited", person=person, until=until, **self._break_glass())]

        return Enrolment(person=person, code=code, expires_at=to_datetime(await self._change(make)))

    async def enrol(self, code: str) -> EnrolledPerson:
        """Exchange an enrolment code, of any tenant, for a key. The person's earlier keys are revoked: they were lost.

        A code works once. Every defect of a code gives the same error.
        """
        digest, made = hash_secret(code), new_key()
        found: _List[PersonRow] = await self._scope.store.read("person_enrolling", digest)
        if not found:
            raise TenureError("ENROLMENT_INVALID")
        tenant, person = found[0].tenant, found[0].id

        def make(now: int) -> Transaction[ChangeResult[tuple[PersonRow, ApiKeyRow]]]:
            [row] = yield Query("person_named", scalars=(tenant, person))
            [whose] = yield Query("tenant_named", scalars=(tenant,))
            fits = row.enrol_hash is not None and hmac.compare_digest(row.enrol_hash, digest)
            if not fits or row.enrol_until <= now or row.closed_at is not None or whose.closed_at is not None:
                raise TenureError("ENROLMENT_INVALID")
            keys = yield Query("keys_owned", scalars=(tenant, "person", person))
            lost = [msgspec.structs.replace(old, revoked_at=now) for old in keys if old.revoked_at is None]
            actor = f"person:{person}"
            row = msgspec.structs.replace(
                row,
                enrol_hash=None,
                enrol_until=None,
                enrol_by="",
                revision=row.revision + 1,
                unconfirmed=join_people(row.unconfirmed, row.enrol_by),
            )
            key = ApiKeyRow(made.id, tenant, "person", person, "enrolled", made.hash, None, actor, now, None)
            yield from save_rows(row, *lost, key)
            about = {
                "person": person,
                "key": key.id,
                "revoked": [old.id for old in lost],
                "unconfirmed": row.unconfirmed.split(),
            }
            return (row, key), [AdminChange(tenant=tenant, kind="person.enrolled", actor=actor, about=about)]

        row, key = await self._change(make, tenant)
        return EnrolledPerson(
            tenant=tenant,
            person=person,
            key=show_issued_key(key, made.text),
            unconfirmed=row.unconfirmed.split(),
        )

    # ----------------------------------------------------------------------------------------------- Slack

    async def link_slack(self, person: str, code: str) -> Person:
        """Link the Slack account that a code from Slack proves. Another person's link to that account ends."""

        def make(now: int) -> Transaction[ChangeResult[PersonRow]]:
            tenant = self._scope.tenant
            row = yield from self._person(person, is_open=True)
            taken = yield Query("take_slack_code", scalars=(hash_secret(code), tenant, now))
            if not taken:
                raise TenureError("SLACK_CODE_INVALID")
            entries = []
            for other in (yield Query("person_of_slack", scalars=(tenant, taken[0].slack))):
                if other.id != person:
                    yield from save_rows(msgspec.structs.replace(other, slack=None))
                    entries.append(self._entry("person.slack_unlinked", person=other.id))
            row = msgspec.structs.replace(row, slack=taken[0].slack)
            yield from save_rows(row, AccountLinkRow(tenant, f"slack:{taken[0].slack}", person, now))
            return row, [*entries, self._entry("person.slack_linked", person=person)]

        return show_person(await self._change(make))

    async def unlink_slack(self, person: str) -> None:
        def make(_now: int) -> Transaction[ChangeResult[None]]:
            row = yield from self._person(person)
            if row.slack is None:
                return None, []
            yield from save_rows(msgspec.structs.replace(row, slack=None))
            return None, [self._entry("person.slack_unlinked", person=person)]

        await self._change(make)

    # ---------------------------------------------------------------------------------------------- inside

    def _person_entry(self, kind: str, row: PersonRow) -> AdminChange:
        return self._entry(
            kind,
            person=row.id,
            roles=split_list(row.roles),
            groups=split_list(row.groups),
            github=row.github is not None,  # the login itself is a name
            unconfirmed=row.unconfirmed.split(),
            **self._break_glass(),
        )

    def _check_login_free(self, login: str | None, person: str) -> Transaction[None]:
        if login is not None:
            for other in (yield Query("person_of_github", scalars=(self._scope.tenant, login))):
                if other.id != person:
                    raise already_exists("person with the GitHub login", login)


def _account_links(row: PersonRow, now: int) -> list[AccountLinkRow]:
    """The record that a GitHub login belongs to a person; it stays when the login is taken away."""
    if row.github is None:
        return []
    return [AccountLinkRow(row.tenant, f"github:{row.github.lower()}", row.id, now)]


def _is_promotion(before: PersonRow, row: PersonRow) -> bool:
    roles = set(split_list(row.roles)) - set(split_list(before.roles))
    groups = set(split_list(row.groups)) - set(split_list(before.groups))
    return bool(roles or groups) or row.github != before.github
