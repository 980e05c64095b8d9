"""Deliveries: recorded and answered immediately, processed once despite crashes, listed and replayed."""

import asyncio
from typing import Any

import pytest

from tenure import work_pool
from tenure.clock import us
from tenure.errors import TenureError
from tenure.limits import DELIVERY_TRIES_MAX
from tenure.services.hooks import events, intake
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
    register,
)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)


async def make_github(s: Site, *rules: dict[str, Any]) -> GitHub:
    await register(s)
    hook = await make_hook(s, "github", *(rules or (PR_RULE,)))
    return GitHub(s, hook["id"])


async def delivery(s: Site, hook_id: str, name: str = "d-1") -> dict[str, Any]:
    answer = await (await s.as_("viewer")).get(f"/hooks/{hook_id}/deliveries/{name}")
    found: dict[str, Any] = answer.json()
    return found


async def wait_until_processed(s: Site, hook_id: str, name: str = "d-1") -> dict[str, Any]:
    """Wait until a delivery is processed."""
    while (found := await delivery(s, hook_id, name))["status"] == "received":  # noqa: ASYNC110 - another task's work
        await asyncio.sleep(0.01)
    return found


async def runs(s: Site) -> list[str]:
    return [run.id for run in await s.engine.scoped(tenant="acme").runs.list(limit=200)]


async def record_only(s: Site, hook_id: str, body: bytes) -> None:
    """Record a delivery as a process that dies right after the commit."""
    headers = {
        "x-github-delivery": "d-1",
        "x-github-event": "pull_request",
        "content-type": "application/json",
    }
    read = events.parse_github(headers, body, by_letter=False)
    taken = await s.service.intake.deliveries.take("github", read.delivery(hook_id, "acme"), alike=True)
    assert taken is not None
    assert taken.held is not None


async def test_the_response_to_a_delivery_does_not_wait_for_the_work(url: str) -> None:
    async with site(url, hook_answer_seconds=0) as s:
        github = await make_github(s)
        answer = await github.deliver("pull_request", pull_request(7), delivery="d-1")
        assert (answer.status_code, answer.json()["status"]) == (202, "received")
        assert (await wait_until_processed(s, github.hook_id))["run_id"] == (await runs(s))[0]


@pytest.mark.clause("GWI-11")
@pytest.mark.clause("GWI-15")
async def test_the_delivery_of_a_dead_process_is_taken_over_after_its_lock_expires(url: str) -> None:
    async with site(url, hook_answer_seconds=0.05) as s:
        github = await make_github(s)
        first = await github.deliver("ping", pull_request(7))
        await record_only(s, github.hook_id, first.request.content)
        again = await github.deliver("pull_request", first.request.content, delivery="d-1")
        assert (again.status_code, again.json()["status"], again.json()["run_id"]) == (202, "received", None)
        [record] = await s.engine.store.read("key_record", "acme", "github_webhook", "github:d-1")
        assert (record.status, record.attempts, record.response) == ("processing", 1, None)
        assert record.lock_expires_at == record.created_at + us(300)
        await s.service.intake.look()
        assert await runs(s) == []  # the lock of the dead process still holds
        s.engine.store.shift_clock(us(301))
        await s.service.intake.look()
        done = await wait_until_processed(s, github.hook_id)
        assert [done["run_id"]] == await runs(s)
        [record] = await s.engine.store.read("key_record", "acme", "github_webhook", "github:d-1")
        assert (record.status, record.attempts, record.lock_expires_at) == ("completed", 2, None)
        again = await github.deliver("pull_request", first.request.content, delivery="d-1")
        assert (again.status_code, again.json()["run_id"]) == (200, done["run_id"])


