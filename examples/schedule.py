"""Schedule: a workflow that starts on a schedule, in a time zone, once per slot with any number of schedulers.

    python examples/schedule.py

Any process with an open engine looks for due slots. The run of a slot is created under the slot's own key, so two
schedulers create one run. This example does not wait for the night: it triggers one run by hand.
"""

import asyncio
import os
import tempfile

import tenure


@tenure.step
async def count_orders(region: str) -> int:
    return {"eu": 1815, "us": 1906}[region]


@tenure.workflow
async def report(regions: list[str]) -> str:
    orders = await tenure.map(count_orders, regions)
    return f"{sum(orders)} orders in {', '.join(regions)}"


async def main() -> None:
    async with tenure.Engine() as engine, engine.worker():
        schedules = engine.schedules
        nightly = await schedules.create(
            "nightly-report",
            report,
            "30 2 * * *",
            zone="Europe/Berlin",
            input={"regions": ["eu", "us"]},
            catch_up="last",  # after a downtime, start only the newest missed slot
        )
        print(f"{nightly.name}: {nightly.cron} in {nightly.zone}")
        for slot in await schedules.next("nightly-report", count=3):
            print(f"next: {slot:%H:%M} UTC")

        run = engine.run(await schedules.trigger("nightly-report"), report)
        print(await run.result())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TENURE_DB", f"{folder}/schedule.db")
        asyncio.run(main())
