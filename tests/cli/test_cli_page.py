"""docs/cli.md lists every field of the JSON that commands print, and no other."""

import re
from pathlib import Path

import msgspec
import pytest

from tenure.cli.runs.timeline import RunTimelineEntry
from tenure.shapes.approvals import Approval
from tenure.shapes.costs import StepCost
from tenure.shapes.events import Event
from tenure.shapes.runs import Explanation, Run, RunSummary
from tenure.shapes.steps import Step

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SHAPES: dict[str, type[msgspec.Struct]] = {
    "A run": Run,
    "A line of `runs list`": RunSummary,
    "A step": Step,
    "Costs": StepCost,
    "Why": Explanation,
    "An event": Event,
    "A line of `runs events --timeline`": RunTimelineEntry,
    "An approval": Approval,
}


@pytest.mark.parametrize("title", SHAPES)
def test_every_field_is_documented(title: str) -> None:
    section = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == {field.name for field in msgspec.structs.fields(SHAPES[title])}
