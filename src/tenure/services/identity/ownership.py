"""Who owns a hook or a schedule: the person whom its runs are requested by, and who does not approve them.

Law: a person, or a client that a person answers for, creates hooks and schedules in that person's name only. Otherwise one person could
both start and approve a run, through a hook or schedule in a colleague's name. (A client without an owner decides nothing, so it may name
anybody.)
"""

from __future__ import annotations

from tenure.errors import TenureError
from tenure.services.identity.principals import Principal
from tenure.services.identity.validation import invalid_field
from tenure.services.scope import Scope


async def resolve_owner(scope: Scope, who: Principal, given: str | None) -> str:
    """The owner of what a caller creates; `given` is the person that the request names."""
    if given is None or given == who.person:
        return who.requester
    if who.person is not None:
        raise TenureError("FORBIDDEN", "a person creates hooks and schedules in their own name only")
    people = await scope.store.read("person_named", who.tenant, given)
    if not people or people[0].closed_at is not None:
        raise invalid_field("owner", "there is no such person")
    return f"person:{given}"


def require_person(who: Principal) -> str:
    """The id of the person whose own credential it is; for what a service never decides."""
    if who.kind != "person":
        raise TenureError("FORBIDDEN", "only a person does this, with a key or session of their own")
    return who.id
