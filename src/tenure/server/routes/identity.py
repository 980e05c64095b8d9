"""A tenant's clients, people and keys, for its admins; and the audit chain of their changes.

Laws:
1. Another tenant's client, person or key looks exactly like a missing one.
2. A request whose answer has a secret takes no idempotency key: its answer would have to be stored.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec.structs import asdict

from tenure.limits import INTEGER_MAX, NAME_CHARS_MAX
from tenure.reads.identity import show_client, show_key, show_person
from tenure.server.idempotency import create_once
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit
from tenure.server.request import ApiRequest
from tenure.server.routes.session import RotateKeyRequest
from tenure.services.identity.people import ENROLMENT_SECONDS_MAX
from tenure.services.identity.principals import ROLES, Role
from tenure.services.identity.validation import GROUPS_MAX, ID_PATTERN
from tenure.shapes.identity import (
    ENROLMENT_SECONDS,
    ApiClient,
    ApiKey,
    AuditEntry,
    Enrolment,
    IssuedApiKey,
    Person,
)
from tenure.shapes.pages import Page

Id = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Roles = Annotated[list[Role], msgspec.Meta(min_length=1, max_length=len(ROLES))]
Groups = Annotated[list[Name], msgspec.Meta(max_length=GROUPS_MAX)]
Login = Annotated[str, msgspec.Meta(max_length=100)]
OwnerFilter = Annotated[str | None, QueryParameter(max_length=64, description="Only the keys of this one.")]


class NewClient(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A program with an account."""

    id: Id | None = None
    """By default, the server chooses one."""
    name: Name
    roles: Roles
    owner: Id | None = None
    """The person who answers for the client."""


class ClientUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The new values of a client."""

    name: Name
    roles: Roles
    owner: Id | None = None


class NewPerson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A person with an account."""

    id: Id | None = None
    """By default, the server chooses one. Histories keep it forever, so it should not reveal who the person is."""
    name: Name
    roles: Roles
    groups: Groups = []
    github: Login | None = None
    """The GitHub login. This person requests the runs that their pull requests and pushes start, and may not approve them."""


class PersonUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The new values of a person."""

    name: Name
    roles: Roles
    groups: Groups = []
    github: Login | None = None


class InviteRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long an enrolment code is valid."""

    expires_in: Annotated[float, msgspec.Meta(ge=60, le=ENROLMENT_SECONDS_MAX)] = ENROLMENT_SECONDS
    """In seconds."""


