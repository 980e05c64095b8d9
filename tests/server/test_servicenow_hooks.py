"""Hooks of ServiceNow: a secret in a header instead of a signature, and repeats that are recognised by the event's id."""

from typing import Any

import pytest

from tests.server.stage import Site, problem, site
from tests.server.webhook_senders import (
    OTHER_NAME,
    OTHER_SECRET,
    REFERENCE,
    SECRET,
    SECRET_NAME,
    ServiceNow,
    basic,
    contents,
    make_hook,
    register,
)

RULE: dict[str, Any] = {
    "when": "body.table == 'incident'",
    "workflow": "review",
    "input": {"sys_id": "${{ body.sys_id }}", "fields": "${{ sha256(body.fields) }}"},
}
SHARED: dict[str, Any] = {
    "secret_header": "x-tenure-secret",
    "event_id": ["body:sys_id", "body:sys_mod_count"],
}
INCIDENT = {"table": "incident", "sys_id": "9d38", "sys_mod_count": 4, "fields": {"state": "2"}}
GOOD = {"X-Tenure-Secret": SECRET}


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)


async def make_caller(s: Site, settings: dict[str, Any], **more: Any) -> ServiceNow:
    await register(s)
    made = await make_hook(s, "servicenow", RULE, settings=settings, **more)
    assert made["address"] == f"/hooks/servicenow/{made['id']}"
    return ServiceNow(s, made["id"], GOOD)


async def runs(s: Site) -> list[str]:
    return [run.id for run in await s.engine.scoped(tenant="acme").runs.list(limit=200)]


@pytest.mark.clause("GOV-25")
async def test_a_call_with_a_shared_secret_starts_one_run_however_often_it_comes(url: str) -> None:
    async with site(url) as s:
        caller = await make_caller(s, SHARED)
        first = await caller.call(INCIDENT)
        assert first.status_code == 201, first.text
        again = await caller.call(INCIDENT)
        retried = await caller.call({**INCIDENT, "sent_at": "later"})
        assert [(one.status_code, one.json()["run_id"]) for one in (again, retried)] == [
            (200, first.json()["run_id"])
        ] * 2, "the event's id decides, not the bytes"
        changed = await caller.call({**INCIDENT, "sys_mod_count": 5})
        assert changed.status_code == 201
        assert len(await runs(s)) == 2
        viewer = await s.as_("viewer")
        run = (await viewer.get(f"/runs/{first.json()['run_id']}")).json()
        assert run["input"]["sys_id"] == "9d38"
        assert len(run["input"]["fields"]) == 64
        delivery = (await viewer.get(f"/hooks/{caller.hook_id}/deliveries/9d38:4")).json()
        assert delivery["key"] == f"servicenow:{caller.hook_id}:9d38:4"
        assert SECRET not in str(await contents(url)), "the secret is stored nowhere"
        ignored = await caller.call({**INCIDENT, "table": "problem", "sys_mod_count": 6})
        assert (ignored.status_code, ignored.json()["status"]) == (200, "ignored")


@pytest.mark.clause("GOV-25")
async def test_basic_credentials_start_a_run_and_can_be_rotated(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_NAME, "snow:pass:word")
    monkeypatch.setenv(OTHER_NAME, f"snow:{OTHER_SECRET}")
    async with site(url) as s:
        settings = {"event_id": ["header:x-event-id"]}
        caller = await make_caller(s, settings, secrets=[f"env:{OTHER_NAME}", REFERENCE])
        credentials = basic("snow", "pass:word"), basic("snow", OTHER_SECRET)
        for number, credential in enumerate(credentials):
            for status in (201, 200):
                answer = await caller.call(INCIDENT, credential=credential, x_event_id=f"ev-{number}")
                assert answer.status_code == status, answer.text
        assert len(await runs(s)) == 2
        stored = str(await contents(url))
        assert "pass:word" not in stored
        assert basic("snow", "pass:word")["Authorization"].split()[1] not in stored
        before = await contents(url)
        for credential in (
            {}, basic("snow", "wrong"), basic("snow", ""), basic("", "pass:word"), {"Authorization": "Basic"},
            {"Authorization": "Basic !!!"}, {"Authorization": "Bearer c25vdzpwYXNzOndvcmQ="}, {"X-Tenure-Secret": "snow:pass:word"},
        ):  # fmt: skip
            answer = await caller.call(INCIDENT, credential=credential, x_event_id="ev-9")
            assert (answer.status_code, problem(answer)) == (401, "SIGNATURE_INVALID"), credential
        assert await contents(url) == before


async def test_a_wrong_secret_is_refused_and_nothing_is_recorded(url: str) -> None:
    async with site(url) as s:
        caller = await make_caller(s, SHARED)
        before = await contents(url)
        for credential in ({}, {"X-Tenure-Secret": ""}, {"X-Tenure-Secret": SECRET[:-1]}, basic("x", SECRET)):
            answer = await caller.call(INCIDENT, credential=credential)
            assert (answer.status_code, problem(answer)) == (401, "SIGNATURE_INVALID"), credential
        for body in (
            b"no json",
            b"[1]",
            {"sys_id": "a"},
            {**INCIDENT, "sys_id": ""},
            {**INCIDENT, "sys_id": ["a"]},
        ):
            answer = await caller.call(body)
            assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED"), body
        assert await contents(url) == before
        other = ServiceNow(s, (await make_hook(s, "generic"))["id"], GOOD)
        assert problem(await other.call(INCIDENT)) == "HOOK_NOT_FOUND", "a hook of another kind"


async def test_parts_of_an_event_id_cannot_be_shifted(url: str) -> None:
    async with site(url) as s:
        caller = await make_caller(s, {**SHARED, "event_id": ["body:a", "body:b.c"]})
        for a, c in (("x:y", "z"), ("x", "y:z"), ("x%3Ay", "z")):
            answer = await caller.call({**INCIDENT, "a": a, "b": {"c": c}})
            assert answer.status_code == 201, (a, c)
        assert len(await runs(s)) == 3


async def test_wrong_settings_are_refused_with_their_places(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        fields = {"name": "x", "secrets": [REFERENCE], "rules": []}
        for kind, settings, path in (
            ("servicenow", {}, "settings.event_id"),
            ("servicenow", {"event_id": ["body:a"] * 6}, "settings.event_id"),
            ("servicenow", {"event_id": ["cookie:a"]}, "settings.event_id[0]"),
            ("servicenow", {"event_id": ["header:x-s"], "secret_header": "x-s"}, "settings.event_id[0]"),
            ("servicenow", {"event_id": ["header:authorization"]}, "settings.event_id[0]"),
            ("servicenow", {"event_id": ["body:a"], "secret_header": "X S"}, "settings.secret_header"),
            (
                "servicenow",
                {"event_id": ["body:a"], "secret_header": "authorization"},
                "settings.secret_header",
            ),
            ("generic", {"event_id": ["body:a"]}, "settings.event_id"),
        ):
            answer = await admin.post("/hooks", json={**fields, "kind": kind, "settings": settings})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
            assert [one["path"] for one in answer.json()["error"]["details"]] == [path]
