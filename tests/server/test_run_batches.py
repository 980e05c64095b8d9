"""Creation of many runs in one request."""

from typing import Any

import pytest

from tenure import Cap
from tests.server.stage import ACME, problem, site
from tests.server.workflows import register


def items(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"workflow": "echo", "input": {"word": str(i)}, **more} for i in range(count)]


async def test_five_hundred_runs_are_created_in_a_few_commits(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        before = s.engine.orchestrator.batches
        answer = await operator.post("/runs/batch", json={"items": items(500)})
        commits = s.engine.orchestrator.batches - before
        assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        assert [result["status"] for result in results] == [201] * 500
        assert len({result["run"]["id"] for result in results}) == 500
        assert commits <= 10, commits
        engine = s.engine.scoped(tenant=ACME)
        for i in (0, 250, 499):
            assert (await engine.get(results[i]["run"]["id"])).input == {"word": str(i)}, (
                "the results are in the order of the items"
            )


async def test_each_run_of_a_batch_succeeds_or_fails_alone(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        asked = items(4)
        asked[1]["workflow"] = "nothing"
        asked[2]["input"] = {"wrong": 1}
        answer = await operator.post("/runs/batch", json={"items": asked})
        results = answer.json()["results"]
        assert [result["status"] for result in results] == [201, 404, 422, 201]
        assert [result.get("error", {}).get("code") for result in results] == [
            None,
            "WORKFLOW_NOT_FOUND",
            "INVALID_INPUT",
            None,
        ]
        assert results[2]["error"]["details"][0]["path"] == "input.wrong"
        assert ["run" in result for result in results] == [True, False, False, True]
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 2


async def test_an_invalid_batch_creates_nothing(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        bad: list[Any] = [
            {"items": []},
            {"items": items(501)},
            {"items": items(2, colour="red")},
            {"items": items(1), "atomic": True},
            {"items": items(1, idempotency_key="x" * 256)},
            {"items": "all"},
        ]
        for body in bad:
            answer = await operator.post("/runs/batch", json=body)
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), body
        assert await s.engine.scoped(tenant=ACME).runs.list() == []


@pytest.mark.clause("APR-10")
async def test_a_key_in_a_batch_equals_the_key_of_a_single_request(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        alone = await operator.post("/runs", json=items(1)[0], headers={"Idempotency-Key": "k0"})
        asked = [{**item, "idempotency_key": f"k{i}"} for i, item in enumerate(items(3))]
        first = (await operator.post("/runs/batch", json={"items": asked})).json()["results"]
        assert first[0]["run"] == alone.json(), "a key is the same alone and in a batch"
        assert [result.get("replayed", False) for result in first] == [True, False, False]
        asked[2]["input"] = {"word": "other"}
        asked.append({**asked[1]})
        again = (await operator.post("/runs/batch", json={"items": asked})).json()["results"]
        assert [result["status"] for result in again] == [201, 201, 422, 201]
        assert again[2]["error"]["code"] == "IDEMPOTENCY_KEY_REUSED"
        assert again[1]["run"] == again[3]["run"] == first[1]["run"]
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 3


async def test_a_key_used_twice_in_one_batch_creates_one_run(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        asked = [{**items(1)[0], "idempotency_key": "k"} for _ in range(20)]
        results = (await operator.post("/runs/batch", json={"items": asked})).json()["results"]
        assert {result["status"] for result in results} == {201}
        assert len({result["run"]["id"] for result in results}) == 1
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 1


async def test_a_key_for_the_whole_batch_repeats_all_results(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        body = {"items": items(3)}
        first = await operator.post("/runs/batch", json=body, headers={"Idempotency-Key": "b"})
        again = await operator.post("/runs/batch", json=body, headers={"Idempotency-Key": "b"})
        assert first.content == again.content
        assert again.headers["idempotency-replayed"] == "true"
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 3
        other = await operator.post("/runs/batch", json={"items": items(2)}, headers={"Idempotency-Key": "b"})
        assert (other.status_code, problem(other)) == (422, "IDEMPOTENCY_KEY_REUSED")


@pytest.mark.clause("GOV-12")
async def test_runs_over_the_rate_are_refused_and_the_others_created(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        await s.engine.put_caps([Cap(ACME, "", max_runs_per_min=2)])
        operator = await s.as_("operator")
        results = (await operator.post("/runs/batch", json={"items": items(4)})).json()["results"]
        assert sorted(result["status"] for result in results) == [201, 201, 429, 429]
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 2
