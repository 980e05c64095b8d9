"""Who is involved in a run and so cannot approve it. docs/separation-of-duties.md has the whole rule.
Laws:
1. They are the requester and everybody in `run_spec.involved`: the people who started the run, changed it, or sent data to it.
   Where a request comes in, the people are known; the command carries them as `id id`, by person and not by
   credential.
2. Nobody is ever removed. An approval does not count any more if its approver became involved later.
3. Ids are opaque and have no blanks. For a client, the people who answer for it are listed too.
4. If a group is asked, only a person of the directory who belongs to it counts. The single local user of a command
   line is in no directory, and so in no group.
5. A person and those who created, enrolled or promoted them are treated as the same person, until a second administrator
   confirms that they are not (`LinkedPeople`). This is transitive. All accounts of a local database are one person.
6. More people than `INVOLVED_PEOPLE_MAX` are not stored one by one: `MORE_PEOPLE` stands for the rest. Such a run
   continues, but nobody can approve it, because nobody knows who is left.
7. An external account that is linked to no person may be anybody's: it is involved as `slack:TEAM/USER` or
   `github:LOGIN`. Such a run continues, but nobody can approve it, because nobody knows who is a second person.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tenure.errors import TenureError
from tenure.kernel.commands import Context
from tenure.limits import INVOLVED_PEOPLE_MAX

if TYPE_CHECKING:
    from tenure.kernel.draft import Draft
    from tenure.kernel.identity_rows import PersonRow, UnconfirmedPerson
    from tenure.kernel.run_rows import RunSpecRow

_PERSON = "person:"
_LOCAL = "uid:"
MORE_PEOPLE = "*"
"""Stands for more people than are stored (law 6)."""
_ACCOUNTS = ("slack:", "github:")
"""The prefixes of accounts that are linked to no person (law 7)."""


def join_people(*ids: str | None) -> str:
    """Join ids (each may be several, as `id id`) without repeats. Beyond the limit, `MORE_PEOPLE` stands for the rest."""
    everybody = dict.fromkeys(one for given in ids if given for one in given.split())
    if len(everybody) <= INVOLVED_PEOPLE_MAX and MORE_PEOPLE not in everybody:
        return " ".join(everybody)
    return " ".join([*[one for one in everybody if one != MORE_PEOPLE][:INVOLVED_PEOPLE_MAX], MORE_PEOPLE])


def people_in_new_run(requester: str, context: Context, given: str) -> str:
    """The people involved in a new run besides its requester, including the sender if that is a user."""
    if not given and (context.actor == requester or context.initiator != "user"):
        return ""  # the usual case
    everybody = join_people(given, context.actor if context.initiator == "user" else None).split()
    return join_people(*(one for one in everybody if one != requester))


def involved_people(spec: RunSpecRow) -> frozenset[str]:
    """The people who cannot approve."""
    return frozenset((spec.requester, *spec.involved.split()))


def add_involved_people(d: Draft, context: Context, given: str = "") -> None:
    """Record the sender of a command, and everybody in `given`, as involved."""
    spec = d.spec()
    wanted = join_people(given, context.actor if context.initiator == "user" else None).split()
    known = involved_people(spec)
    new = [one for one in wanted if one not in known]
    if new and MORE_PEOPLE not in known:
        d.edit(spec).involved = join_people(spec.involved, *new)


# ------------------------------------------------------------------------------------------ who is one person


class LinkedPeople:
    """Which people of a tenant are treated as the same person (law 5)."""

    __slots__ = ("_near",)

    def __init__(self, unconfirmed: Iterable[UnconfirmedPerson] = ()) -> None:
        self._near: dict[str, set[str]] = {}
        for row in unconfirmed:
            name = f"{_PERSON}{row.id}"
            for one in row.unconfirmed.split():
                self._near.setdefault(name, set()).add(_known_as(one))
                self._near.setdefault(_known_as(one), set()).add(name)

    def linked_with(self, *people: str) -> frozenset[str]:
        """These people, and everybody who is treated as the same person as one of them."""
        found = {_known_as(one) for one in people}
        left = list(found)
        while left:
            new = self._near.get(left.pop(), set()) - found
            found |= new
            left += new
        return frozenset(found)

    def among(self, who: str, people: Collection[str]) -> str | None:
        """The first of these people who is treated as the same person as `who`."""
        mine = self.linked_with(who)
        return next((one for one in people if _known_as(one) in mine), None)

    def apart(self, people: Iterable[str]) -> list[str]:
        """These people, without those who are treated as the same person as an earlier one."""
        found: list[str] = []
        for one in people:
            if self.among(one, found) is None:
                found.append(one)
        return found


def _known_as(one: str) -> str:
    """All accounts of a local database are one person (law 5)."""
    return _LOCAL if one.startswith(_LOCAL) else one


def check_distinct_person(d: Draft, actor: str, people: Collection[str], what: str) -> None:
    """Refuse a person who is, or is treated as, one of these people. `what` completes the message: what they may not
    do, and who may."""
    one = d.snap.ties(d.run.tenant).among(actor, sorted(people))
    if one == actor:
        raise TenureError(
            "APPROVER_IS_REQUESTER", f"{actor} started, changed or sent data to this run and {what}"
        )
    if one is not None:
        raise TenureError(
            "APPROVER_IS_REQUESTER",
            f"{one} started, changed or sent data to this run. {actor} and {one} are treated as the same person until a second"
            f" administrator confirms otherwise. So {actor} {what}",
        )


def unknown_people_error(involved: Iterable[str]) -> TenureError | None:
    """Why nobody can approve a run whose involved people are not all known (laws 6 and 7); None if they are."""
    for one in involved:
        if one == MORE_PEOPLE:
            return TenureError(
                "TOO_MANY_BEHIND",
                f"more than {INVOLVED_PEOPLE_MAX} people are involved in this run, so nobody can be shown to be a second person",
            )
        if one.startswith(_ACCOUNTS):
            return TenureError(
                "ACCOUNT_NOT_LINKED",
                f"the account {one} is involved in this run and linked to no person, so nobody can be shown to be a second person",
            )
    return None


def person_id_of(actor: str) -> str | None:
    """The id of an approver in the directory; None if they are not in it."""
    return actor.removeprefix(_PERSON) if actor.startswith(_PERSON) else None


def may_approve(actor: str, group: str, people: Mapping[str, PersonRow]) -> bool:
    """Whether a person may approve, or may have approved: active, an approver, and in the group (law 4). `people`
    are those of the directory, by id."""
    name = person_id_of(actor)
    if name is None:
        return not group
    person = people.get(name)
    if person is None or person.closed_at is not None or "approver" not in msgspec.json.decode(person.roles):
        return False
    return not group or group in msgspec.json.decode(person.groups)


def check_second_approver(d: Draft, actor: str, votes: Sequence[str]) -> None:
    """Refuse a person who is treated as the same person as an earlier approver (law 5)."""
    if actor.startswith(_LOCAL) and any(one.startswith(_LOCAL) and one != actor for one in votes):
        raise TenureError(
            "APPROVER_NOT_ELIGIBLE",
            "a local database has a single user, who has approved already: a second person must approve through a server",
        )
    one = d.snap.ties(d.run.tenant).among(actor, votes)
    if one is not None:
        raise TenureError(
            "APPROVER_COUNTED",
            f"{one} has approved already. {actor} and {one} are treated as the same person until a second administrator confirms otherwise",
        )


def check_approver_group(d: Draft, actor: str, group: str) -> None:
    name = person_id_of(actor)
    people = {} if name is None else d.snap.governance_facts(d.run.tenant, None, (name,)).people
    if not may_approve(actor, group, people):
        raise TenureError(
            "APPROVER_NOT_IN_GROUP", f"only people of the group {group!r} may decide this approval"
        )
