"""What docs/ARCHITECTURE.md lists is what there is."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()


def test_the_layers_are_those_that_the_build_proves() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["id"] == "layers")
    proven = [re.findall(r"\w+", layer) for layer in layers]
    block = PAGE.partition("\n## Layers\n")[2].split("```")[1].strip()
    listed = [re.findall(r"\w+", line.partition("  ")[0]) for line in block.splitlines()]
    assert listed == proven


def test_every_module_of_decide_is_told_of() -> None:
    said = PAGE.partition("`kernel/decide/` has a module per subject")[2].partition("A decision looks only")[
        0
    ]
    modules = {path.stem for path in (ROOT / "src/tenure/kernel/decide").glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", said)) == modules
