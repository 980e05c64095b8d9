"""Writes generated files, or checks that they are up to date."""

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Texts = Mapping[Path, str | None]
"""Path -> the text of the file; None: there must be no such file."""


def find_stale(texts: Texts) -> list[Path]:
    """The files that do not have their text."""
    return [
        path
        for path, text in texts.items()
        if (path.read_text(encoding="utf-8") if path.exists() else None) != text
    ]


def write_or_check(texts: Texts) -> int:
    """The main function of a generator: write the stale files. With `--check`, list them and fail instead."""
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print(f"usage: {Path(sys.argv[0]).name} [--check]")
        return 2
    stale = find_stale(texts)
    for path in stale:
        if not check:
            if (text := texts[path]) is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'stale; run `make docs`' if check else 'written'}")
    return int(check and bool(stale))
