"""Results of runs over HTTP."""

import asyncio

import tenure
from tenure import ids
from tests.server.stage import Site, problem, site


@tenure.workflow
async def gives(value: str) -> str:
    """Returns its input, or fails with it."""
    if value.startswith("!"):
        raise tenure.Failure(value[1:], "it went wrong", retryable=False)
    return value


@tenure.workflow
async def waits() -> str:
    """Ends when it gets the event `go`."""
    told = await tenure.wait("go")
    return f"told {told}"


async def ended(s: Site, value: str) -> str:
    engine = s.engine.scoped(tenant="acme")
    run = await engine.submit(gives, {"value": value})
    while not (await engine.get(run.id)).finished:  # noqa: ASYNC110 - another task's work
        await asyncio.sleep(0.01)
    return run.id


async def test_the_output_is_returned_when_it_exists(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        async with engine.worker(gives, waits):
            run = await engine.submit(waits)
            await run.reaches("waiting_external", wait=20)
            early = await viewer.get(f"/runs/{run.id}/result")
            assert (early.status_code, early.json()) == (202, {"id": run.id, "status": "waiting_external"})
            asking = asyncio.ensure_future(viewer.get(f"/runs/{run.id}/result", params={"wait": 25}))
            still = await viewer.get(f"/runs/{run.id}/result", params={"wait": 0.05})
            assert still.status_code == 202
            await engine.signal(run.id, "go", "now")
            answer = await asking
            assert (answer.status_code, answer.json()["output"]) == (200, "told now")
        for wait in ("31", "-1", "x"):
            refused = await viewer.get(f"/runs/{run.id}/result", params={"wait": wait})
            assert refused.status_code in (400, 422), wait


async def test_a_failed_run_returns_its_error_with_the_mapped_status(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        async with s.engine.scoped(tenant="acme").worker(gives):
            for reason, status, code in (
                ("NLM_UNAVAILABLE", 502, "NLM_UNAVAILABLE"),
                ("UPSTREAM_UNAVAILABLE", 502, "UPSTREAM_UNAVAILABLE"),
                ("AGENT_TIMEOUT", 504, "AGENT_TIMEOUT"),
                ("INTERNAL_ERROR", 500, "INTERNAL_ERROR"),
                ("INVALID_INPUT", 500, "INVALID_INPUT"),
                ("MY_OWN_CODE", 500, "STEP_FAILED"),
            ):
                run = await ended(s, f"!{reason}")
                answer = await viewer.get(f"/runs/{run}/result")
                assert (answer.status_code, problem(answer)) == (status, code), reason
                error = answer.json()["error"]
                assert {"path": "reason", "problem": reason} in error["details"]
                assert "it went wrong" in error["message"]
                assert error["retryable"] is False


async def test_a_queued_run_is_not_an_error_and_a_canceled_run_is_reported(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        first = await engine.create("w", [{"name": "a"}], concurrency_key="one")
        second = await engine.create("w", [{"name": "a"}], concurrency_key="one")
        answer = await viewer.get(f"/runs/{second}/result")
        assert (answer.status_code, answer.json()["status"]) == (202, "queued")
        assert (await viewer.get(f"/runs/{second}/why")).json()["reason"] == "key"
        await engine.cancel(first)
        answer = await viewer.get(f"/runs/{first}/result")
        assert (answer.status_code, problem(answer)) == (409, "RUN_CANCELED")


@tenure.workflow
async def restarts(left: int) -> str:
    """Restarts as a new run until `left` is 0."""
    if left:
        tenure.restart(left - 1)
    return "the last one"


async def test_the_result_of_a_restarted_run_is_that_of_the_last_one(url: str) -> None:
    async with site(url) as s:
        engine, viewer = s.engine.scoped(tenant="acme"), await s.as_("viewer")
        async with engine.worker(restarts):
            run = await engine.submit(restarts, {"left": 2})
            answer = await viewer.get(f"/runs/{run.id}/result", params={"wait": 25})
        assert (answer.status_code, answer.json()["output"]) == (200, "the last one")
        assert ids.run_int(answer.json()["id"]) != ids.run_int(run.id)
