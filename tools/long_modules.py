"""Warns about modules that are so long that they may have more than one subject. It never fails."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 600


def find_long_modules() -> dict[str, int]:
    """Path -> number of lines, for every module with more than `LINES_MAX` lines."""
    lines = {path: len(path.read_text().splitlines()) for path in sorted((ROOT / "src").rglob("*.py"))}
    return {path.relative_to(ROOT).as_posix(): n for path, n in lines.items() if n > LINES_MAX}


if __name__ == "__main__":
    for name, count in find_long_modules().items():
        print(f"warning: {name} has {count} lines; does it have more than one subject?")
