"""Outgoing webhooks: the events that a receiver gets, their order, and the handling of failures."""

import asyncio
import base64
import hmac
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from ipaddress import IPv4Network
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from tenure.clock import us
from tenure.engine import Engine
from tenure.kernel.commands import Complete, CreateRun
from tenure.kernel.server_rows import NoticeRow
from tenure.outbound.address_rules import AllowedNetworks, is_allowed
from tenure.publish import check_url, webhook_dispatcher
from tenure.publish.webhook_dispatcher import DELAYS_SECONDS, TOTAL_SECONDS, next_try_at
from tests.server.stage import Site, problem, site

SECRET = b"a secret that nobody else has"
SECONDS_MAX = 20.0
QUEUES = ("default|tool:a", "default|tool:b")
PRIVATE_NETWORKS = [
    IPv4Network((number, bits)) for number, bits in ((10 << 24, 8), (0xAC100000, 12), (0xC0A80000, 16))
]
PRIVATE = str(PRIVATE_NETWORKS[0].network_address + 1)
REFERENCE = "env:TENURE_SECRET_acme_WEBHOOK"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_SECRET_acme_WEBHOOK", SECRET.decode())
    monkeypatch.setattr(webhook_dispatcher, "POLL_SECONDS", 0.05)


class Receiver:
    """A receiver of webhooks on a real socket. It checks signatures and returns the status that `answer` selects."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[dict[str, Any]] = []
        """Events that were answered 2xx, in their order."""
        self.tried: list[tuple[str, dict[str, Any]]] = []
        """(webhook-id, event) of all attempts."""
        self.answer: Callable[[dict[str, Any], int], int] = lambda _event, _tries: 204
        self.traces: list[str | None] = []
        self._heard = asyncio.Condition()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.digest(SECRET, signed, "sha256")).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        assert headers["content-type"] == "application/cloudevents+json"
        self.traces.append(headers.get("traceparent"))
        event = msgspec.json.decode(body)
        self.tried.append((headers["webhook-id"], event))
        status = self.answer(event, sum(id_ == headers["webhook-id"] for id_, _ in self.tried))
        async with self._heard:
            if 200 <= status < 300:
                self.got.append(event)
            self._heard.notify_all()
        more = [(b"location", b"https://elsewhere.test/")] if status == 302 else []
        await send({"type": "http.response.start", "status": status, "headers": more})
        await send({"type": "http.response.body", "body": b"thanks"})

    async def wait_for_events(self, count: int) -> list[dict[str, Any]]:
        """Wait until `count` events were answered 2xx."""
        async with asyncio.timeout(SECONDS_MAX), self._heard:
            await self._heard.wait_for(lambda: len(self.got) >= count)
        return self.got

    async def wait_for_attempts(self, count: int) -> None:
        async with asyncio.timeout(SECONDS_MAX), self._heard:
            await self._heard.wait_for(lambda: len(self.tried) >= count)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    listening = socket.create_server(("127.0.0.1", 0))
    receiver.url = f"http://127.0.0.1:{listening.getsockname()[1]}/in"
    server = uvicorn.Server(uvicorn.Config(receiver, log_config=None, lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield receiver
    finally:
        server.should_exit = True
        await task
        listening.close()


@asynccontextmanager
async def webhook_site(url: str, **what: Any) -> AsyncIterator[tuple[Site, Receiver, httpx.AsyncClient, str]]:
    """A site with a webhook to a receiver: (site, receiver, admin, id of the webhook)."""
    async with receiving() as receiver, site(url, webhooks_to_loopback=True) as s:
        admin = await s.as_("admin", "operator")
        made = await admin.post("/webhooks", json={"url": receiver.url, "secret": REFERENCE, **what})
        assert made.status_code == 201, made.text
        assert made.headers["location"] == f"/webhooks/{made.json()['id']}"
        yield s, receiver, admin, made.json()["id"]


def acme(s: Site, tenant: str = "acme") -> Engine:
    return s.engine.scoped(tenant=tenant)


async def work(s: Site, workflow: str = "report", tenant: str = "acme") -> str:
    """Run two steps to the end."""
    run = await acme(s, tenant).create(workflow, [{"name": "a"}, {"name": "b"}], profile="agent-runs")
    for _ in range(2):
        [lease] = await s.engine.orchestrator.claim("bob", queues=QUEUES)
        await s.engine.orchestrator.send(Complete(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1))
    return run


def summary(event: dict[str, Any]) -> tuple[str, Any]:
    data = event["data"]
    return event["type"], data.get("status", data.get("step"))


STORY = [
    ("run.status.changed", "queued"),
    ("run.status.changed", "running"),
    ("run.step.completed", 1),
    ("run.step.completed", 2),
    ("run.status.changed", "completed"),
]


async def test_webhooks_are_signed_cloudevents(url: str) -> None:
    async with webhook_site(url) as (s, receiver, _admin, id_):
        run = await work(s)
        events = await receiver.wait_for_events(5)
        assert list(map(summary, events)) == STORY
        first = events[0]
        assert first["specversion"] == "1.0"
        assert (first["source"], first["type"], first["subject"]) == (
            "/tenure/acme",
            "run.status.changed",
            run,
        )
        assert datetime.fromisoformat(first["time"]).tzinfo is not None
        assert first["data"] == {
            "run_id": run,
            "workflow": "report",
            "profile": "agent-runs",
            "status": "queued",
            "state": "queued",
        }
        assert len({event["id"] for event in events}) == 5
        assert all(webhook_id.startswith(f"{id_}_") for webhook_id, _ in receiver.tried)


async def test_events_of_a_run_arrive_in_order_despite_failures(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_dispatcher, "DELAYS_SECONDS", (0.05,))
    async with webhook_site(url) as (s, receiver, _admin, _id):
        receiver.answer = lambda event, tries: 500 if tries == 1 and event["data"].get("step") != 2 else 200
        runs = [await work(s) for _ in range(3)]
        events = await receiver.wait_for_events(15)
        for run in runs:
            mine = [event for event in events if event["subject"] == run]
            places = [int(event["id"].removeprefix(f"{run}-").partition("-")[0]) for event in mine]
            assert places == sorted(places)
            assert list(map(summary, mine)) == STORY
        ids = [webhook_id for webhook_id, _ in receiver.tried]
        assert any(ids.count(webhook_id) == 2 for webhook_id in ids)  # the same id in both attempts
        bodies = dict(receiver.tried)
        assert all(bodies[webhook_id] == event for webhook_id, event in receiver.tried)


async def test_webhooks_are_filtered_by_type_workflow_and_tenant(url: str) -> None:
    async with webhook_site(url, types=["run.step.completed"], workflow="wanted") as (
        s,
        receiver,
        _admin,
        _id,
    ):
        await work(s, "other")
        await work(s, "wanted", tenant="globex")
        run = await work(s, "wanted")
        events = await receiver.wait_for_events(2)
        assert [(event["subject"], *summary(event)) for event in events] == [
            (run, "run.step.completed", 1),
            (run, "run.step.completed", 2),
        ]


async def test_a_notice_undelivered_for_a_day_is_dead_and_can_be_retried_by_hand(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_dispatcher, "TOTAL_SECONDS", 0.0)
    async with webhook_site(url, types=["run.status.changed"]) as (s, receiver, admin, id_):
        receiver.answer = lambda _event, _tries: 503
        run = await acme(s).create("w", [{"name": "a"}])
        await receiver.wait_for_attempts(1)
        dead: list[dict[str, Any]] = []
        async with asyncio.timeout(SECONDS_MAX):
            while not dead:
                dead = (await admin.get(f"/webhooks/{id_}/dead")).json()["items"]
        assert len(dead) == 1
        assert (dead[0]["run_id"], dead[0]["error"], dead[0]["tries"]) == (run, "HTTP 503", 1)
        assert dead[0]["event"]["data"]["run_id"] == run
        receiver.answer = lambda _event, _tries: 200
        none = await admin.post(f"/webhooks/{id_}/dead/retry", json={"id": "x" * 22})
        assert none.json() == {"retried": 0}
        one = await admin.post(f"/webhooks/{id_}/dead/retry")
        assert one.json() == {"retried": 1}
        [event] = await receiver.wait_for_events(1)
        assert event == dead[0]["event"]
        assert receiver.tried[0][0] == receiver.tried[1][0] == dead[0]["webhook_id"]
        async with asyncio.timeout(SECONDS_MAX):
            while (await admin.get(f"/webhooks/{id_}/dead")).json()["items"]:
                pass


async def test_a_notice_whose_attempts_end_without_an_outcome_dies_after_a_limit(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt is counted when it begins, so that a crash counts. Over the limit, nothing is sent."""
    monkeypatch.setattr(webhook_dispatcher, "NOTICE_TRIES_MAX", 0)
    async with webhook_site(url, types=["run.status.changed"]) as (s, receiver, admin, id_):
        await acme(s).create("w", [{"name": "a"}])
        dead: list[dict[str, Any]] = []
        async with asyncio.timeout(SECONDS_MAX):
            while not dead:
                dead = (await admin.get(f"/webhooks/{id_}/dead")).json()["items"]
        assert "ended without a recorded outcome" in dead[0]["error"]
        assert receiver.tried == []
        monkeypatch.setattr(webhook_dispatcher, "NOTICE_TRIES_MAX", 30)
        assert (await admin.post(f"/webhooks/{id_}/dead/retry")).json() == {"retried": 1}
        [event] = await receiver.wait_for_events(1)
        assert event == dead[0]["event"]


