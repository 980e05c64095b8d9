"""Runs, looked at one by one."""

from __future__ import annotations

from litestar import get
from litestar.params import FromPath

from tenure.embedded import RunView
from tenure.server.call import Call


@get("/runs/{run_id:str}", summary="A run")
async def get_run(request: Call, run_id: FromPath[str]) -> RunView:
    """A run with its input, output and error."""
    return await request.engine.get(run_id)


HANDLERS = [get_run]
