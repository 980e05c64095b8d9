"""The workflow that `tenure demo` runs: a release in five steps, in worker processes of its own.

What it deploys to is a folder `production` beside its database, with a file for each server.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import tenure
from tenure.private_files import write_file

PRODUCTION = Path("production")
SERVERS = ("eu-1", "eu-2", "us-1", "us-2")
SERVER_SECONDS = 0.7
"""How long it takes to bring one server up to date: long enough to be killed in the middle."""
LEASE_SECONDS = 3.0
"""A worker that is not heard of for so long is taken for dead. Real ones have more patience."""


@tenure.step
async def build(ref: str) -> str:
    """A step is an ordinary function; what it returns is recorded."""
    await asyncio.sleep(0.8)
    return f"shop:{ref}"


@tenure.step(retries=3, backoff=["1s"])
async def test(image: str) -> int:
    """Fails the first time, as tests do."""
    await asyncio.sleep(0.5)
    if tenure.current().attempt == 1:
        raise tenure.Failure("TESTS_FAILED", f"{image}: 1 of 214 tests failed, a timeout in test_checkout")
    return 214


@tenure.step
def deploy(image: str) -> list[str]:
    """Server by server. Done again after a crash, it leaves alone what is up to date already."""
    updated = []
    for name in SERVERS:
        server = PRODUCTION / name
        if server.exists() and server.read_text() == image:
            continue
        tenure.current().progress(f"updating {name}")
        time.sleep(SERVER_SECONDS)
        write_file(server, image)
        updated.append(name)
    return updated


@tenure.step
async def verify(image: str, health: dict[str, Any]) -> str:
    """Look at every server."""
    running = await asyncio.to_thread(lambda: {(PRODUCTION / name).read_text() for name in SERVERS})
    if running != {image}:
        raise tenure.Failure("VERIFY_FAILED", f"the servers run {sorted(running)}")
    return f"{image} runs on {len(SERVERS)} servers, p95 {health['p95_ms']} ms"


@tenure.workflow(name="demo-release", lease=LEASE_SECONDS)
async def release(ref: str) -> str:
    image = await build(ref)
    passed = await test(image)
    await tenure.approve(f"Deploy {image}?", show={"image": image, "tests passed": passed})
    await deploy(image)
    health = await tenure.wait("deploy.healthy", within="1h")
    return await verify(image, health)
