"""Mistakes of newcomers: each error names the place of the mistake and says what to do."""

from __future__ import annotations

import asyncio
import gc
import re
from typing import Any

import pytest

import tenure
from tenure.errors import TenureError
from tenure.sdk import Workflow
from tenure.sdk.outcomes import TRACE_CHARS_MAX, user_traceback
from tenure.testing import Lab
from tests.sdk.flows import Steps, flow, noted

# --------------------------------------------------------------------------------------- forgotten awaits

done: Steps = []
first, second = noted(done, "first"), noted(done, "second")


@flow
async def forgets_a_step() -> str:
    await second(1)
    _ = first(1)
    await second(2)
    return "done"


@flow
async def forgets_one_in_a_variable() -> str:
    said = first(1)
    return type(said).__name__


@flow
async def returns_it() -> Any:
    return first(1)


@flow
async def forgets_the_gather() -> str:
    _ = tenure.gather(first(1), second(2))
    return "done"


@flow
async def forgets_a_sleep() -> str:
    _ = tenure.sleep("1h")
    return "done"


@flow
async def forgets_to_ask() -> str:
    new: Any = tenure.patched("x")
    return "new" if new else "old"


@flow
async def forgets_after_a_wait() -> str:
    _ = first(1)
    await tenure.sleep("1h")
    return "done"


@pytest.mark.filterwarnings("ignore:coroutine '_gather' was never awaited")
@pytest.mark.parametrize(
    ("whole", "what"),
    [
        (forgets_a_step, "step 'first'"),
        (forgets_one_in_a_variable, "step 'first'"),
        (returns_it, "step 'first'"),
        (forgets_the_gather, "step 'first'"),
        (forgets_a_sleep, r"tenure\.sleep"),
        (forgets_to_ask, r"tenure\.patched"),
    ],
    ids=lambda each: each.function.__name__ if isinstance(each, Workflow) else "",
)
async def test_a_durable_call_that_was_never_awaited_fails_the_run(
    whole: Workflow[..., Any], what: str
) -> None:
    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match=f"{what} was called and never awaited"):
            await run.result()
        assert (await lab.engine.get(run.id)).reason == "WORKFLOW_FAILED"


@pytest.mark.filterwarnings("ignore:coroutine 'Body.call' was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_forgotten_await_before_a_wait_fails_the_run_too() -> None:
    async with Lab(forgets_after_a_wait) as lab:
        run = await lab.start(forgets_after_a_wait)
        with pytest.raises(TenureError, match="step 'first' was called and never awaited"):
            await run.result()
    gc.collect()  # Python reports it, too, for the body that was dropped


async def test_a_call_canceled_before_it_started_is_not_a_mistake() -> None:
    kept: list[asyncio.Task[Any]] = []

    @tenure.step(retries=0)
    async def fails() -> None:
        raise tenure.Failure("NO_LUCK")

    async def later(work: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            work.close()

    @flow
    async def whole() -> str:
        try:
            await tenure.gather(fails(), second("perhaps"), second("perhaps"), limit=1)
        except tenure.StepFailed:
            task = asyncio.create_task(first("never"))
            task.cancel()
            kept.append(asyncio.create_task(first("never")))
            kept.append(asyncio.create_task(later(first("never"))))
        return "done"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == "done"
        kept[1].cancel()
    assert "first never" not in done


# ------------------------------------------------------------------------------------------ values


async def test_a_result_of_another_type_names_the_step_and_both_types() -> None:
    @tenure.step
    async def count(n: int) -> int:
        return n

    @tenure.step
    async def names() -> list[int]:
        return [1, "x"]  # type: ignore[list-item] # the mistake

    @flow
    async def whole(which: str) -> None:
        await (names() if which == "names" else count(which))  # type: ignore[call-overload] # the mistake

    async with Lab(whole) as lab:
        run = await lab.start(whole, "x")
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert failed.value.message.endswith(
            "step 'count' failed: step 'count' returned str where its annotation says int"
        )
        run = await lab.start(whole, "names")
        with pytest.raises(
            TenureError, match=r"annotation says list\[int\]: Expected `int`, got `str` at \[1\]"
        ):
            await run.result()


def test_a_failed_step_shows_its_code_unless_it_is_the_default() -> None:
    assert (
        str(tenure.StepFailed("a", "STEP_FAILED", "OSError: x", 3))
        == "step 'a' failed after 3 tries: OSError: x"
    )
    assert str(tenure.StepFailed("a", "NO_MONEY", "x", 1)) == "step 'a' failed with NO_MONEY: x"


async def test_an_unknown_input_is_refused_with_the_known_ones() -> None:
    @flow
    async def whole(name: str, times: int = 1) -> None:
        """Nothing."""

    @flow(name="none")
    async def none() -> None:
        """Nothing."""

    meant = "'nam'; did you mean 'name'?; its inputs are name, times (optional)"
    async with Lab(whole, none) as lab:
        with pytest.raises(TenureError) as refused:
            await lab.start(whole, nam="Ada")
        assert refused.value.message == f"workflow 'flow': unexpected keyword argument {meant}"
        with pytest.raises(
            TenureError, match=r"unknown field `nam`; did you mean 'name'\?; its inputs are name"
        ):
            await lab.submit(whole, {"nam": "Ada"})
        with pytest.raises(TenureError, match="missing a required argument: 'name'; its inputs are name"):
            await lab.start(whole)
        with pytest.raises(TenureError, match="'nam'; it has no inputs"):
            await lab.start(none, nam="Ada")


# -------------------------------------------------------------------------------------- tracebacks


@tenure.step(retries=1, backoff=[0])
def fails_deep_down(n: int) -> None:
    _deeper(n)


def _deeper(n: int) -> None:
    raise KeyError(f"nothing at {n}")


async def _errors(lab: Lab, run: Any) -> list[tuple[str, str]]:
    await lab.engine.work_source.flush()
    lines = await lab.engine.store.read("log_lines_of", lab.number(run), 0, 100)
    return [(line.step, line.text) for line in lines if line.level == "error"]


async def test_the_traceback_of_a_failed_step_is_logged_once() -> None:
    @flow
    async def whole() -> None:
        await fails_deep_down(7)

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="STEP_FAILED"):
            await run.result()
        [(step, text)] = await _errors(lab, run)
    assert step == "fails_deep_down"
    assert "in _deeper" in text
    assert "KeyError: 'nothing at 7'" in text
    assert "tenure/sdk" not in text
    assert "concurrent/futures" not in text


@pytest.mark.parametrize("plain", [True, False])
async def test_an_error_in_workflow_code_has_its_own_code_and_traceback(plain: bool) -> None:
    def body() -> None:
        _deeper(8)

    async def async_body() -> None:
        _deeper(8)

    whole = flow(body if plain else async_body)
    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match=r"KeyError: 'nothing at 8' \(test_mistakes.py:\d+\)") as failed:
            await run.result()
        assert failed.value.code == (await lab.engine.get(run.id)).reason == "WORKFLOW_FAILED"
        [(_, text)] = await _errors(lab, run)
    assert "in _deeper" in text
    assert "tenure/sdk" not in text


