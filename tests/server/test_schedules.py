"""Schedules over HTTP: create, read, update, pause, trigger; one run per slot."""

import asyncio
from typing import Any

import pytest

from tenure import Client
from tenure.clock import us
from tenure.declared import load_workflow
from tenure.errors import TenureError
from tests.server.stage import Site, problem, site
from tests.server.webhook_senders import register

NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "workflow": "review",
    "cron": "30 2 * * *",
    "zone": "Europe/Berlin",
    "input": {"full": True},
    "labels": {"team": "core"},
    "catch_up": "last",
}
TEXT = {word: value for word, value in NIGHTLY.items() if word != "name"}


async def made(s: Site, **more: Any) -> dict[str, Any]:
    await register(s)
    answer = await (await s.as_("operator")).post("/schedules", json={**NIGHTLY, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_schedule_is_created_read_updated_and_deleted(url: str) -> None:
    async with site(url) as s:
        operator = await s.as_("operator")
        schedule = await made(s)
        assert (schedule["workflow"], schedule["code_version"], schedule["cron"]) == (
            "review",
            "1",
            "30 2 * * *",
        )
        assert (schedule["input"], schedule["labels"], schedule["revision"]) == (
            {"full": True},
            {"team": "core"},
            1,
        )
        shown = (await operator.get("/schedules/nightly", params={"next": 3})).json()
        assert len(shown["next_times"]) == 3
        assert shown["next_times"][0] == shown["next_at"]
        changed = await operator.put(
            "/schedules/nightly", json={**TEXT, "cron": "0 4 * * *", "labels": {}, "revision": 1}
        )
        assert changed.status_code == 200, changed.text
        assert (changed.json()["cron"], changed.json()["labels"], changed.json()["revision"]) == (
            "0 4 * * *",
            {},
            2,
        )
        assert changed.json()["owner"] == schedule["owner"]
        stale = await operator.put("/schedules/nightly", json={**TEXT, "revision": 1})
        assert (stale.status_code, problem(stale)) == (409, "SCHEDULE_CHANGED")
        assert (await operator.delete("/schedules/nightly")).status_code == 204
        assert problem(await operator.get("/schedules/nightly")) == "SCHEDULE_NOT_FOUND"
        assert problem(await operator.delete("/schedules/nightly")) == "SCHEDULE_NOT_FOUND"


async def test_schedules_are_listed_newest_first_and_each_tenant_sees_its_own(url: str) -> None:
    async with site(url) as s:
        for name in ("a", "c", "b"):
            await made(s, name=name)
        viewer = await s.as_("viewer")
        first = (await viewer.get("/schedules", params={"limit": 2})).json()
        rest = (await viewer.get("/schedules", params={"limit": 2, "cursor": first["next_cursor"]})).json()
        assert [item["name"] for item in first["items"] + rest["items"]] == ["b", "c", "a"]
        assert rest["next_cursor"] is None
        stranger = await s.as_("operator", tenant="globex")
        assert (await stranger.get("/schedules")).json()["items"] == []
        assert (
            problem(await stranger.get("/schedules", params={"cursor": first["next_cursor"]}))
            == "CURSOR_INVALID"
        )
        for verb in ("pause", "unpause", "trigger"):
            answer = await stranger.post(f"/schedules/a/{verb}")
            assert (answer.status_code, problem(answer)) == (404, "SCHEDULE_NOT_FOUND")


async def test_a_paused_schedule_starts_nothing_until_it_is_unpaused(url: str) -> None:
    async with site(url) as s:
        await made(s)
        operator = await s.as_("operator")
        for _ in range(2):
            paused = await operator.post("/schedules/nightly/pause")
            assert (paused.status_code, paused.json()["paused"], paused.json()["next_at"]) == (
                200,
                True,
                None,
            )
        going = await operator.post("/schedules/nightly/unpause")
        assert (going.status_code, going.json()["paused"]) == (200, False)
        assert going.json()["next_at"] is not None


async def test_a_trigger_starts_one_run_under_a_key(url: str) -> None:
    async with site(url) as s:
        await s.person("olga", "operator")
        await made(s, paused=True, owner="olga")
        operator = await s.as_("operator")
        answers = await asyncio.gather(
            *(operator.post("/schedules/nightly/trigger", headers={"Idempotency-Key": "k"}) for _ in range(5))
        )
        runs = {answer.json().get("id") or answer.json()["run_id"] for answer in answers} - {None}
        assert len(runs) == 1
        [run] = await s.engine.scoped(tenant="acme").runs.list()
        assert runs == {run.id}
        again = await operator.post("/schedules/nightly/trigger", headers={"Idempotency-Key": "k"})
        assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
        view = again.json()
        assert (view["trigger"], view["requester"], view["input"]) == (
            "scheduled",
            "person:olga",
            {"full": True},
        )
        other = await operator.post("/schedules/nightly/trigger")
        assert other.json()["id"] != run.id
        assert other.headers["location"] == f"/runs/{other.json()['id']}"


@pytest.mark.clause("GWI-10")
async def test_several_servers_start_one_run_per_slot(url: str) -> None:
    async with site(url) as one, site(url) as two:
        await made(one, cron="* * * * *", zone="UTC", catch_up="skip")
        for s in (one, two):
            s.engine.store.shift_clock(us(61))
        viewer = await two.as_("viewer")
        while (await viewer.get("/schedules/nightly")).json()["last_slot"] is None:  # noqa: ASYNC110 - the schedulers' work
            await asyncio.sleep(0.05)
        engine = one.engine.scoped(tenant="acme")
        slots = [(await engine.get(run.id)).trigger_ref for run in await engine.runs.list()]
        assert slots
        assert len(set(slots)) == len(slots)


async def test_a_schedule_of_a_registered_workflow_file_has_its_plan(url: str) -> None:
    text = """
    name: report
    version: "2"
    inputs:
      day: { type: string, default: today }
    steps:
      - id: make
        run: [echo, "${{ inputs.day }}"]
    """
    async with site(url) as s:
        operator = await s.as_("operator")
        put = await operator.put(
            "/workflows/report", content=text, headers={"Content-Type": "application/yaml"}
        )
        assert put.status_code in (200, 201), put.text
        body = {"name": "daily", "workflow": "report", "cron": "0 6 * * *", "input": {"day": "friday"}}
        wrong = await operator.post("/schedules", json={**body, "input": {"dya": "friday"}})
        assert (wrong.status_code, problem(wrong)) == (422, "INVALID_INPUT")
        assert wrong.json()["error"]["details"][0]["path"] == "input.dya"
        schedule = await operator.post("/schedules", json=body)
        assert schedule.status_code == 201, schedule.text
        assert (schedule.json()["code_version"], schedule.json()["plan"][0]["name"]) == ("2", "make")
        assert schedule.json()["plan"][0]["input"]["argv"] == [
            "echo",
            "friday",
        ]  # the command, with the input filled in
        async with Client(s.address, await s.key("operator")) as client:
            third = load_workflow(text.replace('"2"', '"3"'))
            with pytest.raises(TenureError) as unknown:  # the newest version does not replace the missing one
                await client.schedules.create("other", third, "0 6 * * *")
            assert unknown.value.code == "WORKFLOW_NOT_FOUND"
        run = (await operator.post("/schedules/daily/trigger")).json()
        assert (run["workflow"], run["code_version"], run["steps_total"]) == ("report", "2", 1)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"cron": "61 * * * *"}, "SCHEDULE_INVALID"),
        ({"zone": "Mars/Olympus"}, "SCHEDULE_INVALID"),
        ({"catch_up": "never"}, "INVALID_INPUT"),
        ({"catch_up_max": 0}, "INVALID_INPUT"),
        ({"workflow": "unheard-of"}, "WORKFLOW_NOT_FOUND"),
        ({"version": "9"}, "WORKFLOW_NOT_FOUND"),
        ({"profile": "no-such"}, "SCHEDULE_INVALID"),
        ({"owner": "nobody"}, "INVALID_INPUT"),
        ({"name": ""}, "INVALID_INPUT"),
        ({"name": "a\nb"}, "SCHEDULE_INVALID"),
        ({"wen": 1}, "INVALID_INPUT"),
        ({"input": []}, "INVALID_INPUT"),
    ],
)
async def test_an_invalid_schedule_is_refused_at_creation(url: str, wrong: dict[str, Any], code: str) -> None:
    async with site(url) as s:
        await register(s)
        answer = await (await s.as_("operator")).post("/schedules", json={**NIGHTLY, **wrong})
        assert problem(answer) == code
        assert answer.status_code in (404, 422)
        assert (await (await s.as_("viewer")).get("/schedules")).json()["items"] == []


