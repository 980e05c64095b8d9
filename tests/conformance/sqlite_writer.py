"""A process that writes to a SQLite file: `python sqlite_writer.py migrate|write FILE NUMBER COUNT`.

It prints one JSON line with its results and every error that a user would have seen.
"""

import asyncio
import json
import sys
from typing import Any

from tenure.store.port import Save, Transaction
from tenure.store.sqlite import SqliteStore
from tests.conformance.samples import a_run, a_spec, an_event


async def migrate(path: str) -> dict[str, Any]:
    return {"applied": await SqliteStore(path).migrate()}


async def write(path: str, number: int, count: int) -> dict[str, Any]:
    store = SqliteStore(path)
    await store.open()
    errors: list[str] = []
    times: list[int] = []

    async def one(run_id: int) -> None:
        def transaction() -> Transaction[None]:
            saved = yield Save(
                new_runs=[a_run(run_id)], new_specs=[a_spec(run_id)], rows={"event": [an_event(run_id, 1)]}
            )
            times.append(saved.now_us)

        try:
            await store.transact(transaction)
        except Exception as error:
            errors.append(repr(error))

    for n in range(0, count, 4):
        await asyncio.gather(*(one(number * 1_000_000 + n + k) for k in range(4)))
    await store.close()
    return {"written": len(times), "errors": errors, "in_order": times == sorted(times)}


if __name__ == "__main__":
    task, path, number, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    done = asyncio.run(migrate(path) if task == "migrate" else write(path, number, count))
    sys.stdout.write(json.dumps(done) + "\n")
