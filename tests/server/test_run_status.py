"""Status reads: ETags, 304, and many reads in one query."""

import asyncio

from tenure.reads.status_batch import StatusBatcher
from tests.server.stage import problem, site


async def test_an_unchanged_status_gets_304(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        run = await engine.create("w", [{"name": "a"}, {"name": "b"}])
        first = await viewer.get(f"/runs/{run}/status")
        body = first.json()
        assert (body["id"], body["status"], body["steps_total"], body["steps_done"]) == (run, "queued", 2, 0)
        assert (body["paused"], body["reason"], body["finished_at"]) == (False, None, None)
        tag = first.headers["etag"]
        again = await viewer.get(f"/runs/{run}/status", headers={"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        many = await viewer.get(f"/runs/{run}/status", headers={"If-None-Match": f'"x", W/{tag}'})
        assert many.status_code == 304
        await engine.runs.pause(run)
        changed = await viewer.get(f"/runs/{run}/status", headers={"If-None-Match": tag})
        assert (changed.status_code, changed.json()["paused"]) == (200, True)
        assert changed.headers["etag"] != tag
        shaped = await viewer.get(f"/runs/{run}/status", params={"profile": "approval-runs"})
        assert shaped.json()["shown"] == "PENDING"
        assert shaped.headers["etag"] != changed.headers["etag"], "another profile is another answer"


async def test_the_fast_route_answers_exactly_like_the_router(url: str) -> None:
    """A repeated header makes the server use the router."""
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        run = await engine.create("w", [{"name": "a"}])
        callers = {
            "viewer": await s.as_("viewer"),
            "runner": await s.as_("runner"),
            "stranger": await s.as_("viewer", tenant="globex"),
            "operator": await s.caller(await s.operator_key()),
            "garbage": await s.caller("tn_aaaaaaaaaaaa_" + "A" * 43),
        }
        for name, caller in callers.items():
            for query in ("", "?profile=delta-ci", "?profile=agent-runs", "?profile=nobodys"):
                path = f"/runs/{run}/status{query}"
                quick = await caller.get(path)
                routed = await caller.get(path, headers=[("x-a", "1"), ("x-a", "2")])
                assert quick.status_code == routed.status_code, (name, query)
                assert _without_ids(quick.json()) == _without_ids(routed.json()), (name, query)
                for header in ("content-type", "etag", "cache-control", "www-authenticate"):
                    assert quick.headers.get(header) == routed.headers.get(header), (name, query, header)
        viewer = callers["viewer"]
        tag = (await viewer.get(f"/runs/{run}/status")).headers["etag"]
        seen = await viewer.get(
            f"/runs/{run}/status", headers=[("x-a", "1"), ("x-a", "2"), ("if-none-match", tag)]
        )
        assert (seen.status_code, seen.content, seen.headers["etag"]) == (304, b"", tag)
        nobody = await s.caller()
        answer = await nobody.get(f"/runs/{run}/status")
        assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")
        for odd in ("nothing", "run_9999-99-99_000000_aaaaaa", "%00", "a%2Fb"):
            answer = await viewer.get(f"/runs/{odd}/status")
            assert (answer.status_code, problem(answer)) == (404, "RUN_NOT_FOUND"), odd
        answer = await viewer.get(f"/runs/{run}/status", params={"profil": "x"})
        assert answer.status_code == 400, "the router refuses unknown parameters"
        assert (await viewer.post(f"/runs/{run}/status")).status_code == 405


def _without_ids(body: dict[str, object]) -> dict[str, object]:
    error = body.get("error")
    return {"error": {**error, "request_id": ""}} if isinstance(error, dict) else body


async def test_a_hundred_concurrent_status_reads_share_a_few_queries(
    url: str,
) -> None:
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        runs = [await engine.create("w", [{"name": "a"}]) for _ in range(10)]
        numbers = [(await engine.scope.reader.row(_number(run))).id for run in runs]
        asked: list[int] = []
        store = s.engine.store
        read = store.read

        class Counting:
            async def read(self, name: str, *scalars: object, rows: object = ()) -> object:
                asked.append(len(rows))  # type: ignore[arg-type]  # a list of rows
                return await read(name, *scalars, rows=rows)  # type: ignore[arg-type]  # passed on unchanged

        looks = StatusBatcher(Counting())  # type: ignore[arg-type]  # has every method that the batcher calls
        found = await asyncio.gather(*(looks.at(number, "acme") for number in numbers * 10))
        assert [glance.id for glance in found] == numbers * 10
        assert len(asked) <= 2
        for run, number in zip(runs, numbers, strict=True):
            await engine.runs.pause(run)
            assert (await looks.at(number, "acme")).paused


def _number(run: str) -> int:
    from tenure import ids

    return ids.run_int(run)
