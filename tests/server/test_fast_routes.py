"""The two routes that bypass the router return the answers, headers and log lines of the documented routes."""

import io
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from tenure.server import app
from tenure.server.context import ServerContext
from tenure.server.http.middleware import RequestMiddleware
from tenure.server.observe.structured_logs import configure_logging
from tests.server.stage import Site, site
from tests.server.workflows import begin, register

GOOD = b'{"workflow": "echo", "input": {"word": "a"}, "labels": {"team": "blue"}, "trigger": {"pr_id": 7}}'
OTHER = b'{"workflow": "echo", "input": {"word": "b"}}'
VARYING = {"id", "created_at", "request_id", "timestamp", "ms", "runId", "cachedRunId", "durationMs"}

_RUN_ID = re.compile(r"run_20[0-9-]{8}_[0-9]{6}_[a-z0-9]+")

CREATIONS: dict[str, tuple[bytes, dict[str, str]]] = {
    "good": (GOOD, {}),
    "valid with a request id": (OTHER, {"X-Request-ID": "mine"}),
    "keyed": (GOOD, {"Idempotency-Key": "one"}),
    "replayed": (GOOD, {"Idempotency-Key": "one"}),
    "another request under the same key": (OTHER, {"Idempotency-Key": "one"}),
    "two keys": (GOOD, {"Idempotency-Key": "one", "X-Idempotency-Key": "two"}),
    "an empty key": (GOOD, {"Idempotency-Key": ""}),
    "large": (json.dumps({"workflow": "echo", "input": {"word": "a" * 300_000}}).encode(), {}),
    "large and keyed": (
        json.dumps({"workflow": "echo", "input": {"word": "b" * 300_000}}).encode(),
        {"Idempotency-Key": "large"},
    ),
    "too large": (b" " * 3_000_000 + GOOD, {}),
    "empty": (b"", {}),
    "null": (b"null", {}),
    "a list": (b"[]", {}),
    "half": (GOOD[:20], {}),
    "no UTF-8": (b'{"workflow": "\xff"}', {}),
    "deep": (b'{"workflow": "echo", "input": {"word": ' + b"[" * 5_000 + b"]" * 5_000 + b"}}", {}),
    "a duplicate name": (b'{"workflow": "echo", "workflow": "echo"}', {}),
    "an unknown field": (b'{"workflow": "echo", "colour": "red"}', {}),
    "an unknown field of the trigger": (b'{"workflow": "echo", "trigger": {"who": "me"}}', {}),
    "a wrong type": (b'{"workflow": "echo", "labels": {"a": 1}}', {}),
    "an invalid timeout": (b'{"workflow": "echo", "input": {"word": "a"}, "timeout": "soon"}', {}),
    "a time without an offset": (
        b'{"workflow": "echo", "input": {"word": "a"}, "not_before": "2026-02-14T08:00:00"}',
        {},
    ),
    "an unknown workflow": (b'{"workflow": "nothing"}', {}),
    "a missing input": (b'{"workflow": "echo"}', {"Idempotency-Key": "unused"}),
    "another content type": (GOOD, {"Content-Type": "text/plain"}),
    "a cookie of another origin": (GOOD, {"Cookie": "tenure_session=x", "Authorization": ""}),
    "no credential": (GOOD, {"Authorization": ""}),
    "a wrong credential": (GOOD, {"Authorization": "Bearer tn_abc_def"}),
    "two queries": (GOOD, {"X-Query": "dry=true"}),
}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log of a test."""
    before, stream = structlog.get_config(), io.StringIO()
    configure_logging(stream)
    yield stream
    structlog.configure(**before)


class BothRoutes:
    """One server, called through the fast routes and through the router alone."""

    def __init__(self, s: Site, key: str, log: io.StringIO) -> None:
        service = s.service
        self._apps = {"fast": app.make_app(service), "documented": _documented(service)}
        self._key, self._log = key, log

    async def ask(
        self, variant: str, method: str, path: str, body: bytes = b"", **headers: str
    ) -> dict[str, Any]:
        """The answer and its log lines, without the values that differ between any two requests."""
        query = headers.pop("X-Query", "")
        given = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json", **headers}
        if not given["Authorization"]:
            del given["Authorization"]
        for header in (
            "Idempotency-Key",
            "X-Request-ID",
        ):  # otherwise the second request would replay the first
            if variant == "documented" and given.get(header):
                given[header] += "-2"
        transport: Any = httpx.ASGITransport(self._apps[variant])
        at = self._log.tell()
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            answer = await client.request(method, path, content=body, headers=given, params=query)
        self._log.seek(at)
        lines = [json.loads(line) for line in self._log.readlines()]
        return {
            "status": answer.status_code,
            "headers": {
                name: _plain(value)
                for name, value in sorted(answer.headers.items())
                if not value.startswith("req_")
            },
            "header names": sorted(answer.headers),
            "body": _plain(answer.json() if answer.content else None),
            "log": _plain(lines),
        }


def _plain(value: Any) -> Any:
    """The value without ids, times and the suffix `-2` of the second request."""
    if isinstance(value, dict):
        return {
            name: "..." if name in VARYING and item is not None else _plain(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _RUN_ID.sub("run_...", value).removesuffix("-2") if isinstance(value, str) else value


def _documented(service: ServerContext) -> Any:
    async def without_fast_routes(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["server"] = service
        await app._router()(scope, receive, send)

    return RequestMiddleware(without_fast_routes, service.settings, service.observer)


@asynccontextmanager
async def both_routes(
    tmp_path: Path, log: io.StringIO, *roles: str
) -> AsyncIterator[tuple[Site, BothRoutes]]:
    async with site(f"sqlite:{tmp_path / 'site.db'}", log_requests=True) as s:
        await register(s.engine)
        yield s, BothRoutes(s, await s.key(*roles), log)


async def test_the_fast_and_the_documented_route_start_a_run_with_equal_answers_and_logs(
    tmp_path: Path, log: io.StringIO
) -> None:
    async with both_routes(tmp_path, log, "operator") as (_, routes):
        statuses = {}
        for name, (body, headers) in CREATIONS.items():
            fast = await routes.ask("fast", "POST", "/runs", body, **headers)
            documented = await routes.ask("documented", "POST", "/runs", body, **headers)
            assert fast == documented, name
            statuses[name] = fast["status"]
            [line] = [one for one in fast["log"] if one["event"] == "request"]
            assert line["route"] == "/runs" or fast["status"] in (413, 415), name
            assert (line["tenant"] is None) is (fast["status"] in (401, 413, 415)), name
    assert set(statuses.values()) >= {201, 400, 401, 404, 413, 415, 422}, statuses
    assert statuses["replayed"] == 201


async def test_the_fast_and_the_documented_route_refuse_a_caller_without_the_role_alike(
    tmp_path: Path, log: io.StringIO
) -> None:
    async with both_routes(tmp_path, log, "viewer") as (_, routes):
        fast = await routes.ask("fast", "POST", "/runs", GOOD)
        assert fast["status"] == 403
        assert fast == await routes.ask("documented", "POST", "/runs", GOOD)


async def test_the_fast_and_the_documented_route_return_the_same_status(
    tmp_path: Path, log: io.StringIO
) -> None:
    async with both_routes(tmp_path, log, "viewer") as (s, routes):
        run = await begin(await s.as_("operator"))
        tag = (await routes.ask("fast", "GET", f"/runs/{run}/status"))["headers"]["etag"]
        asked: list[tuple[str, int, dict[str, str]]] = [
            (f"/runs/{run}/status", 200, {}),
            (f"/runs/{run}/status", 200, {"X-Query": "profile=git-with-intent"}),
            (f"/runs/{run}/status", 304, {"If-None-Match": tag}),
            (f"/runs/{run}/status", 404, {"X-Query": "profile=nothing"}),
            (f"/runs/{run}/status", 400, {"X-Query": "colour=red"}),
            ("/runs/run_2026-02-14_080000_abc123/status", 404, {}),
            ("/runs/none/status", 404, {}),
            (f"/runs/{run}/status", 401, {"Authorization": ""}),
        ]
        for path, status, headers in asked:
            fast = await routes.ask("fast", "GET", path, b"", **headers)
            assert fast["status"] == status, (path, headers, fast)
            assert fast == await routes.ask("documented", "GET", path, b"", **headers), (path, headers)
            [line] = [one for one in fast["log"] if one["event"] == "request"]
            known = status != 401
            assert (line["tenant"], line["key_id"] is not None) == ("acme" if known else None, known)
