"""Agent: a model chooses tools until it has an answer. Every call of the model is recorded with its cost.

    python examples/agent.py

The model is a fake of a few lines, so that the example runs anywhere with the same result. For a real model, change only
`ask_model`. It is a step, so an answer that was paid for is never requested again, even after a crash.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import tenure

TURNS_MAX = 10
"""The limit of turns. A conversation without an answer by then fails."""
TURNS_PER_RUN = 2
"""A long conversation continues as a new run before its history grows long. (In production: some hundreds.)"""


@dataclass
class Thought:
    """What the model wants next: a tool with its argument or, without a tool, to give its answer."""

    text: str
    tool: str | None = None


@dataclass
class Conversation:
    question: str
    said: list[str] = field(default_factory=list)
    turns: int = 0


# ------------------------------------------------------------------------------------------- the fake model


def fake_model(conversation: Conversation) -> Thought:
    """Look up two heights, subtract them, answer."""
    match conversation.said:
        case []:
            return Thought("Mont Blanc", tool="look_up")
        case [_]:
            return Thought("Zugspitze", tool="look_up")
        case [first, second]:
            return Thought(f"{first} - {second}", tool="calculate")
        case said:
            return Thought(f"Mont Blanc is {said[-1]} m higher than the Zugspitze.")


# ------------------------------------------------------------------------------------------ steps and tools


@tenure.step(retries=5, agent="mountaineer")
async def ask_model(conversation: Conversation) -> Thought:
    """`agent` names the model in the history. `report_cost` records the cost with the result."""
    thought = fake_model(conversation)
    words = len(" ".join(conversation.said).split())
    tenure.report_cost("acme", "acme-small", tokens_in=40 + words, tokens_out=12, money="0.0004")
    return thought


@tenure.step
async def look_up(mountain: str) -> str:
    return {"Mont Blanc": "4806", "Zugspitze": "2962"}[mountain]


@tenure.step
async def calculate(difference: str) -> str:
    first, _, second = difference.partition(" - ")
    return str(int(first) - int(second))


TOOLS: dict[str, Callable[[str], Awaitable[str]]] = {"look_up": look_up, "calculate": calculate}


# --------------------------------------------------------------------------------------------- the workflow


@tenure.workflow
async def answer(conversation: Conversation) -> str:
    """The loop. Its whole state is its argument, so it can restart with it."""
    while conversation.turns < TURNS_MAX:
        thought = await ask_model(conversation)
        conversation.turns += 1
        if thought.tool is None:
            # A proposal does not block: the run ends, and people decide later.
            await tenure.propose("Publish the answer", {"answer": thought.text})
            return thought.text
        tool = TOOLS.get(thought.tool)
        conversation.said.append(await tool(thought.text) if tool else f"there is no tool {thought.tool}")
        if conversation.turns % TURNS_PER_RUN == 0:
            tenure.restart(conversation)
    raise tenure.Failure("TURNS_USED_UP", f"no answer after {TURNS_MAX} turns")


async def main() -> None:
    async with tenure.Engine() as engine, engine.worker():
        run = await engine.start(answer, Conversation("How much higher is Mont Blanc than the Zugspitze?"))
        print(await run.result())  # the result of the last run of the conversation

        spent, calls, last = 0.0, 0, run.id
        while True:
            view = await engine.get(last)
            for step in await engine.runs.steps(last):
                spent += sum(cost.money for cost in step.costs)
                calls += sum(cost.calls for cost in step.costs)
                print(f"  {step.name}: {step.output}" if step.kind == "checkpoint" else f"  {step.name}")
            if view.restarted_as is None:
                break
            last = view.restarted_as
            print("  (continues as a new run)")
        print(f"{calls} calls of the model, {spent:.4f} USD")

        await engine.approve(last, approver="grace")
        (proposal,) = await engine.approvals.list(last)
        print(f"{proposal.action}: {proposal.status} by {proposal.decided_by}, after the run had ended")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TENURE_DB", f"{folder}/agent.db")
        asyncio.run(main())
