"""The imports of Python files: parsed, never executed.

Laws:
1. A file is parsed with `ast` as data. A file that cannot be parsed has unknown imports (None), and its project counts as reached by every change.
2. Imports depend on the file's content only, so they are kept by the id of its blob.
3. A file belongs to the import root above its topmost package (a folder with `__init__.py`). It can also be imported by its path below its project,
   or below the project's folder `src`.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator

from tenure.limits import CI_PYTHON_FILE_BYTES_MAX

PACKAGING_FILES = frozenset({"pyproject.toml", "setup.py", "setup.cfg"})
IMPORTS_MAX = 2_000
"""Imports of one file that are kept."""

Imports = tuple[str, ...]
"""Dotted names. A name with leading dots is relative to the file's package."""


def read_imports(content: bytes) -> Imports | None:
    """The names that a file imports, or None if it cannot be parsed."""
    if len(content) > CI_PYTHON_FILE_BYTES_MAX:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the file are not our business
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            separator = "" if base.endswith(".") or not base else "."
            for alias in node.names:
                names[base if alias.name == "*" else f"{base}{separator}{alias.name}"] = None
        if len(names) > IMPORTS_MAX:
            return None
    return tuple(names)


def find_package_folders(paths: Iterable[str]) -> set[str]:
    """The folders with an `__init__.py`."""
    return {path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] == "__init__.py"}


def find_top_packages(packages: set[str]) -> set[str]:
    """The packages that are not inside another package."""
    return {folder for folder in packages if folder and folder.rpartition("/")[0] not in packages}


def find_distributions(paths: Iterable[str]) -> set[str]:
    """The folders that are packaged on their own."""
    return {path.rpartition("/")[0] or "." for path in paths if path.rpartition("/")[2] in PACKAGING_FILES}


def module_names(path: str, project: str, packages: set[str]) -> Iterator[str]:
    """The dotted names under which a file can be imported."""
    stem = path.removesuffix(".py").removesuffix("/__init__")
    root = path.rpartition("/")[0]
    while root in packages and root:
        root = root.rpartition("/")[0]
    roots = {root, "" if project == "." else project, "src" if project == "." else f"{project}/src"}
    for one in roots:
        prefix = f"{one}/" if one else ""
        if stem.startswith(prefix) and len(stem) > len(prefix):
            yield stem[len(prefix) :].replace("/", ".")


def resolve_relative(name: str, path: str, packages: set[str]) -> str:
    """The absolute name of a relative import in a file; empty if it leaves its root."""
    level = len(name) - len(name.lstrip("."))
    folder = path.rpartition("/")[0]
    for _ in range(level - 1):
        folder = folder.rpartition("/")[0]
    root = folder
    while root in packages and root:
        root = root.rpartition("/")[0]
    package = folder[len(root) :].strip("/").replace("/", ".")
    return ".".join(part for part in (package, name[level:]) if part)
