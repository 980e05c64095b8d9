"""A tenant's own clients, people and keys, looked after by its admins; and the chain of what they changed.

Laws:
1. Another tenant's client, person or key looks exactly like none.
2. What makes a secret is not repeated under an idempotency key: its answer would have to be kept.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec.structs import asdict

from tenure.errors import TenureError
from tenure.limits import INTEGER_MAX, NAME_CHARS_MAX
from tenure.server.call import Call
from tenure.server.identity.checks import GROUPS_MAX, ID_PATTERN, invalid, is_id, no_key
from tenure.server.identity.directory import ENROLMENT_SECONDS, ENROLMENT_SECONDS_MAX
from tenure.server.identity.owners import confirming
from tenure.server.identity.pages import audit_page, page_of
from tenure.server.identity.principals import ROLES, Role
from tenure.server.identity.views import (
    AuditLine,
    ClientView,
    EnrolmentView,
    KeyView,
    NewKeyView,
    PersonView,
    client_view,
    key_view,
    person_view,
)
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page
from tenure.server.routes.session import Rotate, own
from tenure.server.runs.idempotency import Answer, Held, idempotent
from tenure.store.confirmations import Confirmations

Id = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Roles = Annotated[list[Role], msgspec.Meta(min_length=1, max_length=len(ROLES))]
Groups = Annotated[list[Name], msgspec.Meta(max_length=GROUPS_MAX)]
Login = Annotated[str, msgspec.Meta(max_length=100)]
OwnerFilter = Annotated[str | None, QueryParameter(max_length=64, description="Only the keys of this one.")]


class NewClient(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A program that is to ask."""

    id: Id | None = None
    """Chosen by us unless given."""
    name: Name
    roles: Roles
    owner: Id | None = None
    """The person who answers for it."""


