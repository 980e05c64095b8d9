"""Lists of runs over HTTP: filters, pages, cursors."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tenure import ids
from tenure.client import Client
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import Context, MarkReported
from tenure.reads import run_list
from tenure.reads.cursors import encode_cursor
from tenure.shapes.runs import RunTrigger
from tests.server.manual_worker import claim, complete_next_step
from tests.server.stage import problem, site


async def pages(caller: httpx.AsyncClient, path: str, **params: Any) -> tuple[list[Any], int]:
    """All items of a list, and the number of pages."""
    items: list[Any] = []
    count = 0
    while True:
        answer = await caller.get(path, params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        items, count = items + page["items"], count + 1
        assert len(page["items"]) <= params.get("limit", 50)
        if page["next_cursor"] is None:
            return items, count
        params["cursor"] = page["next_cursor"]


async def test_runs_are_listed_newest_first_without_losing_or_repeating_one(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        await s.engine.scoped(tenant="globex").create("w", [{"name": "a"}])
        made = [await engine.create("w", [{"name": "a"}]) for _ in range(23)]
        for limit in (1, 5, 23, 200):
            found, count = await pages(viewer, "/runs", limit=limit)
            ids = [run["id"] for run in found]
            assert sorted(ids) == sorted(made)
            times = [run["created_at"] for run in found]
            assert times == sorted(times, reverse=True)
            assert count == -(-23 // limit)


@pytest.mark.clause("APR-15")
async def test_a_status_filter_takes_the_words_of_the_profile(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme", actor="person:rita"), await s.as_("viewer")
        ada = await s.person("ada")
        gate = {"name": "ok", "kind": "approval", "approval": {"action": "deploy"}}
        new = await engine.create("w", [{"name": "a"}], profile="approval-runs")
        waiting = await engine.create("w", [gate], profile="approval-runs")
        done = await engine.create("w", [gate], profile="approval-runs")
        await ada.post(f"/runs/{done}/approve")
        planning = await engine.create("w", planner={"tool": "plan"}, profile="delta-ci")
        canceled = await engine.create("w", [{"name": "a"}])
        await engine.cancel(canceled)
        everything = {new, waiting, done, planning, canceled}

        async def found(profile: str, status: str, **params: Any) -> set[str]:
            items, _ = await pages(viewer, "/runs", limit=1, profile=profile, status=status, **params)
            assert all(run.get("shown", run["status"]) == status for run in items)
            ids = [run["id"] for run in items]
            assert len(ids) == len(set(ids))
            return set(ids)

        assert await found("approval-runs", "WAITING_APPROVAL") == {waiting}
        assert await found("approval-runs", "PENDING") == {new, planning}, "several statuses share a word"
        assert await found("approval-runs", "SUCCEEDED") == {done}
        assert await found("approval-runs", "CANCELED", workflow="w") == {canceled}
        assert await found("git-with-intent", "pending") == {new, planning}
        assert await found("agent-runs", "failed") == {canceled}
        for profile in profiles.built_in_names():
            words = {
                run["shown"] for run in (await pages(viewer, "/runs", profile=profile, shape="summary"))[0]
            }
            by_word = [await found(profile, word) for word in words]
            assert set().union(*by_word) == everything, profile
            assert sum(map(len, by_word)) == len(everything), profile

        for params, word in (
            ({"profile": "approval-runs", "status": "waiting_approval"}, "WAITING_APPROVAL"),
            ({"status": "WAITING_APPROVAL"}, "waiting_approval"),
        ):
            refused = await viewer.get("/runs", params=params)
            assert (refused.status_code, problem(refused)) == (422, "INVALID_INPUT")
            assert word in refused.json()["error"]["message"]
            assert word in refused.json()["error"]["details"][0]["problem"]

        async with Client(s.address, await s.key("viewer")) as client:
            for profile, status in (("approval-runs", "PENDING"), ("git-with-intent", "pending")):
                listed = await client.runs.list(profile=profile, status=status)
                embedded = await engine.runs.list(profile=profile, status=status)
                assert {run.id for run in listed} == {run.id for run in embedded} == {new, planning}
                assert {run.shown for run in listed} == {status}


@pytest.mark.clause("APR-15")
async def test_a_word_that_a_state_keeps_or_a_report_gives_is_found(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        canceling = await engine.create("w", [{"name": "a"}], profile="approval-runs")
        assert await claim(s, canceling) is not None
        await engine.cancel(canceling)
        reported, unreported = [
            await engine.create("w", [{"name": "a"}], profile="delta-ci") for _ in range(2)
        ]
        for run in (reported, unreported):
            await complete_next_step(s, run)
        await s.engine.orchestrator.send(
            MarkReported(
                run_id=ids.run_int(reported), tenant="acme", context=Context("reporter", "system", "report:1")
            )
        )

        async def found(profile: str, status: str) -> list[str]:
            return [run["id"] for run in (await pages(viewer, "/runs", profile=profile, status=status))[0]]

        assert await found("approval-runs", "RUNNING") == [canceling], "it was RUNNING when it was canceled"
        assert await found("approval-runs", "PENDING") == []
        assert await found("delta-ci", "REPORTED") == [reported]
        assert await found("delta-ci", "SUCCESS") == [unreported]
        assert await found("tenure", "succeeded") == [unreported, reported]


async def test_runs_are_found_by_status_workflow_repo_label_and_time(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        for n in range(12):
            run = await engine.create(
                f"flow-{n % 2}",
                [{"name": "a"}],
                labels={"team": "red" if n % 3 else "blue", "n": str(n)},
                trigger=RunTrigger(repo="me/app" if n < 6 else None),
            )
            if n % 4 == 0:
                await engine.cancel(run)

        async def numbers(**params: Any) -> list[int]:
            found, _ = await pages(viewer, "/runs", limit=2, **params)
            return sorted(int(run["labels"]["n"]) for run in found)

        assert await numbers(status="canceled") == [0, 4, 8]
        assert await numbers(workflow="flow-1") == [1, 3, 5, 7, 9, 11]
        assert await numbers(repo="me/app") == [0, 1, 2, 3, 4, 5]
        assert await numbers(repo="me/app", status="canceled") == [0, 4]
        assert await numbers(label=["team=blue"]) == [0, 3, 6, 9]
        assert await numbers(label=["team=blue", "n=9"]) == [9]
        assert await numbers(label="team=blue", workflow="flow-1", status="queued") == [3, 9]
        assert await numbers(label="team=green") == []
        everything, _ = await pages(viewer, "/runs")
        times = sorted(run["created_at"] for run in everything)
        assert len(await numbers(created_after=times[4], created_before=times[9])) == 5
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        assert await numbers(created_after=later) == []


async def test_a_cursor_is_bound_to_tenant_list_and_filters(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        for _ in range(3):
            await engine.create("w", [{"name": "a"}])
        cursor = (await viewer.get("/runs", params={"limit": 1})).json()["next_cursor"]
        other = await s.as_("viewer", tenant="globex")
        for answer in (
            await other.get("/runs", params={"cursor": cursor}),
            await viewer.get("/runs", params={"cursor": cursor, "status": "queued"}),
            await viewer.get("/approvals", params={"cursor": cursor}),
            await viewer.get("/runs", params={"cursor": cursor + "AAAA"}),
            await viewer.get("/runs", params={"cursor": "%%%"}),
            await viewer.get("/runs", params={"cursor": ""}),
        ):
            assert (answer.status_code, problem(answer)) == (400, "CURSOR_INVALID")


async def test_python_and_http_share_cursors(url: str) -> None:
    """Engine, client and route continue from each other's cursors. No run is lost or repeated."""
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        made = [await engine.create("w", [{"name": "a"}], labels={"n": "1"}) for _ in range(7)]
        first = await engine.runs.list(labels={"n": "1"}, limit=2)
        params = {"label": "n=1", "limit": "2", "cursor": first.next_cursor or ""}
        second = (await viewer.get("/runs", params=params)).json()
        async with Client(s.address, await s.key("viewer")) as client:
            third = await client.runs.list(labels={"n": "1"}, limit=2, cursor=second["next_cursor"])
            with pytest.raises(TenureError, match="CURSOR_INVALID"):
                await client.runs.list(cursor=third.next_cursor)
        last = await engine.runs.list(labels={"n": "1"}, limit=2, cursor=third.next_cursor)
        assert last.next_cursor is None
        found = [
            *(line.id for line in first), *(run["id"] for run in second["items"]), *(line.id for line in [*third, *last]),
        ]  # fmt: skip
        assert sorted(found) == sorted(made)
        for cursor in (third.next_cursor, "", "%%%", "AAAA"):
            with pytest.raises(TenureError, match="CURSOR_INVALID"):
                await engine.runs.list(cursor=cursor)
        assert (await engine.runs.list(limit=7)).next_cursor is None


