"""A crash at every point: the run ends correctly, and no recorded step is repeated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tenure
from tenure.testing import Lab, crash_everywhere
from tests.sdk.flows import flow

effects: Counter[str] = Counter()
"""The effects of steps that really happened."""


@tenure.step
async def prepare(ref: str) -> str:
    effects["prepare"] += 1
    return f"tree:{ref}"


@tenure.step(retries=3, backoff=[1, 2], jitter=0)
async def build(tree: str) -> str:
    if tenure.current().attempt < 2:
        raise ConnectionError("the registry is away")
    effects["build"] += 1
    return f"image of {tree}"


@tenure.step
def scan(image: str) -> list[str]:
    effects["scan"] += 1
    return [image, "clean"]


@tenure.step
async def deploy(image: str, by: str | None) -> str:
    effects["deploy"] += 1
    return f"{image} by {by}"


@tenure.step
async def announce(what: str) -> str:
    effects["announce"] += 1
    return f"announced {what}"


@flow(name="release")
async def release(ref: str) -> dict[str, Any]:
    image = await build(await prepare(ref))
    found = await scan(image)
    decision = await tenure.approve(f"Deploy {image}?", within="2d")
    deployed = await deploy(image, decision.approver)
    healthy = await tenure.wait("healthy", within="1h")
    return {"said": await announce(deployed), "found": found, "healthy": healthy}


RESULT = {
    "said": "announced image of tree:main by ada",
    "found": ["image of tree:main", "clean"],
    "healthy": {"by": "probe"},
}
STEPS = ("prepare", "build", "scan", "deploy", "announce")


@pytest.mark.guard_seconds(180)
async def test_a_crash_at_any_point_of_a_run_never_repeats_a_recorded_step() -> None:
    stories: list[int] = []

    async def story(lab: Lab) -> None:
        effects.clear()
        run = await lab.start(release, "main")
        await run.reaches("waiting_approval")
        assert effects["deploy"] == 0
        await lab.approve(run, by="ada")
        await run.reaches("waiting_external")
        await lab.deliver(run, "healthy", {"by": "probe"}, event_id="one")
        await lab.deliver(run, "healthy", {"by": "probe"}, event_id="one")  # a repeated delivery
        assert await run.result() == RESULT
        recorded = await run.recorded()
        assert {name: recorded[name].state for name in STEPS} == dict.fromkeys(STEPS, "done")
        assert recorded["build"].tries == 2
        # At most one step was running when the worker died, and only that step may have been repeated.
        assert set(effects) == set(STEPS)
        assert sum(effects.values()) <= len(STEPS) + 1
        if lab.crashes.planned and lab.crashes.planned[0].when == "after":
            assert sum(effects.values()) == len(STEPS)  # its checkpoint is recorded, so no step is repeated
        stories.append(len(lab.crashes.points))

    count = await crash_everywhere(story, release)
    assert count == len(stories)
    assert count > 25


@pytest.mark.parametrize("step", STEPS)
async def test_a_steps_effect_is_repeated_only_if_its_checkpoint_was_lost(step: str, url: str | None) -> None:
    for crash, times in (("crash_after", 1), ("crash_before", 2)):
        effects.clear()
        async with Lab(release, url=url) as lab:
            run = await lab.start(release, "main") if step not in ("prepare", "build", "scan") else None
            if step == "deploy" and run is not None:
                await run.reaches("waiting_approval")
            if step == "announce" and run is not None:
                await run.reaches("waiting_approval")
                await lab.approve(run, by="ada")
                await run.reaches("waiting_external")
            async with getattr(lab, crash)(step):
                if run is None:
                    run = await lab.start(release, "main")
                    await run.reaches("waiting_approval")
                elif step == "deploy":
                    await lab.approve(run, by="ada")
                else:
                    await lab.deliver(run, "healthy", {"by": "probe"})
            if step in ("prepare", "build", "scan"):
                await run.reaches("waiting_approval")
                await lab.approve(run, by="ada")
            if step != "announce":
                await run.reaches("waiting_external")
                await lab.deliver(run, "healthy", {"by": "probe"})
            assert await run.result() == RESULT
        # The first try of build fails before its effect, so a crash there loses or keeps only that try.
        expected = 1 if step == "build" else times
        assert effects == Counter(dict.fromkeys(STEPS, 1)) | Counter({step: expected})


@pytest.mark.guard_seconds(120)
async def test_concurrent_branches_survive_a_crash_at_any_point() -> None:
    work_done: Counter[str] = Counter()

    @tenure.step
    async def work(name: str) -> str:
        work_done[name] += 1
        return name.upper()

    async def branch(name: str) -> str:
        first = await work(name)
        await tenure.sleep("1h" if name == "a" else 2)
        return first + str(await work(f"{name}2"))

    @flow(name="wide")
    async def wide() -> list[Any]:
        found = await tenure.gather(branch("a"), branch("b"), tenure.wait("go"))
        return [*found, await tenure.map(work, ["x", "y"], limit=1)]

    async def story(lab: Lab) -> None:
        work_done.clear()
        run = await lab.start(wide)
        await lab.settle()
        await lab.deliver(run, "go", 1, event_id="go")
        assert await run.result() == ["AA2", "BB2", 1, ["X", "Y"]]
        assert set(work_done) == {"a", "b", "a2", "b2", "x", "y"}
        assert sum(work_done.values()) <= 6 + 2  # at most the running steps are repeated

    assert await crash_everywhere(story, wide) > 20


@pytest.mark.guard_seconds(120)
async def test_a_crash_at_any_point_of_a_plain_workflow_does_not_change_the_result() -> None:
    done: Counter[str] = Counter()

    @tenure.step
    def work(name: str) -> str:
        done[name] += 1
        return name.upper()

    @flow(name="plain")
    def plain() -> str:
        first: Any = work("a")
        decision: Any = tenure.approve("Go?")
        nap: Any = tenure.sleep("1h")
        assert nap is None
        return f"{first} {work('b')} {decision.approver}"

    async def story(lab: Lab) -> None:
        done.clear()
        run = await lab.start(plain)
        await run.reaches("waiting_approval")
        await lab.approve(run, by="ada")
        assert await run.result() == "A B ada"
        assert sum(done.values()) <= 3

    assert await crash_everywhere(story, plain) > 10
