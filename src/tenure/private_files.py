"""Files and folders that only their owner can read, and the paths that commands of workflow files must not see.

Laws:
1. Files that Tenure writes have mode 0600 and its folders 0700, whatever the umask is. An existing database file keeps its mode.
   Any other file that Tenure writes or appends to becomes 0600.
2. `hide` registers what a command must not see. Databases, artifacts, keys and secrets are registered when they are opened.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

FILE_MODE = 0o600
FOLDER_MODE = 0o700
DATABASE_FILES = ("", "-wal", "-shm", "-journal")
"""The suffixes of the files of an SQLite database."""
_SECRET_PLACES = frozenset({"TENURE_SECRETS", "TENURE_KEY_FILE", "TENURE_TLS_KEY"})
"""Variables that name a folder or a file with secrets."""

_hidden: dict[str, None] = {}


def hide(*paths: str | os.PathLike[str]) -> None:
    """Hide paths from the commands that this process starts from now on."""
    for path in paths:
        _hidden[os.path.abspath(path)] = None


def hide_database(path: str | os.PathLike[str]) -> None:
    hide(*(f"{os.fspath(path)}{suffix}" for suffix in DATABASE_FILES))


def hide_configured() -> None:
    """Hide the paths in this process's environment: the folder of secrets, key files, and references to files."""
    for name, value in os.environ.items():
        if name in _SECRET_PLACES:
            hide(value)
        elif name.startswith("TENURE_") and value.startswith("file:/"):
            hide(value.removeprefix("file:"))


def hidden() -> list[str]:
    """The paths that commands must not see, whether or not they exist."""
    return list(_hidden)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder and its missing parents, with mode 0700. An existing folder keeps its mode."""
    folder = Path(path)
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        try:
            each.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            continue  # another process has made it
        each.chmod(FOLDER_MODE)  # the umask may have removed bits
    if not folder.is_dir():
        raise NotADirectoryError(20, "is not a folder", str(folder))
    return folder


def _open_private(path: str | os.PathLike[str], flags: int) -> int:
    handle = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fchmod(handle, FILE_MODE)
    except BaseException:
        os.close(handle)
        raise
    return handle


def create_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a new file for writing; FileExistsError if it exists."""
    return os.fdopen(_open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def append_file(path: str | os.PathLike[str]) -> IO[bytes]:
    return os.fdopen(_open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


@contextmanager
def lock_file(path: str | os.PathLike[str]) -> Iterator[int]:
    """Hold the lock of a file, and make the file if it does not exist. Yields its handle, for reading and writing."""
    handle = _open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def write_file(path: str | os.PathLike[str], body: bytes | str) -> None:
    """Write a whole file. Use `replace_file` for a path that other users could replace by a link."""
    with os.fdopen(_open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as opened:
        opened.write(body.encode() if isinstance(body, str) else body)


@contextmanager
def replace_file(path: str | os.PathLike[str], *, mode: int = FILE_MODE) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name and rename it at the end. After a failure the old file is unchanged."""
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
    """Write a file atomically, and make its folders. False: the file exists and was not changed."""
    target = Path(path)
    make_folder(target.parent)
    handle, made = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(body)
        (os.replace if replace else os.link)(made, target)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(made)
    return True


def make_database_file(path: str | os.PathLike[str]) -> None:
    """Make an SQLite file before SQLite does: SQLite gives its other files the same mode. An existing file keeps its mode."""
    with suppress(FileExistsError):
        os.close(_open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
