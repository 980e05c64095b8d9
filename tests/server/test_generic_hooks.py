"""Generic hooks: Standard Webhooks, and CloudEvents in both of their forms."""

import base64
import json
from typing import Any

import pytest

from tests.server.stage import Site, problem, site
from tests.server.webhook_senders import SECRET, SECRET_NAME, Sender, contents, make_hook, register

RULE: dict[str, Any] = {"workflow": "review", "input": {"event": "${{ event }}"}}
CE_RULE: dict[str, Any] = {
    "when": "event == 'com.example.order'",
    "workflow": "review",
    "input": {"order": "${{ body.data.order }}", "from": "${{ body.source }}"},
}
KEY = b"a standard key of some length"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)


async def make_sender(s: Site, rule: dict[str, Any] = RULE, key: bytes = SECRET.encode()) -> Sender:
    await register(s)
    return Sender(s, (await make_hook(s, "generic", rule))["id"], key)


async def runs(s: Site) -> list[str]:
    return [run.id for run in await s.engine.scoped(tenant="acme").runs.list(limit=200)]


async def test_a_standard_webhook_is_deduplicated_by_its_id(url: str) -> None:
    async with site(url) as s:
        sender = await make_sender(s)
        first = await sender.send({"type": "order.paid"}, name="msg_1")
        again = await sender.send({"type": "order.paid"}, name="msg_1")
        other = await sender.send({"type": "order.paid"}, name="msg_2")
        assert [answer.status_code for answer in (first, again, other)] == [201, 200, 201]
        assert again.json()["run_id"] == first.json()["run_id"] != other.json()["run_id"]
        run = await s.engine.scoped(tenant="acme").get(first.json()["run_id"])
        assert run.input == {"event": "order.paid"}
        assert len(await runs(s)) == 2


async def test_the_same_id_at_two_hooks_is_two_deliveries(url: str) -> None:
    async with site(url) as s:
        one, two = await make_sender(s), await make_sender(s)
        answers = [await sender.send({}, name="msg_1") for sender in (one, two)]
        assert [answer.status_code for answer in answers] == [201, 201]


async def test_a_secret_may_be_base64_and_several_signatures_may_be_sent(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_NAME, f"whsec_{base64.b64encode(KEY).decode()}")
    async with site(url) as s:
        sender = await make_sender(s, key=KEY)
        good = await sender.send({}, name="msg_1")
        assert good.status_code == 201
        signature = good.request.headers["webhook-signature"]
        at = good.request.headers["webhook-timestamp"]
        listed = f"v1,{base64.b64encode(b'x' * 32).decode()} v1a,whatever {signature}"
        headers = {"webhook-timestamp": at}
        again = await sender.send({}, name="msg_1", signature=listed, headers=headers)
        assert again.status_code == 200


@pytest.mark.parametrize("off", [-310, 310, -86_400])
async def test_an_old_signature_is_refused_and_nothing_is_recorded(url: str, off: float) -> None:
    async with site(url) as s:
        sender = await make_sender(s)
        before = await contents(url)
        answer = await sender.send({}, off_seconds=off)
        assert (answer.status_code, problem(answer)) == (401, "SIGNATURE_INVALID")
        assert await contents(url) == before
        assert (await sender.send({}, off_seconds=off * 0.1 if abs(off) < 1_000 else 0)).status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": "v1,"},
        {"webhook-signature": ""},
        {"webhook-signature": "v2,x"},
        {"webhook-id": "another"},
        {"webhook-id": ""},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "9" * 30},
    ],
)
async def test_a_wrong_signature_is_refused_and_nothing_is_recorded(
    url: str, headers: dict[str, str]
) -> None:
    async with site(url) as s:
        sender = await make_sender(s)
        before = await contents(url)
        answer = await sender.send({}, headers=headers)
        assert (answer.status_code, problem(answer)) == (401, "SIGNATURE_INVALID")
        assert await contents(url) == before


def event(**more: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": "1",
        "source": "/orders",
        "type": "com.example.order",
        "data": {"order": 7},
        **more,
    }


