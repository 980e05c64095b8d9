"""Who stands behind a run, and so does not count as an approver of what it does. docs/separation-of-duties.md has the whole rule.

Laws:
1. They are the requester and everybody in `run_spec.behind`: whoever caused the run, changed it, or fed it. Who that is, is known
   where a request comes in; it is handed over as `id id` with the command, by person and not by credential.
2. Nobody is ever taken out. An approval that somebody gave before they came to stand behind the run does not count any more.
3. Ids are opaque and have no blanks. Of a client the people who answer for it are named beside it, by whoever knows that.
4. Where a group is asked, only a person of the directory who belongs to it counts. The one local person of a command line beside
   the database is in no directory, and so in no group.
5. A person of the directory and those who made, enrolled or promoted them count as one, until a second administrator has confirmed
   that (`Ties`). That goes on: whoever counts as one with them does, too. All accounts beside the database are one.
6. More people than `PEOPLE_BEHIND_MAX` are not written down one by one: the mark `MORE` stands for them. Such a run goes on; only
   nobody approves it any more, since nobody knows who is left.
7. An account elsewhere that no person has ever had may be anybody's: it stands behind the run as `slack:TEAM/USER` or `github:LOGIN`. Such a
   run goes on; only nobody approves it, since nobody knows who is a second person.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tenure.errors import TenureError
from tenure.kernel.commands import Context
from tenure.limits import PEOPLE_BEHIND_MAX

if TYPE_CHECKING:
    from tenure.kernel.draft import Draft
    from tenure.kernel.model import RunSpec
    from tenure.kernel.service import Person, UnconfirmedPerson

_PERSON = "person:"
_LOCAL = "uid:"
MORE = "*"
"""Stands for more people than are written down (law 6)."""
_ACCOUNTS = ("slack:", "github:")
"""Of accounts that no person has (law 7)."""


def joined(*ids: str | None) -> str:
    """These ids (each may be several, as `id id`), each of them once; of too many the first, and `MORE`."""
    everybody = dict.fromkeys(one for given in ids if given for one in given.split())
    if len(everybody) <= PEOPLE_BEHIND_MAX and MORE not in everybody:
        return " ".join(everybody)
    return " ".join([*[one for one in everybody if one != MORE][:PEOPLE_BEHIND_MAX], MORE])


def behind_new(requester: str, context: Context, given: str) -> str:
    """Who stands behind a new run besides its requester: also whoever sends the request, where that is a user."""
    if not given and (context.actor == requester or context.initiator != "user"):
        return ""  # nearly all of them
    everybody = joined(given, context.actor if context.initiator == "user" else None).split()
    return joined(*(one for one in everybody if one != requester))


def people_behind(spec: RunSpec) -> frozenset[str]:
    """Everybody who does not count as an approver."""
    return frozenset((spec.requester, *spec.behind.split()))


def stand_behind(d: Draft, context: Context, given: str = "") -> None:
    """Whoever asks for this stands behind the run from now on, and so does everybody in `given`."""
    spec = d.spec()
    wanted = joined(given, context.actor if context.initiator == "user" else None).split()
    known = people_behind(spec)
    new = [one for one in wanted if one not in known]
    if new and MORE not in known:
        d.edit(spec).behind = joined(spec.behind, *new)


# ------------------------------------------------------------------------------------------ who is one person


class Ties:
    """Which people of a tenant count as one (law 5): those that nobody has confirmed yet, and by whom they are what they are."""

    __slots__ = ("_near",)

    def __init__(self, unconfirmed: Iterable[UnconfirmedPerson] = ()) -> None:
        self._near: dict[str, set[str]] = {}
        for row in unconfirmed:
            name = f"{_PERSON}{row.id}"
            for one in row.unconfirmed.split():
                self._near.setdefault(name, set()).add(_known_as(one))
                self._near.setdefault(_known_as(one), set()).add(name)

    def one_with(self, *people: str) -> frozenset[str]:
        """Everybody who counts as one with any of these, with themselves."""
        found = {_known_as(one) for one in people}
        left = list(found)
        while left:
            new = self._near.get(left.pop(), set()) - found
            found |= new
            left += new
        return frozenset(found)

    def among(self, who: str, people: Collection[str]) -> str | None:
        """The first of these people who counts as one with somebody; None: nobody does."""
        mine = self.one_with(who)
        return next((one for one in people if _known_as(one) in mine), None)

    def apart(self, people: Iterable[str]) -> list[str]:
        """These people without those who count as one with an earlier of them."""
        found: list[str] = []
        for one in people:
            if self.among(one, found) is None:
                found.append(one)
        return found


def _known_as(one: str) -> str:
    """All accounts beside the database are one local person (law 4)."""
    return _LOCAL if one.startswith(_LOCAL) else one


def ties_of(d: Draft) -> Ties:
    """Who counts as one among the people of the run's tenant, in this transaction."""
    return d.snap.ties(d.run.tenant)


