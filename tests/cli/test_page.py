"""docs/cli.md lists every field of the JSON that commands print, and no other."""

import re
from pathlib import Path

import msgspec
import pytest

from tenure.cli.story import Told
from tenure.orchestrator.views import ApprovalView, CostView, EventView, RunLine, RunView, StepView
from tenure.orchestrator.why import Why

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SHAPES: dict[str, type[msgspec.Struct]] = {
    "A run": RunView,
    "A line of `runs list`": RunLine,
    "A step": StepView,
    "Costs": CostView,
    "Why": Why,
    "An event": EventView,
    "A line of `runs events --timeline`": Told,
    "An approval": ApprovalView,
}


@pytest.mark.parametrize("title", SHAPES)
def test_every_field_is_documented(title: str) -> None:
    section = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == {field.name for field in msgspec.structs.fields(SHAPES[title])}
