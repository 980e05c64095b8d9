"""Steps: which functions can be steps, how they are called, and the errors for mistakes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import tenure
from tenure.errors import TenureError
from tenure.sdk.definitions import StepFunction
from tenure.testing import Lab
from tests.sdk.flows import Steps, flow, noted


@tenure.step(isolate="process")
def squared(number: int) -> int:
    """In a module, so that another process can import it."""
    return number * number


@tenure.step(isolate="process", retries=0)
def broken(number: int) -> int:
    raise tenure.Failure("NO_SQUARE", f"{number} has none")


class Client:
    """A class with steps as methods."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @tenure.step
    async def fetch(self, name: str) -> str:
        return f"{self.prefix}{name}"

    @tenure.step
    def store(self, name: str) -> str:
        return f"{self.prefix}{name}!"


async def test_async_plain_and_method_steps_are_all_awaited_in_an_async_workflow(url: str | None) -> None:
    threads: set[str] = set()

    @tenure.step
    async def one() -> int:
        return 1

    @tenure.step
    def two() -> int:
        threads.add(threading.current_thread().name)
        return 2

    client = Client("x-")

    @flow
    async def whole() -> list[Any]:
        return [await one(), await two(), await client.fetch("a"), await client.store("b")]

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        assert await run.result() == [1, 2, "x-a", "x-b!"]
    assert threading.main_thread().name not in threads


async def test_a_plain_workflow_calls_everything_without_await(url: str | None) -> None:
    done: Steps = []
    build = noted(done, "build")

    @tenure.step
    def ship(what: str) -> str:
        done.append(f"ship {what}")
        return f"shipped {what}"

    @flow
    def whole(ref: str) -> str:
        image = build(ref)
        decision: Any = tenure.approve("Ship?")
        said: Any = tenure.sleep(1)
        assert said is None
        parts: Any = tenure.map(build, ["a", "b"])
        return f"{ship(str(image))} by {decision.approver} {parts}"

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole, "main")
        await lab.settle()
        assert await run.status() == "waiting_approval"
        await lab.approve(run, by="ada")
        assert await run.result() == "shipped build main by ada ['build a', 'build b']"
    assert done == ["build main", "build a", "build b", "ship build main"]


async def test_an_isolated_step_takes_and_returns_typed_values() -> None:
    @flow
    async def whole(number: int) -> int:
        return int(await squared(number))

    async with Lab(whole) as lab:
        run = await lab.start(whole, 12)
        assert await run.result() == 144


async def test_a_failure_in_an_isolated_process_keeps_its_code() -> None:
    @flow
    async def whole() -> None:
        await broken(3)

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="3 has none") as failed:
            await run.result()
        assert failed.value.data["reason"] == "NO_SQUARE"


async def test_a_step_calls_other_steps_as_plain_functions() -> None:
    done: Steps = []
    inner = noted(done, "inner")

    @tenure.step
    async def outer() -> str:
        return f"outer of {await inner()}"

    @flow
    async def whole() -> str:
        return str(await outer())

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == "outer of inner"
        assert list(await run.recorded()) == ["outer"]


async def test_outside_of_workflows_a_step_is_a_plain_function() -> None:
    @tenure.step
    async def build(ref: str) -> str:
        """Builds."""
        return f"image:{ref}"

    assert await build("main") == "image:main"
    assert build.__doc__ == "Builds."


async def test_recorded_steps_are_not_repeated_when_the_worker_dies(url: str | None) -> None:
    done: Steps = []
    first, second, third = (noted(done, name) for name in ("first", "second", "third"))

    @flow
    async def whole() -> str:
        return f"{await first()}, {await second()}, {await third()}"

    async with Lab(whole, url=url) as lab:
        async with lab.crash_after("second"):
            run = await lab.start(whole)
        assert await run.result() == "first, second, third"
        assert done == ["first", "second", "third"]
        assert (await run.recorded())["third"].n == 2


async def test_the_same_step_called_often_has_a_key_per_call() -> None:
    done: Steps = []
    build = noted(done, "build")

    @flow
    async def whole() -> list[str]:
        return [await build(n) for n in range(3)]

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == ["build 0", "build 1", "build 2"]
        assert list(await run.recorded()) == ["build", "build#2", "build#3"]


# ------------------------------------------------------------------------------------------ mistakes


