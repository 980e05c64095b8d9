"""What a server says about itself: health, metrics, its OpenAPI document, and the meaning of its error codes.

Law: health and error codes need no credential, and tell nothing but what is in the code.
"""

from __future__ import annotations

import asyncio
from html import escape
from typing import Any

import msgspec
from litestar import MediaType, Response, get
from litestar.params import FromPath
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tenure.errors import CODES, TenureError
from tenure.server.error_responses import error_type_url
from tenure.server.http import openapi, openapi_page
from tenure.server.request import ApiRequest
from tenure.services.identity.principals import Principal

READY_SECONDS = 3.0
"""How long the database may take to answer."""
_HTML, _MARKDOWN, _JSON = "text/html", "text/markdown", "application/json"
_KINDS = {
    "text/html": _HTML,
    "application/xhtml+xml": _HTML,
    "text/markdown": _MARKDOWN,
    "text/plain": _MARKDOWN,
}
_KEPT = {"cache-control": "public, max-age=3600"}


class Health(msgspec.Struct, frozen=True):
    """How it is."""

    status: str


class ErrorMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of every error with a code."""

    type: str
    code: str
    status: int
    retryable: bool
    """Whether the same request may succeed later without being changed."""
    meaning: str
    remedy: str


class ErrorList(msgspec.Struct, frozen=True, kw_only=True):
    """All codes there are."""

    items: list[ErrorMeaning]


@get("/healthz", summary="Whether the process lives")
async def healthz() -> Health:
    """It does."""
    return Health("ok")


@get("/readyz", summary="Whether it can do its work")
async def readyz(request: ApiRequest) -> Health:
    """It can when the database answers, and it has not been told to end."""
    service = request.service
    if service.stopping.is_set():
        raise TenureError("NOT_READY", "the server is stopping")
    try:
        async with asyncio.timeout(READY_SECONDS):
            await service.engine.runtime.check_database()
    except (TenureError, TimeoutError) as fault:
        raise TenureError("NOT_READY", "the database cannot be reached") from fault
    return Health("ready")


@get("/metrics", summary="Metrics for Prometheus", media_type=MediaType.TEXT, operation_id="metrics")
async def get_metrics(request: ApiRequest) -> Response[bytes]:
    """What this process has counted, and how the database stands; to a tenant's credential nothing of other tenants. See
    docs/observability.md."""
    who: Principal | None = request.scope["user"]
    tenant = None if who is None or who.kind == "operator" else who.tenant
    body = await request.service.metrics.text(tenant)
    return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})


@get("/openapi.json", summary="This document", media_type=_JSON, operation_id="openapi", sync_to_thread=False)
def get_openapi() -> Response[bytes]:
    """The OpenAPI document of this server."""
    return Response(openapi.encoded_document(), media_type=_JSON)


@get(
    "/docs",
    summary="This document, to be read",
    media_type=MediaType.HTML,
    operation_id="docs",
    sync_to_thread=False,
)
def get_docs() -> Response[bytes]:
    """The operations on one page; it needs nothing from elsewhere."""
    return Response(
        openapi_page.render_page(),
        media_type=MediaType.HTML,
        headers={"content-security-policy": openapi_page.CONTENT_SECURITY_POLICY},
    )


def meaning_of(code: str) -> ErrorMeaning:
    """What a code means; NOT_FOUND where there is no such code."""
    spec = CODES.get(code)
    if spec is None:
        raise TenureError("NOT_FOUND", f"there is no error {code[:64]!r}")
    return ErrorMeaning(
        type=error_type_url(code),
        code=code,
        status=spec.status,
        retryable=spec.retryable,
        meaning=spec.meaning,
        remedy=spec.remedy_at_api,
    )


@get("/errors", summary="The codes of errors")
async def list_errors() -> ErrorList:
    """Every code that an answer may have."""
    return ErrorList(items=[meaning_of(code) for code in sorted(CODES)])


@get("/errors/{code:str}", summary="What the code of an error means")
async def show_error(request: ApiRequest, code: FromPath[str]) -> Response[ErrorMeaning]:
    """As JSON; as HTML or Markdown where `Accept` asks for that. The `type` of every error is this address."""
    found = meaning_of(code)
    kind = _asked_for(request.headers.get("accept", ""))
    if kind == _JSON:
        return Response(found, headers=_KEPT)
    text = _page(found) if kind == _HTML else _markdown(found)
    body: Any = text.encode()  # the document says what there is as JSON
    return Response(body, media_type=f"{kind}; charset=utf-8", headers=_KEPT)


def _asked_for(accept: str) -> str:
    """The first of the kinds in `Accept` that there is; JSON unless said."""
    for part in accept.split(","):
        kind = part.partition(";")[0].strip().lower()
        if kind == _JSON:
            return _JSON
        if kind in _KINDS:
            return _KINDS[kind]
    return _JSON


def _again(found: ErrorMeaning) -> str:
    return "may succeed later" if found.retryable else "fails again"


def _markdown(found: ErrorMeaning) -> str:
    return (
        f"# {found.code}\n\n{found.meaning}\n\n**What to do.** {found.remedy}\n\n"
        f"HTTP status {found.status}. The same request {_again(found)}.\n"
    )


def _page(found: ErrorMeaning) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(found.code)}</title></head><body><h1>{escape(found.code)}</h1>"
        f"<p>{escape(found.meaning)}</p><p><strong>What to do.</strong> {escape(found.remedy)}</p>"
        f"<p>HTTP status {found.status}. The same request {_again(found)}.</p></body></html>\n"
    )


HANDLERS = [healthz, readyz, get_metrics, get_openapi, get_docs, list_errors, show_error]