async def test_a_schedule_is_created_once_under_a_key(url: str) -> None:
    async with site(url) as s:
        await made(s)
        operator = await s.as_("operator")
        again = await operator.post("/schedules", json=NIGHTLY)
        assert (again.status_code, problem(again)) == (409, "SCHEDULE_EXISTS")
        keyed = [
            await operator.post("/schedules", json={**NIGHTLY, "name": "b"}, headers={"Idempotency-Key": "k"})
            for _ in range(2)
        ]
        assert [answer.status_code for answer in keyed] == [201, 201]
        assert keyed[0].content == keyed[1].content


async def test_a_name_may_contain_a_slash(url: str) -> None:
    async with site(url) as s:
        await made(s, name="team/nightly report")
        operator = await s.as_("operator")
        shown = await operator.get("/schedules/team%2Fnightly%20report")
        assert shown.json()["name"] == "team/nightly report"
        assert (await operator.post("/schedules/team%2Fnightly%20report/pause")).status_code == 200


async def test_viewers_cannot_change_schedules(url: str) -> None:
    async with site(url) as s:
        await made(s)
        viewer = await s.as_("viewer")
        for answer in (
            await viewer.post("/schedules", json=NIGHTLY),
            await viewer.put("/schedules/nightly", json={**TEXT, "revision": 1}),
            await viewer.delete("/schedules/nightly"),
            await viewer.post("/schedules/nightly/trigger"),
        ):
            assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
