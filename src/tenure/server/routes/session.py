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
from tenure.server.call import Call
from tenure.server.identity.directory import OVERLAP_SECONDS, OVERLAP_SECONDS_MAX, Directory
from tenure.server.identity.gate import COOKIE, session_cookie
from tenure.server.identity.installation import enrol
from tenure.server.identity.pages import page_of
from tenure.server.identity.principals import Kind, Principal, new_secret
from tenure.server.identity.views import KeyView, NewKeyView, PersonView, key_view
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page
from tenure.store.identity import digest_of

Code = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class WhoView(msgspec.Struct, frozen=True, kw_only=True):
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


class Enrol(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a person was given."""

    code: Code


class Enrolled(msgspec.Struct, frozen=True, kw_only=True):
    """A person's own key."""

    tenant: str
    person: str
    key: NewKeyView
    unconfirmed: list[str]
    """Who counts as one with this person, until a second administrator confirms that it was them who have enrolled."""


class LinkSlack(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `/tenure link` said in Slack."""

    code: Code


class Rotate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a key is replaced."""

    overlap: Annotated[float, msgspec.Meta(ge=0, le=OVERLAP_SECONDS_MAX)] = OVERLAP_SECONDS
    """For how many seconds the old one works on."""
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """When the new one expires; unless said, it lives as long as the old one was to."""


def own(request: Call) -> Directory:
    """Changes of the caller's tenant, by the caller."""
    who = request.who
    return Directory(request.service.identity, who.tenant, who.actor, people=who.people)


def _who(who: Principal) -> WhoView:
    return WhoView(
        id=who.id,
        kind=who.kind,
        tenant=who.tenant,
        roles=sorted(who.roles),
        groups=sorted(who.groups),
        key_id=who.key_id,
        by_cookie=who.by_cookie,
        unconfirmed=who.unconfirmed.split(),
    )


def _cookie(request: Call, value: str, seconds: float) -> Cookie:
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
async def begin(request: Call) -> Response[WhoView]:
    """Send the key as `Authorization: Bearer`, as everywhere; the answer sets an HttpOnly cookie."""
    service = request.service
    given = request.headers.getall("authorization", [])
    address = request.client.host if request.client else ""
    who = await service.gate.by_bearer(given[0].encode() if len(given) == 1 else b"", address)
    service.gate.pace(who)
    secret, seconds = new_secret(), service.settings.session_seconds
    digest = digest_of(secret)
    await service.identity.begin_session(digest, who.key_id, who.tenant, seconds)
    held = msgspec.structs.replace(who, by_cookie=True, session=digest)
    return Response(_who(held), cookies=[_cookie(request, secret, seconds)])


@get("/session", summary="Who one is")
async def show(request: Call) -> WhoView:
    """The caller, by its key or its session."""
    return _who(request.who)


@delete("/session", summary="End a browser's session")
async def end(request: Call) -> Response[None]:
    """The session of the cookie that is sent, if there is one; the key stays as it is."""
    held = session_cookie(request.scope["headers"])
    if held is not None:
        await request.service.identity.end_session(digest_of(held))
        request.service.gate.forget()
    return Response(None, status_code=204, cookies=[_cookie(request, "", 0)])


@post("/enrolments", summary="Get one's key for an enrolment code")
async def enrolled(request: Call, data: JSONBody[Enrol]) -> Enrolled:
    """The code is good once. The key is in this answer and never shown again; keys one had before end."""
    service = request.service
    address = request.client.host if request.client else ""
    service.gate.refuse_guesses(address)
    try:
        person, key = await enrol(service.identity, data.code)
    except TenureError as refused:
        if refused.code == "ENROLMENT_INVALID":
            service.gate.note_refusal(address)
        raise
    service.gate.forget()
    return Enrolled(tenant=person.tenant, person=person.id, key=key, unconfirmed=person.unconfirmed.split())


@get("/me/keys", summary="One's own keys")
async def my_keys(request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> Page[KeyView]:
    """Those of the client or person that asks."""
    who = request.who
    return await page_of(
        request, "keys_before", key_view, limit, cursor, first=(who.tenant,), last=(who.kind, who.id)
    )


@post("/me/keys/{key_id:str}/rotate", summary="Replace one of one's own keys")
async def rotate_mine(
    request: Call, key_id: FromPath[str], data: JSONBody[Rotate | None] = None
) -> NewKeyView:
    """The new key is in this answer and never shown again; the old one works `overlap` seconds longer."""
    how = data or Rotate()
    made = await own(request).rotate_key(
        key_id, overlap=how.overlap, expires_at=how.expires_at, of=request.who
    )
    request.service.gate.forget()
    return made


@delete("/me/keys/{key_id:str}", summary="Revoke one of one's own keys")
async def revoke_mine(request: Call, key_id: FromPath[str]) -> None:
    """It does not work any more, nor do its sessions and streams."""
    await own(request).revoke_key(key_id, of=request.who)
    request.service.gate.forget()


@put("/me/slack", summary="Link one's Slack account")
async def link_slack(request: Call, data: JSONBody[LinkSlack]) -> PersonView:
    """The code comes from `/tenure link` in Slack: it proves whose account it is."""
    return await own(request).link_slack(_person(request), data.code)


@delete("/me/slack", summary="Unlink one's Slack account")
async def unlink_slack(request: Call) -> None:
    """Slack's commands are nobody's then."""
    await own(request).unlink_slack(_person(request))


def _person(request: Call) -> str:
    if request.who.kind != "person":
        raise TenureError("FORBIDDEN", "only a person has a Slack account")
    return request.who.id


HANDLERS: list[Any] = [
    begin, show, end, enrolled, my_keys, rotate_mine, revoke_mine, link_slack, unlink_slack,
]  # fmt: skip
