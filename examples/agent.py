"""Agent: a model chooses tools until it has an answer; every thought is recorded, with what it cost.

    python examples/agent.py

The model is a fake of a few lines, so that this runs anywhere and always the same. With a real one only `ask_model`
changes: it is a step, so an answer that was paid for is never asked for again, whatever crashes after it.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import tenure

TURNS_MAX = 10
"""The budget: whoever has no answer by then has none."""
TURNS_PER_RUN = 2
"""A long conversation goes on as a new run before its history grows long. (In earnest: some hundreds.)"""


@dataclass
class Thought:
    """What the model wants next: a tool with its argument, or, without one, to say its answer."""

    text: str
    tool: str | None = None


@dataclass
class Conversation:
    question: str
    said: list[str] = field(default_factory=list)
    turns: int = 0


# ------------------------------------------------------------------------------------------- the fake model


def fake_model(conversation: Conversation) -> Thought:
    """Looks up two heights, subtracts them, answers."""
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
    """`agent` is who did it in the history; `report_cost` keeps what it cost beside the result."""
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
    """The loop. All it needs to go on is its argument, which is why it can be restarted with it."""
    while conversation.turns < TURNS_MAX:
        thought = await ask_model(conversation)
        conversation.turns += 1
        if thought.tool is None:
            # A proposal waits for nobody: the run ends, and people decide about it when they do.
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
        print(await run.result())  # of the last run, wherever the conversation went on

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
            print("  (goes on as a new run)")
        print(f"{calls} calls of the model, {spent:.4f} USD")

        await engine.approve(last, approver="grace")
        (proposal,) = await engine.approvals.list(last)
        print(f"{proposal.action}: {proposal.status} by {proposal.decided_by}, after the run had ended")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TENURE_DB", f"{folder}/agent.db")
        asyncio.run(main())
