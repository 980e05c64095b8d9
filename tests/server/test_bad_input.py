"""Invalid requests get a 4xx with a registered code, and nothing is recorded."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.server.stage import Site, problem, site
from tests.server.workflows import register

JSON = {"Content-Type": "application/json"}
DEEP = b'{"workflow": "echo", "input": ' + b'{"a": ' * 100 + b"1" + b"}" * 100 + b"}"


async def raw(s: Site, request: bytes) -> tuple[int, dict[str, Any]]:
    """Send raw bytes that no client library would send; return status and body of the answer."""
    host, port = s.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


BODIES: list[tuple[bytes, int, str]] = [
    (b"{", 400, "REQUEST_MALFORMED"),
    (b"", 400, "REQUEST_MALFORMED"),
    (b"nonsense", 400, "REQUEST_MALFORMED"),
    (b'{"workflow": "echo", "input": NaN}', 400, "REQUEST_MALFORMED"),
    (b'{"workflow": "echo", "input": {"a": Infinity}}', 400, "REQUEST_MALFORMED"),
    (b'{"workflow": "echo", "input": {"a": -Infinity}}', 400, "REQUEST_MALFORMED"),
    (b'{"workflow": "\xff\xfe"}', 400, "REQUEST_MALFORMED"),
    (b'{"workflow": "\\ud800"}', 400, "REQUEST_MALFORMED"),
    (b'{"workflow": "echo"} more', 400, "REQUEST_MALFORMED"),
    (b"[" * 100_000, 400, "REQUEST_MALFORMED"),
    (b"[" * 200 + b"]" * 200, 400, "REQUEST_MALFORMED"),
    (DEEP, 400, "REQUEST_MALFORMED"),
    (b"null", 422, "INVALID_INPUT"),
    (b"[]", 422, "INVALID_INPUT"),
    (b'{"workflow": 1}', 422, "INVALID_INPUT"),
    (b'{"workflow": "echo", "tenant": "globex"}', 422, "INVALID_INPUT"),
    (b'{"workflow": "echo", "priority": 99999999999999999999999}', 422, "INVALID_INPUT"),
    (b'{"workflow": "echo", "priority": 1e400}', 422, "INVALID_INPUT"),
    (b'{"workflow": "echo", "timeout": -1}', 422, "INVALID_INPUT"),
    (b'{"workflow": "echo", "not_before": "yesterday"}', 422, "INVALID_INPUT"),
    (b'{"workflow": "echo", "labels": {"a": 1}}', 422, "INVALID_INPUT"),
]


async def test_an_invalid_body_creates_no_run(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        caller = await s.as_("operator")
        for body, status, code in BODIES:
            answer = await caller.post("/runs", content=body, headers={**JSON, "Idempotency-Key": "k"})
            assert (answer.status_code, problem(answer)) == (status, code), (body[:100], answer.text)
        assert await s.engine.scoped(tenant="acme").runs.list() == []
        good = {"workflow": "echo", "input": {"word": "a"}}
        again = await caller.post("/runs", json=good, headers={"Idempotency-Key": "k"})
        assert again.status_code == 201, "the key was not used up"


async def test_a_number_of_any_size_is_refused_or_stored_unchanged(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        caller = await s.as_("operator", "viewer")
        for n, number in enumerate(
            (b"1" * 400, b"-99999999999999999999999999", b"1e999", b"18446744073709551616")
        ):
            parts = b'{"workflow": "echo", "input": {"word": "a", "times": %s}, "metadata": {"n": %s}}' % (
                number,
                number,
            )
            answer = await caller.post("/runs", content=parts, headers={**JSON, "Idempotency-Key": f"k{n}"})
            assert answer.status_code in (201, 400, 422), answer.text
            if answer.status_code == 201:
                shown = await caller.get(f"/runs/{answer.json()['id']}")
                assert shown.json()["metadata"]["n"] == int(number), "an accepted number is shown unchanged"
            else:
                assert problem(answer) in ("REQUEST_MALFORMED", "INVALID_INPUT")


async def test_another_content_type_is_refused(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("operator")
        for kind in (
            "text/plain",
            "application/xml",
            "multipart/form-data; boundary=x",
            "",
            "application/json5",
        ):
            answer = await caller.post(
                "/runs", content=b'{"workflow": "echo"}', headers={"Content-Type": kind}
            )
            assert (answer.status_code, problem(answer)) == (415, "UNSUPPORTED_MEDIA_TYPE"), kind
            assert "application/json" in answer.json()["error"]["message"]


async def test_a_body_that_is_too_large_is_refused_early(url: str) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65536
            yield b" " * 65536

    async with site(url, body_bytes_max=100_000) as s:
        caller = await s.as_("operator")
        answer = await caller.post("/runs", content=b" " * 100_001, headers=JSON)
        assert (answer.status_code, problem(answer)) == (413, "PAYLOAD_TOO_LARGE")
        try:
            answer = await caller.post("/runs", content=endless(), headers=JSON)
        except httpx.HTTPError:
            pass  # the server closes the connection before everything is sent
        else:
            assert (answer.status_code, problem(answer)) == (413, "PAYLOAD_TOO_LARGE")
        assert sent < 50_000_000
        status, body = await raw(
            s,
            b"POST /runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99999999999999999999\r\n\r\n",
        )
        assert (status, body["error"]["code"]) in ((413, "PAYLOAD_TOO_LARGE"), (400, "REQUEST_MALFORMED"))


async def test_a_body_that_does_not_arrive_times_out(url: str) -> None:
    async with site(url, body_seconds=0.2) as s:
        key = await s.key("operator")
        head = f"POST /runs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
        status, body = await raw(s, f"{head}content-length: 10\r\n\r\n{{".encode())
        assert (status, body["error"]["code"]) == (400, "REQUEST_MALFORMED")
        assert "in time" in body["error"]["message"]


async def test_headers_that_do_not_arrive_time_out(url: str) -> None:
    async with site(url, header_seconds=0.2) as s:
        status, body = await raw(s, b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-a: ")
        assert (status, body["error"]["code"]) == (400, "REQUEST_MALFORMED")


NO_HTTP = [
    b"nonsense\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /healthz HTTP/9.9\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 40_000 + b"\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /runs HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    b"POST /runs HTTP/1.1\r\nhost: x\r\ncontent-length: -2\r\n\r\n{}",
    b"POST /runs HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-\x00: y\r\n\r\n",
]


async def test_invalid_http_gets_the_standard_error(url: str) -> None:
    async with site(url) as s:
        for request in NO_HTTP:
            status, body = await raw(s, request)
            assert (status, body["error"]["code"]) == (400, "REQUEST_MALFORMED"), request[:100]
            assert set(body["error"]) == {"type", "code", "message", "details", "request_id", "retryable"}
        assert (await (await s.caller()).get("/healthz")).status_code == 200


CHUNKED = (
    b"POST /runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: ",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\nx: ",
        CHUNKED + b"2\r\n{}\r\n0\r\nx: ",
        CHUNKED + b"2;x=",
    ],
    ids=["header", "second header", "trailer", "chunk line"],
)
async def test_an_endless_header_is_refused_early(url: str, begun: bytes) -> None:
    async with site(url) as s:
        host, port = s.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(begun)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and sent < 50_000_000:
                writer.write(b"a" * 65536)
                await writer.drain()
                sent += 65536
                await asyncio.sleep(0)
        writer.close()
        assert sent < 50_000_000


PATHS = [
    "/runs/../../etc/passwd",
    "/runs/..%2f..%2fetc%2fpasswd",
    "/runs/%2e%2e%2f%2e%2e%2fsecrets",
    "/runs/run_2026-02-14_080000_abc123/artifacts/..%2f..%2ftenure.db",
    "/runs/%00",
    "/runs/%ff%fe",
    "/runs/run_2026-02-14_080000_abc123%00",
    "/workflows/..%2f..%2fx",
    "/runs/" + "9" * 500,
    "/hooks/%27%20or%201=1--",
    "/schedules/%00",
]


async def test_ids_that_look_like_paths_are_not_found(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("viewer", "admin")
        for path in PATHS:
            answer = await caller.get(path)
            assert answer.status_code in (400, 404, 405, 422), (path, answer.text)
            problem(answer)


QUERIES = [
    ("limit=0", 422, "INVALID_INPUT"),
    ("limit=201", 422, "INVALID_INPUT"),
    ("limit=ten", 422, "INVALID_INPUT"),
    ("limit=99999999999999999999999999", 422, "INVALID_INPUT"),
    ("cursor=nonsense", 400, "CURSOR_INVALID"),
    ("cursor=W10", 400, "CURSOR_INVALID"),
    ("cursor=%00", 400, "CURSOR_INVALID"),
    ("cursor=" + "A" * 500, 422, "INVALID_INPUT"),
    ("statsu=failed", 400, "REQUEST_MALFORMED"),
    ("created_after=yesterday", 422, "INVALID_INPUT"),
]


async def test_an_invalid_query_is_refused(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("viewer")
        for query, status, code in QUERIES:
            answer = await caller.get(f"/runs?{query}")
            assert (answer.status_code, problem(answer)) == (status, code), (query, answer.text)


async def test_errors_name_query_parameters_as_the_query_does(url: str) -> None:
    async with site(url) as s:
        answer = await (await s.as_("viewer")).get("/events/stream?type=run.done")
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        assert answer.json()["error"]["details"][0]["path"] == "type[0]"


async def test_every_unknown_run_id_gets_the_same_answer(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("viewer")
        for none in ("run_2026-01-01_000000_aaaaaa", "run_2026-01-01_000000_zzzzzz", "run_nope"):
            answer = await caller.get(f"/runs/{none}")
            assert answer.json()["error"]["message"] == f"there is no run {none!r}"


async def test_a_null_character_in_a_filter_finds_nothing_or_is_refused(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("viewer")
        for name in ("status", "workflow", "repo", "label", "profile"):
            answer = await caller.get(f"/runs?{name}=%00")
            assert answer.status_code in (200, 400, 404, 422), answer.text


async def test_responses_forbid_caching_and_content_sniffing(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("viewer")
        for path in ("/runs", "/healthz", "/nowhere", "/openapi.json"):
            headers = (await caller.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "server" not in headers
