"""Policies and freezes over HTTP: admins publish a policy, and two people activate it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tenure import ids
from tenure.govern.connectors.http import HttpConnector
from tenure.kernel.act_commands import ProposeAct, ProposedAct, Ruling
from tests.server.stage import ACME, Site, problem, site

RULE = "  - {name: posts, connector: http, operation: post, allow: true}\n"
TEXT = f"version: 1\nrules:\n{RULE}"
OTHER = f"version: 1\nrules:\n{RULE}  - {{name: none, connector: http, operation: post, deny: not today}}\n"


async def publish(who: httpx.AsyncClient, text: str = TEXT) -> dict[str, Any]:
    answer = await who.post("/policies", json={"text": text})
    assert answer.status_code in (200, 201), answer.text
    made: dict[str, Any] = answer.json()
    return made


async def kinds(s: Site) -> list[tuple[str, str]]:
    lines = await s.engine.store.read("admin_events_after", ACME, 0, 1000)
    return [(line.kind, line.actor) for line in lines if line.kind != "test"]


async def test_a_policy_is_published_listed_and_read(url: str) -> None:
    async with site(url) as s:
        admin, viewer = await s.as_("admin"), await s.as_("viewer")
        answer = await admin.post("/policies", json={"text": TEXT})
        assert (answer.status_code, answer.headers["location"]) == (201, "/policies/1")
        assert (await admin.post("/policies", json={"text": TEXT})).status_code == 200, (
            "the same text keeps its version"
        )
        assert (await publish(admin, OTHER))["version"] == 2
        page = (await viewer.get("/policies", params={"limit": 1})).json()
        assert [line["version"] for line in page["items"]] == [2]
        more = (await viewer.get("/policies", params={"limit": 1, "cursor": page["next_cursor"]})).json()
        assert ([line["version"] for line in more["items"]], more["next_cursor"]) == ([1], None)
        shown = (await viewer.get("/policies/1")).json()
        assert (shown["text"], shown["active"], shown["proposed_by"]) == (TEXT, False, None)
        for wrong in ("3", "x", "1" * 30, "-1"):
            assert problem(await viewer.get(f"/policies/{wrong}")) == "POLICY_NOT_FOUND"
        assert problem(await viewer.get("/policies", params={"cursor": "nonsense"})) == "CURSOR_INVALID"
        broken = await admin.post("/policies", json={"text": "version: 1\nrules:\n  - name: x\n  - 7\n"})
        assert problem(broken) == "POLICY_INVALID"
        assert [place["path"] for place in broken.json()["error"]["details"]] == ["policy:3:5", "policy:4:5"]


async def test_activating_a_version_needs_two_people(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin", "approver")
        ada, bob = await s.person("ada", "admin", "approver"), await s.person("bob", "approver")
        eve = await s.person("eve", "operator")
        await publish(ada)
        assert problem(await ada.post("/policies/1/withdraw")) == "POLICY_NOT_FOUND"
        await ada.post("/policies/1/activate")
        assert (await ada.post("/policies/1/withdraw")).json()["proposed_by"] is None
        assert problem(await admin.post("/policies/1/activate")) == "FORBIDDEN"
        assert problem(await eve.post("/policies/1/activate")) == "FORBIDDEN"
        assert problem(await bob.post("/policies/1/activate")) == "FORBIDDEN", (
            "an approver cannot propose a version"
        )
        proposed = (await ada.post("/policies/1/activate")).json()
        assert (proposed["state"], proposed["policy"]["proposed_by"], proposed["policy"]["active"]) == (
            "proposed",
            "ada",
            False,
        )
        assert problem(await ada.post("/policies/1/activate")) == "SECOND_PERSON_NEEDED"
        assert problem(await admin.post("/policies/1/activate")) == "FORBIDDEN", (
            "a service does not count as a second person"
        )
        done = (await bob.post("/policies/1/activate")).json()
        assert (done["state"], done["policy"]["active"], done["policy"]["proposed_by"]) == (
            "active",
            True,
            None,
        )
        assert await kinds(s) == [
            ("policy.published", "person:ada"),
            ("policy.proposed", "person:ada"),
            ("policy.withdrawn", "person:ada"),
            ("policy.proposed", "person:ada"),
            ("policy.activated", "person:bob"),
        ]


async def test_a_server_checks_a_published_policy_against_its_connectors(tmp_path: Path) -> None:
    async with site(f"sqlite:{tmp_path / 'site.db'}", connectors=[HttpConnector()]) as s:
        admin = await s.as_("admin")
        wrong = TEXT.replace("allow: true", "when: action.fields.nope == 1, allow: true")
        answer = await admin.post("/policies", json={"text": wrong})
        assert problem(answer) == "POLICY_INVALID"
        assert "there is no action.fields.nope" in answer.json()["error"]["message"]
        elsewhere = TEXT.replace("connector: http", "connector: htpt")
        assert problem(await admin.post("/policies", json={"text": elsewhere})) == "POLICY_INVALID"
        assert (await publish(admin))["version"] == 1


async def test_freezing_needs_one_person_and_thawing_two(url: str) -> None:
    async with site(url) as s:
        alarm, viewer = await s.as_("operator"), await s.as_("viewer")
        ada, bob = await s.person("ada", "admin"), await s.person("bob", "approver")
        assert (await viewer.get("/freezes")).json()["items"] == []
        assert problem(await viewer.post("/freezes", json={})) == "FORBIDDEN"
        assert (
            problem(await alarm.post("/freezes", json={"workflow": "a", "connector": "b"})) == "INVALID_INPUT"
        )
        await alarm.post("/freezes", json={"connector": "github"})
        await alarm.post("/freezes", json={"workflow": "triage"})
        frozen = (await alarm.post("/freezes", json={})).json()
        page = (await viewer.get("/freezes", params={"limit": 2})).json()
        more = (await viewer.get("/freezes", params={"cursor": page["next_cursor"]})).json()
        assert page["items"] + more["items"] == frozen
        assert [(one["scope"], one["name"]) for one in frozen] == [
            ("tenant", ACME),
            ("connector", "github"),
            ("workflow", "triage"),
        ]
        assert problem(await (await s.as_("admin")).post("/freezes/thaw", json={})) == "FORBIDDEN"
        assert problem(await bob.post("/freezes/thaw", json={})) == "FORBIDDEN"
        first = (await ada.post("/freezes/thaw", json={})).json()
        assert (first["state"], first["frozen"][0]["thaw_proposed_by"]) == ("proposed", "ada")
        assert problem(await ada.post("/freezes/thaw", json={})) == "SECOND_PERSON_NEEDED"
        second = (await bob.post("/freezes/thaw", json={})).json()
        assert (second["state"], [one["scope"] for one in second["frozen"]]) == (
            "thawed",
            ["connector", "workflow"],
        )
        assert [kind for kind, _ in await kinds(s)] == [
            "freeze.begun", "freeze.begun", "freeze.begun", "thaw.proposed", "freeze.ended",
        ]  # fmt: skip


async def run_with_denied_act(s: Site, request: bytes | None = None) -> str:
    """A run whose act was denied because no rule matched."""
    runner = await s.as_("runner")
    run = await s.engine.scoped(tenant=ACME, actor="person:rita").create(
        "release", [{"name": "build", "tool": "build"}]
    )
    claim = {"claim_id": "c", "capabilities": ["default|tool:build"], "max": 1, "ack": True}
    await runner.post("/runner/claim", json=claim)
    act = ProposedAct(
        label="http.post:1",
        connector="http",
        operation="post",
        name="k",
        digest=b"d" * 32,
        repeats="none",
        reversible=False,
    )
    ruling = Ruling(version=3, outcome="deny", rules='[["posts","not"]]', error="POLICY_NO_RULE")
    await s.engine.orchestrator.send(
        ProposeAct(run_id=ids.run_int(run), tenant=ACME, idx=0, n=1, act=act, ruling=ruling, request=request)
    )
    return run


async def test_verdicts_of_a_run_are_listed_and_judged_by_another_policy(url: str) -> None:
    async with site(url) as s:
        run = await run_with_denied_act(s)
        viewer, admin = await s.as_("viewer"), await s.as_("admin")
        [one] = (await viewer.get(f"/runs/{run}/decisions")).json()["items"]
        assert (one["step"], one["action"], one["version"], one["outcome"], one["rules"], one["error"]) == (
            "build",
            "http.post",
            3,
            "deny",
            [["posts", "not"]],
            "POLICY_NO_RULE",
        )
        assert (
            problem(await (await s.as_("viewer", tenant="globex")).get(f"/runs/{run}/decisions"))
            == "RUN_NOT_FOUND"
        )
        shadow = (await admin.post("/policies/shadow", json={"text": TEXT})).json()
        assert (shadow["looked_at"], shadow["same"], shadow["not_judged"]) == (1, 0, {})
        [differs] = shadow["differs"]
        assert (differs["run"], differs["was"], differs["was_version"], differs["would"]) == (
            run,
            "deny",
            3,
            "allow",
        )
        looks = TEXT.replace("allow: true", "when: action.fields.json == 1, allow: true")
        shadow = (await admin.post("/policies/shadow", json={"text": looks})).json()
        assert shadow["not_judged"] == {"its target and fields were not stored": 1}
        assert shadow["not_as_then"]
        assert one["request"] is None
        other = (
            await (await s.as_("admin", tenant="globex")).post("/policies/shadow", json={"text": TEXT})
        ).json()
        assert other["looked_at"] == 0


async def test_denied_actions_are_listed_with_target_and_fields(url: str) -> None:
    async with site(url) as s:
        run = await run_with_denied_act(s, b'{"fields":{"json":1},"target":{"url":"/a"}}')
        [one] = (await (await s.as_("viewer")).get(f"/runs/{run}/decisions")).json()["items"]
        assert one["request"] == {"fields": {"json": 1}, "target": {"url": "/a"}}
        admin = await s.as_("admin")
        for value, would in ((1, 1), (2, 0)):
            looks = TEXT.replace("allow: true", f"when: action.fields.json == {value}, allow: true")
            shadow = (await admin.post("/policies/shadow", json={"text": looks})).json()
            assert (len(shadow["differs"]), shadow["not_judged"]) == (would, {})
