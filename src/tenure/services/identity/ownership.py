"""The owner of a hook or a schedule: the person who requests its runs, and so cannot approve them.

Law: a person, or a client that a person owns, creates hooks and schedules in that person's name only. Otherwise one person could both
start and approve a run, through a hook or schedule in a colleague's name. (A client without an owner cannot approve anything, so it may
name anybody.)
"""

from __future__ import annotations

from tenure.errors import TenureError, field_error
from tenure.services.identity.principals import Principal
from tenure.services.scope import Scope


async def resolve_owner(scope: Scope, given: str | None) -> str:
    """The owner of what a server's caller creates. `given` is the person in the request."""
    who = scope.caller
    if who is None:
        raise TenureError("FORBIDDEN", "hooks are created and changed on a server, with a key")
    if given is None or given == who.person:
        return who.requester
    if who.person is not None:
        raise TenureError("FORBIDDEN", "a person can create hooks and schedules only in their own name")
    people = await scope.store.read("person_named", who.tenant, given)
    if not people or people[0].closed_at is not None:
        raise field_error("owner", f"there is no person {given[:64]!r}")
    return f"person:{given}"


def require_person(who: Principal) -> str:
    if who.kind != "person":
        raise TenureError("FORBIDDEN", "only a person can do this, with a key or session of their own")
    return who.id
