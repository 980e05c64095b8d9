"""The first tenant of a database, for somebody who begins: a person and a program of it, and a key each.

Law: the keys are told once, when they are made; nobody can ask for them again.
"""

from __future__ import annotations

import msgspec

from tenure.embedded import Engine
from tenure.errors import TenureError
from tenure.server.identity.directory import Directory
from tenure.server.identity.installation import Installation, enrol
from tenure.store.identity import Identity

TENANT = "default"
PERSON = "you"
PROGRAM = "local"
BY = "dev"


class FirstKeys(msgspec.Struct, frozen=True):
    """What is told once."""

    person: str
    """Of a person with every role: looks, steers and approves."""
    program: str
    """Of a program that starts runs and takes work: what it asks for, the person may approve."""


async def first_keys(engine: Engine) -> FirstKeys | None:
    """Make the tenant with its person and program; None where it is there already."""
    identity = Identity(engine.store)
    try:
        await Installation(identity, BY).add_tenant(TENANT, name="Default")
    except TenureError as refused:
        if refused.code != "ALREADY_EXISTS":
            raise
        return None
    directory = Directory(identity, TENANT, BY, people="", breaks_glass=True)
    roles = ("viewer", "operator", "approver", "admin", "runner")
    await directory.add_person(name="You, on this machine", roles=roles, person=PERSON)
    _, person = await enrol(identity, (await directory.invite(PERSON)).code)
    await directory.add_client(
        name="Programs on this machine", roles=("viewer", "operator", "runner"), client=PROGRAM
    )
    program = await directory.add_key(PROGRAM, name="dev")
    return FirstKeys(person.key, program.key)
