"""LangGraph with its PostgreSQL checkpointer: a graph of five no-op nodes in a chain, one process.

With `durability="sync"`, a checkpoint is written before the next node begins, as in the other systems. Tried settings, in
steps per second at load 5 to 7 on two CPUs (4 threads alone at load 2: 450), by turns: 1, 2, 4, 8 threads: 145, 113, 140,
111; the asynchronous saver with 4 and 16 tasks: 67, 67; `durability="async"`: 151. The bench tries 1 and 4 threads.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any, TypedDict

import psycopg_pool  # type: ignore[import-not-found]  # lives in the peer's own environment
from langgraph.checkpoint.postgres import PostgresSaver  # type: ignore[import-not-found]  # the same
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # type: ignore[import-not-found]  # the same
from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found]  # the same

from bench.peers.protocol import STEPS, Peer, Site, expect, run_concurrently, serve, time_calls

CONNECTION = {"autocommit": True, "prepare_threshold": 0}


class State(TypedDict):
    done: int


def no_op(state: State) -> State:
    return {"done": state["done"] + 1}


async def async_no_op(state: State) -> State:
    return {"done": state["done"] + 1}


class LangGraph(Peer):
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
        if self._mode == "async":
            done = self._loop.run_until_complete(self._await_many(runs))
        else:
            with ThreadPoolExecutor(self._lanes) as threads, self._site.clock():
                done = sum(threads.map(lambda _: self._one(), range(runs)))
        return self._checked(done, runs)

    async def _await_many(self, runs: int) -> int:
        with self._site.clock():
            return sum(await run_concurrently(runs, self._lanes, self._async_one))

    def lone(self, runs: int) -> list[float]:
        with self._site.clock():
            seconds = time_calls(runs, lambda: expect(self._one(), STEPS, "steps of a run"))
        self._checked(runs * STEPS, runs)
        return seconds

    def settings(self) -> Mapping[str, str]:
        names = ("langgraph", "langgraph-checkpoint-postgres")
        return {
            "langgraph": ", ".join(f"{name} {metadata.version(name)}" for name in names),
            "settings": f"one process, {self._mode}, {self._lanes} at a time, durability={self._durability}",
        }

    def _checked(self, done: int, runs: int) -> int:
        """Each run has a checkpoint for its input, one before the first node and one after each node."""
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
