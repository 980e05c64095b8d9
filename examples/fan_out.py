"""Fan-out: many steps at once, a few at a time, each recorded on its own.

    python examples/fan_out.py

`tenure.map` calls one step per item, `tenure.gather` makes different calls concurrently, and `tenure.start` starts
another workflow as its own run. After a crash, only the missing steps are done again.
"""

import asyncio
import os
import tempfile

import tenure

PRICES = {"north": 12, "east": 9, "south": 11, "west": 10}


@tenure.step(retries=2, backoff=["0.1s"])
async def ask_price(shop: str) -> int:
    """One shop fails at first and is retried. One does not exist, so a retry would not help."""
    await asyncio.sleep(0.1)
    if shop == "east" and tenure.current().attempt == 1:
        raise ConnectionError("the line is down")
    if shop not in PRICES:
        raise tenure.Failure("NO_SUCH_SHOP", f"there is no shop {shop!r}", retryable=False)
    return PRICES[shop]


@tenure.step
async def exchange_rate() -> float:
    await asyncio.sleep(0.1)
    return 1.1


@tenure.workflow
async def best_price(shops: list[str]) -> str:
    """Three shops at a time. An error is returned in its place, and does not stop the others."""
    prices = await tenure.map(ask_price, shops, limit=3, return_exceptions=True)
    known = {shop: price for shop, price in zip(shops, prices, strict=True) if isinstance(price, int)}
    best = min(known, key=lambda shop: known[shop])
    return f"{best} at {known[best]}, {len(shops) - len(known)} without an answer"


@tenure.workflow
async def compare(shops: list[str]) -> str:
    """A child is a run with its own history. This run waits for the child and for the rate concurrently."""
    child = await tenure.start(best_price, shops)
    best, rate = await tenure.gather(child.result(), exchange_rate())
    return f"{best} (rate {rate})"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TENURE_DB", f"{folder}/fan_out.db")
        print(tenure.run(compare, ["north", "east", "nowhere", "south", "west"]))
