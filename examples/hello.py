"""Hello: a workflow is a function, its steps are functions, and the result of each step is recorded.

    python examples/hello.py

Every step's result is written to the database before the next step begins. If this program dies between two
greetings, the next worker on the same database continues with the missing one.
"""

import os
import tempfile

import tenure


@tenure.step
async def greet(name: str) -> str:
    """A step does the work: it may call other services, write files, fail, and be retried."""
    print(f"greeting {name} ...")
    return f"Hello, {name}!"


@tenure.workflow
async def hello(names: list[str]) -> list[str]:
    """A workflow defines the order of its steps, in ordinary Python."""
    return [await greet(name) for name in names]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TENURE_DB", f"{folder}/hello.db")  # without it: tenure.db in this folder
        for line in tenure.run(hello, ["Ada", "Grace", "Katherine"]):
            print(line)