async def test_a_workflow_is_not_started_with_an_input_that_does_not_fit() -> None:
    @flow
    async def whole(ref: str, times: int = 1) -> None:
        """Nothing."""

    async with Lab(whole) as lab:
        with pytest.raises(TenureError, match="missing a required argument: 'ref'"):
            await lab.start(whole)
        with pytest.raises(TenureError, match=r"Expected `int`, got `str` at times"):
            await lab.start(whole, "main", times="twice")
        with pytest.raises(TenureError, match="unexpected keyword argument 'branch'"):
            await lab.start(whole, "main", branch="x")
        with pytest.raises(TenureError, match="unknown field `branch`"):
            await lab.submit(whole, {"ref": "main", "branch": "x"})
        with pytest.raises(TenureError, match="missing required field `ref`"):
            await lab.submit(whole, {})
        assert await lab.runs() == []


async def test_a_result_that_cannot_be_stored_fails_its_step() -> None:
    @tenure.step
    async def connect() -> Any:
        return threading.Lock()

    @flow
    async def whole() -> None:
        await connect()

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="the result of step 'connect' must be JSON") as failed:
            await run.result()
        assert failed.value.code == "INVALID_INPUT"
        assert (await run.recorded())["connect"].tries == 1  # another try would give the same result


async def test_a_result_of_another_type_than_declared_fails_its_step() -> None:
    @tenure.step
    async def count() -> int:
        return "many"  # type: ignore[return-value]  # the mistake

    @flow
    async def whole() -> int:
        return await count()

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="step 'count' returned str where its annotation says int"):
            await run.result()


async def test_a_workflow_result_that_cannot_be_stored_fails_the_run() -> None:
    @flow
    async def whole() -> Any:
        return object()

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="the result of workflow 'flow' must be JSON"):
            await run.result()


def test_names_that_cannot_be_keys_are_refused_when_they_are_given() -> None:
    async def fine() -> None: ...

    with pytest.raises(ValueError, match=r"needs a name: give it `name=`"):
        StepFunction(lambda: None)
    with pytest.raises(ValueError, match="cannot be used"):
        StepFunction(fine, name="a b")
    with pytest.raises(ValueError, match="cannot be used"):
        StepFunction(fine, name="a/b")
    with pytest.raises(ValueError, match="cannot be used"):
        StepFunction(fine, name="x" * 201)
    with pytest.raises(ValueError, match="retries must be 0 to"):
        StepFunction(fine, retries=-1)
    with pytest.raises(TypeError, match="only a plain function"):
        StepFunction(fine, isolate="process")


def test_a_workflow_input_needs_a_name() -> None:
    with pytest.raises(TypeError, match="inputs are named"):

        @flow
        async def whole(*refs: str) -> None: ...


def test_two_workflows_of_one_name_are_refused() -> None:
    def made() -> Any:
        @tenure.workflow(name="sdk.twice")
        async def twice() -> None: ...

        return twice

    made()
    made()
    with pytest.raises(TenureError, match=r"two definitions are named 'sdk.twice'.*give one `name=`"):

        @tenure.workflow(name="sdk.twice")
        async def another() -> None: ...


async def test_primitives_are_for_workflows_and_a_few_for_steps() -> None:
    codes: list[str] = []

    @tenure.step
    async def step() -> None:
        for word in (lambda: tenure.sleep(1), lambda: tenure.approve("?"), tenure.now):
            with pytest.raises(TenureError, match="cannot be used inside a step") as refused:
                word()
            codes.append(refused.value.code)

    @flow
    async def whole() -> None:
        await step()
        with pytest.raises(TenureError, match="inside a step"):
            tenure.current()

    with pytest.raises(TenureError, match=r"tenure.sleep can only be used inside a workflow"):
        _ = tenure.sleep(1)
    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await run.result()
    assert codes == ["INVALID_INPUT"] * 3


async def test_calling_a_workflow_calls_its_function() -> None:
    @flow
    async def double(number: int) -> int:
        return number * 2

    assert await double(21) == 42


async def test_positional_only_and_default_arguments_reach_the_workflow() -> None:
    @flow
    async def whole(a: int, /, b: int = 2, *, c: list[int] | None = None) -> list[Any]:
        return [a, b, c]

    async with Lab(whole) as lab:
        first = await lab.start(whole, 1)
        second = await lab.start(whole, 1, 3, c=[4])
        assert await first.result() == [1, 2, None]
        assert await second.result() == [1, 3, [4]]


async def test_code_that_swallows_everything_records_nothing_after_its_end() -> None:
    done: Steps = []
    before, after = noted(done, "before"), noted(done, "after")

    @flow
    async def whole() -> str:
        await before()
        try:
            await tenure.sleep("1h")
        except BaseException:
            await asyncio.sleep(0)
            await after()
        return str(await after())

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert done == ["before"]
        assert await run.result() == "after"
        assert done == ["before", "after"]
