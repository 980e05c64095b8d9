"""Hooks over HTTP: admins create and change them."""

from typing import Any

import pytest

from tests.server.stage import Site, problem, site
from tests.server.webhook_senders import (
    PR_RULE,
    REFERENCE,
    SECRET,
    SECRET_NAME,
    GitHub,
    contents,
    make_hook,
    pull_request,
)

TEXT: dict[str, Any] = {"name": "ours", "secrets": [REFERENCE], "rules": [PR_RULE]}


async def kinds(s: Site) -> list[str]:
    lines = await s.engine.store.read("admin_events_after", "acme", 0, 100)
    return [line.kind for line in lines if line.kind.startswith("hook.")]


async def test_a_hook_is_created_read_updated_and_deleted_with_an_audit(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        made = await admin.post("/hooks", json={**TEXT, "kind": "github"})
        assert made.status_code == 201
        hook = made.json()
        assert made.headers["location"] == f"/hooks/{hook['id']}"
        assert hook["address"] == f"/hooks/github/{hook['id']}"
        assert (hook["secrets"], hook["rules"], hook["revision"]) == ([REFERENCE], [PR_RULE], 1)
        assert len(hook["id"]) >= 40
        assert (await admin.get(f"/hooks/{hook['id']}")).json() == hook
        changed = await admin.put(
            f"/hooks/{hook['id']}", json={**TEXT, "name": "theirs", "disabled": True, "revision": 1}
        )
        assert changed.status_code == 200, changed.text
        assert (changed.json()["name"], changed.json()["disabled"], changed.json()["revision"]) == (
            "theirs",
            True,
            2,
        )
        assert changed.json()["owner"] == hook["owner"]
        stale = await admin.put(f"/hooks/{hook['id']}", json={**TEXT, "revision": 1})
        assert (stale.status_code, problem(stale)) == (409, "CHANGED_MEANWHILE")
        assert (await admin.delete(f"/hooks/{hook['id']}")).status_code == 204
        assert problem(await admin.get(f"/hooks/{hook['id']}")) == "HOOK_NOT_FOUND"
        assert await kinds(s) == ["hook.created", "hook.changed", "hook.deleted"]


async def test_hooks_are_listed_newest_first_and_each_tenant_sees_its_own(url: str) -> None:
    async with site(url) as s:
        made = [(await make_hook(s, kind))["id"] for kind in ("github", "slack", "generic")]
        others = (await make_hook(s, "github", tenant="globex"))["id"]
        viewer = await s.as_("viewer")
        first = (await viewer.get("/hooks", params={"limit": 2})).json()
        rest = (await viewer.get("/hooks", params={"limit": 2, "cursor": first["next_cursor"]})).json()
        assert [item["id"] for item in first["items"] + rest["items"]] == made[::-1]
        admin = await s.as_("admin")
        for answer in (
            await admin.get(f"/hooks/{others}"),
            await admin.put(f"/hooks/{others}", json={**TEXT, "revision": 1}),
            await admin.delete(f"/hooks/{others}"),
        ):
            assert (answer.status_code, problem(answer)) == (404, "HOOK_NOT_FOUND")
        stranger = await s.as_("viewer", tenant="globex")
        assert (
            problem(await stranger.get("/hooks", params={"cursor": first["next_cursor"]})) == "CURSOR_INVALID"
        )


@pytest.mark.parametrize(
    "secrets", [["hunter2"], [], [REFERENCE] * 3, ["file:relative"], ["env:"], ["env:A B"], ["vault:x"], [""]]
)
async def test_a_secret_must_be_a_reference_and_errors_do_not_repeat_it(url: str, secrets: list[str]) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        before = await contents(url)
        answer = await admin.post("/hooks", json={**TEXT, "kind": "github", "secrets": secrets})
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        assert answer.json()["error"]["details"][0]["path"].startswith("secrets")
        assert "hunter2" not in answer.text
        assert await contents(url) == before


async def test_problems_of_rules_are_reported_with_their_places(url: str) -> None:
    rules = [
        {"when": "evnt == 'push'", "workflow": "w"},
        {"workflow": "w", "input": {"a": ["${{ body. }}"]}, "labels": {"b": "${{ steps.x }}"}},
        {"when": "true"},
        {"signal": "s"},
        {"workflow": "w", "supersede": True},
        {"when": "body.all(a, body.all(b, body.all(c, true)))", "workflow": "w"},
    ]
    async with site(url) as s:
        admin = await s.as_("admin")
        answer = await admin.post("/hooks", json={**TEXT, "kind": "github", "rules": rules})
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        places = {detail["path"] for detail in answer.json()["error"]["details"]}
        assert places == {
            "rules[0].when",
            "rules[1].input.a[0]",
            "rules[1].labels.b",
            "rules[2]",
            "rules[3]",
            "rules[4].supersede",
            "rules[5].when",
        }
        for kind in ("generic", "slack", "servicenow"):
            answer = await admin.post("/hooks", json={**TEXT, "kind": kind, "rules": [{"ci": True}]})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
            assert answer.json()["error"]["details"][0]["path"] == "rules[0].ci", (
                "only GitHub's events are known"
            )


async def test_unknown_fields_are_refused(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        for wrong in (
            {"secret": "x"},
            {"rules": [{"workflow": "w", "wen": "true"}]},
            {"settings": {"loud": True}},
            {"kind": "gitlab"},
            {"owner": "nobody"},
            {"name": ""},
            {"name": "a\nb"},
        ):
            answer = await admin.post("/hooks", json={**TEXT, "kind": "github", **wrong})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), wrong


async def test_a_hook_is_created_once_under_a_key(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        answers = [
            await admin.post("/hooks", json={**TEXT, "kind": "github"}, headers={"Idempotency-Key": "k"})
            for _ in range(2)
        ]
        assert answers[0].content == answers[1].content
        assert len((await admin.get("/hooks")).json()["items"]) == 1


async def test_only_admins_change_hooks(url: str) -> None:
    async with site(url) as s:
        hook = await make_hook(s, "github")
        for role in ("viewer", "operator", "approver", "runner"):
            caller = await s.as_(role)
            for answer in (
                await caller.post("/hooks", json={**TEXT, "kind": "github"}),
                await caller.put(f"/hooks/{hook['id']}", json={**TEXT, "revision": 1}),
                await caller.delete(f"/hooks/{hook['id']}"),
            ):
                assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")


async def test_the_owner_of_a_hook_is_a_person(url: str) -> None:
    async with site(url) as s:
        olga = await s.person("olga", "admin")
        own = await olga.post("/hooks", json={**TEXT, "kind": "github"})
        assert own.json()["owner"] == "person:olga"
        named = await make_hook(s, "github", owner="olga")
        assert named["owner"] == "person:olga"


async def test_the_deliveries_of_a_deleted_hook_are_deleted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    async with site(url) as s:
        hook = await make_hook(s, "github")
        github = GitHub(s, hook["id"])
        assert (await github.deliver("push", pull_request(7))).json()["status"] == "ignored"
        await (await s.as_("admin")).delete(f"/hooks/{hook['id']}")
        assert (await contents(url))["delivery"] == []
        assert problem(await github.deliver("push", pull_request(8))) == "HOOK_NOT_FOUND"
