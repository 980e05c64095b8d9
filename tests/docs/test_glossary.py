"""docs/glossary.md is correct: every place exists, every term is defined once, and every class that the pages name is in it."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tenure"
PAGE = (ROOT / "docs" / "glossary.md").read_text()
ENTRY = re.compile(
    r"^\| \*\*(?P<term>[^*]+)\*\* \| (?P<meaning>.+?) \| (?P<places>`[^|]+`) \|$", re.MULTILINE
)
ENTRIES = list(ENTRY.finditer(PAGE))
PLACES = sorted({place for entry in ENTRIES for place in re.findall(r"`([^`]+)`", entry["places"])})


def module_file(module: str) -> Path | None:
    """The file of a module below tenure, if there is one."""
    path = PACKAGE.joinpath(*module.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.exists()), None)


def top_level_names(file: Path) -> set[str]:
    """The functions and classes that a file defines itself."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, kinds)}


def public_classes(*folders: str) -> set[str]:
    """The public top-level classes of some packages."""
    files = [file for folder in folders for file in (PACKAGE / folder).rglob("*.py")]
    return {name for file in files for name in top_level_names(file) if name[0].isupper()}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_exists(place: str) -> None:
    module, _, name = place.partition(":")
    file = module_file(module)
    assert file is not None, f"there is no module tenure.{module}"
    assert not name or name in top_level_names(file), f"tenure.{module} has no {name}"


def test_every_table_row_is_an_entry() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| term ")]
    assert len(lines) == len(ENTRIES)


def test_every_term_is_defined_once() -> None:
    terms = Counter(word.strip().lower() for entry in ENTRIES for word in entry["term"].split(","))
    assert [term for term, times in terms.items() if times > 1] == []


def test_a_place_belongs_to_one_term() -> None:
    """Two terms with the same class are two words for one thing."""
    named = Counter(
        place for entry in ENTRIES for place in re.findall(r"`([^`]+)`", entry["places"]) if ":" in place
    )
    assert [place for place, times in named.items() if times > 1] == []


def test_every_class_in_the_architecture_page_is_in_the_glossary() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    met = set(re.findall(r"`(?:\w+[./:])*([A-Z][a-z]\w+)(?:\([^`]*\))?`", page))
    covered = {place.partition(":")[2] for place in PLACES}
    assert sorted(met & public_classes("kernel", "services", "shapes") - covered) == []


def test_every_class_in_the_architecture_page_exists() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    met = set(re.findall(r"`(?:\w+[./:])*([A-Z][a-z]+[A-Z]\w+|[A-Z][a-z]+)`", page))
    assert sorted(met - public_classes("")) == []


def test_every_row_type_and_every_grouped_shape_is_in_the_glossary() -> None:
    """A newcomer meets the rows of a run and the nouns of the services first."""
    covered = {place.partition(":")[2] for place in PLACES}
    rows = {name for name in top_level_names(PACKAGE / "kernel" / "run_rows.py") if name.endswith("Row")}
    assert sorted(rows - covered - {"RunSpecRow", "StaleMessageRow"}) == []
