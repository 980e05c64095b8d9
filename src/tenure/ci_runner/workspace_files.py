"""The files of a workspace that globs name.

Laws:
1. Globs are those of a pipeline (`tenure.ci.globs`). Folders that no glob reaches are not read.
2. Links are followed only to files of the workspace. A glob that leads out of it is a WorkspaceProblem, and so are more files or bytes than
   the limits.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from tenure.ci.globs import find_glob_problem, matches_any, may_match_below
from tenure.ci_runner.job_storage import JobFile

FILES_MAX = 200_000
LINKS_MAX = 40


class WorkspaceProblem(Exception):
    """A glob cannot be used, or leads out of the workspace; the text says which."""


def check_globs(globs: Sequence[str]) -> Sequence[str]:
    """Globs that can be used, or a WorkspaceProblem."""
    for glob in globs:
        if problem := find_glob_problem(glob):
            raise WorkspaceProblem(f"{glob[:60]!r} {problem}")
    return globs


def find_files(root: Path, globs: Sequence[str], *, seen_as: str, bytes_max: int) -> list[JobFile]:
    """The files that match globs, sorted. `seen_as` is the path of the workspace in the sandbox, for absolute links. Nothing may change the
    workspace meanwhile."""
    check_globs(globs)
    found: list[JobFile] = []
    size = 0
    waiting = [("", tuple(globs))]
    while waiting:
        folder, reaching = waiting.pop()
        with os.scandir(root / folder) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            path = f"{folder}/{name}" if folder else name
            kind, local = os.lstat(root / path), root / path
            if stat.S_ISDIR(kind.st_mode):
                if below := tuple(glob for glob in reaching if may_match_below(glob, path)):
                    waiting.append((path, below))
                continue
            if not matches_any(reaching, path):
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
                raise WorkspaceProblem(f"the globs match more than {FILES_MAX} files or {bytes_max} bytes")
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
