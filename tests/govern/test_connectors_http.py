"""The HTTP connector against a service double with its own log: requests, outcomes and refusals."""

from __future__ import annotations

import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from pathlib import Path
from typing import Any

import pytest

from tenure.clock import boot_seconds
from tenure.errors import TenureError
from tenure.govern.connector import CallFault, Connector, ConnectorCall
from tenure.govern.connectors.faults import CallFailed
from tenure.govern.connectors.http import HttpConnector, RepeatMethod
from tenure.govern.connectors.http_service import HttpService
from tenure.govern.connectors.registry import Connectors
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.urls import OutboundRoute
from tenure.secrets import Secrets
from tenure.testing.doubles import ServiceDouble
from tenure.testing.doubles.service import read_log

LOCAL = AllowedNetworks(networks=("127.0.0.0/8",))


def to(url: str, repeats: RepeatMethod = "none", **link: Any) -> Connector:
    """Return a connector to a service double."""
    way = OutboundRoute(hosts=(url.removeprefix("http://"),), reach=LOCAL)
    lookup = "/effects/{key}" if repeats == "marker" else ""
    made = HttpConnector("http", HttpService(base_url=url, way=way, **link), repeats=repeats, lookup=lookup)
    return Connectors([made])["http"]


def order(operation: str, url: str, key: str = "k1", seconds: float = 10.0, **fields: Any) -> ConnectorCall:
    return ConnectorCall(
        tenant="acme",
        operation=operation,
        target={"url": url},
        fields=fields,
        key=key,
        deadline=boot_seconds() + seconds,
    )


async def fault(connector: Connector, call: ConnectorCall) -> CallFault:
    """Return the fault of a failing call."""
    with pytest.raises(CallFailed) as raised:
        await connector.call(call)
    return connector.classify(raised.value)


async def test_a_request_carries_its_key_and_its_response_is_the_result() -> None:
    with ServiceDouble("honours") as service:
        http = to(service.url, "native_key")
        result = await http.call(order("post", "/effects", json={"n": 1}))
        assert result["status"] == 201
        assert result["json"] == {"no": 1, "key": "k1"}
        again = await http.call(order("post", "/effects", json={"n": 1}))
        assert again["json"] == result["json"]
        assert service.effects_of("k1") == 1
        assert [request.headers["idempotency-key"] for request in service.requests] == ["k1", "k1"]


async def test_the_settings_describe_how_a_service_treats_keys() -> None:
    for repeats, mode, found in (
        ("native_key", "honours", None),
        ("marker", "found", 1),
        ("none", "neither", None),
    ):
        with ServiceDouble(mode) as service:  # type: ignore[arg-type]  # one of the three modes
            http = to(service.url, repeats)  # type: ignore[arg-type]  # one of the three ways
            assert http.operations["post"].repeats == repeats
            assert await http.lookup(order("post", "/effects")) is None
            service.trouble(drop="after")
            assert (await fault(http, order("post", "/effects", json={}))).outcome == "unknown"
            assert service.effects_of("k1") == 1
            looked = await http.lookup(order("post", "/effects"))
            assert (looked.result["json"]["no"] if looked else None) == found


