"""Stories of equal values: what must hold of keys and digests, shown on a real store."""

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


class _Refusing:
    """Makes no input, for good."""

    async def resolve(self, _run: int, _wanted: Any) -> tuple[Any, ...]:
        raise TenureError("INVALID_INPUT", "it is not what it should be")


async def a_step_whose_input_is_refused_fails(folder: Path) -> None:
    """The input of a step is refused for good: the step fails with the reason, and nobody waits for it until the deadline."""
    declared = load_workflow("name: w\nsteps:\n  - {id: a, uses: t, with: {r: '${{ run.id }}'}}\n")
    async with Engine(f"sqlite:{folder / 'inputs.db'}", sweep=False) as engine:
        engine.orchestrator.resolver = _Refusing()
        run = await engine.submit(declared, {})
        await engine.settle()
        (step,) = await engine.runs.steps(run.id)
        assert (step.state, step.reason) == ("failed", "EXPRESSION_FAILED"), f"the step is {step.state}"


async def a_key_stands_for_one_amount(folder: Path) -> None:
    """Two requests under one key that differ in the last digit of a large integer are not one request."""
    async with Engine(f"sqlite:{folder / 'keys.db'}") as engine:
        first = await engine.submit(pay, {"amount": 9007199254740993}, key="invoice-7")
        again = await engine.submit(pay, {"amount": 9007199254740993}, key="invoice-7")
        assert again.id == first.id
        other = None
        with suppress(TenureError):
            other = await engine.submit(pay, {"amount": 9007199254740992}, key="invoice-7")
        assert other is None, f"another amount was answered with {other.id}"
