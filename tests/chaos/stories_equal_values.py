"""Stories about step inputs and idempotency keys, for the bugs of `story_bugs.py`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from tenure.declared import load_workflow
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.sdk import Workflow


async def _pay(amount: int) -> Any:
    return amount


pay = Workflow(_pay, name="pay")


class _FailingResolver:
    async def resolve(self, _run: int, _wanted: Any) -> tuple[Any, ...]:
        raise TenureError("INVALID_INPUT", "the input is invalid")


async def a_step_with_unresolvable_input_fails(folder: Path) -> None:
    """The input of a step can never be resolved. The step fails with the reason instead of waiting for its deadline."""
    declared = load_workflow("name: w\nsteps:\n  - {id: a, uses: t, with: {r: '${{ run.id }}'}}\n")
    async with Engine(f"sqlite:{folder / 'inputs.db'}", sweep=False) as engine:
        engine.orchestrator.resolver = _FailingResolver()
        run = await engine.submit(declared, {})
        await engine.settle()
        (step,) = await engine.runs.steps(run.id)
        assert (step.state, step.reason) == ("failed", "EXPRESSION_FAILED"), f"the step is {step.state}"


async def one_key_with_two_amounts_is_refused(folder: Path) -> None:
    """Two requests have the same key and differ in the last digit of a large integer. The second request is refused."""
    async with Engine(f"sqlite:{folder / 'keys.db'}") as engine:
        first = await engine.submit(pay, {"amount": 9007199254740993}, key="invoice-7")
        again = await engine.submit(pay, {"amount": 9007199254740993}, key="invoice-7")
        assert again.id == first.id
        other = None
        with suppress(TenureError):
            other = await engine.submit(pay, {"amount": 9007199254740992}, key="invoice-7")
        assert other is None, f"another amount returned run {other.id}"
