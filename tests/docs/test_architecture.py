"""docs/ARCHITECTURE.md matches the code: its layers, its walks, and every file that it names."""

import asyncio
import re
import tomllib
from pathlib import Path

import pytest

from tools import walks

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tenure"
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()


def block_after(text: str) -> list[str]:
    """The lines of the first fenced block after a text."""
    _, found, rest = PAGE.partition(text)
    assert found, text
    return rest.split("```")[1].splitlines()[1:]


def contract(id_: str, field: str) -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (one[field] for one in contracts if one["id"] == id_)
    return list(found)


def test_the_layers_match_the_import_contract() -> None:
    proven = [re.findall(r"\w+", layer) for layer in contract("layers", "layers")]
    drawn = [line for line in block_after("\n## Layers\n") if not line.startswith("--")]
    assert [re.findall(r"\w+", line.partition("  ")[0]) for line in drawn] == proven


def test_services_and_every_layer_below_are_kept_from_interfaces() -> None:
    layers = [re.findall(r"\w+", layer) for layer in contract("layers", "layers")]
    below = [f"tenure.{name}" for layer in layers[layers.index(["services"]) :] for name in layer]
    assert contract("application-without-interfaces", "source_modules") == below


def test_every_module_of_decide_is_listed() -> None:
    said = PAGE.partition("`kernel/decide/` has a module per subject")[2].partition("**A decision sees")[0]
    modules = {path.stem for path in (PACKAGE / "kernel" / "decide").glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", said)) == modules


@pytest.mark.parametrize(
    ("title", "walk"),
    [
        ("**A run is created.**", walks.walk_run_creation),
        ("**A step's result is recorded.**", walks.walk_step_result),
    ],
    ids=["creation", "result"],
)
def test_a_walk_matches_the_recorded_calls(title: str, walk: walks.RecordWalk) -> None:
    """Every function of a drawn walk is called, and the first calls are in the drawn order."""
    calls = [call.removeprefix("tenure.") for call in asyncio.run(walk()).calls]
    drawn = [line.split()[0] for line in block_after(title)]
    assert [name for name in drawn if name not in calls] == []
    assert sorted(drawn, key=calls.index) == drawn


def test_every_file_and_folder_that_the_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+(?:\.py|/))`", PAGE)
    assert named
    assert [name for name in named if not ((PACKAGE / name).exists() or (ROOT / name).exists())] == []


def test_every_table_that_the_page_names_exists() -> None:
    schema = (ROOT / "docs" / "schema" / "postgres.sql").read_text()
    tables = set(re.findall(r"^CREATE TABLE (?:\w+\.)?(\w+)", schema, re.MULTILINE | re.IGNORECASE))
    model = PAGE.partition("\n## The model\n")[2].partition("\nA *code-first*")[0]
    named = {
        name
        for line in model.splitlines()
        for name in re.findall(r"`(\w+)`", line.rpartition("|")[0].rpartition("|")[2])
    }
    assert sorted(named - tables) == []
