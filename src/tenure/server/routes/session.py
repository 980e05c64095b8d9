"""Oneself: a browser's session, one's own keys, one's Slack account; and how a person gets a first key.

Laws:
1. A session is a cookie that scripts cannot read and other sites cannot send; it ends with its key.
2. What is made here is for whoever asks: nobody else's secret is ever in an answer.
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
    """Who one is, and what one may."""

    id: str
    kind: Kind
    tenant: str
    """Empty for the installation's operator."""
    roles: list[str]
    groups: list[str]
    key_id: str
    by_cookie: bool
    unconfirmed: list[str]
    """Who has made, enrolled or promoted one (of a client: made or changed it, or its key) since a second person confirmed that.
    Until then they and oneself count as one: neither approves what the other has a hand in."""


class EnrolRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a person was given."""

    code: Code


class LinkSlackRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `/tenure link` said in Slack."""

    code: Code


class RotateKeyRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a key is replaced."""

    overlap: Annotated[float, msgspec.Meta(ge=0, le=OVERLAP_SECONDS_MAX)] = OVERLAP_SECONDS
    """For how many seconds the old one works on."""
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """When the new one expires; unless said, it lives as long as the old one was to."""


def _who(who: Principal) -> CallerInfo:
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
    settings = request.service.settings
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
    """Send the key as `Authorization: Bearer`, as everywhere; the answer sets an HttpOnly cookie."""
    service = request.service
    given = request.headers.getall("authorization", [])
    address = request.client.host if request.client else ""
    who = await service.gate.by_bearer(given[0].encode() if len(given) == 1 else b"", address)
    service.gate.check_key_rate(who.key_id)
    secret, seconds = new_secret(), service.settings.session_seconds
    digest = hash_session(secret)
    await service.identity.begin_session(digest, who.key_id, who.tenant, seconds)
    held = msgspec.structs.replace(who, by_cookie=True, session=digest)
    return Response(_who(held), cookies=[_cookie(request, secret, seconds)])


@get("/session", summary="Who one is")
async def get_session(request: ApiRequest) -> CallerInfo:
    """The caller, by its key or its session."""
    return _who(request.who)


@delete("/session", summary="End a browser's session")
async def delete_session(request: ApiRequest) -> Response[None]:
    """The session of the cookie that is sent, if there is one; the key stays as it is."""
    held = session_cookie(request.scope["headers"])
    if held is not None:
        await request.service.identity.end_session(hash_session(held))
        request.service.gate.forget()
    return Response(None, status_code=204, cookies=[_cookie(request, "", 0)])


@post("/enrolments", summary="Get one's key for an enrolment code")
async def redeem_enrolment(request: ApiRequest, data: JSONBody[EnrolRequest]) -> EnrolledPerson:
    """The code is good once. The key is in this answer and never shown again; keys one had before end."""
    service = request.service
    address = request.client.host if request.client else ""
    service.gate.check_guess_rate(address)
    try:
        enrolled = await service.engine.people.enrol(data.code)
    except TenureError as refused:
        if refused.code == "ENROLMENT_INVALID":
            service.gate.note_refusal(address)
        raise
    service.gate.forget()
    return enrolled


@get("/me/keys", summary="One's own keys")
async def list_own_keys(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[ApiKey]:
    """Those of the client or person that asks."""
    who = request.who
    return await request.engine.keys.page_of_owner((who.kind, who.id), limit, cursor)


@post("/me/keys/{key_id:str}/rotate", summary="Replace one of one's own keys")
async def rotate_own_key(
    request: ApiRequest, key_id: FromPath[str], data: JSONBody[RotateKeyRequest | None] = None
) -> IssuedApiKey:
    """The new key is in this answer and never shown again; the old one works `overlap` seconds longer."""
    how = data or RotateKeyRequest()
    made = await request.engine.keys.rotate(key_id, overlap=how.overlap, expires_at=how.expires_at, own=True)
    request.service.gate.forget()
    return made


@delete("/me/keys/{key_id:str}", summary="Revoke one of one's own keys")
async def revoke_own_key(request: ApiRequest, key_id: FromPath[str]) -> None:
    """It does not work any more, nor do its sessions and streams."""
    await request.engine.keys.revoke(key_id, own=True)
    request.service.gate.forget()


@put("/me/slack", summary="Link one's Slack account")
async def link_slack(request: ApiRequest, data: JSONBody[LinkSlackRequest]) -> Person:
    """The code comes from `/tenure link` in Slack: it proves whose account it is."""
    return await request.engine.people.link_slack(_person(request), data.code)


@delete("/me/slack", summary="Unlink one's Slack account")
async def unlink_slack(request: ApiRequest) -> None:
    """Slack's commands are nobody's then."""
    await request.engine.people.unlink_slack(_person(request))


def _person(request: ApiRequest) -> str:
    if request.who.kind != "person":
        raise TenureError("FORBIDDEN", "only a person has a Slack account")
    return request.who.id


HANDLERS: list[Any] = [
    create_session, get_session, delete_session, redeem_enrolment, list_own_keys, rotate_own_key, revoke_own_key, link_slack, unlink_slack,
]  # fmt: skip
