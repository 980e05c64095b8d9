"""What the server says about itself: its metrics, its OpenAPI document, and a page made of that."""

from __future__ import annotations

from litestar import MediaType, Response, get
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tenure.server.http import openapi, openapi_page
from tenure.server.request import ApiRequest
from tenure.services.identity.principals import Principal

_JSON = "application/json"


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


HANDLERS = [get_metrics, get_openapi, get_docs]
