"""A client that disconnects in the middle of its body causes no server error, on any route with a body."""

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.server.route_walk import routes
from tests.server.stage import site
from tests.server.webhook_senders import SECRET, SECRET_NAME, make_hook

WITH_BODY = sorted(route for route in routes() if route.split()[0] in ("POST", "PUT", "PATCH"))


async def test_a_client_that_disconnects_during_its_body_causes_no_server_error(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    async with site(url) as s:
        key = await s.key("viewer", "operator", "approver", "admin", "runner", person="ann")
        operator = await s.operator_key()
        hooks = {kind: (await make_hook(s, kind))["id"] for kind in ("github", "slack", "generic")}
        host, port = s.address.removeprefix("http://").split(":")
        with capture_logs() as logs:
            for route in WITH_BODY:
                method, path = route.split()
                kind = "application/yaml" if path.startswith("/workflows/") else "application/json"
                for name, hook_id in hooks.items():
                    path = path.replace(f"/hooks/{name}/{{hook_id}}", f"/hooks/{name}/{hook_id}")
                for place in ("{", "}"):
                    path = path.replace(place, "")
                _reader, writer = await asyncio.open_connection(host, int(port))
                head = (
                    f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: 1000\r\n"
                    f"authorization: Bearer {operator if path.startswith('/admin') else key}\r\n\r\n"
                )
                writer.write(head.encode() + b'{"half":')
                await writer.drain()
                writer.close()
            async with asyncio.timeout(20):
                while sum(_request_counts(s.service.metrics).values()) < len(WITH_BODY):  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.01)
        assert not [line for line in logs if line["log_level"] in ("error", "critical")]
        answered = _request_counts(s.service.metrics)
        assert not [labels for labels in answered if labels[2].startswith("5")]
        read = [labels for labels in answered if labels[2] == "400"]
        assert len(read) > len(WITH_BODY) * 0.7, "most requests pass authentication and are cut in the body"


def _request_counts(metrics: object) -> dict[tuple[str, ...], float]:
    counts: dict[tuple[str, ...], float] = metrics._requests.counts  # type: ignore[attr-defined]  # private: only this test reads the counts
    return counts