def test_a_long_traceback_is_cut_to_its_end() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("x" * 10_000 + " the end")
        deep(n - 1)

    with pytest.raises(ValueError, match="the end") as fault:
        deep(5)
    text = user_traceback(fault.value)
    assert len(text) == TRACE_CHARS_MAX
    assert text.endswith("the end")
    assert user_traceback(ValueError("never raised")) == ""


# ----------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (TypeError, {"retries": "3"}, "step 'work': retries must be a whole number such as retries=3, not '3'"),
        (TypeError, {"retries": True}, "such as retries=3, not True"),
        (ValueError, {"retries": -1}, "step 'work': retries must be 0 to"),
        (ValueError, {"timeout": "5 minutes"}, "step 'work': timeout: '5 minutes' is not a length of time; write 90s, 5m"),
        (TypeError, {"timeout": ["5m"]}, "step 'work': timeout: a list is not a length of time"),
        (ValueError, {"progress_within": "soon"}, "step 'work': progress_within: 'soon' is no"),
        (TypeError, {"backoff": "1s"}, """step 'work': backoff must be a list of pauses such as backoff=["1s", "10s"], not '1s'"""),
        (TypeError, {"backoff": 5}, "step 'work': backoff must be a list"),
        (ValueError, {"backoff": ["1s", "soon"]}, "step 'work': backoff: 'soon' is not a length of time"),
        (TypeError, {"jitter": "0.1"}, "such as jitter=0.2, not '0.1'"),
        (ValueError, {"jitter": -1}, "such as jitter=0.2, not -1"),
        (TypeError, {"idempotent": "no"}, "step 'work': idempotent must be True or False"),
        (ValueError, {"isolate": "thread"}, """step 'work': isolate must be "process", not 'thread'"""),
        (TypeError, {"retry": 3}, "step 'work' has the unknown option 'retry'; did you mean 'retries'?; the options are name,"),
    ],
)  # fmt: skip
def test_an_invalid_option_of_a_step_is_refused_at_the_decorator(
    kind: type[Exception], options: dict[str, Any], message: str
) -> None:
    decorator: Any = tenure.step

    async def work() -> None: ...

    with pytest.raises(kind, match=re.escape(message)):
        decorator(**options)(work)


def test_an_invalid_option_of_a_workflow_is_refused_at_the_decorator() -> None:
    decorator: Any = tenure.workflow

    async def work() -> None: ...

    with pytest.raises(ValueError, match="workflow 'work': timeout: '1 day' is not a length of time"):
        decorator(timeout="1 day")(work)
    with pytest.raises(TypeError, match=r"the unknown option 'versoin'; did you mean 'version'\?"):
        decorator(versoin="2")(work)
    with pytest.raises(TypeError, match=r"such as @tenure\.workflow\(name='work'\)"):
        decorator("work")
    with pytest.raises(TypeError, match=r"such as @tenure\.step\(name='work'\)"):
        tenure.step("work")  # type: ignore[call-overload] # the mistake


@pytest.mark.parametrize("word", ["approve", "propose", "wait", "sleep"])
async def test_a_primitive_with_an_invalid_duration_names_its_option(word: str) -> None:
    @flow
    async def whole() -> None:
        if word == "sleep":
            await tenure.sleep("1 day")
        await getattr(tenure, word)("x", within="1 day")

    where = "tenure.sleep: " if word == "sleep" else f"tenure.{word}: within: "
    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match=f"{where}'1 day' is not a length of time; write 90s"):
            await run.result()