async def test_a_redelivery_takes_over_an_abandoned_delivery(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        first = await github.deliver("ping", pull_request(7))
        await record_only(s, github.hook_id, first.request.content)
        s.engine.store.shift_clock(us(301))
        answer = await github.deliver("pull_request", first.request.content, delivery="d-1")
        assert answer.json()["run_id"] in await runs(s)
        assert len(await runs(s)) == 1


async def test_a_crash_between_run_and_delivery_record_starts_no_second_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(url, hook_answer_seconds=0.05) as s:
        github = await make_github(s)
        deliveries = s.service.intake.deliveries

        async def dies(*_args: Any, **_more: Any) -> Any:
            raise TenureError("STORE_UNAVAILABLE")

        with monkeypatch.context() as broken:
            broken.setattr(deliveries, "settle", dies)
            broken.setattr(deliveries, "postpone", dies)
            answer = await github.deliver("pull_request", pull_request(7), delivery="d-1")
            assert answer.status_code == 202
            while not (made := await runs(s)):  # noqa: ASYNC110 - another task's work
                await asyncio.sleep(0.01)
        changed = {**PR_RULE, "input": {"pr": 0}}  # even if the rules have changed since
        hook = (await (await s.as_("admin")).get(f"/hooks/{github.hook_id}")).json()
        text = {"name": "n", "secrets": hook["secrets"], "rules": [changed], "revision": 1}
        assert (await (await s.as_("admin")).put(f"/hooks/{github.hook_id}", json=text)).status_code == 200
        s.engine.store.shift_clock(us(301))
        await s.service.intake.look()
        assert (await wait_until_processed(s, github.hook_id))["run_id"] == made[0]
        assert await runs(s) == made


async def test_a_delivery_that_cannot_be_carried_out_now_is_retried_later(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(url, hook_answer_seconds=0.05) as s:
        github = await make_github(s)

        async def full(*_asked: Any) -> Any:
            raise TenureError("QUEUE_FULL")

        with monkeypatch.context() as busy:
            busy.setattr(s.engine.orchestrator, "create", full)
            answer = await github.deliver("pull_request", pull_request(7), delivery="d-1")
            assert (answer.status_code, answer.json()["status"]) == (202, "received")
            while "QUEUE_FULL" not in (await delivery(s, github.hook_id))["note"]:  # noqa: ASYNC110 - another task's work
                await asyncio.sleep(0.01)
        s.engine.store.shift_clock(us(2))
        await s.service.intake.look()
        assert [(await wait_until_processed(s, github.hook_id))["run_id"]] == await runs(s)


async def test_rules_are_evaluated_later_if_the_thread_pool_is_full(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(url, hook_answer_seconds=0.05) as s:
        github = await make_github(s)
        refused: list[Any] = []

        async def full(function: Any, *_given: Any) -> Any:
            refused.append(function)
            raise TenureError("SERVER_BUSY")

        with monkeypatch.context() as busy:
            busy.setattr(work_pool.POOL, "run", full)
            answer = await github.deliver("pull_request", pull_request(7), delivery="d-1")
            assert (answer.status_code, answer.json()["status"]) == (202, "received")
            while "SERVER_BUSY" not in (await delivery(s, github.hook_id))["note"]:  # noqa: ASYNC110 - another task's work
                await asyncio.sleep(0.01)
            assert refused == [intake._match], "the evaluation of the rules was refused"
        s.engine.store.shift_clock(us(2))
        await s.service.intake.look()
        assert [(await wait_until_processed(s, github.hook_id))["run_id"]] == await runs(s)


async def take_over_and_die(s: Site, after_seconds: int) -> None:
    """Take over an abandoned delivery as a process that dies before it does anything."""
    s.engine.store.shift_clock(us(after_seconds))
    [left] = await s.service.intake.deliveries.list_abandoned(9)
    assert await s.service.intake.deliveries.take_over("github", left) is not None


async def test_a_delivery_that_keeps_crashing_its_process_is_set_aside(url: str) -> None:
    """An attempt is counted before it begins, so that a crash counts. Only a person can replay a delivery that was set aside."""
    async with site(url, hook_answer_seconds=20) as s:
        github = await make_github(s)
        ping = await github.deliver("ping", pull_request(7))
        await s.service.intake.stop()
        await record_only(s, github.hook_id, ping.request.content)
        for n in (1, 2, 3):
            await take_over_and_die(s, 301 * n)
        s.engine.store.shift_clock(us(301 * 4))
        await s.service.intake.look()
        found = await delivery(s, github.hook_id)
        assert (found["status"], found["run_id"], found["tries"]) == ("set_aside", None, 5)
        assert "its process crashed repeatedly" in found["note"]
        assert await runs(s) == []
        text = (await (await s.caller(await s.operator_key())).get("/metrics")).text
        assert "tenure_deliveries_set_aside_total 1.0" in text
        for name in ("d-1", "d-2"):  # the same delivery, and the same bytes under another id
            again = await github.deliver("pull_request", ping.request.content, delivery=name)
            assert (again.status_code, again.json()["status"]) == (200, "set_aside"), again.text
        s.engine.store.shift_clock(us(7_200))
        assert await s.service.intake.look() == 0
        assert await runs(s) == []
        operator = await s.as_("admin")
        replayed = await operator.post(f"/hooks/{github.hook_id}/deliveries/d-1/replay")
        assert replayed.status_code == 201, replayed.text
        assert [replayed.json()["run_id"]] == await runs(s)


async def test_a_delivery_that_keeps_failing_is_set_aside(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(url, hook_answer_seconds=20) as s:
        github = await make_github(s)
        ping = await github.deliver("ping", pull_request(7))
        await s.service.intake.stop()
        await record_only(s, github.hook_id, ping.request.content)

        async def full(*_asked: Any) -> Any:
            raise TenureError("QUEUE_FULL")

        monkeypatch.setattr(s.engine.orchestrator, "create", full)
        rounds = 0
        while (found := await delivery(s, github.hook_id))["status"] == "received":
            rounds += 1
            s.engine.store.shift_clock(us(301 * rounds))
            await s.service.intake.look()
            assert rounds <= DELIVERY_TRIES_MAX
        assert (found["status"], found["tries"]) == ("set_aside", DELIVERY_TRIES_MAX + 1)
        assert "20 tries" in found["note"]
        assert "QUEUE_FULL" in found["note"]


@pytest.mark.parametrize(
    "text", ["size(body.list.map(x, body.list.map(y, body.list))) > 0", "body.list.filter(x, true) == []"]
)
async def test_a_rule_that_costs_too_much_fails_only_its_delivery(url: str, text: str) -> None:
    async with site(url, hook_answer_seconds=20) as s:
        github = await make_github(s, {**PR_RULE, "when": text})
        answer = await github.deliver("pull_request", {"list": ["a"] * 5_000})
        assert answer.json()["status"] == "failed", answer.text
        assert "EXPRESSION_FAILED" in answer.json()["note"]
        assert "too much" in answer.json()["note"]


async def test_a_rule_that_can_never_match_is_refused(url: str) -> None:
    async with site(url) as s:
        await register(s)
        doubled = '["AAAA"]' + ".map(x, x + x + x + x + x + x + x + x + x + x + x + x)" * 8 + ".size() > 0"
        body = {
            "kind": "github",
            "name": "n",
            "secrets": [REFERENCE],
            "rules": [{**PR_RULE, "when": doubled}],
        }
        refused = await (await s.as_("admin")).post("/hooks", json=body)
        assert (refused.status_code, problem(refused)) == (422, "INVALID_INPUT")
        assert "it may take too much" in refused.text


@pytest.mark.clause("DCI-16")
async def test_two_servers_start_one_run_for_one_webhook(url: str) -> None:
    async with site(url) as one, site(url) as two:
        here = await make_github(one)
        there = GitHub(two, here.hook_id)
        sent = [
            side.deliver("pull_request", pull_request(7), delivery=f"d-{n % 2}")  # two ids, the same bytes
            for n in range(10)
            for side in (here, there)
        ]
        answers = await asyncio.gather(*sent)
        [run] = await runs(one)
        assert {answer.json()["run_id"] for answer in answers} == {run}


async def test_deliveries_are_paged_newest_first(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        for n in range(5):
            await github.deliver("pull_request", pull_request(n, action="closed"), delivery=f"d-{n}")
        viewer, where = await s.as_("viewer"), f"/hooks/{github.hook_id}/deliveries"
        first = (await viewer.get(where, params={"limit": 3})).json()
        rest = (await viewer.get(where, params={"limit": 3, "cursor": first["next_cursor"]})).json()
        assert [item["id"] for item in first["items"] + rest["items"]] == ["d-4", "d-3", "d-2", "d-1", "d-0"]
        assert rest["next_cursor"] is None
        assert {item["status"] for item in first["items"]} == {"ignored"}
        shown = (await viewer.get(f"{where}/d-4")).json()
        assert shown["body"] == pull_request(4, action="closed")
        assert shown["headers"]["x-github-event"] == "pull_request"
        assert not {"x-hub-signature-256", "host", "authorization"} & shown["headers"].keys()
        other = await s.as_("viewer", tenant="globex")
        for path in (where, f"{where}/d-4"):
            assert problem(await other.get(path)) == "HOOK_NOT_FOUND"
        assert problem(await other.get(where, params={"cursor": first["next_cursor"]})) == "HOOK_NOT_FOUND"
        assert problem(await viewer.get(where, params={"cursor": "bm8"})) == "CURSOR_INVALID"
        assert problem(await viewer.get(f"{where}/d-9")) == "DELIVERY_NOT_FOUND"


async def test_a_repeat_during_processing_shows_the_run_later(url: str) -> None:
    async with site(url, hook_answer_seconds=0.05) as s:
        github = await make_github(s)
        first = await github.deliver("ping", pull_request(7))
        await record_only(s, github.hook_id, first.request.content)
        repeat = await github.deliver("pull_request", first.request.content, delivery="d-2")
        assert (repeat.status_code, repeat.json()["duplicate"]) == (202, True)
        s.engine.store.shift_clock(us(301))
        await s.service.intake.look()
        done = await wait_until_processed(s, github.hook_id)
        shown = await delivery(s, github.hook_id, "d-2")
        assert (shown["status"], shown["run_id"]) == ("duplicate", done["run_id"])


# ------------------------------------------------------------------------------------------------- replays


async def test_a_replay_starts_a_new_run_under_a_new_key_and_is_audited(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        first = (await github.deliver("pull_request", pull_request(7), delivery="d-1")).json()["run_id"]
        operator, where = await s.as_("operator"), f"/hooks/{github.hook_id}/deliveries/d-1/replay"
        made = [(await operator.post(where)).json() for _ in range(2)]
        assert [one["delivery"] for one in made] == ["d-1:replay:1", "d-1:replay:2"]
        assert len({first, *(one["run_id"] for one in made)}) == 3
        for n, one in enumerate(made, start=1):
            shown = await delivery(s, github.hook_id, one["delivery"])
            assert (shown["key"], shown["run_id"]) == (f"github:d-1:replay:{n}", one["run_id"])
        assert (await delivery(s, github.hook_id))["replays"] == 2
        lines = await s.engine.store.read("admin_events_after", "acme", 0, 100)
        replayed = [line for line in lines if line.kind == "hook.replayed"]
        assert len(replayed) == 2
        assert b"github:d-1:replay:2" in replayed[1].body
        assert problem(await (await s.as_("viewer")).post(where)) == "FORBIDDEN"
        assert problem(await (await s.as_("operator", tenant="globex")).post(where)) == "HOOK_NOT_FOUND"
        assert problem(await operator.post(where.replace("d-1", "d-9"))) == "DELIVERY_NOT_FOUND"


async def test_a_replay_under_an_idempotency_key_runs_once(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s)
        await github.deliver("pull_request", pull_request(7), delivery="d-1")
        operator, where = await s.as_("operator"), f"/hooks/{github.hook_id}/deliveries/d-1/replay"
        answers = [await operator.post(where, headers={"Idempotency-Key": "once"}) for _ in range(2)]
        assert answers[0].content == answers[1].content
        assert answers[1].headers["idempotency-replayed"] == "true"
        assert len(await runs(s)) == 2


async def test_a_replay_uses_the_current_rules(url: str) -> None:
    async with site(url) as s:
        github = await make_github(s, {"when": "body.nothing == 1", "workflow": "review"})
        failed = await github.deliver("pull_request", pull_request(7), delivery="d-1")
        assert failed.json()["status"] == "failed"
        admin = await s.as_("admin")
        hook = (await admin.get(f"/hooks/{github.hook_id}")).json()
        text = {"name": "n", "secrets": hook["secrets"], "rules": [PR_RULE], "revision": hook["revision"]}
        await admin.put(f"/hooks/{github.hook_id}", json=text)
        replayed = await admin.post(f"/hooks/{github.hook_id}/deliveries/d-1/replay")
        assert (replayed.status_code, replayed.json()["status"]) == (201, "done")


async def test_no_secret_is_in_any_table_or_in_the_log(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    async with site(url) as s:
        github = await make_github(s)
        await github.deliver("pull_request", pull_request(7), delivery="d-1")
        await github.deliver("pull_request", pull_request(8), secret="wrong")
        assert SECRET not in repr(await contents(url))
        captured = capfd.readouterr()
        assert SECRET not in captured.out + captured.err
