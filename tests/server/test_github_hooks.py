"""GitHub's webhooks: signatures, deduplication, and rules."""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tenure.clock import us
from tenure.kernel.run_rows import Cap
from tests.server.stage import Site, problem, site
from tests.server.webhook_senders import (
    OTHER_NAME,
    OTHER_SECRET,
    PR_RULE,
    REFERENCE,
    SECRET,
    SECRET_NAME,
    GitHub,
    contents,
    make_hook,
    pull_request,
    register,
)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    monkeypatch.setenv(OTHER_NAME, OTHER_SECRET)


async def make_github(s: Site, *rules: dict[str, Any], **more: Any) -> GitHub:
    """Create a hook (by default for pull requests) and return its sender."""
    await register(s)
    hook = await make_hook(s, "github", *(rules or (PR_RULE,)), **more)
    return GitHub(s, hook["id"])


async def runs(s: Site, tenant: str = "acme") -> list[str]:
    return [run.id for run in await s.engine.scoped(tenant=tenant).runs.list(limit=200)]


def outcome(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["status"]


@pytest.mark.clause("GWI-07")
async def test_a_pull_request_starts_the_run_of_its_rule(url: str) -> None:
    async with site(url) as s:
        await s.person("olga", "admin")
        github = await make_github(s, owner="olga")
        answer = await github.deliver("pull_request", pull_request(7), delivery="d-1")
        assert outcome(answer) == (201, "done")
        run = (await (await s.as_("viewer")).get(answer.headers["location"])).json()
        assert (run["workflow"], run["input"], run["labels"]) == (
            "review",
            {"pr": 7, "title": "PR 7"},
            {"by": "pull_request"},
        )
        assert (run["trigger"], run["repo"], run["requester"]) == ("webhook", "octo/widgets", "person:olga")
        assert run["metadata"] == {
            "prId": "7",
            "prUrl": "https://github.test/octo/widgets/pull/7",
            "commit": "c0ffee",
        }
        [record] = await s.engine.store.read("key_record", "acme", "github_webhook", "github:d-1")
        assert (record.status, record.attempts, record.lock_expires_at) == ("completed", 1, None)
        [event] = await s.engine.scoped(tenant="acme").runs.events(run["id"])
        assert (event.initiator, event.actor) == ("webhook", f"hook:{github.hook_id}")


@pytest.mark.clause("GWI-12")
@pytest.mark.clause("DCI-16")
async def test_fifty_deliveries_of_one_webhook_start_one_run_and_a_forged_one_none(
    url: str,
) -> None:
    async with site(url) as s:
        github = await make_github(s)
        forged = await github.deliver("pull_request", pull_request(7), delivery="d-1", secret="guessed")
        assert (forged.status_code, problem(forged)) == (401, "SIGNATURE_INVALID")
        answers = await asyncio.gather(
            *(github.deliver("pull_request", pull_request(7), delivery="d-1") for _ in range(50))
        )
        [run] = await runs(s)
        assert {answer.json()["run_id"] for answer in answers} == {run}
        assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
        assert sum(answer.json()["duplicate"] for answer in answers) == 49


@pytest.mark.parametrize(
    "signature", ["sha256=" + "0" * 64, "sha1=" + "0" * 40, "", "sha256=\u00e9", "sha256"]
)
async def test_a_delivery_with_a_wrong_signature_is_not_recorded(url: str, signature: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        before = await contents(url)
        headers = {"X-Hub-Signature-256": signature.encode("latin-1")}
        answer = await github.deliver("pull_request", pull_request(7), headers=headers)
        assert (answer.status_code, problem(answer)) == (401, "SIGNATURE_INVALID")
        assert SECRET not in answer.text
        assert await contents(url) == before


async def test_a_body_changed_after_signing_is_refused(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        raw = json.dumps(pull_request(7)).encode()
        good = await github.deliver("pull_request", raw)
        signature = good.request.headers["x-hub-signature-256"]
        before = await contents(url)
        answer = await github.deliver(
            "pull_request", raw.replace(b"7", b"8"), headers={"X-Hub-Signature-256": signature}
        )
        assert problem(answer) == "SIGNATURE_INVALID"
        assert await contents(url) == before


async def test_during_a_rotation_both_secrets_are_valid(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        admin = await s.as_("admin")
        hook = (await admin.get(f"/hooks/{github.hook_id}")).json()
        text = {"name": hook["name"], "rules": hook["rules"]}
        for references, old, new in (
            ([f"env:{OTHER_NAME}", REFERENCE], 201, 201),
            ([f"env:{OTHER_NAME}"], 401, 201),
        ):
            body = {**text, "secrets": references, "revision": hook["revision"]}
            hook = (await admin.put(f"/hooks/{github.hook_id}", json=body)).json()
            number = 10 * hook["revision"]
            assert (await github.deliver("pull_request", pull_request(number))).status_code == old
            by_new = await github.deliver("pull_request", pull_request(number + 1), secret=OTHER_SECRET)
            assert by_new.status_code == new


async def test_a_hook_with_an_unreadable_secret_refuses_everything(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(url) as s:
        github = await make_github(s)
        monkeypatch.delenv(SECRET_NAME)
        before = await contents(url)
        answer = await github.deliver("pull_request", pull_request(7))
        assert (answer.status_code, problem(answer)) == (500, "SECRET_UNAVAILABLE")
        assert SECRET_NAME not in answer.text
        monkeypatch.setenv(SECRET_NAME, "")  # everybody could sign with an empty secret
        assert (
            problem(await github.deliver("pull_request", pull_request(7), secret="x")) == "SECRET_UNAVAILABLE"
        )
        assert await contents(url) == before


async def test_unknown_disabled_and_mismatched_hooks_look_the_same(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s, disabled=True)
        other = await make_hook(s, "generic")
        bodies = []
        for hook_id in (github.hook_id, other["id"], "hk_nobody"):
            answer = await GitHub(s, hook_id).deliver("pull_request", pull_request(7))
            assert answer.status_code == 404
            error = answer.json()["error"]
            bodies.append({word: error[word] for word in error if word != "request_id"})
        assert bodies[0] == bodies[1] == bodies[2]
        assert await runs(s) == []


async def test_the_tenant_comes_from_the_hook_not_from_the_payload(url: str) -> None:
    async with site(url) as s:
        await s.tenant("globex")
        github = await make_github(s)
        answer = await github.deliver("pull_request", pull_request(7, tenant="globex"))
        assert [answer.json()["run_id"]] == await runs(s)
        assert await runs(s, "globex") == []


async def test_a_ping_is_answered_and_unmatched_events_are_ignored(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        assert outcome(await github.deliver("ping", {"zen": "Keep it logically awesome."})) == (
            200,
            "ignored",
        )
        answer = await github.deliver("pull_request", pull_request(7, action="closed"), delivery="d-2")
        assert outcome(answer) == (200, "ignored")
        assert outcome(
            await github.deliver("pull_request", pull_request(7, action="closed"), delivery="d-2")
        ) == (
            200,
            "ignored",
        )
        assert await runs(s) == []


async def test_a_signed_but_unreadable_body_is_refused_and_not_recorded(url: str) -> None:
    async with site(url, hook_body_bytes_max=2_000) as s:
        github = await make_github(s)
        before = await contents(url)
        for body in (b"{", b"[]", b"\xff", b'{"a": NaN}', b"[" * 1_500):
            answer = await github.deliver("pull_request", body)
            assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED"), body
        for headers in ({"X-GitHub-Delivery": "a/../b"}, {"X-GitHub-Delivery": ""}, {"X-GitHub-Event": ""}):
            answer = await github.deliver("pull_request", pull_request(7), headers=headers)
            assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED"), headers
        answer = await github.deliver("pull_request", pull_request(7, more="x" * 2_000))
        assert (answer.status_code, problem(answer)) == (413, "PAYLOAD_TOO_LARGE")
        assert await contents(url) == before


async def test_a_form_encoded_delivery_is_read_as_json(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        answer = await github.deliver(
            "pull_request",
            urlencode({"payload": json.dumps(pull_request(9))}).encode(),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert outcome(answer) == (201, "done")


# ------------------------------------------------------------------------------------- deduplication


@pytest.mark.clause("DCI-16")
async def test_the_same_bytes_under_another_delivery_id_are_a_repeat_for_a_day(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s, {"workflow": "review"})
        body = {"no": "pull request"}
        first = await github.deliver("issues", body, delivery="d-1")
        s.engine.store.shift_clock(us(23 * 3600))
        again = await github.deliver("issues", body, delivery="d-2")
        assert (outcome(first), outcome(again)) == ((201, "done"), (200, "done"))
        assert again.json() == {**first.json(), "delivery": "d-2", "duplicate": True}
        assert (await github.deliver("issues", body, delivery="d-2")).json()["run_id"] == first.json()[
            "run_id"
        ]
        s.engine.store.shift_clock(us(25 * 3600))
        later = await github.deliver("issues", body, delivery="d-3")
        assert outcome(later) == (201, "done")
        assert len(await runs(s)) == 2


@pytest.mark.clause("GWI-13")
@pytest.mark.clause("DCI-16")
async def test_a_pull_request_event_sent_twice_within_five_seconds_starts_one_run(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        first = await github.deliver("pull_request", pull_request(7, sender="a"))
        same = await github.deliver("pull_request", pull_request(7, sender="b"))
        assert (same.status_code, same.json()["run_id"]) == (200, first.json()["run_id"])
        pushed = await github.deliver("pull_request", pull_request(7, head="beef", sender="c"))
        acted = await github.deliver("pull_request", pull_request(7, action="synchronize", sender="d"))
        other = await github.deliver("pull_request", pull_request(8, sender="e"))
        assert [answer.status_code for answer in (pushed, acted, other)] == [201, 201, 201]
        s.engine.store.shift_clock(us(6))
        assert (await github.deliver("pull_request", pull_request(7, sender="f"))).status_code == 201
        assert len(await runs(s)) == 5


@pytest.mark.clause("GWI-13")
async def test_a_hook_may_deduplicate_by_pull_request_and_event_type_alone(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s, settings={"same_pr_within_5s": True})
        first = await github.deliver("pull_request", pull_request(7))
        pushed = await github.deliver("pull_request", pull_request(7, action="synchronize", head="beef"))
        assert (pushed.status_code, pushed.json()["run_id"]) == (200, first.json()["run_id"])
        assert (await github.deliver("pull_request", pull_request(8))).status_code == 201


async def test_a_push_sent_twice_starts_one_run(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s, {"workflow": "review"})
        push = {"ref": "refs/heads/main", "after": "c0ffee", "repository": {"full_name": "octo/widgets"}}
        first = await github.deliver("push", {**push, "pusher": "a"})
        again = await github.deliver("push", {**push, "pusher": "b"})
        assert (again.status_code, again.json()["run_id"]) == (200, first.json()["run_id"])
        assert (await github.deliver("push", {**push, "after": "beef"})).status_code == 201


@pytest.mark.clause("GWI-15")
async def test_a_redelivery_finds_its_run_after_all_records_have_expired(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        first = await github.deliver("pull_request", pull_request(7), delivery="d-1")
        for days, kept in ((2, 1), (31, 0)):
            s.engine.store.shift_clock(us(days * 86_400))
            await s.service.keys.sweep()
            assert not await s.engine.store.read("key_record", "acme", "github_webhook", "github:d-1")
            await s.service.intake.deliveries.trim(100)
            assert len(await s.engine.store.read("deliveries_of", github.hook_id, 2**62, "", 10)) == kept
            again = await github.deliver("pull_request", pull_request(7), delivery="d-1")
            assert (again.status_code, again.json()["run_id"]) == (200, first.json()["run_id"])
        assert len(await runs(s)) == 1


# --------------------------------------------------------------------------------------------------- rules


@pytest.mark.clause("DCI-05")
async def test_a_newer_push_supersedes_the_older_run_of_its_pull_request(url: str) -> None:
    rule = {**PR_RULE, "concurrency_key": "pr-${{ body.pull_request.number }}", "supersede": True}
    async with site(url) as s:
        github = await make_github(s, rule)
        old = (await github.deliver("pull_request", pull_request(7))).json()["run_id"]
        new = (
            await github.deliver("pull_request", pull_request(7, action="synchronize", head="beef"))
        ).json()
        other = (await github.deliver("pull_request", pull_request(8))).json()["run_id"]
        engine = s.engine.scoped(tenant="acme")
        assert await engine.run(old).reaches("canceled", wait=10) == "canceled"
        assert (await engine.get(old)).reason == "SUPERSEDED"
        for run in (new["run_id"], other):
            assert (await engine.get(run)).status == "queued"


async def test_an_expression_without_a_value_fails_only_its_delivery(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s, {"when": "body.nothing.here == 1", "workflow": "review"})
        answer = await github.deliver("pull_request", pull_request(7), delivery="d-1")
        assert outcome(answer) == (200, "failed")
        assert "there is no 'nothing'" in answer.json()["note"]
        assert await runs(s) == []


@pytest.mark.clause("GWI-12")
async def test_a_failed_delivery_may_be_redelivered_up_to_three_attempts(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s, {"workflow": "unheard-of"})
        for attempts in (1, 2, 3, 3):
            answer = await github.deliver("pull_request", pull_request(7), delivery="d-1")
            assert outcome(answer) == (200, "failed")
            [record] = await s.engine.store.read("key_record", "acme", "github_webhook", "github:d-1")
            assert (record.status, record.attempts) == ("failed", attempts)
            assert record.error.startswith("WORKFLOW_NOT_FOUND")
        await register(s, "unheard-of")
        assert outcome(await github.deliver("pull_request", pull_request(7), delivery="d-1")) == (
            200,
            "failed",
        )
        s.engine.store.shift_clock(us(3601))  # a failed record is kept for an hour
        assert outcome(await github.deliver("pull_request", pull_request(7), delivery="d-1")) == (201, "done")


async def test_a_rule_may_signal_a_run(url: str) -> None:
    rule = {"signal": "reviewed", "run": "body.run", "data": {"by": "${{ body.by }}"}}
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        run = await engine.create("w", [{"name": "a", "kind": "wait", "wait": {"event": "reviewed"}}])
        others = await s.engine.scoped(tenant="globex").create("w", [{"name": "a"}])
        github = await make_github(s, rule)
        for _ in range(2):
            answer = await github.deliver("x", {"run": run, "by": "eve"}, delivery="d-1")
            assert answer.json()["run_id"] == run
        assert (await engine.get(run)).status == "succeeded"
        answer = await github.deliver("x", {"run": others, "by": "eve"})
        assert outcome(answer) == (200, "failed")
        assert "RUN_NOT_FOUND" in answer.json()["note"]


async def test_runs_over_the_rate_of_the_tenant_start_later(url: str) -> None:
    async with site(url) as s:
        await s.engine.put_caps([Cap("acme", "", max_runs_per_min=1)])
        github = await make_github(s)
        made = [(await github.deliver("pull_request", pull_request(n))).json()["run_id"] for n in range(1, 4)]
        assert sorted(await runs(s)) == sorted(made)
        engine = s.engine.scoped(tenant="acme")
        waiting = [(await engine.runs.explain(run)).reason for run in made]
        assert waiting[1:] == ["rate", "rate"] != [waiting[0]] * 2, waiting
