"""Prints which test proves which clause of docs/spec/clauses.toml.

A test names the clauses that it proves with `@pytest.mark.clause("GWI-12")`. This tool collects the tests without running them, prints the
table and, as its last line, `clauses proven: N/M`. A clause counts if at least one test names it that is neither skipped nor expected to
fail. `make test` shows whether these tests pass.
"""

import contextlib
import io
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CLAUSES_FILE = ROOT / "docs" / "spec" / "clauses.toml"


def load_clauses() -> dict[str, str]:
    """Every clause by its id, with its text, in the order of the file."""
    with CLAUSES_FILE.open("rb") as file:
        return {clause: entry["text"] for clause, entry in tomllib.load(file).items()}


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

    proofs: dict[str, dict[str, None]] = {clause: {} for clause in clauses}
    for item in collector.items:
        for clause in clauses_of(item) if counts(item) else ():
            proofs[clause][item.nodeid.partition("[")[0]] = None
    for clause, tests in proofs.items():
        more = f"  (+{len(tests) - 1} more)" if len(tests) > 1 else ""
        print(f"{clause:<7} {next(iter(tests), '-')}{more}")
    print(f"clauses proven: {sum(map(bool, proofs.values()))}/{len(proofs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
