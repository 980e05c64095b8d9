"""The workflow of `tenure demo`: a release in five steps.

It deploys to a folder `production` next to the database, with a file for each server.
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
"""How long it takes to update one server: long enough to kill the worker meanwhile."""
LEASE_SECONDS = 3.0
"""A worker that sends no heartbeat for so long loses its lease. Real workflows have longer leases."""


@tenure.step
async def build(ref: str) -> str:
    """A step is an ordinary function; its return value is recorded."""
    await asyncio.sleep(0.8)
    return f"shop:{ref}"


@tenure.step(retries=3, backoff=["1s"])
async def test(image: str) -> int:
    await asyncio.sleep(0.5)
    if tenure.current().attempt == 1:
        raise tenure.Failure("TESTS_FAILED", f"{image}: 1 of 214 tests failed, a timeout in test_checkout")
    return 214


@tenure.step
def deploy(image: str) -> list[str]:
    """Update server by server. After a crash, servers that are up to date are skipped."""
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
