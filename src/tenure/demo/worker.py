"""A worker process of the demonstration: `python -m tenure.demo.worker DATABASE NAME`.

Law: it ends when its standard input ends, so that no process is left behind.
"""

from __future__ import annotations

import asyncio
import sys

from tenure.demo.workflow import release
from tenure.engine.engine import Engine
from tenure.engine.entry_point import run_in_loop


async def run_demo_worker(url: str, name: str) -> None:
    async with Engine(url, migrate=False, sweep_seconds=0.2) as engine, engine.worker(release, name=name):
        await _end_of_input()


async def _end_of_input() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    run_in_loop(run_demo_worker(*sys.argv[1:3]))
