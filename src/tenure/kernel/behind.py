"""Who stands behind a run, and so does not count as an approver of what it does.

Laws:
1. They are the requester and everybody in `run_spec.behind`: whoever sent the request that made it, the people behind the run it
   is made from (a rerun, a resumption, a child), the owner of the hook or schedule that started it, the author of what a hook told
   of, and whoever has changed or resumed it since.
2. Nobody is ever taken out. An approval that somebody gave before they came to stand behind the run does not count any more.
3. Ids are opaque and have no blanks. Of a client the person who answers for it is named beside it, by whoever knows that.
4. Where a group is asked, only a person of the directory who belongs to it counts. The one local person of a command line beside
   the database is in no directory, and so in no group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tenure.errors import TenureError
from tenure.kernel.commands import Context
from tenure.limits import PEOPLE_BEHIND_MAX

if TYPE_CHECKING:
    from tenure.kernel.draft import Draft
    from tenure.kernel.model import RunSpec
    from tenure.kernel.service import Person

_PERSON = "person:"
_LOCAL = "uid:"


def joined(*ids: str | None) -> str:
    """These ids (each may be several, as `id id`), each of them once."""
    return " ".join(dict.fromkeys(one for given in ids if given for one in given.split()))


def behind_new(requester: str, context: Context, given: str) -> str:
    """Who stands behind a new run besides its requester: also whoever sends the request, where that is a user."""
    if not given and (context.actor == requester or context.initiator != "user"):
        return ""  # nearly all of them
    everybody = joined(given, context.actor if context.initiator == "user" else None).split()
    return _bounded([one for one in everybody if one != requester])


def people_behind(spec: RunSpec) -> frozenset[str]:
    """Everybody who does not count as an approver."""
    return frozenset((spec.requester, *spec.behind.split()))


def stand_behind(d: Draft, context: Context, requester: str | None) -> None:
    """Whoever asks for this stands behind the run from now on."""
    spec = d.spec()
    wanted = joined(requester, context.actor if context.initiator == "user" else None).split()
    new = [one for one in wanted if one not in people_behind(spec)]
    if new:
        d.edit(spec).behind = _bounded([*spec.behind.split(), *new])


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


def check_group(d: Draft, actor: str, group: str) -> None:
    """Refuse who is not in the group that was asked."""
    name = person_of(actor)
    people = {} if name is None else d.snap.look_outside(d.run.tenant, None, (name,)).people
    if not counts(actor, group, people):
        raise TenureError("APPROVER_NOT_IN_GROUP", f"this is for the people of the group {group!r}")


def _bounded(everybody: list[str]) -> str:
    if len(everybody) > PEOPLE_BEHIND_MAX:
        raise TenureError("LIMIT_EXCEEDED", f"at most {PEOPLE_BEHIND_MAX} people stand behind a run")
    return " ".join(everybody)
