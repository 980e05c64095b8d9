"""Hello: a workflow is a function, its steps are functions, and what a step has returned is kept.

    python examples/hello.py

Every step's result is written to the database before the next step begins. Should this program die between two
greetings, the next worker on the same database would go on with the one that is missing.
"""

import os
import tempfile

import tenure


@tenure.step
async def greet(name: str) -> str:
    """A step does the work: it may call out, write files, fail, and be tried again."""
    print(f"greeting {name} ...")
    return f"Hello, {name}!"


@tenure.workflow
async def hello(names: list[str]) -> list[str]:
    """A workflow says what comes after what, in ordinary Python."""
    return [await greet(name) for name in names]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TENURE_DB", f"{folder}/hello.db")  # without it: tenure.db in this folder
        for line in tenure.run(hello, ["Ada", "Grace", "Katherine"]):
            print(line)
