"""Globs of paths: `paths`, `inputs`, artifacts and reports of a pipeline, and the refs that settings list.

Laws:
1. `*` matches within a folder, `**` any number of folders, `?` one character. A glob without any of these names a file, or a folder with
   everything in it. Nothing else is special; what other tools give a meaning (`{`, `}`, `[`, `]`, a leading `!`) is refused.
2. A glob is relative and never leaves the workspace: no `..`, no leading `/`, no backslash.
3. Matching takes linear time for any glob and any path: every `*` but the last one of a folder, and every `**` but the last one, takes
   the first match and never goes back, which loses no match.
4. Many globs over many files read only the files that begin with the literal beginning of a glob (`PathIndex`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache

GLOB_CHARS_MAX = 500
_SPECIAL = frozenset("*?")
_REFUSED = frozenset("[]{}")


def find_path_problem(path: str) -> str:
    """Why a text is not a relative path inside the workspace; empty if it is one."""
    if not path or len(path) > GLOB_CHARS_MAX or not path.isprintable():
        return f"must have 1 to {GLOB_CHARS_MAX} printable characters"
    if path.startswith(("/", "~")):
        return "must be relative to the top folder of the repository"
    if "\\" in path:
        return "must separate folders with /"
    parts = path.split("/")
    if ".." in parts:
        return "must not contain '..': it would leave the workspace"
    if ".git" in (part.lower() for part in parts):
        return "must not name .git"
    if path != "." and ("." in parts or "" in parts[:-1]):
        return "must not contain '.' or empty names between slashes"
    return ""


def find_glob_problem(glob: str) -> str:
    """Why a text is not a glob; empty if it is one."""
    if problem := find_path_problem(glob):
        return problem
    if glob.startswith("!"):
        return "must not begin with '!': use paths_ignore, or name what you want"
    if found := _REFUSED.intersection(glob):
        return f"must not contain {min(found)!r}: write one glob for each alternative, or ? for one character"
    if any("**" in part and part != "**" for part in glob.split("/")):
        return "must have ** alone between slashes: src/**/*.py"
    return ""


def literal_prefix(glob: str) -> str:
    """The text that every match begins with."""
    if glob == ".":
        return ""
    ends = [at for sign in _SPECIAL if (at := glob.find(sign)) >= 0]
    return glob[: min(ends)] if ends else glob.rstrip("/")


@lru_cache(maxsize=4096)
def compile_glob(glob: str) -> re.Pattern[str]:
    """The regular expression of a checked glob, for `fullmatch`."""
    if glob == ".":
        return re.compile(r".*", re.DOTALL)
    if not _SPECIAL.intersection(glob):
        return re.compile(rf"{re.escape(glob.rstrip('/'))}(?:/.*)?", re.DOTALL)
    parts = (glob + "**" if glob.endswith("/") else glob).split("/")
    groups: list[list[str]] = [[]]
    for part in parts:
        if part == "**":
            if len(groups) == 1 or groups[-1]:
                groups.append([])
        else:
            groups[-1].append(part)
    first, *rest = ("/".join(map(_compile_part, group)) for group in groups)
    if not rest:
        return re.compile(first, re.DOTALL)
    made = f"{first}/" if first else ""
    for group in rest[:-1]:
        made += rf"(?>(?:[^/]+/)*?{group}/)"
    made += rf"(?:[^/]+/)*{rest[-1]}" if rest[-1] else r".+"
    return re.compile(made, re.DOTALL)


def _compile_part(part: str) -> str:
    """The regular expression of one folder or file name."""
    pieces = [re.escape(piece).replace(r"\?", "[^/]") for piece in re.split(r"\*+", part)]
    if len(pieces) == 1:
        return pieces[0]
    inner = "".join(rf"(?>[^/]*?{piece})" for piece in pieces[1:-1] if piece)
    return rf"{pieces[0]}{inner}[^/]*{pieces[-1]}(?![^/])"


def matches_any(globs: Iterable[str], path: str) -> bool:
    return any(compile_glob(glob).fullmatch(path) for glob in globs)


def may_match_below(glob: str, folder: str) -> bool:
    """Whether a path in a folder, however deep, may match a glob: false if all of the folder can be left out."""
    if glob == ".":
        return True
    parts, names = glob.rstrip("/").split("/"), folder.split("/")
    for part, name in zip(parts, names, strict=False):
        if part == "**":
            return True
        if not _compile_name(part).fullmatch(name):
            return False
    return len(parts) > len(names) or glob.endswith("/") or not _SPECIAL.intersection(glob)


@lru_cache(maxsize=4096)
def _compile_name(part: str) -> re.Pattern[str]:
    return re.compile(_compile_part(part), re.DOTALL)


def matches_branch(globs: Iterable[str], branch: str) -> bool:
    """Whether a branch is listed. A branch without wildcards is only itself: `release` does not cover `release/1`."""
    return any(
        compile_glob(glob).fullmatch(branch) if _SPECIAL.intersection(glob) else glob == branch
        for glob in globs
    )


class PathIndex:
    """Sorted paths, and the matches of globs among them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = sorted(paths)
        self._known: dict[str, list[int]] = {}

    def find(self, glob: str) -> list[int]:
        """The positions of the paths that match, in order."""
        found = self._known.get(glob)
        if found is None:
            found = self._known[glob] = self._find(glob)
        return found

    def _find(self, glob: str) -> list[int]:
        prefix = literal_prefix(glob)
        matches = compile_glob(glob).fullmatch
        at, paths, found = bisect_left(self.paths, prefix), self.paths, []
        while at < len(paths) and paths[at].startswith(prefix):
            if matches(paths[at]):
                found.append(at)
            at += 1
        return found

    def find_all(self, globs: Sequence[str]) -> list[int]:
        """The positions of the paths that match at least one glob, in order."""
        if len(globs) == 1:
            return self.find(globs[0])
        return sorted({at for glob in globs for at in self.find(glob)})