class NewClientKey(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A key of a client. (People get their keys by enrolment, so that nobody else sees them.)"""

    client: Id
    name: Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)] = ""
    roles: Roles | None = None
    """A subset of the client's roles; null: all of them."""
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class ConfirmRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The revision that is confirmed."""

    revision: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]


class ConfirmedClient(ApiClient, frozen=True, kw_only=True):
    """A client that somebody has confirmed."""

    confirmed: list[str]
    """The people whose changes were confirmed; empty if nothing was unconfirmed."""


class ConfirmedPerson(Person, frozen=True, kw_only=True):
    """A person whom somebody has confirmed."""

    confirmed: list[str]
    """The people whose changes were confirmed; empty if nothing was unconfirmed."""


class ConfirmedKey(ApiKey, frozen=True, kw_only=True):
    """A key that somebody has confirmed."""

    confirmed: list[str]
    """The people whose changes were confirmed; empty if nothing was unconfirmed."""


# ---------------------------------------------------------------------------------------------- clients


@get("/clients", summary="The tenant's clients")
async def list_clients(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[ApiClient]:
    """Newest first, including closed ones."""
    return await request.engine.clients.page(limit, cursor)


@post("/clients", summary="Create a client", status_code=201)
async def add_client(request: ApiRequest, data: JSONBody[NewClient]) -> Response[ApiClient]:
    """The client needs a key before it can send requests: `POST /keys`."""
    create = partial(
        request.engine.clients.create, client=data.id, name=data.name, roles=data.roles, owner=data.owner
    )
    return await create_once(request, create, "/clients")


@get("/clients/{client_id:str}", summary="A client")
async def client(request: ApiRequest, client_id: FromPath[str]) -> ApiClient:
    """With its roles."""
    return await request.engine.clients.get(client_id)


@put("/clients/{client_id:str}", summary="Change a client")
async def set_client(
    request: ApiRequest, client_id: FromPath[str], data: JSONBody[ClientUpdate]
) -> ApiClient:
    """A field that is left out gets its default."""
    return await request.change_rights(
        request.engine.clients.update(client_id, name=data.name, roles=data.roles, owner=data.owner)
    )


@post("/clients/{client_id:str}/confirm", summary="Confirm a client as a second person", status_code=200)
async def confirm_client(
    request: ApiRequest, client_id: FromPath[str], data: JSONBody[ConfirmRequest]
) -> ConfirmedClient:
    """From now on, people who created or changed the client are not involved in its requests for that reason alone."""
    made = await request.change_rights(
        request.engine.confirmations.confirm_row("client", client_id, data.revision)
    )
    return ConfirmedClient(**asdict(show_client(made.row)), confirmed=made.people)


@delete("/clients/{client_id:str}", summary="Close a client")
async def close_client(request: ApiRequest, client_id: FromPath[str]) -> None:
    """All of its keys stop working. This cannot be undone."""
    await request.change_rights(request.engine.clients.close(client_id))


# ----------------------------------------------------------------------------------------------- people


@get("/people", summary="The tenant's people")
async def list_people(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Person]:
    """Newest first, including closed ones."""
    return await request.engine.people.page(limit, cursor)


@post("/people", summary="Create a person", status_code=201)
async def add_person(request: ApiRequest, data: JSONBody[NewPerson]) -> Response[Person]:
    """The person needs an enrolment code to get a key: `POST /people/{person_id}/enrolment`."""
    create = partial(
        request.engine.people.create,
        person=data.id,
        name=data.name,
        roles=data.roles,
        groups=data.groups,
        github=data.github,
    )
    return await create_once(request, create, "/people")


@get("/people/{person_id:str}", summary="A person")
async def person(request: ApiRequest, person_id: FromPath[str]) -> Person:
    """With roles and groups."""
    return await request.engine.people.get(person_id)


@put("/people/{person_id:str}", summary="Change a person")
async def set_person(request: ApiRequest, person_id: FromPath[str], data: JSONBody[PersonUpdate]) -> Person:
    """A field that is left out gets its default. Nobody changes their own roles, groups or login."""
    return await request.change_rights(
        request.engine.people.update(
            person_id, name=data.name, roles=data.roles, groups=data.groups, github=data.github
        )
    )


@post(
    "/people/{person_id:str}/confirm", summary="Confirm a person as a second administrator", status_code=200
)
async def confirm_person(
    request: ApiRequest, person_id: FromPath[str], data: JSONBody[ConfirmRequest]
) -> ConfirmedPerson:
    """Confirms that the right person has enrolled with the right roles. Until then, this person and those who created, enrolled or
    promoted them count as one."""
    made = await request.change_rights(
        request.engine.confirmations.confirm_row("person", person_id, data.revision)
    )
    return ConfirmedPerson(**asdict(show_person(made.row)), confirmed=made.people)


@delete("/people/{person_id:str}", summary="Close a person")
async def close_person(request: ApiRequest, person_id: FromPath[str]) -> None:
    """All keys of the person stop working. This cannot be undone."""
    await request.change_rights(request.engine.people.close(person_id))


@post("/people/{person_id:str}/enrolment", summary="Create an enrolment code for a person")
async def invite(
    request: ApiRequest, person_id: FromPath[str], data: JSONBody[InviteRequest | None] = None
) -> Enrolment:
    """The person exchanges the code for a key once, with `POST /enrolments`. An earlier code becomes invalid."""
    return await request.engine.people.invite(person_id, (data or InviteRequest()).expires_in)


# ------------------------------------------------------------------------------------------------- keys


@get("/keys", summary="The tenant's keys")
async def keys(
    request: ApiRequest,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
    client: OwnerFilter = None,
    person: OwnerFilter = None,
) -> Page[ApiKey]:
    """Newest first, including keys that have ended; of one client or person if it is named."""
    return await request.engine.keys.page(limit, cursor, client=client, person=person)


@post("/keys", summary="Create a key of a client")
async def add_key(request: ApiRequest, data: JSONBody[NewClientKey]) -> IssuedApiKey:
    """The secret is in this answer and never shown again."""
    return await request.engine.keys.create(
        data.client, name=data.name, roles=data.roles, expires_at=data.expires_at
    )


@get("/keys/{key_id:str}", summary="A key")
async def key(request: ApiRequest, key_id: FromPath[str]) -> ApiKey:
    """Without its secret."""
    return await request.engine.keys.get(key_id)


@post("/keys/{key_id:str}/rotate", summary="Replace a client's key")
async def rotate_key(
    request: ApiRequest, key_id: FromPath[str], data: JSONBody[RotateKeyRequest | None] = None
) -> IssuedApiKey:
    """The new key is in this answer and never shown again; the old one works `overlap` seconds longer."""
    how = data or RotateKeyRequest()
    return await request.change_rights(
        request.engine.keys.rotate(key_id, overlap=how.overlap, expires_at=how.expires_at)
    )


@post("/keys/{key_id:str}/confirm", summary="Confirm a client's key as a second person", status_code=200)
async def confirm_key(request: ApiRequest, key_id: FromPath[str]) -> ConfirmedKey:
    """Confirms that the right people have the key. From now on, its creator is not involved in requests with it for that reason alone."""
    made = await request.change_rights(request.engine.confirmations.confirm_row("key", key_id))
    return ConfirmedKey(**asdict(show_key(made.row)), confirmed=made.people)


@delete("/keys/{key_id:str}", summary="Revoke a key")
async def revoke_key(request: ApiRequest, key_id: FromPath[str]) -> None:
    """The key stops working, and so do its sessions and streams."""
    await request.change_rights(request.engine.keys.revoke(key_id))


@get("/audit", summary="The audit chain of clients, people and keys")
async def list_audit(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[AuditEntry]:
    """Newest first. The hash of each entry covers the entry before it."""
    return await request.engine.tenants.audit_page(request.who.tenant, limit, cursor)


HANDLERS: list[Any] = [
    list_clients, add_client, client, set_client, confirm_client, close_client, list_people, add_person, person, set_person,
    confirm_person, close_person, invite, keys, add_key, key, rotate_key, confirm_key, revoke_key, list_audit,
]  # fmt: skip
