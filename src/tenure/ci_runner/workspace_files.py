"""The files of a workspace that globs name.

Laws:
1. `*` and `?` match inside one name, `**` matches any number of folders. A pattern without these names a file, or a folder with everything in it.
2. Matching costs time in proportion to names and patterns, whatever they contain.
3. Links are followed only to files of the workspace. A pattern that leads out of it is a WorkspaceProblem, and so are more files or bytes than
   the limits.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from tenure.ci_runner.job_storage import JobFile

FILES_MAX = 200_000
PATTERN_CHARS_MAX = 500
LINKS_MAX = 40
_ANY_FOLDERS = "**"

_State = tuple[int, int]
"""The number of a pattern, and how many of its parts have matched."""


class WorkspaceProblem(Exception):
    """A pattern cannot be used, or leads out of the workspace; the text says which."""


class GlobSet:
    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [parts for pattern in patterns for parts in _split(pattern)]

    def start(self) -> frozenset[_State]:
        return self._close({(number, 0) for number in range(len(self._patterns))})

    def step(self, states: Iterable[_State], name: str) -> frozenset[_State]:
        after: set[_State] = set()
        for number, at in states:
            parts = self._patterns[number]
            if at == len(parts):
                continue
            if parts[at] == _ANY_FOLDERS:
                after.add((number, at))
            elif match_name(parts[at], name):
                after.add((number, at + 1))
        return self._close(after)

    def _close(self, states: set[_State]) -> frozenset[_State]:
        """With the states in which `**` has matched nothing."""
        waiting = list(states)
        while waiting:
            number, at = waiting.pop()
            parts = self._patterns[number]
            if at < len(parts) and parts[at] == _ANY_FOLDERS and (number, at + 1) not in states:
                states.add((number, at + 1))
                waiting.append((number, at + 1))
        return frozenset(states)

    def accepts(self, states: Iterable[_State]) -> bool:
        return any(at == len(self._patterns[number]) for number, at in states)

    def match(self, path: str) -> bool:
        states = self.start()
        for name in path.split("/"):
            states = self.step(states, name)
        return self.accepts(states)


def _split(pattern: str) -> list[list[str]]:
    if not pattern or len(pattern) > PATTERN_CHARS_MAX or "\0" in pattern:
        raise WorkspaceProblem(f"{pattern[:60]!r} is not a pattern of 1 to {PATTERN_CHARS_MAX} characters")
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts:
        raise WorkspaceProblem(f"{pattern!r} leads out of the workspace: write a path inside of it")
    below = [*parts, _ANY_FOLDERS]
    if not parts or pattern.endswith("/"):
        return [below]
    return [parts] if "*" in pattern or "?" in pattern else [parts, below]


def match_name(pattern: str, name: str) -> bool:
    """Whether a name matches `*` and `?`. Only the last `*` is tried again, which is enough."""
    at, where, star, kept = 0, 0, -1, 0
    while where < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, kept = at, where
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", name[where]):
            at += 1
            where += 1
        elif star >= 0:
            kept += 1
            at, where = star + 1, kept
        else:
            return False
    return all(char == "*" for char in pattern[at:])


def find_files(root: Path, patterns: Sequence[str], *, seen_as: str, bytes_max: int) -> list[JobFile]:
    """The files that patterns name, sorted. `seen_as` is the path of the workspace in the sandbox, for absolute links. Nothing may change the
    workspace meanwhile."""
    globs = GlobSet(patterns)
    found: list[JobFile] = []
    size = 0
    waiting = [("", globs.start())]
    while waiting:
        folder, states = waiting.pop()
        with os.scandir(root / folder) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            path = f"{folder}/{name}" if folder else name
            after = globs.step(states, name)
            if not after:
                continue
            kind, local = os.lstat(root / path), root / path
            if stat.S_ISDIR(kind.st_mode):
                waiting.append((path, after))
                continue
            if not globs.accepts(after):
                continue
            if stat.S_ISLNK(kind.st_mode):
                target = resolve_inside(root, path, seen_as)
                if target is None:
                    raise WorkspaceProblem(f"{path!r} is a link that leads out of the workspace")
                local = root / target
                if not local.is_file():
                    continue
                kind = os.lstat(local)
            if not stat.S_ISREG(kind.st_mode):
                continue
            size += kind.st_size
            if len(found) >= FILES_MAX or size > bytes_max:
                raise WorkspaceProblem(f"the patterns match more than {FILES_MAX} files or {bytes_max} bytes")
            found.append(JobFile(path, local, kind.st_size, stat.S_IMODE(kind.st_mode)))
    return sorted(found, key=lambda file: file.path)


def resolve_inside(root: Path, path: str, seen_as: str) -> str | None:
    """A path with all links followed, relative to the workspace. None: it leads out. A path that does not exist is inside as far as it goes."""
    done: list[str] = []
    waiting = path.split("/")[::-1]
    links = 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not done:
                return None
            done.pop()
            continue
        done.append(part)
        try:
            target = os.readlink(root.joinpath(*done))
        except OSError:  # not a link, or not there
            continue
        links += 1
        if links > LINKS_MAX:
            return None
        done.pop()
        if target.startswith("/"):
            if f"{target}/".startswith(f"{seen_as}/"):
                target, done = target[len(seen_as) :], []
            else:
                return None
        waiting += target.split("/")[::-1]
    return "/".join(done)
