"""Named queries from .sql files: `-- name: lock_runs` starts one, the comment lines after it say why."""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^--\s*name:\s*(\w+)\s*$")


def named_queries(package: str, file: str = "queries.sql") -> dict[str, str]:
    """The queries of a package's file by name; comments are left out of the text that is sent."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in files(package).joinpath(file).read_text(encoding="utf-8").splitlines():
        if match := _NAME.match(line):
            if match[1] in found:
                raise ValueError(f"{package}/{file}: two queries named {match[1]}")
            lines = found[match[1]] = []
        elif lines is not None and not line.lstrip().startswith("--"):
            lines.append(line)
    return {name: "\n".join(text).strip() for name, text in found.items()}


def migrations(package: str) -> list[tuple[int, str, str]]:
    """The numbered migrations of a package, in order: (number, name, text)."""
    folder = files(package).joinpath("migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    out = []
    for position, name in enumerate(names, start=1):
        number = int(name.split("_", 1)[0])
        if number != position:
            raise ValueError(f"{package}: migration {name} should have number {position:04d}")
        out.append((number, name, folder.joinpath(name).read_text(encoding="utf-8")))
    return out