async def test_a_cloudevent_is_deduplicated_by_source_and_id_in_every_mode(url: str) -> None:
    async with site(url) as s:
        sender = await make_sender(s, CE_RULE)
        structured = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
        first = await sender.send(event(), headers=structured)
        assert first.status_code == 201, first.text
        run = await s.engine.scoped(tenant="acme").get(first.json()["run_id"])
        assert run.input == {"order": 7, "from": "/orders"}
        binary = {
            "ce-specversion": "1.0",
            "ce-id": "1",
            "ce-source": "/orders",
            "ce-type": "com.example.order",
        }
        again = await sender.send({"order": 7}, headers=binary)
        assert (again.status_code, again.json()["run_id"]) == (200, run.id)
        other = await sender.send({"order": 8}, headers={**binary, "ce-source": "/returns"})
        assert other.status_code == 201
        shown = await (await s.as_("viewer")).get(
            f"/hooks/{sender.hook_id}/deliveries/{other.json()['delivery']}"
        )
        assert shown.json()["key"] == f"cloudevents:{sender.hook_id}:/returns 1"
        assert shown.json()["body"]["data"] == {"order": 8}
        assert len(await runs(s)) == 2


@pytest.mark.parametrize("wrong", [{"id": ""}, {"id": 7}, {"source": None}, {"type": "a\nb"}])
async def test_a_cloudevent_without_its_attributes_is_refused_and_nothing_is_recorded(
    url: str, wrong: dict[str, Any]
) -> None:
    async with site(url) as s:
        sender = await make_sender(s, CE_RULE)
        before = await contents(url)
        answer = await sender.send(event(**wrong), headers={"Content-Type": "application/cloudevents+json"})
        assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED")
        assert await contents(url) == before


async def test_deliveries_with_ids_of_any_form_can_be_read(url: str) -> None:
    async with site(url) as s:
        sender = await make_sender(s)
        for name in ("a/b c", "x" * 2_000, "%2e%2e"):
            answer = await sender.send({}, name=name)
            assert answer.status_code == 201
            shown = await (await s.as_("viewer")).get(
                f"/hooks/{sender.hook_id}/deliveries/{answer.json()['delivery']}"
            )
            assert shown.json()["run_id"] == answer.json()["run_id"]
            assert (await sender.send({}, name=name)).status_code == 200


async def test_a_body_that_is_not_json_is_refused(url: str) -> None:
    async with site(url) as s:
        sender = await make_sender(s)
        before = await contents(url)
        for body in (b"", b"not json", json.dumps({"a": 1}).encode()[:-1]):
            answer = await sender.send(body)
            assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED")
        assert await contents(url) == before


BINARY = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/orders", "ce-type": "com.example.order"}


@pytest.mark.parametrize(
    "other",
    [
        {**BINARY, "ce-id": "2"},
        {**BINARY, "ce-source": "/returns"},
        {**BINARY, "ce-type": "com.example.refund"},
        {"Content-Type": "application/cloudevents+json"},
        {},
    ],
    ids=str,
)
async def test_a_signed_message_is_one_event_under_any_headers(url: str, other: dict[str, str]) -> None:
    """The signature covers id, time and body only. A replay with other headers must not become another event."""
    body = {"order": 7, "id": "9", "source": "/x", "type": "com.example.order", "specversion": "1.0"}
    async with site(url) as s:
        sender = await make_sender(s)
        first = await sender.send(body, name="msg_1", headers=BINARY)
        assert first.status_code == 201
        again = await sender.send(body, name="msg_1", headers=BINARY)
        assert (again.status_code, again.json()["run_id"]) == (200, first.json()["run_id"])
        forged = await sender.send(body, name="msg_1", headers=other)
        if other:
            assert (forged.status_code, problem(forged)) == (401, "SIGNATURE_INVALID")
        else:
            assert forged.json()["duplicate"], "the key of the original message counts"
        assert len(await runs(s)) == 1


async def test_a_webhook_is_not_accepted_later_as_an_event(url: str) -> None:
    async with site(url) as s:
        sender = await make_sender(s)
        assert (await sender.send({"order": 7}, name="msg_1")).status_code == 201
        forged = await sender.send({"order": 7}, name="msg_1", headers=BINARY)
        assert (forged.status_code, problem(forged)) == (401, "SIGNATURE_INVALID")
        assert len(await runs(s)) == 1


async def test_source_and_id_cannot_be_split_differently_into_the_same_key(url: str) -> None:
    async with site(url) as s:
        sender = await make_sender(s)
        one = await sender.send({}, headers={**BINARY, "ce-source": "/a", "ce-id": "b c"})
        assert one.status_code == 201
        two = await sender.send({}, headers={**BINARY, "ce-source": "/a b", "ce-id": "c"})
        assert (two.status_code, problem(two)) == (400, "REQUEST_MALFORMED")