async def test_a_receiver_that_answers_410_disables_its_webhook(url: str) -> None:
    async with webhook_site(url) as (s, receiver, admin, id_):
        receiver.answer = lambda _event, _tries: 410
        await acme(s).create("w", [{"name": "a"}])
        await receiver.wait_for_attempts(1)
        view: dict[str, Any] = {"disabled": False}
        async with asyncio.timeout(SECONDS_MAX):
            while not view["disabled"]:
                view = (await admin.get(f"/webhooks/{id_}")).json()
        assert view["revision"] == 2
        receiver.answer = lambda _event, _tries: 200
        on = {"url": receiver.url, "secret": REFERENCE, "revision": 2, "types": ["run.step.completed"]}
        changed = await admin.put(f"/webhooks/{id_}", json=on)
        assert (changed.status_code, changed.json()["disabled"], changed.json()["revision"]) == (
            200,
            False,
            3,
        )
        await work(s)
        events = await receiver.wait_for_events(2)
        assert {event["type"] for event in events} >= {"run.step.completed"}


async def test_a_webhook_continues_the_trace_of_its_run(url: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with webhook_site(url) as (s, receiver, _admin, _id):
        ask = s.engine.orchestrator
        await ask.create(CreateRun(run_id=ask.new_id("acme"), tenant="acme", workflow="w", trace=trace))
        await receiver.wait_for_events(1)
        assert receiver.traces == [trace]


async def test_redirects_are_not_followed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_dispatcher, "DELAYS_SECONDS", (0.01,))
    async with webhook_site(url, types=["run.status.changed"]) as (s, receiver, _admin, _id):
        receiver.answer = lambda _event, tries: 302 if tries == 1 else 200
        await acme(s).create("w", [{"name": "a"}])
        await receiver.wait_for_events(1)
        assert len(receiver.tried) == 2


