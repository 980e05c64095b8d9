"""Slack: commands start runs, people link accounts, clicks decide approvals."""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tenure.clock import us
from tests.server.stage import Site, problem, site
from tests.server.webhook_senders import SECRET, SECRET_NAME, Slack, contents, make_hook, register

RULE: dict[str, Any] = {
    "when": "event == '/tenure' && action == 'deploy'",
    "workflow": "review",
    "input": {"text": "${{ body.text }}"},
}
DIGEST = "ab" * 32


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    monkeypatch.setenv(SECRET_NAME.replace("acme", "globex"), SECRET)


async def make_slack(s: Site, *rules: dict[str, Any], user: str = "U1", **more: Any) -> Slack:
    await register(s)
    return Slack(s, (await make_hook(s, "slack", *(rules or (RULE,)), **more))["id"], user=user)


async def runs(s: Site) -> list[str]:
    return [run.id for run in await s.engine.scoped(tenant="acme").runs.list(limit=200)]


async def link(slack: Slack, person: httpx.AsyncClient) -> None:
    """Link an account as people do: get a code in Slack, then send it with their own key."""
    text = (await slack.command("link")).json()["text"]
    code = next(word.rstrip(".") for word in text.split() if word.startswith("tns_"))
    answer = await person.put("/me/slack", json={"code": code})
    assert answer.status_code == 200, answer.text


