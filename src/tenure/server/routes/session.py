"""What callers do for themselves: sessions of browsers, their own keys and Slack accounts, and enrolment.

Laws:
1. A session is a cookie that scripts cannot read and other sites cannot send. It ends with its key.
2. An answer has no secrets but those of the caller.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.datastructures import Cookie
from litestar.params import FromPath, JSONBody

from tenure.errors import TenureError
from tenure.server.auth.authentication import COOKIE, hash_session, session_cookie
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit
from tenure.server.request import ApiRequest
from tenure.services.identity.keys import OVERLAP_SECONDS_MAX
from tenure.services.identity.principals import Kind, Principal, new_secret
from tenure.shapes.identity import OVERLAP_SECONDS, ApiKey, EnrolledPerson, IssuedApiKey, Person
from tenure.shapes.pages import Page

Code = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class CallerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The caller and its roles."""

    id: str
    kind: Kind
    tenant: str
    """Empty for the installation's operator."""
    roles: list[str]
    groups: list[str]
    key_id: str
    by_cookie: bool
    unconfirmed: list[str]
    """The people who have created, enrolled or promoted the caller (for a client: created or changed it or its key) and were not
    confirmed since. Until then they and the caller count as one: neither approves what the other is involved in."""


class EnrolRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An enrolment code."""

    code: Code


class LinkSlackRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The code that `/tenure link` showed in Slack."""

    code: Code


class RotateKeyRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to replace a key."""

    overlap: Annotated[float, msgspec.Meta(ge=0, le=OVERLAP_SECONDS_MAX)] = OVERLAP_SECONDS
    """How many seconds the old key still works."""
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """When the new key expires; by default when the old key would have expired."""


def _show_caller(who: Principal) -> CallerInfo:
    return CallerInfo(
        id=who.id,
        kind=who.kind,
        tenant=who.tenant,
        roles=sorted(who.roles),
        groups=sorted(who.groups),
        key_id=who.key_id,
        by_cookie=who.by_cookie,
        unconfirmed=who.unconfirmed.split(),
    )


def _cookie(request: ApiRequest, value: str, seconds: float) -> Cookie:
    settings = request.server.settings
    return Cookie(
        key=COOKIE,
        value=value,
        max_age=int(seconds),
        path="/",
        secure=settings.behind_proxy or settings.tls_cert is not None,
        httponly=True,
        samesite="strict",
    )


@post("/session", summary="Exchange a key for a browser's session")
async def create_session(request: ApiRequest) -> Response[CallerInfo]:
    """Send the key as `Authorization: Bearer`. The answer sets an HttpOnly cookie."""
    server = request.server
    given = request.headers.getall("authorization", [])
    who = await server.authenticator.by_bearer(given[0].encode() if len(given) == 1 else b"", request.address)
    server.authenticator.check_key_rate(who.key_id)
    secret, seconds = new_secret(), server.settings.session_seconds
    digest = hash_session(secret)
    await server.identity.begin_session(digest, who.key_id, who.tenant, seconds)
    return Response(
        _show_caller(msgspec.structs.replace(who, by_cookie=True, session=digest)),
        cookies=[_cookie(request, secret, seconds)],
    )


@get("/session", summary="The caller")
async def get_session(request: ApiRequest) -> CallerInfo:
    """The owner of the key or session, with its roles."""
    return _show_caller(request.who)


@delete("/session", summary="End a browser's session")
async def delete_session(request: ApiRequest) -> Response[None]:
    """Ends the session of the cookie, if there is one. The key keeps working."""
    held = session_cookie(request.scope["headers"])
    if held is not None:
        await request.change_rights(request.server.identity.end_session(hash_session(held)))
    return Response(None, status_code=204, cookies=[_cookie(request, "", 0)])


@post("/enrolments", summary="Exchange an enrolment code for a key")
async def redeem_enrolment(request: ApiRequest, data: JSONBody[EnrolRequest]) -> EnrolledPerson:
    """The code works once. The key is in this answer and never shown again. Earlier keys of the person end."""
    server = request.server
    server.authenticator.check_guess_rate(request.address)
    try:
        return await request.change_rights(server.engine.people.enrol(data.code))
    except TenureError as refused:
        if refused.code == "ENROLMENT_INVALID":
            server.authenticator.note_refusal(request.address)
        raise


@get("/me/keys", summary="The caller's keys")
async def list_own_keys(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[ApiKey]:
    """The keys of the client or person that sends the request."""
    who = request.who
    return await request.engine.keys.page_of_owner((who.kind, who.id), limit, cursor)


@post("/me/keys/{key_id:str}/rotate", summary="Replace one of the caller's keys")
async def rotate_own_key(
    request: ApiRequest, key_id: FromPath[str], data: JSONBody[RotateKeyRequest | None] = None
) -> IssuedApiKey:
    """The new key is in this answer and never shown again; the old one works `overlap` seconds longer."""
    how = data or RotateKeyRequest()
    return await request.change_rights(
        request.engine.keys.rotate(key_id, overlap=how.overlap, expires_at=how.expires_at, own=True)
    )


@delete("/me/keys/{key_id:str}", summary="Revoke one of the caller's keys")
async def revoke_own_key(request: ApiRequest, key_id: FromPath[str]) -> None:
    """The key stops working, and so do its sessions and streams."""
    await request.change_rights(request.engine.keys.revoke(key_id, own=True))


@put("/me/slack", summary="Link the caller's Slack account")
async def link_slack(request: ApiRequest, data: JSONBody[LinkSlackRequest]) -> Person:
    """The code comes from `/tenure link` in Slack. It proves that the account is the caller's."""
    return await request.engine.people.link_slack(_person(request), data.code)


@delete("/me/slack", summary="Unlink the caller's Slack account")
async def unlink_slack(request: ApiRequest) -> None:
    """After that, commands of the Slack account count as nobody's."""
    await request.engine.people.unlink_slack(_person(request))


def _person(request: ApiRequest) -> str:
    if request.who.kind != "person":
        raise TenureError("FORBIDDEN", "only a person has a Slack account")
    return request.who.id


HANDLERS: list[Any] = [
    create_session, get_session, delete_session, redeem_enrolment, list_own_keys, rotate_own_key, revoke_own_key, link_slack, unlink_slack,
]  # fmt: skip
