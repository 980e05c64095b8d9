"""Declared: a workflow in a YAML file, with commands, tools written in Python, an approval and an event.

    python examples/declared.py

None of your code decides what comes next: the plan is fixed when the run is submitted, and can be reviewed before.
docs/declared.md has every key.
"""

import asyncio
import os
import tempfile

import tenure
from tenure import declared

RELEASE = """
name: release
inputs:
  ref: {type: string}
  urgent: {type: boolean, default: false}
steps:
  - id: build
    run: [echo, "built ${{ inputs.ref }}"]        # a command; an expression is one argument, whatever is in it
  - id: scan
    uses: registry.scan                           # a tool: the Python function below
    with: {image: "shop:${{ inputs.ref }}"}
    retry: {max: 2, backoff: [0.2s]}
  - id: gate
    approval: {title: "Release ${{ inputs.ref }}?", within: 24h}
    if: "!inputs.urgent"                          # an urgent release needs no approval
  - id: announce
    uses: chat.post
    with: {text: "${{ steps.build.output.stdout }}, ${{ steps.scan.output.findings }} findings"}
"""


@tenure.tool("registry.scan")
async def scan(image: str) -> dict[str, object]:
    """Arguments are passed by name and checked against the signature. The result is the step's output."""
    if tenure.current().attempt == 1:
        raise ConnectionError("the registry is busy")
    return {"image": image, "findings": 0}


@tenure.tool("chat.post")
def post(text: str) -> None:
    """A plain function works, too. It runs in a thread."""
    print(f"chat: {text}")


async def main() -> None:
    release = declared.load_workflow(
        RELEASE, "release.yaml"
    )  # errors in a file are reported immediately, with their lines
    print(f"{release.name}: {', '.join(step.id for step in release.steps)}")
    async with tenure.Engine() as engine, engine.worker(commands=True):
        urgent = await engine.submit(release, {"ref": "v1.1", "urgent": True})
        await urgent.result()

        usual = await engine.submit(release, {"ref": "v2.0"})
        await usual.reaches("waiting_approval")
        print((await engine.runs.explain(usual.id)).text)
        await engine.approve(usual.id, approver="grace")
        await usual.result()
        for step in await engine.runs.steps(usual.id):
            print(
                f"  {step.name}: {step.state}, try {step.attempt}"
                if step.attempt
                else f"  {step.name}: {step.state}"
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TENURE_DB", f"{folder}/declared.db")
        asyncio.run(main())