def check_apart(d: Draft, actor: str, people: Collection[str], what: str) -> None:
    """Refuse who is one of these people, or counts as one with them; `what` says what they may not do and who may."""
    ties = ties_of(d)
    one = ties.among(actor, sorted(people))
    if one is None:
        return
    if one == actor:
        raise TenureError("APPROVER_IS_REQUESTER", f"{actor} caused, changed or fed this run and {what}")
    raise TenureError(
        "APPROVER_IS_REQUESTER",
        f"{actor} counts as one with {one}, who caused, changed or fed this run, and {what}, or have a second administrator confirm"
        " that they are two people",
    )


def uncountable(behind: Iterable[str]) -> TenureError | None:
    """Why nobody can approve a run of which nobody knows who stands behind it (laws 6 and 7); None: all of them are known."""
    for one in behind:
        if one == MORE:
            return TenureError(
                "TOO_MANY_BEHIND",
                f"more than {PEOPLE_BEHIND_MAX} people stand behind this run, so nobody can be shown to be a second person",
            )
        if one.startswith(_ACCOUNTS):
            return TenureError(
                "ACCOUNT_NOT_LINKED",
                f"the account {one} stands behind this run and nobody has linked it, so nobody can be shown to be a second person",
            )
    return None


def person_of(actor: str) -> str | None:
    """The id in the directory of whoever decides; None: it is nobody's there."""
    return actor.removeprefix(_PERSON) if actor.startswith(_PERSON) else None


def counts(actor: str, group: str, people: Mapping[str, Person]) -> bool:
    """Whether somebody may say yes, or may still have said it: active, an approver, and in the group where one is asked (law 4).
    `people` are those of the directory, by their ids."""
    name = person_of(actor)
    if name is None:
        return not group
    person = people.get(name)
    if person is None or person.closed_at is not None or "approver" not in msgspec.json.decode(person.roles):
        return False
    return not group or group in msgspec.json.decode(person.groups)


def check_second_local(actor: str, votes: Sequence[str]) -> None:
    """Refuse another account of a command line beside the database: whatever it is called, that is one local person (law 4)."""
    if actor.startswith(_LOCAL) and any(one.startswith(_LOCAL) and one != actor for one in votes):
        raise TenureError(
            "APPROVER_NOT_ELIGIBLE",
            "beside the database everybody is one local person, who has said yes already: a second one answers over a server",
        )


def check_second(d: Draft, actor: str, votes: Sequence[str]) -> None:
    """Refuse a yes of somebody who counts as one with a person who has said yes: one person counts once (law 5)."""
    check_second_local(actor, votes)
    one = ties_of(d).among(actor, votes)
    if one is not None:
        raise TenureError(
            "APPROVER_COUNTED",
            f"{actor} counts as one with {one}, who has said yes already, until a second administrator confirms that they are two",
        )


def check_group(d: Draft, actor: str, group: str) -> None:
    """Refuse who is not in the group that was asked."""
    name = person_of(actor)
    people = {} if name is None else d.snap.look_outside(d.run.tenant, None, (name,)).people
    if not counts(actor, group, people):
        raise TenureError("APPROVER_NOT_IN_GROUP", f"this is for the people of the group {group!r}")