async def test_a_list_refuses_unknown_parameters(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        for params in (
            {"limit": "0"}, {"limit": "201"}, {"limit": "x"}, {"status": "happy"}, {"label": "red"}, {"label": "=x"},
            {"created_after": "yesterday"}, {"parked": "maybe"}, {"statuss": "queued"},
        ):  # fmt: skip
            answer = await viewer.get("/runs", params=params)
            assert answer.status_code in (400, 422), params
            assert problem(answer) in ("INVALID_INPUT", "REQUEST_MALFORMED"), params
        answer = await viewer.get("/runs", params={"profile": "nobodys"})
        assert (answer.status_code, problem(answer)) == (404, "PROFILE_NOT_FOUND")


async def test_a_rare_label_is_found_across_limited_pages(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page examines a limited number of runs. Some pages are empty, but have a cursor."""
    monkeypatch.setattr(run_list, "SCANNED_MAX", 4)
    monkeypatch.setattr(run_list, "_CHUNK", 2)
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        rare = [await engine.create("w", [{"name": "a"}], labels={"rare": "yes"}) for _ in range(2)]
        for _ in range(20):
            await engine.create("w", [{"name": "a"}])
        first = (await viewer.get("/runs", params={"label": "rare=yes", "limit": 1})).json()
        assert first["items"] == []
        assert first["next_cursor"] is not None
        found, count = await pages(viewer, "/runs", limit=1, label="rare=yes")
        assert sorted(run["id"] for run in found) == sorted(rare)
        assert count > 3
        lines = await engine.scope.reader.list_runs("acme", labels={"rare": "yes"}, limit=5)
        assert sorted(line.id for line in lines) == sorted(rare), "an unpaged list examines all runs"


_PLACES: tuple[list[Any], ...] = (
    [], [1], ["x", "y"], [-1, 5], [None, None, None], [{}, []], [1 << 70, 1 << 70, 1 << 70], [1, 2, 3, 4],
)  # fmt: skip


async def test_forged_cursors_and_odd_values_are_refused_or_find_nothing(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        run = await engine.create("w", [{"name": "a"}])
        nothing: dict[str, Any] = {
            "status": None,
            "repo": None,
            "workflow": None,
            "labels": {},
            "parked": False,
        }
        times = {"since_us": 0, "before_us": run_list.FOREVER_US}
        lists: dict[str, tuple[str, Any]] = {
            "/runs": ("runs", {**nothing, **times}),
            "/approvals": ("questions approval", None),
            f"/runs/{run}/steps": (f"steps {run}", None),
            f"/runs/{run}/events": (f"events {run}", None),
            f"/runs/{run}/artifacts": (f"artifacts {run}", None),
        }
        for path, (listed, filters) in lists.items():
            for place in _PLACES:
                answer = await viewer.get(
                    path, params={"cursor": encode_cursor("acme", listed, filters, place)}
                )
                assert answer.status_code in (200, 400), (path, place, answer.text)
        for params in (
            {"repo": "\0"}, {"workflow": "\0"}, {"label": "\0=\0"}, {"repo": "x" * 5_000},
            {"created_before": "9999-12-31T23:59:59-23:59"}, {"created_after": "0001-01-01T00:00:00+23:59"},
            {"created_after": "2026-01-01T00:00:00"},
        ):  # fmt: skip
            answer = await viewer.get("/runs", params=params)
            assert answer.status_code in (200, 422), (params, answer.text)
        for query in ("repo=%ED%A0%80", "label=%FF=%FF", "wait=1", "limit=1e400", "limit=NaN"):
            answer = await viewer.get(f"/runs?{query}")
            assert answer.status_code in (200, 400, 422), (query, answer.text)
        for wait in ("nan", "inf", "1e999", "-0.1"):
            answer = await viewer.get(f"/runs/{run}/result", params={"wait": wait})
            assert answer.status_code in (400, 422), wait
