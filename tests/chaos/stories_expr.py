"""Stories of equal values: what must hold of keys and digests, shown on a real store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from tenure.embedded import Engine
from tenure.errors import TenureError
from tenure.sdk import Workflow


async def _pay(amount: int) -> Any:
    return amount


pay = Workflow(_pay, name="pay")


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