@pytest.mark.clause("GWI-09")
async def test_a_repeated_command_starts_one_run(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        answers = await asyncio.gather(*(slack.command("deploy now", trigger="1.2.x") for _ in range(5)))
        [run] = await runs(s)
        assert {answer.status_code for answer in answers} == {200}
        first_lines = sorted(answer.json()["text"].splitlines()[0] for answer in answers)
        assert first_lines == [f"Already started: {run}"] * 4 + [f"Started: {run}"]
        assert {answer.json()["response_type"] for answer in answers} == {"ephemeral"}
        assert (await s.engine.scoped(tenant="acme").get(run)).input == {"text": "deploy now"}
        [record] = await s.engine.store.read("key_record", "acme", "slack", "slack:T1:1.2.x")
        assert record.status == "completed"
        assert record.expires_at - record.updated_at == us(30 * 60)
        assert (await slack.command("deploy now")).json()["text"].startswith("Started")


@pytest.mark.clause("GWI-09")
@pytest.mark.parametrize("off", [-310, 310])
async def test_a_signature_more_than_five_minutes_old_is_refused_and_not_recorded(
    url: str, off: float
) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        before = await contents(url)
        answer = await slack.command("deploy", off_seconds=off)
        assert (answer.status_code, problem(answer)) == (401, "SIGNATURE_INVALID")
        assert await contents(url) == before
        assert (await slack.command("deploy", off_seconds=off * 0.9)).status_code == 200


async def test_forged_commands_and_clicks_are_refused_and_not_recorded(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        before = await contents(url)
        now = str((await s.engine.store.read("now"))[0].now_us // 1_000_000)
        for where in ("commands", "actions"):
            for signature in ("v0=" + "0" * 64, "v1=" + "0" * 64, "v0", "x"):
                raw = urlencode(slack.command_fields("deploy")).encode()
                answer = await slack.send_raw(where, raw, now, signature=signature)
                assert (answer.status_code, problem(answer)) == (401, "SIGNATURE_INVALID")
        assert await contents(url) == before


@pytest.mark.clause("GWI-09")
async def test_a_replay_of_the_same_bytes_does_nothing_even_after_its_record_expired(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        first = await slack.command("deploy")
        headers = first.request.headers
        at = headers["x-slack-request-timestamp"]
        again = await slack.send_raw("commands", first.request.content, at)
        assert again.json()["text"].startswith("Already started")
        s.engine.store.shift_clock(us(31 * 60))
        await s.service.keys.sweep()
        old = await slack.send_raw("commands", first.request.content, at)
        assert problem(old) == "SIGNATURE_INVALID"  # the timestamp is too old
        fields = dict(pair.split("=") for pair in first.request.content.decode().split("&"))
        late = await slack.command("deploy", trigger=fields["trigger_id"])
        assert late.json()["text"].startswith("Already started")
        assert len(await runs(s)) == 1


async def test_unmatched_and_failed_commands_are_answered_to_their_user(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s, RULE, {"when": "action == 'boom'", "workflow": "unheard-of"})
        assert (await slack.command("dance")).json()["text"] == "No rule of this hook matches /tenure."
        assert "WORKFLOW_NOT_FOUND" in (await slack.command("boom")).json()["text"]
        assert await runs(s) == []


async def test_neither_the_slack_token_nor_the_response_url_is_stored(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        await slack.command("deploy", trigger="1.2.x")
        whole = repr(await contents(url))
        assert "legacy-verification-token" not in whole
        assert "hooks.slack.test" not in whole
        shown = await (await s.as_("viewer")).get(f"/hooks/{slack.hook_id}/deliveries/1.2.x")
        assert shown.json()["body"]["text"] == "deploy"


@pytest.mark.parametrize("field", ["team_id", "trigger_id", "command"])
async def test_a_command_without_its_fields_is_refused(url: str, field: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        before = await contents(url)
        fields = {name: value for name, value in slack.command_fields("deploy").items() if name != field}
        answer = await slack.send("commands", fields)
        assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED")
        assert await contents(url) == before


# --------------------------------------------------------------------------------------------- linked accounts


async def test_the_linked_person_is_the_requester_of_a_commands_run(url: str) -> None:
    async with site(url) as s:
        await s.person("olga", "admin")
        ada = await s.person("ada", "operator")
        slack = await make_slack(s, owner="olga")
        requesters = []
        for linked in (False, True):
            if linked:
                await link(slack, ada)
            text = (await slack.command("deploy")).json()["text"]
            run = await s.engine.scoped(tenant="acme").get(text.splitlines()[0].rpartition(" ")[2])
            requesters.append(run.requester)
        assert requesters == ["person:olga", "person:ada"]


async def test_a_hook_may_accept_linked_people_only(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s, settings={"linked_only": True})
        assert "`/tenure link`" in (await slack.command("deploy")).json()["text"]
        assert await runs(s) == []
        await link(slack, await s.person("ada", "operator"))
        assert (await slack.command("deploy")).json()["text"].startswith("Started")


async def test_a_link_code_is_issued_once_per_request_and_not_stored(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        first = await slack.command("link")
        code = next(word.rstrip(".") for word in first.json()["text"].split() if word.startswith("tns_"))
        at = first.request.headers["x-slack-request-timestamp"]
        replayed = await slack.send_raw("commands", first.request.content, at)
        assert "tns_" not in replayed.text
        assert code not in repr(await contents(url))


# ------------------------------------------------------------------------------------------------- clicks


async def run_with_approval(
    s: Site, *, people: int = 1, actor: str = "person:olga", digest: str = DIGEST
) -> tuple[str, str]:
    """Start a run that waits for an approval. Returns its id and the value of its buttons."""
    engine = s.engine.scoped(tenant="acme", actor=actor)
    question = {"action": "deploy", "people": people, "digest": digest}
    gate = {"name": "gate", "kind": "approval", "approval": question}
    run = await engine.create("w", [gate, {"name": "after"}])
    [approval] = (await (await s.as_("viewer")).get("/approvals")).json()["items"]
    return run, f"{approval['id']}:{approval['revision']}:{approval['digest']}"


async def test_a_click_decides_as_the_linked_person_and_a_double_click_once(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        run, value = await run_with_approval(s)
        assert "not linked" in await slack.click("tenure.approve", value)
        await link(slack, await s.person("ada"))
        texts = await asyncio.gather(*(slack.click("tenure.approve", value) for _ in range(2)))
        assert sorted(text.partition(" is ")[2] for text in texts) == [
            "approved.",
            "approved. You had already decided this.",
        ]
        steps = await s.engine.scoped(tenant="acme").runs.steps(run)
        assert [(step.name, step.state) for step in steps] == [("gate", "succeeded"), ("after", "ready")]
        [approval] = await s.engine.scoped(tenant="acme").approvals.list(run)
        assert (approval.decided_by, approval.votes) == ("person:ada", ("person:ada",))
        assert "APPROVAL_DECIDED" in await slack.click("tenure.reject", value)


async def test_a_click_can_reject(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        run, value = await run_with_approval(s)
        await link(slack, await s.person("ada"))
        assert (await slack.click("tenure.reject", value)).endswith("is rejected.")
        assert (await s.engine.scoped(tenant="acme").get(run)).status == "failed"


async def test_two_approvals_need_two_linked_accounts(url: str) -> None:
    async with site(url) as s:
        one = await make_slack(s)
        two = Slack(s, one.hook_id, user="U2")
        run, value = await run_with_approval(s, people=2)
        await link(one, await s.person("ada"))
        await link(two, await s.person("bob"))
        assert (await one.click("tenure.approve", value)).endswith("is requested.")
        assert "is requested" in await one.click("tenure.approve", value)
        assert (await s.engine.scoped(tenant="acme").get(run)).status == "waiting_approval"
        assert (await two.click("tenure.approve", value)).endswith("is approved.")


async def test_clicks_are_refused_as_over_http(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        ada = await s.person("ada", "approver", "viewer")
        await link(slack, ada)
        run, value = await run_with_approval(s)
        approval, revision, digest = value.rsplit(":", 2)
        for wrong, code in (
            (f"{approval}:{int(revision) + 1}:{digest}", "APPROVAL_STALE"),
            (f"{approval}:{revision}:{'cd' * 32}", "APPROVAL_STALE"),
            (f"{approval}:{revision}:", "INVALID_INPUT"),
            (f"apr_2026-01-01_aaaaaaaaaa1:{revision}:{digest}", "APPROVAL_NOT_FOUND"),
            ("nonsense", "REQUEST_MALFORMED"),
            (f"{approval}:x:{digest}", "REQUEST_MALFORMED"),
        ):
            assert code in await slack.click("tenure.approve", wrong), wrong
            if code not in ("REQUEST_MALFORMED", "INVALID_INPUT"):
                parts = wrong.rsplit(":", 2)
                body = {"decision": "approve", "revision": int(parts[1]), "digest": parts[2]}
                assert problem(await ada.post(f"/approvals/{parts[0]}/decision", json=body)) == code
        assert (await s.engine.scoped(tenant="acme").get(run)).status == "waiting_approval"
        assert await slack.click("another.button", value) == "Tenure does not know this button."


async def test_neither_requesters_nor_non_approvers_can_approve(url: str) -> None:
    async with site(url) as s:
        one = await make_slack(s)
        two = Slack(s, one.hook_id, user="U2")
        await link(one, await s.person("olga"))
        await link(two, await s.person("ada", "operator"))
        run, value = await run_with_approval(s, actor="person:olga")
        assert "APPROVER_IS_REQUESTER" in await one.click("tenure.approve", value)
        assert "FORBIDDEN" in await two.click("tenure.approve", value)
        assert (await s.engine.scoped(tenant="acme").get(run)).status == "waiting_approval"


async def test_an_account_linked_in_one_tenant_is_unknown_in_another(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        await link(slack, await s.person("ada"))
        run, value = await run_with_approval(s)
        theirs = Slack(s, (await make_hook(s, "slack", tenant="globex"))["id"])
        assert "not linked" in await theirs.click("tenure.approve", value)
        await link(theirs, await s.person("gus", tenant="globex"))
        assert "APPROVAL_NOT_FOUND" in await theirs.click("tenure.approve", value)
        assert (await s.engine.scoped(tenant="acme").get(run)).status == "waiting_approval"


async def test_a_replayed_click_is_ignored(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        await link(slack, await s.person("ada"))
        run, value = await run_with_approval(s, people=2)
        payload = {
            "type": "block_actions",
            "team": {"id": "T1"},
            "user": {"id": "U1"},
            "trigger_id": "9.9",
            "actions": [{"action_id": "tenure.approve", "value": value}],
        }
        first = await slack.send("actions", {"payload": json.dumps(payload)})
        at = first.request.headers["x-slack-request-timestamp"]
        again = await slack.send_raw("actions", first.request.content, at)
        assert again.json()["text"] == "That click was answered already."
        assert (await s.engine.scoped(tenant="acme").get(run)).status == "waiting_approval"


async def test_unreadable_clicks_are_refused(url: str) -> None:
    async with site(url) as s:
        slack = await make_slack(s)
        before = await contents(url)
        for payload in (
            "",
            "{",
            "[]",
            json.dumps({"team": {"id": "T1"}}),
            json.dumps({"trigger_id": "1", "team": 1}),
        ):
            answer = await slack.send("actions", {"payload": payload})
            assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED"), payload
        assert await contents(url) == before
