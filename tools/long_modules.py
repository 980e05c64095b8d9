"""Print the modules that are long enough to ask whether they hold more than one subject. A warning: it never fails."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 600


def find_long_modules() -> dict[str, int]:
    """Path -> lines, of every module with more than `LINES_MAX` lines."""
    lines = {path: len(path.read_text().splitlines()) for path in sorted((ROOT / "src").rglob("*.py"))}
    return {path.relative_to(ROOT).as_posix(): n for path, n in lines.items() if n > LINES_MAX}


if __name__ == "__main__":
    for name, count in find_long_modules().items():
        print(f"warning: {name} has {count} lines; does it hold more than one subject?")
