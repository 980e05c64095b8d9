"""Whose hooks and schedules are: who has asked for their runs, and does not approve them.

Law: a person, or a client that a person answers for, makes them in that person's name and nobody else's. Else whoever may
steer and approve would need nobody for both: the hook or schedule of a colleague would ask. (A client that nobody answers for
decides nothing, so it may name anybody.)
"""

from __future__ import annotations

from tenure.errors import Detail, TenureError
from tenure.server.call import Call
from tenure.server.identity.principals import Principal
from tenure.store.confirmations import Confirming


def confirming(who: Principal) -> Confirming:
    """Who confirms: a person with their own credential."""
    if who.kind != "person":
        raise TenureError("FORBIDDEN", "a second person confirms, with a key or session of their own")
    return Confirming(actor=who.actor, people=who.people)


async def owner_of(request: Call, given: str | None) -> str:
    """The owner of what a request makes; `given` is the person it names."""
    who = request.who
    if given is None or given == who.person:
        return who.requester
    if who.person is not None:
        raise TenureError("FORBIDDEN", "a person makes hooks and schedules in their own name only")
    people = await request.service.engine.store.read("person_named", who.tenant, given)
    if not people or people[0].closed_at is not None:
        problem = "there is no such person"
        raise TenureError("INVALID_INPUT", f"owner: {problem}", (Detail("owner", problem),))
    return f"person:{given}"


def person_asking(who: Principal) -> str:
    """The id of the person whose own credential it is; for what a service never decides."""
    if who.kind != "person":
        raise TenureError("FORBIDDEN", "this takes people: a person's own key or session, never a service's")
    return who.id
