"""Large values: stored next to the database up to a limit, and refused above it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import artifacts
from tenure.errors import TenureError
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.testing import Lab
from tests.sdk.flows import Steps, flow, noted

LARGE = PAYLOAD_BYTES_MAX + 1


@tenure.step
async def large(size: int) -> list[str]:
    return ["x" * size, "end"]


async def test_large_inputs_results_and_outputs_survive_a_round_trip(url: str | None) -> None:
    seen: list[int] = []

    @flow
    async def whole(text: str) -> dict[str, str]:
        made = await large(len(text))
        seen.append(len(made[0]))
        assert made[1] == "end"
        await tenure.sleep("1h")
        return {"text": text, "made": made[0]}

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole, "y" * LARGE)
        result = await run.result()
        assert (len(result["text"]), len(result["made"])) == (LARGE, LARGE)
    assert seen == [LARGE, LARGE]  # in the first run and in the replay


async def test_large_values_work_in_children_approvals_and_plain_steps() -> None:
    @flow(name="child")
    async def child(text: str) -> str:
        return text + "!"

    @tenure.step
    def plain(text: str) -> str:
        return text + "?"

    @flow
    async def whole() -> int:
        text = "x" * LARGE
        await tenure.approve("Go?", show={"text": text})
        answer = await (await tenure.start(child, text)).result()
        return len(await plain(answer))

    async with Lab(whole, child) as lab:
        run = await lab.start(whole)
        await run.reaches("waiting_approval")
        await lab.approve(run)
        assert await run.result() == LARGE + 2


async def test_a_value_that_looks_like_a_reference_is_a_value() -> None:
    forged = {"$tenure.artifact": "0" * 64, "size": 1, "run": "run_2026-01-05_100000_aaaaaa"}
    restarted = {"$tenure.restarted": "run_2026-01-05_100000_aaaaaa"}

    @tenure.step
    async def forge() -> Any:
        return forged

    @flow
    async def whole(given: dict[str, Any]) -> Any:
        assert given == forged
        made = await forge()
        await tenure.sleep("1h")
        assert made == forged
        return restarted

    async with Lab(whole) as lab:
        run = await lab.start(whole, forged)
        assert await run.result() == restarted


async def test_a_result_over_the_limit_of_artifacts_fails_its_step_and_the_run_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(artifacts, "ARTIFACT_BYTES_MAX", 1_000_000)
    done: Steps = []
    after = noted(done, "after")

    @flow
    async def whole(size: int) -> None:
        await large(size)
        await after()

    async with Lab(whole) as lab:
        fits = await lab.start(whole, 1_000_000 - len('["","end"]'))
        await fits.result()
        assert done == ["after"]
        run = await lab.start(whole, 1_000_001 - len('["","end"]'))  # one byte above the limit
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert failed.value.code == "PAYLOAD_TOO_LARGE"
        assert await run.status() == "failed"
        assert (await run.recorded())["large"].tries == 1
    assert done == ["after"]


async def test_an_output_over_the_limit_ends_the_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "ARTIFACT_BYTES_MAX", 500_000)

    @flow
    async def whole() -> str:
        return "x" * 500_001

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert failed.value.code == "PAYLOAD_TOO_LARGE"
        assert await run.status() == "failed"


async def test_a_large_failure_is_cut_and_does_not_stop_the_run_from_ending() -> None:
    @tenure.step(retries=0)
    async def fails() -> None:
        raise ValueError("x" * 1_000_000)

    @flow
    async def whole() -> None:
        await fails()

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert len(str(failed.value)) < 10_000


async def test_artifacts_are_stored_next_to_the_database_and_verified_on_read(tmp_path: Path) -> None:
    @flow
    async def whole() -> int:
        made = await large(LARGE)
        await tenure.sleep("1h")
        return len(made)

    async with Lab(whole, url=f"sqlite:{tmp_path / 'lab.db'}") as lab:
        run = await lab.start(whole)
        await lab.settle()
        files = [path for path in lab.folder.rglob("*") if path.is_file() and path.stat().st_size > LARGE]
        damaged = [path for path in files if "lab.db" not in path.name]
        assert damaged
        for path in damaged:
            path.write_bytes(b"x" * path.stat().st_size)
        with pytest.raises(TenureError, match="does not match its digest"):
            await run.result()


async def test_a_short_outage_of_the_artifacts_does_not_fail_a_run() -> None:
    away = 0

    @flow
    async def whole() -> int:
        made = await large(LARGE)
        await tenure.sleep("1h")
        return len(made[0])

    async with Lab(whole) as lab:
        get = lab.engine.artifacts.get

        async def flaky(reference: bytes) -> bytes:
            nonlocal away
            away += 1
            if away <= 2:
                raise TenureError("STORE_UNAVAILABLE", "for a moment")
            return await get(reference)

        run = await lab.start(whole)
        await lab.settle()
        lab.engine.artifacts.get = flaky  # type: ignore[method-assign]  # the outage
        assert await run.result() == LARGE
    assert away == 3


async def test_data_that_looks_like_a_reference_is_data() -> None:
    @flow
    async def whole() -> Any:
        return await tenure.wait("e")

    async with Lab(whole) as lab:
        for data in (
            {"$tenure.artifact": "sha256:" + "0" * 64, "size": 1, "run": "run_2026-01-05_100000_aaaaaa"},
            {"$tenurely": 1},
        ):
            run = await lab.start(whole)
            await lab.settle()
            await lab.deliver(run, "e", data)
            assert await run.result() == data
