"""The examples of docs/testing.md work."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tenure.testing import Lab

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text()


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


async def test_the_first_example_and_the_story_run_as_they_are_written() -> None:
    first = next(each for each in examples() if "async def test_release(tenure_lab)" in each)
    story = next(each for each in examples() if "async def story" in each)
    names: dict[str, Any] = {"__name__": "docs_testing"}
    exec(compile(first + story, "docs/testing.md", "exec"), names)
    tests: list[Callable[[type[Lab]], Awaitable[None]]] = [
        names["test_release"],
        names["test_release_survives_every_crash"],
    ]
    for test in tests:
        await test(Lab)


def test_the_lab_has_every_method_that_the_page_names() -> None:
    for name in set(re.findall(r"\blab\.([a-z_]+)", TEXT)):
        assert hasattr(Lab, name) or name in vars(Lab()), name