@pytest.mark.clause("GOV-18")
@pytest.mark.parametrize(
    ("trouble", "outcome", "code", "retryable", "after"),
    [
        ({"status": 429}, "not_done", "CONNECTOR_RATE_LIMITED", True, None),
        ({"status": 429, "headers": {"Retry-After": "7"}}, "not_done", "CONNECTOR_RATE_LIMITED", True, 7.0),
        ({"status": 503, "headers": {"Retry-After": "90"}}, "not_done", "CONNECTOR_RATE_LIMITED", True, 90.0),
        (
            {
                "status": 503,
                "headers": {
                    "X-Date": "",
                    "Retry-After": "Sun, 06 Nov 2044 08:50:37 GMT",
                },
            },
            "not_done",
            "CONNECTOR_RATE_LIMITED",
            True,
            86_400.0,
        ),
        (
            {"status": 503, "headers": {"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}},
            "not_done",
            "CONNECTOR_RATE_LIMITED",
            True,
            0.0,
        ),
        (
            {"status": 503, "headers": {"Retry-After": "99999999999"}},
            "not_done",
            "CONNECTOR_RATE_LIMITED",
            True,
            86_400.0,
        ),
        ({"status": 503}, "unknown", "CONNECTOR_ANSWER_LOST", False, None),
        ({"status": 500, "done": True}, "unknown", "CONNECTOR_ANSWER_LOST", False, None),
        ({"status": 504}, "unknown", "CONNECTOR_ANSWER_LOST", False, None),
        (
            {"status": 422, "json": {"message": "no such thing"}},
            "not_done",
            "CONNECTOR_REJECTED",
            False,
            None,
        ),
        ({"status": 401}, "not_done", "CONNECTOR_REJECTED", False, None),
        (
            {"status": 307, "headers": {"Location": "http://169.254.169.254/"}},
            "not_done",
            "CONNECTOR_REJECTED",
            False,
            None,
        ),
        ({"status": 303, "headers": {"Location": "/log"}}, "unknown", "CONNECTOR_ANSWER_LOST", False, None),
        ({"drop": "before"}, "unknown", "CONNECTOR_ANSWER_LOST", False, None),
        ({"drop": "after"}, "unknown", "CONNECTOR_ANSWER_LOST", False, None),
    ],
)
async def test_responses_are_mapped_to_outcomes(
    trouble: dict[str, Any], outcome: str, code: str, retryable: bool, after: float | None
) -> None:
    """Rule 24."""
    with ServiceDouble("neither") as service:
        service.trouble(**trouble)
        found = await fault(to(service.url), order("post", "/effects", json={}))
        assert (found.outcome, found.code, found.retryable, found.retry_after_seconds) == (
            outcome,
            code,
            retryable,
            after,
        )
        assert len(service.requests) == 1, "a redirect was followed or the request was repeated"
        assert len(service.effects) == int(trouble.get("done", False) or trouble.get("drop") == "after")


async def test_an_unreachable_service_is_a_known_failure() -> None:
    with ServiceDouble() as service:
        url = service.url
    found = await fault(to(url), order("post", "/effects"))
    assert (found.outcome, found.code, found.retryable) == ("not_done", "CONNECTOR_UNREACHABLE", True)


async def test_a_sent_call_that_times_out_is_unknown() -> None:
    with ServiceDouble("neither") as service:
        service.hold()
        found = await fault(to(service.url), order("post", "/effects", seconds=0.3))
        assert (found.outcome, found.code) == ("unknown", "CONNECTOR_ANSWER_LOST")
        service.release()


async def test_a_key_in_use_is_a_temporary_failure() -> None:
    with ServiceDouble() as service:
        for repeats, outcome in (("native_key", "unknown"), ("none", "not_done")):
            service.trouble(status=409)
            found = await fault(to(service.url, repeats), order("post", "/effects"))  # type: ignore[arg-type]  # two of the three
            assert found.outcome == outcome


async def test_deleting_a_missing_object_succeeds() -> None:
    with ServiceDouble() as service:
        assert (await to(service.url).call(order("delete", "/things/x")))["status"] == 404
        assert (await to(service.url).call(order("put", "/things/x", json={"a": 1})))["json"] == {"a": 1}


async def test_a_token_is_sent_only_to_its_own_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "t0ken-of-acme")
    monkeypatch.setenv("TENURE_SECRET_acme_KEY", "key-of-acme")
    with ServiceDouble(token="t0ken-of-acme") as ours, ServiceDouble() as theirs:
        hosts = tuple(double.url.removeprefix("http://") for double in (ours, theirs))
        link = HttpService(
            base_url=ours.url,
            way=OutboundRoute(hosts=hosts, reach=LOCAL),
            tokens={"acme": "env:SOME_TOKEN"},
            secrets=Secrets(),
        )
        http = Connectors([HttpConnector("http", link)])["http"]
        await http.call(order("post", "/effects"))
        await http.call(
            order("post", f"{theirs.url}/effects", secret_headers={"X-Key": "env:TENURE_SECRET_acme_KEY"})
        )
        assert "authorization" not in theirs.requests[0].headers
        assert theirs.requests[0].headers["x-key"] == "key-of-acme"
        other = {"authorization": "env:TENURE_SECRET_acme_KEY"}  # replaces the token of the service
        assert (
            await fault(http, order("post", "/effects", secret_headers=other))
        ).code == "CONNECTOR_REJECTED"
        assert ours.requests[-1].headers["authorization"] == "key-of-acme"
        refused = await fault(http, order("post", "/effects", secret_headers={"X-Key": "env:HOME"}))
        assert (refused.outcome, refused.code) == ("not_done", "SECRET_UNAVAILABLE")
        assert len(ours.requests) == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"headers": {"Authorization": "Bearer x"}}, "SECRET_NOT_A_REFERENCE"),
        ({"headers": {"Idempotency-Key": "mine"}}, "INVALID_INPUT"),
        ({"headers": {"Host": "elsewhere"}}, "INVALID_INPUT"),
        ({"headers": {"X\r\nY": "z"}}, "INVALID_INPUT"),
        ({"headers": {"X": "y\r\nHost: z"}}, "INVALID_INPUT"),
    ],
)
async def test_reserved_and_malformed_headers_are_refused(fields: dict[str, Any], code: str) -> None:
    with ServiceDouble() as service:
        found = await fault(to(service.url), order("post", "/effects", **fields))
        assert (found.outcome, found.code) == ("not_done", code)
        assert service.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/",
        "http://127.0.0.1:1/",
        "//evil.example/x",
        "http://user@127.0.0.1/",
        "ftp://127.0.0.1/",
        "http://127.0.0.1\\@evil.example/",
        "http://[::ffff:127.0.0.1]/",
    ],
)
async def test_an_unlisted_host_is_not_called(url: str) -> None:
    with ServiceDouble() as service:
        found = await fault(to(service.url), order("post", url))
        assert (found.outcome, found.retryable) == ("not_done", False)
        assert found.code in ("OUTGOING_REFUSED", "CONNECTOR_REJECTED")
        assert service.requests == [] or url.startswith("//")


