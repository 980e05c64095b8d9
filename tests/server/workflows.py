"""Workflows for the tests of the server, and helpers to register and start them."""

from typing import Any

import httpx

import tenure
from tenure.cli.workflows import registration
from tenure.engine import Engine
from tenure.sdk.definitions import Workflow

RELEASE = """
name: release
version: "1"
inputs:
  ref: {type: string}
steps:
  - id: build
    uses: build
    with: {ref: "${{ inputs.ref }}"}
"""


@tenure.step
async def shout(word: str) -> str:
    """Convert to upper case."""
    return word.upper()


@tenure.workflow(name="echo", profile="agent-runs", timeout="10m")
async def echo(word: str, times: int = 1) -> str:
    """Repeat a word."""
    return " ".join([await shout(word)] * times)


@tenure.workflow(name="patient", profile="agent-runs")
async def patient() -> Any:
    """Wait for the event `news`."""
    return await tenure.wait("news")


async def register(engine: Engine, *workflows: Workflow[..., Any]) -> None:
    """Register workflows as a worker with database access does."""
    assert await registration.register_workflows(engine, workflows or (echo, patient)) == []


async def begin(caller: httpx.AsyncClient, **body: Any) -> str:
    """Start a run of `echo`; returns its id."""
    answer = await caller.post("/runs", json={"workflow": "echo", "input": {"word": "a"}, **body})
    assert answer.status_code == 201, answer.text
    run_id: str = answer.json()["id"]
    return run_id
