"""A worker of the demonstration, as a process of its own: `python -m tenure.embedded.demo_worker DATABASE NAME`.

Law: it ends when its standard input does, so that nothing is left behind however the demonstration ends.
"""

from __future__ import annotations

import asyncio
import sys

from tenure.embedded.demo import release
from tenure.embedded.engine import Engine
from tenure.embedded.running import in_loop


async def work(url: str, name: str) -> None:
    """Serve the demonstration's workflow until nobody wants it any more."""
    async with Engine(url, migrate=False, sweep_seconds=0.2) as engine, engine.worker(release, name=name):
        await _end_of_input()


async def _end_of_input() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    in_loop(work(*sys.argv[1:3]))