def test_approvers_see_exactly_what_will_be_sent() -> None:
    http = to("http://127.0.0.1:9")
    rendered = http.render(
        "post",
        {"url": "/x"},
        {
            "json": {"title": "a\u202eb\x1b[2J", "n": 3},
            "headers": {"X-A": "1"},
            "secret_headers": {"X-B": "env:TENURE_SECRET_acme_B"},
        },
    )
    assert rendered == [
        "POST http://127.0.0.1:9/x",
        "X-A: 1",
        "X-B: the secret at env:TENURE_SECRET_acme_B",
        "title = a<U+202E>b<U+001B>[2J",
        "n = 3",
    ]
    long = http.render("post", {"url": "/x"}, {"json": {str(n): "x" * 10_000 for n in range(500)}})
    assert len(long) <= 60
    assert all(len(line) < 2_100 for line in long)


def test_a_connector_with_look_up_must_say_where() -> None:
    with pytest.raises(TenureError, match="lookup"):
        HttpConnector(repeats="marker")


async def test_the_service_double_runs_as_a_process(tmp_path: Path) -> None:
    log = tmp_path / "effects.jsonl"
    process = await create_subprocess_exec(
        sys.executable,
        "-m",
        "tenure.testing.doubles",
        "--mode",
        "neither",
        "--log",
        str(log),
        stdout=PIPE,
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        await to(url).call(order("post", "/effects", json={"n": 1}))
        await to(url).call(order("post", "/trouble", json={"drop": "after"}))
        assert (await fault(to(url), order("post", "/effects", json={"n": 2}))).outcome == "unknown"
        assert [(effect.key, effect.body) for effect in read_log(log)] == [("k1", {"n": 1}), ("k1", {"n": 2})]
    finally:
        process.terminate()
        assert await process.wait() == 0
