"""The agents of `tenure up agent-runs`. Their model is a fake: it does not think, but it costs, fails and takes its time.

Served by `tenure worker tenure.systems.agent_runs_agents`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import tenure

AGENT = "agent-runs"


@tenure.step
async def load_context(topic: str) -> list[str]:
    """What the archive knows about a topic."""
    return [f"{topic}, page {number}" for number in (1, 2, 3)]


@tenure.step(agent="fake-model")
async def execute_agent(notes: list[str]) -> str:
    """What a model makes of it."""
    tenure.report_cost("example", "fake-1", tokens_in=3 * len(notes), tokens_out=12, money="0.0003")
    return "; ".join(notes)


@tenure.step
async def review(text: str) -> dict[str, str]:
    return {"title": "Archive the summary", "text": text}


@tenure.step
async def finalize(text: str) -> int:
    return len(text)


@tenure.workflow(name="archivist-violin", profile=AGENT)
async def archivist(topic: str) -> int:
    """Four steps, and a proposal that a person decides later."""
    text = await execute_agent(await load_context(topic))
    proposal = await review(text)
    await tenure.propose(proposal["title"], proposal)
    return await finalize(text)


@tenure.step
async def ask_model(question: str) -> str:
    """A model that never answers."""
    raise tenure.Failure("NLM_UNAVAILABLE", f"the model does not answer {question!r}")


@tenure.workflow(name="oracle", profile=AGENT)
async def oracle(question: str) -> str:
    """Fails after the retries of the profile."""
    return await ask_model(question)


@tenure.workflow(name="dreamer", profile=AGENT, timeout="2s")
async def dreamer() -> None:
    """Takes longer than it may."""
    await tenure.wait("never")


@tenure.step
async def catalogue(until: str) -> str:
    """Work that takes until a file appears."""
    while not await asyncio.to_thread(Path(until).exists):  # noqa: ASYNC110 - it stands for work that takes its time
        await asyncio.sleep(0.05)
    return "done"


@tenure.workflow(name="librarian", profile=AGENT)
async def librarian(until: str) -> str:
    """One of them works at a time."""
    return await catalogue(until)
