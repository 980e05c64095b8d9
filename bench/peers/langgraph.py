"""LangGraph with its PostgreSQL checkpointer: a graph of five no-op nodes in a chain, one process.

`durability="sync"`: a checkpoint is written before the next node begins, as every other system here does it. What was
tried, steps a second at load 5 to 7 on two cpus (4 threads alone at load 2: 450), by turns: 1, 2, 4, 8 threads: 145, 113,
140, 111; the asynchronous saver with 4 and 16 tasks: 67, 67; `durability="async"`: 151. The bench tries 1 and 4 threads.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any, TypedDict

import psycopg_pool  # type: ignore[import-not-found]  # lives in the peer's own environment
from langgraph.checkpoint.postgres import PostgresSaver  # type: ignore[import-not-found]  # the same
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # type: ignore[import-not-found]  # the same
from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found]  # the same

from bench.peers.protocol import STEPS, Site, expect, serve

CONNECTION = {"autocommit": True, "prepare_threshold": 0}


class State(TypedDict):
    """What the graph passes on."""

    done: int


def no_op(state: State) -> State:
    """A step."""
    return {"done": state["done"] + 1}


async def async_no_op(state: State) -> State:
    """A step."""
    return {"done": state["done"] + 1}


class LangGraph:
    """See `Peer`."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._mode = site.text("mode", "sync")
        self._lanes = site.number("lanes", 4)
        self._durability = site.text("durability", "sync")
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._graph: Any = None
        self._pool: Any = None
        self._kept = 0

    def prepare(self) -> None:
        """Tables, and the graph on them."""
        sizes = {"min_size": self._lanes, "max_size": self._lanes, "kwargs": CONNECTION}
        if self._mode == "async":
            self._graph = self._loop.run_until_complete(self._open(sizes))
            return
        self._pool = psycopg_pool.ConnectionPool(self._site.dsn, open=True, **sizes)
        saver = PostgresSaver(self._pool)
        saver.setup()
        self._graph = _chain(no_op).compile(checkpointer=saver)

    async def _open(self, sizes: dict[str, Any]) -> Any:
        pool = psycopg_pool.AsyncConnectionPool(self._site.dsn, open=False, **sizes)
        await pool.open()
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        return _chain(async_no_op).compile(checkpointer=saver)

    def _thread(self) -> dict[str, Any]:
        return {"configurable": {"thread_id": str(next(self._numbers))}}

    def _one(self) -> int:
        if self._mode == "async":
            return self._loop.run_until_complete(self._async_one())
        done: int = self._graph.invoke({"done": 0}, self._thread(), durability=self._durability)["done"]
        return done

    async def _async_one(self) -> int:
        said = await self._graph.ainvoke({"done": 0}, self._thread(), durability=self._durability)
        done: int = said["done"]
        return done

    def throughput(self, runs: int) -> int:
        """Graphs invoked from so many threads or tasks."""
        if self._mode == "async":
            done = self._loop.run_until_complete(self._async(runs))
        else:
            with ThreadPoolExecutor(self._lanes) as threads, self._site.clock():
                done = sum(threads.map(lambda _: self._one(), range(runs)))
        return self._checked(done, runs)

    async def _async(self, runs: int) -> int:
        left = iter(range(runs))

        async def lane() -> int:
            done = 0
            for _ in left:
                done += await self._async_one()
            return done

        with self._site.clock():
            return sum(await asyncio.gather(*(lane() for _ in range(self._lanes))))

    def lone(self, runs: int) -> list[float]:
        """One after another."""
        seconds, done = [], 0
        with self._site.clock():
            for _ in range(runs):
                started = time.perf_counter()
                done += self._one()
                seconds.append(time.perf_counter() - started)
        self._checked(done, runs)
        return seconds

    def figures(self) -> Mapping[str, Callable[[int], int]]:
        """Nothing else."""
        return {}

    def settings(self) -> Mapping[str, str]:
        """See `Peer`."""
        names = ("langgraph", "langgraph-checkpoint-postgres")
        return {
            "langgraph": ", ".join(f"{name} {metadata.version(name)}" for name in names),
            "settings": f"one process, {self._mode}, {self._lanes} at a time, durability={self._durability}",
        }

    def close(self) -> None:
        """Connections end with the process."""

    def _checked(self, done: int, runs: int) -> int:
        """A checkpoint for the input, one before the first node and one after each."""
        import psycopg  # type: ignore[import-not-found]  # the same

        expect(done, runs * STEPS, "steps returned")
        self._kept += runs * (STEPS + 2)
        with psycopg.connect(self._site.dsn) as connection:
            row = connection.execute("select count(*) from checkpoints").fetchone()
        expect(row[0], self._kept, "checkpoints kept")
        return done


def _chain(node: Callable[..., Any]) -> Any:
    graph = StateGraph(State)
    names = [f"step-{number}" for number in range(STEPS)]
    for name in names:
        graph.add_node(name, node)
    for before, after in itertools.pairwise([START, *names, END]):
        graph.add_edge(before, after)
    return graph


if __name__ == "__main__":
    serve(LangGraph)
