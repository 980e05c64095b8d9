"""Archives of artifacts and caches: tar, compressed with gzip.

Laws:
1. The same files give the same bytes: names are sorted, and owners and times are left out. So digests of outputs can be compared.
2. An archive holds regular files, folders, and links that stay below its root. Anything else in a folder is left out.
3. Unpacking trusts nothing. Every folder on the way to a file is opened without following links, so nothing is written outside of the target
   folder, whatever the archive says. Absolute paths, `..`, links that lead out, hard links, devices, and too many or too large files
   are refused.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from tenure.ci_runner.job_storage import JobFile
from tenure.errors import TenureError

LEVEL = 1
"""The compression level: the fastest. Jobs wait for it."""
ENTRIES_MAX = 1_000_000
UNPACKED_BYTES_MAX = 20 << 30
DEPTH_MAX = 100
_COPY_BYTES = 1 << 20


class ArchiveEntry(NamedTuple):
    """A file, folder or link that goes into an archive."""

    path: str
    local: Path
    mode: int
    size: int = 0
    target: str | None = None
    """Of a link."""
    is_folder: bool = False


def entries_of_files(files: Sequence[JobFile]) -> list[ArchiveEntry]:
    """The entries of an artifact."""
    for file in files:
        _split(file.path)
    return [ArchiveEntry(file.path, file.local, file.mode & 0o777, file.size) for file in files]


def entries_below(paths: Sequence[Path], root: Path) -> list[ArchiveEntry]:
    """Everything at or below some paths, named relative to `root`. Missing paths and links that lead out of `root` are left out."""
    found: dict[str, ArchiveEntry] = {}
    for path in paths:
        name = os.path.relpath(os.path.normpath(root / path), os.path.normpath(root))
        if name.startswith(".."):
            raise TenureError("INVALID_INPUT", f"cache path {str(path)!r} is outside of the workspace")
        for entry in _walk(root / name, "" if name == "." else name):
            found[entry.path] = entry
    return list(found.values())


def _walk(local: Path, name: str) -> Iterator[ArchiveEntry]:
    waiting = [(local, name)]
    while waiting:
        path, inner = waiting.pop()
        try:
            info = path.lstat()
        except OSError:
            continue
        mode = stat.S_IMODE(info.st_mode) & 0o777
        if stat.S_ISLNK(info.st_mode):
            target = os.readlink(path)
            if _stays_within(inner, target):
                yield ArchiveEntry(inner, path, 0o777, target=target)
        elif stat.S_ISDIR(info.st_mode):
            if inner:
                yield ArchiveEntry(inner, path, mode, is_folder=True)
            with suppress(OSError):
                waiting += [(path / each, f"{inner}/{each}" if inner else each) for each in os.listdir(path)]
        elif stat.S_ISREG(info.st_mode):
            yield ArchiveEntry(inner, path, mode, info.st_size)


def write_archive(entries: Sequence[ArchiveEntry], into: IO[bytes]) -> None:
    """Write an archive (law 1). INVALID_INPUT if there are too many entries, or a file changes meanwhile."""
    if len(entries) > ENTRIES_MAX:
        raise TenureError("LIMIT_EXCEEDED", f"an archive has at most {ENTRIES_MAX} files")
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=into, mtime=0) as packed,
        tarfile.open(mode="w|", fileobj=packed, format=tarfile.PAX_FORMAT, bufsize=_COPY_BYTES) as archive,
    ):
        for entry in sorted(entries, key=lambda one: one.path):
            info = tarfile.TarInfo(entry.path)
            info.mode = entry.mode
            if entry.target is not None:
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
                archive.addfile(info)
            elif entry.is_folder:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                _add_file(archive, info, entry)


def _add_file(archive: tarfile.TarFile, info: tarfile.TarInfo, entry: ArchiveEntry) -> None:
    try:
        handle = os.open(entry.local, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as fault:
        raise TenureError("INVALID_INPUT", f"{entry.path!r} cannot be read: {fault.strerror}") from fault
    with os.fdopen(handle, "rb") as opened:
        now = os.fstat(opened.fileno())
        if not stat.S_ISREG(now.st_mode):
            raise TenureError("INVALID_INPUT", f"{entry.path!r} is not a regular file")
        info.size = now.st_size
        try:
            archive.addfile(info, opened)
        except OSError as fault:
            raise TenureError("INVALID_INPUT", f"{entry.path!r} changed while it was read") from fault


# ---------------------------------------------------------------------------------------------- unpacking


def unpack_archive(source: IO[bytes], into: Path) -> None:
    """Unpack an archive into a folder, which is made if it is missing (law 3)."""
    into.mkdir(parents=True, exist_ok=True)
    root = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with tarfile.open(mode="r|gz", fileobj=source, bufsize=_COPY_BYTES) as archive:
            left, count = UNPACKED_BYTES_MAX, 0
            for info in archive:
                left, count = left - info.size, count + 1
                if left < 0 or count > ENTRIES_MAX:
                    raise _refused(f"it has more than {UNPACKED_BYTES_MAX} bytes or {ENTRIES_MAX} files")
                _unpack(archive, info, root)
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, UnicodeError) as wrong:
        raise _refused(str(wrong)) from wrong
    except OSError as fault:
        raise TenureError("STEP_FAILED", f"the archive cannot be unpacked: {fault}") from fault
    finally:
        os.close(root)


def _refused(problem: str) -> TenureError:
    return TenureError("INVALID_INPUT", f"the archive is refused: {problem}")


def _split(name: str) -> list[str]:
    """The parts of a path in an archive."""
    parts = name.rstrip("/").split("/")
    if not name or name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise _refused(f"the path {name[:200]!r} is not relative, or has an empty part, `.` or `..`")
    if len(parts) > DEPTH_MAX:
        raise _refused(f"the path {name[:200]!r} has more than {DEPTH_MAX} parts")
    return parts


def _stays_within(name: str, target: str) -> bool:
    """Whether a link at a path of the archive points below the archive's root."""
    if not target or target.startswith("/") or "\0" in target:
        return False
    depth = name.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return False
    return True


