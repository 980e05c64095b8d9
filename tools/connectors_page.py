"""Writes the table of docs/connectors.md: what the connectors that come with Tenure can do. `--check` writes nothing and fails when it is
stale."""

import sys
from pathlib import Path

from tenure.govern.connectors.command import Program, program_operation
from tenure.govern.connectors.settings import builtin_connectors

PAGE = Path(__file__).resolve().parent.parent / "docs" / "connectors.md"
BEGIN = "<!-- The table is made by tools/connectors_page.py from the connectors' own data. -->\n"
END = "<!-- End of the table. -->\n"
HEAD = "| operation | what it does | repeats | taken back by |\n|---|---|---|---|\n"


def table() -> str:
    """The table as it should be."""
    command = program_operation(
        "NAME", Program(path="/a/program", summary="Run a program that the settings list.")
    )
    lines = []
    for action, operation in (*builtin_connectors().actions(), ("command.NAME", command)):
        connector = action.partition(".")[0]
        back = (
            f"`{connector}.{operation.reverses_by}`"
            if operation.reverses_by
            else f"nothing: {operation.undo_hint}"
        )
        lines.append(f"| `{action}` | {operation.summary} | `{operation.repeats}` | {back} |\n")
    return HEAD + "".join(lines)


def page() -> str:
    """The page as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    if arguments not in ([], ["--check"]):
        print("usage: connectors_page.py [--check]")
        return 2
    fresh = PAGE.read_text(encoding="utf-8") == page()
    if arguments:
        print("docs/connectors.md is up to date" if fresh else "docs/connectors.md is stale: run `make docs`")
        return 0 if fresh else 1
    PAGE.write_text(page(), encoding="utf-8")
    print(f"docs/connectors.md: {'as it was' if fresh else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
