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
    _JSON: _JSON,
}
_CACHED = {"cache-control": "public, max-age=3600"}


class Health(msgspec.Struct, frozen=True):
    """The health of the server."""

    status: str


class ErrorMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of an error code."""

    type: str
    code: str
    status: int
    retryable: bool
    """Whether the same request may succeed later."""
    meaning: str
    remedy: str


class ErrorList(msgspec.Struct, frozen=True, kw_only=True):
    """All error codes."""

    items: list[ErrorMeaning]


@get("/healthz", summary="Whether the process is alive")
async def healthz() -> Health:
    """Always answers while the process is alive."""
    return Health("ok")


@get("/readyz", summary="Whether the server is ready")
async def readyz(request: ApiRequest) -> Health:
    """The server is ready if the database answers and the server is not stopping."""
    server = request.server
    if server.stopping.is_set():
        raise TenureError("NOT_READY", "the server is stopping")
    try:
        async with asyncio.timeout(READY_SECONDS):
            await server.engine.runtime.check_database()
    except (TenureError, TimeoutError) as fault:
        raise TenureError("NOT_READY", "the database cannot be reached") from fault
    return Health("ready")


@get("/metrics", summary="Metrics for Prometheus", media_type=MediaType.TEXT, operation_id="metrics")
async def get_metrics(request: ApiRequest) -> Response[bytes]:
    """The counters of this process, and gauges of the database. A tenant's credential sees nothing of other tenants. See
    docs/observability.md."""
    who: Principal | None = request.scope["user"]
    tenant = None if who is None or who.kind == "operator" else who.tenant
    return Response(await request.server.metrics.text(tenant), headers={"content-type": CONTENT_TYPE_LATEST})


@get("/openapi.json", summary="This document", media_type=_JSON, operation_id="openapi", sync_to_thread=False)
def get_openapi() -> Response[bytes]:
    """The OpenAPI document of this server."""
    return Response(openapi.encoded_document(), media_type=_JSON)


@get(
    "/docs",
    summary="This document as a page",
    media_type=MediaType.HTML,
    operation_id="docs",
    sync_to_thread=False,
)
def get_docs() -> Response[bytes]:
    """All operations on one page, which loads nothing from other servers."""
    return Response(
        openapi_page.render_page(),
        media_type=MediaType.HTML,
        headers={"content-security-policy": openapi_page.CONTENT_SECURITY_POLICY},
    )


def meaning_of(code: str) -> ErrorMeaning:
    """The meaning of a code. Raises NOT_FOUND for an unknown code."""
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


@get("/errors", summary="The error codes")
async def list_errors() -> ErrorList:
    """All codes that an answer may have."""
    return ErrorList(items=[meaning_of(code) for code in sorted(CODES)])


@get("/errors/{code:str}", summary="The meaning of an error code")
async def show_error(request: ApiRequest, code: FromPath[str]) -> Response[ErrorMeaning]:
    """As JSON, or as HTML or Markdown if `Accept` prefers it. The `type` of every error is this address."""
    found = meaning_of(code)
    kind = _choose_type(request.headers.get("accept", ""))
    if kind == _JSON:
        return Response(found, headers=_CACHED)
    text = _page(found) if kind == _HTML else _markdown(found)
    body: Any = text.encode()  # the OpenAPI document describes the JSON form
    return Response(body, media_type=f"{kind}; charset=utf-8", headers=_CACHED)


def _choose_type(accept: str) -> str:
    """The first supported type in `Accept`; by default JSON."""
    kinds = (part.partition(";")[0].strip().lower() for part in accept.split(","))
    return next((_KINDS[kind] for kind in kinds if kind in _KINDS), _JSON)


def _retry_text(found: ErrorMeaning) -> str:
    return "may succeed later" if found.retryable else "fails again"


def _markdown(found: ErrorMeaning) -> str:
    return (
        f"# {found.code}\n\n{found.meaning}\n\n**What to do.** {found.remedy}\n\n"
        f"HTTP status {found.status}. The same request {_retry_text(found)}.\n"
    )


def _page(found: ErrorMeaning) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(found.code)}</title></head><body><h1>{escape(found.code)}</h1>"
        f"<p>{escape(found.meaning)}</p><p><strong>What to do.</strong> {escape(found.remedy)}</p>"
        f"<p>HTTP status {found.status}. The same request {_retry_text(found)}.</p></body></html>\n"
    )


HANDLERS = [healthz, readyz, get_metrics, get_openapi, get_docs, list_errors, show_error]