class SetClient(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A client, as it is to be."""

    name: Name
    roles: Roles
    owner: Id | None = None


class NewPerson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Somebody who is to ask or decide."""

    id: Id | None = None
    """Chosen by us unless given. Histories keep it for good: an opaque one tells nobody who it is."""
    name: Name
    roles: Roles
    groups: Groups = []
    github: Login | None = None
    """The login at GitHub: runs that this person's pull requests and pushes start are theirs, and not theirs to approve."""


class SetPerson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A person, as it is to be."""

    name: Name
    roles: Roles
    groups: Groups = []
    github: Login | None = None


class Invite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long an enrolment code is good."""

    expires_in: Annotated[float, msgspec.Meta(ge=60, le=ENROLMENT_SECONDS_MAX)] = ENROLMENT_SECONDS
    """In seconds."""


class NewKeyOf(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A key of a client. (People get theirs by enrolment: nobody else ever sees it.)"""

    client: Id
    name: Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)] = ""
    roles: Roles | None = None
    """Fewer than the client has; null: all of them."""
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class Confirm(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is confirmed: as it was looked at."""

    revision: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]


class ConfirmedClient(ClientView, frozen=True, kw_only=True):
    """A client that somebody has confirmed."""

    confirmed: list[str]
    """Whose work this has confirmed; nobody's where nothing was unconfirmed."""


class ConfirmedPerson(PersonView, frozen=True, kw_only=True):
    """A person whom somebody has confirmed."""

    confirmed: list[str]
    """Whose work this has confirmed; nobody's where nothing was unconfirmed."""


class ConfirmedKey(KeyView, frozen=True, kw_only=True):
    """A key that somebody has confirmed."""

    confirmed: list[str]
    """Whose work this has confirmed; nobody's where nothing was unconfirmed."""


def confirmations(request: Call) -> Confirmations:
    """Confirmations of the caller's tenant, by the caller: a person."""
    who = request.who
    return Confirmations(request.service.identity, who.tenant, confirming(who))


# ---------------------------------------------------------------------------------------------- clients


@get("/clients", summary="The tenant's clients")
async def clients(request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> Page[ClientView]:
    """Newest first, closed ones too."""
    return await page_of(request, "clients_before", client_view, limit, cursor, first=(request.who.tenant,))


@post("/clients", summary="Make a client", status_code=201)
async def add_client(request: Call, data: JSONBody[NewClient]) -> Response[ClientView]:
    """It needs a key before it can ask: `POST /keys`."""

    async def operation(_held: Held | None) -> Answer:
        made = await own(request).add_client(
            client=data.id, name=data.name, roles=data.roles, owner=data.owner
        )
        return Answer.of(made, 201, location=f"/clients/{made.id}")

    return await idempotent(request, operation)


@get("/clients/{client_id:str}", summary="A client")
async def client(request: Call, client_id: FromPath[str]) -> ClientView:
    """With its roles."""
    found = await _named(request, "client_named", client_id)
    if found is None:
        raise TenureError("CLIENT_NOT_FOUND", f"there is no client {client_id[:64]!r}")
    return client_view(found)


@put("/clients/{client_id:str}", summary="Change a client")
async def set_client(request: Call, client_id: FromPath[str], data: JSONBody[SetClient]) -> ClientView:
    """What is not said has its default."""
    changed = await own(request).set_client(client_id, name=data.name, roles=data.roles, owner=data.owner)
    request.service.gate.forget()
    return changed


@post("/clients/{client_id:str}/confirm", summary="Confirm a client as a second person", status_code=200)
async def confirm_client(request: Call, client_id: FromPath[str], data: JSONBody[Confirm]) -> ConfirmedClient:
    """Whoever made or changed it does not stand behind what it asks from now on, for that reason alone."""
    made = await confirmations(request).client(_known(client_id), data.revision)
    request.service.gate.forget()
    return ConfirmedClient(**asdict(client_view(made.row)), confirmed=made.people)


@delete("/clients/{client_id:str}", summary="Close a client")
async def close_client(request: Call, client_id: FromPath[str]) -> None:
    """None of its keys works any more. For good."""
    await own(request).close_client(client_id)
    request.service.gate.forget()


# ----------------------------------------------------------------------------------------------- people


@get("/people", summary="The tenant's people")
async def people(request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> Page[PersonView]:
    """Newest first, closed ones too."""
    return await page_of(request, "people_before", person_view, limit, cursor, first=(request.who.tenant,))


@post("/people", summary="Make a person", status_code=201)
async def add_person(request: Call, data: JSONBody[NewPerson]) -> Response[PersonView]:
    """The person needs an enrolment code to get a key: `POST /people/{person_id}/enrolment`."""

    async def operation(_held: Held | None) -> Answer:
        made = await own(request).add_person(
            person=data.id, name=data.name, roles=data.roles, groups=data.groups, github=data.github
        )
        return Answer.of(made, 201, location=f"/people/{made.id}")

    return await idempotent(request, operation)


@get("/people/{person_id:str}", summary="A person")
async def person(request: Call, person_id: FromPath[str]) -> PersonView:
    """With roles and groups."""
    found = await _named(request, "person_named", person_id)
    if found is None:
        raise TenureError("PERSON_NOT_FOUND", f"there is no person {person_id[:64]!r}")
    return person_view(found)


@put("/people/{person_id:str}", summary="Change a person")
async def set_person(request: Call, person_id: FromPath[str], data: JSONBody[SetPerson]) -> PersonView:
    """What is not said has its default. Nobody changes their own roles, groups or login."""
    changed = await own(request).set_person(
        person_id, name=data.name, roles=data.roles, groups=data.groups, github=data.github
    )
    request.service.gate.forget()
    return changed


@post(
    "/people/{person_id:str}/confirm", summary="Confirm a person as a second administrator", status_code=200
)
async def confirm_person(request: Call, person_id: FromPath[str], data: JSONBody[Confirm]) -> ConfirmedPerson:
    """It is them who have enrolled, and they may do what their roles say: until then they and whoever made, enrolled or promoted
    them count as one."""
    made = await confirmations(request).person(_known(person_id), data.revision)
    request.service.gate.forget()
    return ConfirmedPerson(**asdict(person_view(made.row)), confirmed=made.people)


@delete("/people/{person_id:str}", summary="Close a person")
async def close_person(request: Call, person_id: FromPath[str]) -> None:
    """No key of this person works any more. For good."""
    await own(request).close_person(person_id)
    request.service.gate.forget()


@post("/people/{person_id:str}/enrolment", summary="A one-time code for a person")
async def invite(
    request: Call, person_id: FromPath[str], data: JSONBody[Invite | None] = None
) -> EnrolmentView:
    """Hand it over: `POST /enrolments` gives the person a key for it, once. An earlier code is void."""
    return await own(request).invite(person_id, (data or Invite()).expires_in)


# ------------------------------------------------------------------------------------------------- keys


@get("/keys", summary="The tenant's keys")
async def keys(
    request: Call,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
    client: OwnerFilter = None,
    person: OwnerFilter = None,
) -> Page[KeyView]:
    """Newest first, those that are over too; of one client or person where one is named."""
    if client is not None and person is not None:
        raise invalid("person", "name a client or a person, not both")
    whose = ("", "")
    if client is not None or person is not None:
        whose = ("client", client) if client is not None else ("person", person or "")
        if not is_id(whose[1]):
            raise invalid(whose[0], "that is no id")
    return await page_of(
        request, "keys_before", key_view, limit, cursor, first=(request.who.tenant,), last=whose
    )


@post("/keys", summary="Make a key of a client")
async def add_key(request: Call, data: JSONBody[NewKeyOf]) -> NewKeyView:
    """The secret is in this answer and never shown again."""
    return await own(request).add_key(
        data.client, name=data.name, roles=data.roles, expires_at=data.expires_at
    )


@get("/keys/{key_id:str}", summary="A key")
async def key(request: Call, key_id: FromPath[str]) -> KeyView:
    """Without its secret."""
    found = await _named(request, "key_named", key_id)
    if found is None:
        raise no_key(key_id)
    return key_view(found)


@post("/keys/{key_id:str}/rotate", summary="Replace a client's key")
async def rotate_key(
    request: Call, key_id: FromPath[str], data: JSONBody[Rotate | None] = None
) -> NewKeyView:
    """The new key is in this answer and never shown again; the old one works `overlap` seconds longer."""
    how = data or Rotate()
    made = await own(request).rotate_key(key_id, overlap=how.overlap, expires_at=how.expires_at)
    request.service.gate.forget()
    return made


@post("/keys/{key_id:str}/confirm", summary="Confirm a client's key as a second person", status_code=200)
async def confirm_key(request: Call, key_id: FromPath[str]) -> ConfirmedKey:
    """It is in the hands of those who answer for its client: whoever made it does not stand behind what is asked with it."""
    made = await confirmations(request).key(_known(key_id))
    request.service.gate.forget()
    return ConfirmedKey(**asdict(key_view(made.row)), confirmed=made.people)


@delete("/keys/{key_id:str}", summary="Revoke a key")
async def revoke_key(request: Call, key_id: FromPath[str]) -> None:
    """It does not work any more, nor do its sessions and streams."""
    await own(request).revoke_key(key_id)
    request.service.gate.forget()


@get("/audit", summary="Who changed what of clients, people and keys")
async def audit(request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> Page[AuditLine]:
    """The tenant's chain, newest first; each line's hash covers the one before."""
    return await audit_page(request, request.who.tenant, limit, cursor)


def _known(name: str) -> str:
    """An id that can be looked for; what is none is nobody's."""
    return name if is_id(name) else ""


async def _named(request: Call, query: str, name: str) -> Any:
    found = await request.service.identity.read(query, request.who.tenant, name) if is_id(name) else []
    return found[0] if found else None


HANDLERS: list[Any] = [
    clients, add_client, client, set_client, confirm_client, close_client, people, add_person, person, set_person,
    confirm_person, close_person, invite, keys, add_key, key, rotate_key, confirm_key, revoke_key, audit,
]  # fmt: skip
