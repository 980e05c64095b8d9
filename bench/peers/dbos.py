"""DBOS on PostgreSQL or SQLite: a workflow of five no-op steps, one process.

Tried settings, in steps per second at load 3 to 7 on two CPUs (4 threads alone at load 1: 381), by turns, medians:

- PostgreSQL: called from 1, 2, 4, 8, 16 threads: 106, 254, 286, 313, 266; all started at once on its own executor
  (`mode=start`): 327; the same with 4 or 8 executor threads: 288, 353; awaited in one loop (`mode=async`), 8 and 32
  at a time: 247, 229. Calls from 4 threads were best on a quiet machine, starting on a busy one. The bench tries both.
- SQLite: its default journal (delete) 42 to 183; WAL, which is as durable (synchronous=full), 368 to 468. So WAL is used.
  Called from 1, 2, 4, 8 threads: 181, 131, 114, 264; started: 103 to 283. All within the noise. The bench tries 1, 4, 8.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

from dbos import DBOS  # type: ignore[import-not-found]  # lives in the peer's own environment
from sqlalchemy import text  # type: ignore[import-not-found]  # the same

from bench.peers.protocol import STEPS, Peer, Site, expect, run_concurrently, serve, time_calls


def no_op(number: int) -> int:
    return number


async def async_no_op(number: int) -> int:
    return number


step = DBOS.step()(no_op)
async_step = DBOS.step()(async_no_op)


def five() -> int:
    return sum(step(1) for _ in range(STEPS))


async def async_five() -> int:
    return sum([await async_step(1) for _ in range(STEPS)])


workflow = DBOS.workflow()(five)
async_workflow = DBOS.workflow()(async_five)


class Dbos(Peer):
    def __init__(self, site: Site) -> None:
        self._site = site
        self._mode = site.text("mode", "call")
        self._threads = site.number("threads", 4)
        self._journal = site.text("journal", "wal")
        self._loop = asyncio.new_event_loop()  # DBOS keeps the executor of the first one it sees
        self._dbos: Any = None
        self._done = 0

    def prepare(self) -> None:
        url = self._site.dsn
        if not url:
            path = self._site.folder / "dbos.sqlite"
            with sqlite3.connect(path) as connection:
                connection.execute(f"pragma journal_mode = {self._journal}")
            connection.close()
            url = f"sqlite:///{path}"
        config: dict[str, Any] = {
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": self._site.number("pool", 20),
            "log_level": "WARNING",
            "run_admin_server": False,
            "application_version": "1",
        }
        if threads := self._site.number("executor", 0):
            config["max_executor_threads"] = threads
        self._dbos = DBOS(config=config)
        DBOS.launch()

    def throughput(self, runs: int) -> int:
        """Workflows that are called from several threads, started, or awaited."""
        if self._mode == "async":
            done = self._loop.run_until_complete(self._await_many(runs))
        elif self._mode == "start":
            with self._site.clock():
                handles = [DBOS.start_workflow(workflow) for _ in range(runs)]
                done = sum(handle.get_result() for handle in handles)
        else:
            with ThreadPoolExecutor(self._threads) as pool, self._site.clock():
                done = sum(pool.map(lambda _: workflow(), range(runs)))
        return self._checked(done, runs)

    async def _await_many(self, runs: int) -> int:
        with self._site.clock():
            return sum(await run_concurrently(runs, self._threads, async_workflow))

    def lone(self, runs: int) -> list[float]:
        with self._site.clock():
            seconds = time_calls(runs, workflow)
        self._checked(runs * STEPS, runs)
        return seconds

    def settings(self) -> Mapping[str, str]:
        journal = "" if self._site.dsn else f", journal_mode={self._journal}, synchronous=full"
        return {
            "dbos": metadata.version("dbos"),
            "settings": f"one process, {self._mode} from {self._threads} threads{journal}",
        }

    def _checked(self, done: int, runs: int) -> int:
        expect(done, runs * STEPS, "steps returned")
        self._done += done
        schema = "dbos." if self._site.dsn else ""
        with self._dbos._sys_db.engine.connect() as connection:
            kept = connection.execute(text(f"select count(*) from {schema}operation_outputs")).scalar()
        expect(kept, self._done, "steps kept")
        return done


if __name__ == "__main__":
    serve(Dbos)