def _unpack(archive: tarfile.TarFile, info: tarfile.TarInfo, root: int) -> None:
    if info.name in (".", "./") and info.isdir():
        return
    *folders, name = _split(info.name.removeprefix("./"))
    with _open_folder(root, folders) as folder:
        if info.isdir():
            _make_folder(folder, name, info.mode)
        elif info.issym():
            if not _stays_within("/".join([*folders, name]), info.linkname):
                raise _refused(f"the link {info.name[:200]!r} leads out of it")
            _remove(folder, name)
            os.symlink(info.linkname, name, dir_fd=folder)
        elif info.isreg():
            _remove(folder, name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as opened:
                body = archive.extractfile(info)
                assert body is not None, "a regular file has a body"
                while piece := body.read(_COPY_BYTES):
                    opened.write(piece)
                os.fchmod(opened.fileno(), info.mode & 0o777)
        else:
            raise _refused(f"{info.name[:200]!r} is neither a file, a folder nor a symbolic link")


@contextmanager
def _open_folder(root: int, parts: Sequence[str]) -> Iterator[int]:
    """A folder below the root; missing ones are made. No link is followed."""
    at = os.dup(root)
    try:
        for part in parts:
            _make_folder(at, part, 0o755)
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            except OSError as fault:
                raise _refused(f"{'/'.join(parts)[:200]!r} is below a link or a file") from fault
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


def _make_folder(at: int, name: str, mode: int) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, (mode & 0o777) | 0o700, dir_fd=at)


def _remove(folder: int, name: str) -> None:
    """Remove what is at a path, so that it is replaced and not written through."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except IsADirectoryError as fault:
        raise _refused(f"{name[:200]!r} is a folder here") from fault
