"""Prints how each clause of docs/spec/clauses.toml is shown, and by which test.

A test names the clauses that it proves with `@pytest.mark.clause("GWI-12")`. This tool collects the tests without running them and derives
the real parts that each of them uses (`tools/real_parts.py`). It prints, for each clause, the least that counts as proof (`shown` in the file),
what its tests show, and the first test; the last line is `clauses proven: N/M`. `make test` shows whether these tests pass.

Laws:
1. A clause counts if a test names it that shows enough and is neither skipped nor expected to fail.
2. A mark on a test that shows less than its clause asks is an error, and so is an unknown clause. A clause without a test is only counted.
"""

import contextlib
import io
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tools.real_parts import LEVELS, highest, parts_of, shows

ROOT = Path(__file__).resolve().parent.parent
CLAUSES_FILE = ROOT / "docs" / "spec" / "clauses.toml"


def load_clauses() -> dict[str, str]:
    """Every clause by its id, with its text, in the order of the file."""
    with CLAUSES_FILE.open("rb") as file:
        return {clause: entry["text"] for clause, entry in tomllib.load(file).items()}


def load_levels() -> dict[str, str]:
    """The least that counts as proof of each clause."""
    with CLAUSES_FILE.open("rb") as file:
        return {clause: entry.get("shown", "store") for clause, entry in tomllib.load(file).items()}


def clauses_of(item: pytest.Item) -> list[str]:
    """The clauses that a test names."""
    return [clause for marker in item.iter_markers("clause") for clause in marker.args]


def unknown_clauses(items: Iterable[pytest.Item], known: Mapping[str, str]) -> list[str]:
    """A line for each clause that does not exist, with the test that names it."""
    return [
        f"{item.nodeid} names the clause {clause!r}, which is not in docs/spec/clauses.toml"
        for item in items
        for clause in clauses_of(item)
        if clause not in known
    ]


def counts(item: pytest.Item) -> bool:
    """Whether the test will run, and is expected to pass. A `skipif` with a text as its condition counts as skipped."""
    if any(item.iter_markers("skip")) or any(item.iter_markers("xfail")):
        return False
    return not any(
        isinstance(condition, str) or bool(condition)
        for marker in item.iter_markers("skipif")
        for condition in (
            *marker.args,
            *([marker.kwargs["condition"]] if "condition" in marker.kwargs else []),
        )
    )


class Collector:
    """A pytest plugin that remembers the collected tests."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.items = list(items)


def main() -> int:
    clauses = load_clauses()
    collector = Collector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(
            ["--collect-only", "-q", "--rootdir", str(ROOT), str(ROOT / "tests")], plugins=[collector]
        )
    unknown = unknown_clauses(collector.items, clauses)
    if unknown:
        print("Unknown clauses:", *dict.fromkeys(unknown), sep="\n  ", file=sys.stderr)
        return 1
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(output.getvalue(), file=sys.stderr)
        print("The tests could not be collected; see above.", file=sys.stderr)
        return 1

    proofs = collect_proofs(collector.items)
    wanted = load_levels()
    weak = weak_marks(proofs, wanted)
    print(f"{'clause':<7} {'wanted':<8} {'shown':<8} test")
    proven = 0
    for clause in clauses:
        enough = {
            test: parts for test, parts in proofs.get(clause, {}).items() if shows(parts, wanted[clause])
        }
        proven += bool(enough)
        level = max((highest(parts) for parts in enough.values()), key=LEVELS.index, default="-")
        more = f"  (+{len(enough) - 1} more)" if len(enough) > 1 else ""
        print(f"{clause:<7} {wanted[clause]:<8} {level:<8} {_first(enough, level)}{more}")
    print(f"clauses proven: {proven}/{len(clauses)}")
    if weak:
        print("Tests that show less than the clauses they name ask for:", *weak, sep="\n  ", file=sys.stderr)
        print("Take these marks off, or use the real part (tools/real_parts.py lists them).", file=sys.stderr)
    return 1 if weak else 0


Proofs = dict[str, dict[str, dict[str, str]]]
"""For each clause, the tests that name it, and the real parts of each test."""


def collect_proofs(items: Iterable[pytest.Item]) -> Proofs:
    """The tests of each clause that will run. The cases of a parametrized test count together."""
    proofs: Proofs = {}
    for item in items:
        named = clauses_of(item) if counts(item) else []
        parts = parts_of(item) if named else {}
        for clause in named:
            proofs.setdefault(clause, {}).setdefault(item.nodeid.partition("[")[0], {}).update(parts)
    return proofs


def weak_marks(proofs: Proofs, wanted: Mapping[str, str]) -> list[str]:
    """A line for each mark on a test that shows less than the clause asks."""
    return [
        f"{test} names {clause}, which wants {wanted[clause]}; the test uses {', '.join(parts) or 'the store alone'}"
        for clause, tests in proofs.items()
        for test, parts in tests.items()
        if not shows(parts, wanted[clause])
    ]


def _first(tests: Mapping[str, Mapping[str, str]], level: str) -> str:
    """The first test that shows this level, with its real parts."""
    for test, parts in tests.items():
        if highest(parts) == level:
            return test + (f"  [{', '.join(parts)}]" if parts else "")
    return "-"


if __name__ == "__main__":
    sys.exit(main())
