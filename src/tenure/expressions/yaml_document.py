"""The text of a YAML file as a tree of nodes with positions.

Laws:
1. The size of a file is limited before it is parsed: its bytes here, its depth and nodes in `yaml_parser`.
2. Every problem has a line, a column and a path, and all problems are reported together.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec

from tenure.errors import Detail, TenureError
from tenure.limits import PROBLEMS_MAX, WORKFLOW_BYTES_MAX
from tenure.suggestions import Suggestions

YamlPath = tuple[str | int, ...]


class TextPosition(msgspec.Struct, frozen=True, gc=False):
    """A position in a text, counted from 1."""

    line: int
    column: int


class YamlNode(msgspec.Struct):
    kind: Literal["scalar", "list", "map"]
    mark: TextPosition
    value: Any = None
    """For a scalar: a string, a number, a boolean or None."""
    text: str = ""
    """For a scalar: its text, without quotes."""
    items: list[YamlNode] = []
    entries: dict[str, tuple[TextPosition, YamlNode]] = {}
    """For a map: key -> the position of the key, and the value."""

    def plain(self) -> Any:
        if self.kind == "list":
            return [item.plain() for item in self.items]
        if self.kind == "map":
            return {key: node.plain() for key, (_, node) in self.entries.items()}
        return self.value

    def find(self, path: YamlPath) -> TextPosition:
        """The position of a path, or of the nearest existing node above it."""
        node, mark = self, self.mark
        for part in path:
            if isinstance(part, int) and node.kind == "list" and part < len(node.items):
                node = node.items[part]
                mark = node.mark
            elif isinstance(part, str) and part in node.entries:
                mark, node = node.entries[part]
            else:
                return mark
        return node.mark if node.kind == "scalar" else mark


class FileProblem(msgspec.Struct, frozen=True, order=True):
    line: int
    column: int
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


def format_path(path: YamlPath) -> str:
    """A path as people write it: `steps[2].retry.max`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


class FileProblems:
    def __init__(
        self,
        source: str,
        code: str = "WORKFLOW_INVALID",
        what: str = "workflow",
        needs: str = "a name and steps",
    ) -> None:
        self.source = source
        self.code = code
        self.what = what
        self.needs = needs
        self.root: YamlNode | None = None
        self.found: set[FileProblem] = set()
        self.guesses = Suggestions()
        """Suggestions for the first few problems."""
        self.close_to = self.guesses.close_to

    def add(self, path: YamlPath, text: str, mark: TextPosition | None = None) -> None:
        """Add a problem. Its position is that of the path unless `mark` is given."""
        mark = mark or (self.root.find(path) if self.root is not None else TextPosition(1, 1))
        self.found.add(FileProblem(mark.line, mark.column, format_path(path), text))

    def stop(self, path: YamlPath, text: str, mark: TextPosition | None = None) -> TenureError:
        """The error for a problem that makes further checks impossible."""
        self.add(path, text, mark)
        return self.error()

    def raise_any(self) -> None:
        """Raise an error if there are problems."""
        if self.found:
            raise self.error()

    def error(self) -> TenureError:
        """All problems, in the order of lines."""
        details = tuple(
            Detail(f"{self.source}:{p.line}:{p.column}", str(p)) for p in sorted(self.found)[:PROBLEMS_MAX]
        )
        lines = [f"{detail.path}: {detail.problem}" for detail in details]
        if len(self.found) > len(lines):
            lines.append(f"{self.source}: and {len(self.found) - len(lines)} more")
        return TenureError(self.code, "\n".join(lines), details, problems=len(self.found))


def read_yaml_text(path: str | os.PathLike[str], code: str) -> str:
    """The text of a YAML file, or an error with this code."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as fault:
        why = (fault.strerror if isinstance(fault, OSError) else "") or "it is not UTF-8 text"
        raise TenureError(code, f"{os.fspath(path)} cannot be read: {why}") from fault


def read_yaml(text: str, problems: FileProblems) -> YamlNode:
    """The tree of a file. A file that is not YAML is refused immediately."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as fault:
        raise problems.stop((), "the file is not Unicode text") from fault
    if size > WORKFLOW_BYTES_MAX:
        raise problems.stop((), f"the file has {size} bytes; at most {WORKFLOW_BYTES_MAX} are allowed")
    from tenure.expressions.yaml_parser import (
        parse_yaml,  # late: most workflows are code, and PyYAML is slow to load
    )

    root = parse_yaml(text, problems)
    if root is None:
        raise problems.stop((), f"the file is empty; a {problems.what} needs {problems.needs}")
    problems.root = root
    return root
