"""Writes the table of docs/connectors.md: the operations of the connectors that come with Tenure. `--check` writes nothing and fails if
the page is stale."""

import sys

from tenure.govern.connectors.command import Program, program_operation
from tenure.govern.connectors.settings import builtin_connectors
from tools.generated_files import ROOT, write_or_check

PAGE = ROOT / "docs" / "connectors.md"
BEGIN = "<!-- The table is made by tools/connectors_page.py from the connectors' own data. -->\n"
END = "<!-- End of the table. -->\n"
HEAD = "| operation | what it does | repeats | taken back by |\n|---|---|---|---|\n"


def table() -> str:
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
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.exit(write_or_check({PAGE: page()}))
