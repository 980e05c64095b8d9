"""Files and folders that are nobody else's, and the paths that commands of workflow files must not see.

Laws:
1. What Tenure writes is 0600, and the folders it makes are 0700, whatever the umask says. An existing database file keeps its mode.
   Any other file that Tenure writes or appends to becomes 0600.
2. `hide` names what a command must not see: databases, artifacts, keys and secrets register themselves where they are opened.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

FILE_MODE = 0o600
FOLDER_MODE = 0o700
DATABASE_FILES = ("", "-wal", "-shm", "-journal")
"""What SQLite puts beside a database."""
_SECRET_PLACES = frozenset({"TENURE_SECRETS", "TENURE_KEY_FILE", "TENURE_TLS_KEY"})
"""Variables that name a folder or a file with secrets."""

_hidden: dict[str, None] = {}


def hide(*paths: str | os.PathLike[str]) -> None:
    """Keep paths from commands that this process starts from now on."""
    for path in paths:
        _hidden[os.path.abspath(path)] = None


def hide_database(path: str | os.PathLike[str]) -> None:
    """Keep an SQLite database from commands."""
    hide(*(f"{os.fspath(path)}{suffix}" for suffix in DATABASE_FILES))


def hide_configured() -> None:
    """Keep from commands what this process's variables name: the folder of secrets, key files, and references to files."""
    for name, value in os.environ.items():
        if not name.startswith("TENURE_"):
            continue
        if name in _SECRET_PLACES:
            hide(value)
        elif value.startswith("file:/"):
            hide(value.removeprefix("file:"))


def hidden() -> list[str]:
    """The paths that commands must not see, whether they are there yet or not."""
    return list(_hidden)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder with all that is missing above it, 0700 each. One that exists stays as it is."""
    folder = Path(path)
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        try:
            each.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            continue  # somebody else made it meanwhile
        each.chmod(FOLDER_MODE)  # a umask may have taken more away than it should
    if not folder.is_dir():
        raise NotADirectoryError(20, "is not a folder", str(folder))
    return folder


def _opened(path: str | os.PathLike[str], flags: int) -> int:
    handle = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fchmod(handle, FILE_MODE)
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def create_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A new file to be written, 0600; FileExistsError where there is one."""
    with os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as opened:
        yield opened


@contextmanager
def append_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to be written at its end, 0600 from now on."""
    with os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as opened:
        yield opened


def write_file(path: str | os.PathLike[str], body: bytes | str) -> None:
    """Write a whole file, 0600 from now on. (Nobody may follow a name that others can change: see `replace_file`.)"""
    with os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as opened:
        opened.write(body.encode() if isinstance(body, str) else body)


@contextmanager
def replace_file(path: str | os.PathLike[str], *, mode: int = FILE_MODE) -> Iterator[IO[bytes]]:
    """Write a whole file and put it in place at once, as the last thing; on a failure nothing has changed."""
    target = Path(path)
    handle, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
            os.fchmod(opened.fileno(), mode)
        os.replace(made, target)
    except BaseException:
        os.unlink(made)
        raise


def keep_file(path: str | os.PathLike[str], body: bytes, *, replace: bool = False) -> bool:
    """Put a whole file in place at once, 0600, in folders that are 0700. False: there is one already, and it stays."""
    target = Path(path)
    make_folder(target.parent)
    handle, made = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(body)
        if replace:
            os.replace(made, target)
            return True
        os.link(made, target)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(made)
    return True


def make_database_file(path: str | os.PathLike[str]) -> None:
    """Make an SQLite file before SQLite does: it gives what it puts beside it the same mode. One that exists stays as it is."""
    try:
        os.close(_opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