async def test_a_webhook_is_read_updated_and_deleted(url: str) -> None:
    async with webhook_site(url) as (s, receiver, admin, id_):
        text = {"url": receiver.url, "secret": REFERENCE}
        viewer = await s.as_("viewer")
        [shown] = (await viewer.get("/webhooks")).json()["items"]
        assert shown == (await viewer.get(f"/webhooks/{id_}")).json()
        assert (shown["url"], shown["secret"], shown["types"]) == (receiver.url, REFERENCE, [])
        assert SECRET.decode() not in str(shown)
        answer = await viewer.post("/webhooks", json=text)
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
        other = await s.as_("admin", tenant="globex")
        for method, path, body in (
            ("GET", f"/webhooks/{id_}", None),
            ("PUT", f"/webhooks/{id_}", {**text, "revision": 1}),
            ("DELETE", f"/webhooks/{id_}", None),
            ("GET", f"/webhooks/{id_}/dead", None),
        ):
            answer = await other.request(method, path, json=body)
            assert (answer.status_code, problem(answer)) == (404, "WEBHOOK_NOT_FOUND"), method
        assert (await other.get("/webhooks")).json()["items"] == []
        changed = await admin.put(f"/webhooks/{id_}", json={**text, "workflow": "w", "revision": 1})
        assert (changed.json()["workflow"], changed.json()["revision"]) == ("w", 2)
        answer = await admin.put(f"/webhooks/{id_}", json={**text, "revision": 1})
        assert (answer.status_code, problem(answer)) == (409, "CHANGED_MEANWHILE")
        second = await admin.post("/webhooks", json=text, headers={"Idempotency-Key": "w2"})
        again = await admin.post("/webhooks", json=text, headers={"Idempotency-Key": "w2"})
        assert (again.json(), again.headers["idempotency-replayed"]) == (second.json(), "true")
        page = (await viewer.get("/webhooks?limit=1")).json()
        assert [item["id"] for item in page["items"]] == [second.json()["id"]]
        page = (await viewer.get("/webhooks", params={"limit": 1, "cursor": page["next_cursor"]})).json()
        assert ([item["id"] for item in page["items"]], page["next_cursor"]) == ([id_], None)
        assert (await admin.delete(f"/webhooks/{id_}")).status_code == 204
        assert (await admin.delete(f"/webhooks/{id_}")).status_code == 404
        audit = (await admin.get("/audit")).json()["items"]
        kinds = [line["kind"] for line in audit if line["kind"].startswith("webhook.")]
        assert sorted(kinds) == ["webhook.changed", "webhook.created", "webhook.created", "webhook.deleted"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ({"url": "https://example.com/", "secret": "hunter2"}, "secret"),
        ({"url": "https://example.com/", "secret": "vault:x"}, "secret"),
        ({"url": "http://example.com/", "secret": REFERENCE}, "url"),
        ({"url": "ftp://example.com/", "secret": REFERENCE}, "url"),
        ({"url": "https://user:pw@example.com/", "secret": REFERENCE}, "url"),
        ({"url": "https://169.254.169.254/latest", "secret": REFERENCE}, "url"),
        ({"url": f"https://{PRIVATE}/", "secret": REFERENCE}, "url"),
        ({"url": "https://[::ffff:127.0.0.1]/", "secret": REFERENCE}, "url"),
        ({"url": "https://localhost/", "secret": REFERENCE}, "url"),
        ({"url": "nonsense", "secret": REFERENCE}, "url"),
        ({"url": "https://example.com:99999/", "secret": REFERENCE}, "url"),
        ({"url": "https://example.com/", "secret": REFERENCE, "types": ["run.exploded"]}, "types[0]"),
        ({"url": "https://example.com/", "secret": REFERENCE, "extra": 1}, "extra"),
    ],
)
async def test_an_invalid_webhook_is_refused(tmp_path: Any, text: dict[str, Any], path: str) -> None:
    async with site(f"sqlite:{tmp_path / 'site.db'}") as s:
        answer = await (await s.as_("admin")).post("/webhooks", json=text)
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), answer.text
        assert answer.json()["error"]["details"][0]["path"] == path
        assert "hunter2" not in answer.text


