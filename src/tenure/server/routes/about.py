"""What the server says about itself: its metrics, its OpenAPI document, and a page made of that."""

from __future__ import annotations

from litestar import MediaType, Response, get
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tenure.server.call import Call
from tenure.server.http import openapi, page
from tenure.server.identity.principals import Principal

_JSON = "application/json"


@get("/metrics", summary="Metrics for Prometheus", media_type=MediaType.TEXT, operation_id="metrics")
async def metrics(request: Call) -> Response[bytes]:
    """What this process has counted, and how the database stands; to a tenant's credential nothing of other tenants. See
    docs/observability.md."""
    who: Principal | None = request.scope["user"]
    tenant = None if who is None or who.kind == "operator" else who.tenant
    body = await request.service.metrics.text(tenant)
    return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})


@get("/openapi.json", summary="This document", media_type=_JSON, operation_id="openapi", sync_to_thread=False)
def document() -> Response[bytes]:
    """The OpenAPI document of this server."""
    return Response(openapi.encoded(), media_type=_JSON)


@get(
    "/docs",
    summary="This document, to be read",
    media_type=MediaType.HTML,
    operation_id="docs",
    sync_to_thread=False,
)
def docs() -> Response[bytes]:
    """The operations on one page; it needs nothing from elsewhere."""
    return Response(page.page(), media_type=MediaType.HTML, headers={"content-security-policy": page.POLICY})


HANDLERS = [metrics, document, docs]
