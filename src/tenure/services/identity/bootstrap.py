"""The first tenant of a database, for `tenure dev`: a person, a program and a key for each.

Law: a key is shown once, when it is created.
"""

from __future__ import annotations

import msgspec

from tenure.errors import TenureError
from tenure.services.identity.clients import Clients
from tenure.services.identity.keys import Keys
from tenure.services.identity.people import People
from tenure.services.identity.principals import OPERATOR, ROLES
from tenure.services.identity.tenants import Tenants
from tenure.services.scope import Runtime, Scope

TENANT = "default"
PERSON = "you"
PROGRAM = "local"


class BootstrapKeys(msgspec.Struct, frozen=True):
    person: str
    """The key of a person with every role."""
    program: str
    """The key of a program that starts runs and works on them. The person may approve what it requests."""


async def create_first_tenant(runtime: Runtime) -> BootstrapKeys | None:
    """Create the tenant with its person and program; None if the tenant exists."""
    scope = Scope(runtime, TENANT, "default", OPERATOR.actor, OPERATOR)
    try:
        await Tenants(scope).create(TENANT, name="Default")
    except TenureError as refused:
        if refused.code != "ALREADY_EXISTS":
            raise
        return None
    people, clients = People(scope), Clients(scope)
    await people.create(name="You, on this machine", roles=ROLES, person=PERSON)
    enrolled = await people.enrol((await people.invite(PERSON)).code)
    roles = ("viewer", "operator", "runner")
    await clients.create(name="Programs on this machine", roles=roles, client=PROGRAM)
    program = await Keys(scope).create(PROGRAM, name="dev")
    return BootstrapKeys(enrolled.key.key, program.key)
