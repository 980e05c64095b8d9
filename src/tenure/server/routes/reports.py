"""Reports of runs to the VCS, and the page of a run that checks link to.

Laws:
1. The page needs a credential, like every other read: the checks of a public repository are public, but its runs are not.
2. The page has no scripts, loads nothing, and everything on it is escaped. Its content security policy enforces this.
"""

from __future__ import annotations

import base64
from datetime import datetime
from hashlib import sha256
from html import escape
from typing import Annotated

from litestar import MediaType, Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, QueryParameter

from tenure import ids
from tenure.server.idempotency import idempotent
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit
from tenure.server.request import ApiRequest
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.reports import ReportState
from tenure.shapes.pages import Page
from tenure.shapes.reports import VcsReport
from tenure.shapes.runs import Run
from tenure.shapes.steps import Step

STEPS_SHOWN_MAX = 1_000
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; font-size: 0.9em; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: 0.1rem 1rem 0.1rem 0; vertical-align: top; }
"""
_HASH = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
PAGE_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

State = Annotated[ReportState | None, QueryParameter(name="state", description="Only reports in this state.")]


@get("/reports", summary="Reports of runs to the VCS")
async def list_reports(
    request: ApiRequest, only: State = None, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[VcsReport]:
    """Newest first. `state=refused` lists those that the VCS refuses for good."""
    return await request.engine.reports.page(limit, cursor, only)


@get("/reports/{run_id:str}", summary="The report of a run to the VCS")
async def get_report(request: ApiRequest, run_id: FromPath[str]) -> VcsReport:
    """Its state, and why the last try failed."""
    return await request.engine.reports.get(run_id)


@post("/reports/{run_id:str}/retry", summary="Try a report again", status_code=200)
async def retry_report(request: ApiRequest, run_id: FromPath[str]) -> Response[VcsReport]:
    """A refused report is open again; an open one is tried now."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        report = await request.engine.reports.retry(run_id)
        if request.server.reporter is not None:
            request.server.reporter.wake()
        return StoredResponse.of(report, 200)

    return await idempotent(request, operation)


@get(
    "/runs/{run_id:str}/page",
    summary="A run as a page for people",
    media_type=MediaType.HTML,
    responses={200: ResponseSpec(None, description="The page", media_type=MediaType.HTML)},
)
async def show_run_page(request: ApiRequest, run_id: FromPath[str]) -> Response[bytes]:
    """Its status, its steps and its error, without scripts. The checks of a commit link to it."""
    reader = request.engine.scope.reader
    run = await reader.run(ids.run_int(run_id))
    steps = await reader.steps(ids.run_int(run_id))
    return Response(
        render_run(run, steps),
        media_type=MediaType.HTML,
        headers={
            "Content-Security-Policy": PAGE_POLICY,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        },
    )


def render_run(run: Run, steps: list[Step]) -> bytes:
    rows = {
        "run": run.id,
        "workflow": f"{run.workflow} {run.code_version}",
        "repository": run.repo,
        "created": _time(run.created_at),
        "ended": _time(run.finished_at),
        "reported": _time(run.reported_at),
        "reason": run.reason,
        "error": "" if run.error is None else str(run.error)[:2_000],
    }
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width">',
        f"<title>{escape(run.workflow)}: {escape(run.shown)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(run.workflow)}: {escape(run.shown)}</h1><table>",
        *(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items() if value),
        "</table><h2>Steps</h2><table><tr><th>step</th><th>state</th><th>attempts</th><th>reason</th></tr>",
    ]
    parts += [
        f"<tr><td>{escape(step.name)}</td><td>{escape(step.shown)}</td><td>{step.attempt}</td>"
        f"<td>{escape(step.reason or '')}</td></tr>"
        for step in steps[:STEPS_SHOWN_MAX]
    ]
    if len(steps) > STEPS_SHOWN_MAX:
        parts.append(f"<tr><td>{len(steps) - STEPS_SHOWN_MAX} more steps are not shown</td></tr>")
    parts.append("</table></body></html>")
    return "".join(parts).encode()


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat(sep=" ", timespec="seconds")


HANDLERS = [list_reports, get_report, retry_report, show_run_page]