def test_webhooks_cannot_reach_local_addresses() -> None:
    near = [
        "127.0.0.1",
        "::1",
        "169.254.1.1",
        "fe80::1",
        "fd00::1",
        "0.0.0.0",
        "::",
        "100.64.0.1",
        "224.0.0.1",
    ]
    near += [str(network.network_address + 1) for network in PRIVATE_NETWORKS]
    near.append(f"::ffff:{PRIVATE}")
    near += ["2002:7f00:1::", "2001:0:7f00:1::1", "64:ff9b::a9fe:a9fe", "::127.0.0.1", "fec0::1"]
    assert not [address for address in near if is_allowed(address, AllowedNetworks())]
    assert not is_allowed("2002:a9fe:a9fe::", AllowedNetworks(private=True)), (
        "a 6to4 address contains an IPv4 address"
    )
    assert is_allowed("93.184.216.34", AllowedNetworks())
    assert is_allowed("2606:2800:220:1::1", AllowedNetworks())
    assert is_allowed(PRIVATE, AllowedNetworks(private=True))
    assert not is_allowed("169.254.169.254", AllowedNetworks(private=True, loopback=True))
    check_url("http://127.0.0.1:9/x", AllowedNetworks(loopback=True))


async def test_a_host_name_that_resolves_to_this_machine_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name itself passes the check. The resolved address is checked at the connection."""
    async with receiving() as receiver, site(f"sqlite:{tmp_path / 'site.db'}") as s:
        port = httpx.URL(receiver.url).port
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo

        async def rebound(host: Any, port: Any, **how: Any) -> Any:
            return await real("127.0.0.1" if host == "example.test" else host, port, **how)

        monkeypatch.setattr(loop, "getaddrinfo", rebound)
        admin = await s.as_("admin")
        text = {"url": f"https://example.test:{port}/", "secret": REFERENCE}
        monkeypatch.setattr(webhook_dispatcher, "TOTAL_SECONDS", 0.0)
        id_ = (await admin.post("/webhooks", json=text)).json()["id"]
        await acme(s).create("w", [{"name": "a"}])
        dead: list[dict[str, Any]] = []
        async with asyncio.timeout(SECONDS_MAX):
            while not dead:
                dead = (await admin.get(f"/webhooks/{id_}/dead")).json()["items"]
        assert "where webhooks do not go" in dead[0]["error"]
        assert receiver.tried == []


def test_retry_delays_grow_from_seconds_to_hours_and_end_after_a_day() -> None:
    notice = NoticeRow("acme", "wh", 1, 1, 1, "t", b"", 0, 0)
    now, waits = 0, []
    for tries in range(1, 100):
        due = next_try_at(msgspec.structs.replace(notice, tries=tries), now, 0.5)
        if due is None:
            break
        waits.append((due - now) / 1e6)
        now = due
    assert waits[: len(DELAYS_SECONDS)] == list(DELAYS_SECONDS)
    assert now == us(TOTAL_SECONDS)
    assert 4 <= next_try_at(msgspec.structs.replace(notice, tries=1), 0, 0.0) / 1e6 <= 6  # type: ignore[operator]  # not None: the day has not passed
