"""Starts one command in its confinement. `confinement.Confinement` runs this file as a program of its own.

    python -I -S -c SOURCE PLAN HIDE... KEEP... ARGV...

Laws:
1. PLAN is JSON: `namespaces`, `uid` and `gid` (or null), `groups`, `hide` and `keep` (the numbers of HIDE and KEEP paths, which may be too
   long for one argument), `shared` (folders), `cwd`, `report` (a file descriptor) and `check`. The command's variables have the prefix
   `COMMAND_` here: under their own names they would change how the launcher is loaded (LD_PRELOAD).
2. With `namespaces` the command has its own process ids, /proc and mounts. It cannot gain privileges, and as root it has no
   capabilities.
3. A mount over a file disappears when another process replaces the file. So a path is hidden by its folder: the command sees a view
   of the folder that contains every entry except the hidden names. Files that are created there later are not in the view. The view is
   read-only; its entries can be written as before. Links on the way to the folder keep their targets. The command cannot rename or
   remove the folders above, because each is a mount. If another process replaces such a folder, the command sees the new one.
4. A folder that commands work in (`shared`) has no view. An empty file or folder covers each hidden path in it, and a path that was
   created or replaced meanwhile is reported on the command's stderr when the command ends.
5. The launcher ends like the command: with its exit code, or by its signal. SIGTERM and SIGINT reach only the command.
6. The files of the worker and of the next launcher (KEEP: real paths) are read-only for the command, with everything mounted below
   them. Neither these paths nor the folders above can be renamed or removed: each is a mount.
7. A failed setup is reported on `report` as `errno text`, and nothing is started. Without ARGV only the setup is tried. With `check`, a
   hidden path that is readable is a failure, and so is a kept path that can be written or replaced.
8. The launcher imports nothing of Tenure: it starts within milliseconds and has no secret in memory. Until the command starts, it
   executes nothing that a command could have written: its source is what the worker read at its start.
"""

import ctypes
import json
import os
import re
import signal
import stat
import sys
from contextlib import suppress
from typing import Any, NoReturn

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 24, 28, 38
_NO_ROOT_LOCKED = (
    0x3  # SECBIT_NOROOT and its lock: neither becoming root nor executing as root gives capabilities
)
_CAP_LAST = 63
_VIEW_ENTRIES_MAX = 2_000
"""A larger folder has no view: each entry is a mount."""
_LINKS_MAX = 40
_COMMANDS_OWN = "COMMAND_"
"""The prefix of the command's variables until it starts."""
_CAPABILITY_VERSION_3 = 0x20080522


class _Failed(Exception):
    """The setup failed."""


def _check_result(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(libc: Any, source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = None if kind is None else kind.encode()
    _check_result(
        libc.mount(os.fsencode(source), os.fsencode(target), encoded, flags, data.encode()), f"mount {target}"
    )


def _separate(libc: Any) -> None:
    """Enter new namespaces, with a user namespace if that is needed for the permission."""
    wanted = _NEWNS | _NEWPID | _NEWIPC
    if os.geteuid() == 0 and libc.unshare(wanted) == 0:
        return
    uid, gid = os.geteuid(), os.getegid()
    _check_result(libc.unshare(wanted | _NEWUSER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _places(path: str) -> list[tuple[str, str]]:
    """The places to hide for a path, as (folder, name): the path itself and, for a link, its target. If the folder does not exist: the
    first missing part. A link in the path of the folder is (folder, ""): its target is kept, and it is not hidden.
    """
    found: list[tuple[str, str]] = []
    at, links = "/", 0
    parts = os.path.abspath(path).split("/")[:0:-1]
    while parts:
        part = parts.pop()
        if part in ("", ".", ".."):
            at = os.path.dirname(at) if part == ".." else at
            continue
        full = os.path.join(at, part)
        if links < _LINKS_MAX and os.path.islink(full):
            links += 1
            found.append((at, "" if parts else part))
            target = os.readlink(full)
            at = "/" if target.startswith("/") else at
            parts += target.split("/")[::-1]
        elif not parts or not os.path.isdir(full):
            found.append((at, part))
            break
        else:
            at = full
    return found


def _seen(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _above(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


def _mounted_below(path: str) -> list[str]:
    """The mount points at a path and below it."""
    with open("/proc/self/mountinfo", "rb") as file:
        written = [line.split(b" ")[4] for line in file]
    points = {
        os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), each))
        for each in written
    }
    return sorted(each for each in points if each == path or each.startswith(f"{path}/"))


class _Mounts:
    def __init__(self, libc: Any, plan: dict[str, Any]) -> None:
        self._libc = libc
        self._kept: list[str] = []
        for path in sorted(plan["keep"]):
            if os.path.exists(path) and not any(path.startswith(f"{each}/") for each in self._kept):
                self._kept.append(path)
        self._shared = {os.path.realpath(each) for each in ("/", *plan["shared"])}
        self._hidden: dict[str, set[str]] = {}
        for path in plan["hide"]:
            for folder, name in _places(path):
                self._hidden.setdefault(folder, set()).update({name} - {""})
        self.covered: dict[str, tuple[int, int] | None] = {}
        """What the command sees at the hidden paths of shared folders."""
        try:
            self._cwd = os.getcwd()
        except FileNotFoundError:
            self._cwd = "/"
        self._cwd_handle = -1

    def lay(self) -> None:
        """Protect the kept paths, hide the hidden ones, and enter the working folder by its new view."""
        _mount(self._libc, "none", "/", None, _MS_REC | _MS_PRIVATE)
        self._lay_kept()  # before the views: a bind mount inherits the read-only flag of its source
        self._cwd_handle = os.open(self._cwd, os.O_PATH)
        for folder in sorted(
            self._hidden, key=lambda each: each.count("/")
        ):  # parents before their subfolders
            if not os.path.isdir(folder):
                continue  # its parent is hidden
            entries = self._entries(folder)
            if folder in self._shared or entries is None:
                self._cover(folder)
            else:
                self._lay_view(folder, entries)
        self.covered = {path: _seen(path) for path in self.covered}
        os.chdir(self._cwd)  # by path: from the old folder, `..` would lead past the mounts
        os.close(self._cwd_handle)
        _mount(self._libc, "proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)

    def _lay_kept(self) -> None:
        """Law 6, and the folders above hidden paths (law 3)."""
        held = {each for path in self._kept for each in _above(path)}
        for folder in self._hidden:
            held.update(each for each in (*_above(folder), folder) if each != "/" and os.path.isdir(each))
        for folder in sorted(held, key=lambda each: each.count("/")):
            self._bind(folder, folder)
        for path in self._kept:
            self._bind(path, path)
            for each in _mounted_below(path):
                self._make_read_only(each)

    def _make_read_only(self, path: str) -> None:
        try:
            flags = os.statvfs(path).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        except (FileNotFoundError, PermissionError):
            return  # covered by another mount, or unreachable
        # In a user namespace these flags are locked and must be repeated.
        _mount(self._libc, "none", path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)

    def exposed(self) -> list[str]:
        """Hidden paths of shared folders that were created or replaced meanwhile."""
        return [path for path, seen in self.covered.items() if _seen(path) not in (None, seen)]

    def _entries(self, folder: str) -> list[str] | None:
        try:
            entries = os.listdir(folder)
        except PermissionError:
            return None
        return entries if len(entries) <= _VIEW_ENTRIES_MAX else None

    def _empty(self, folder: str) -> None:
        """Mount an empty writable folder over a folder, with the same permissions."""
        was = os.stat(folder)
        _mount(self._libc, "tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0555,size=1m")
        try:
            os.chown(folder, was.st_uid, was.st_gid)
            os.chmod(folder, was.st_mode & 0o7777)
        except OSError:  # its owner has no id in this namespace
            os.chmod(folder, 0o555)

    def _close(self, folder: str) -> None:
        flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
        _mount(self._libc, "none", folder, None, flags)

    def _bind(self, source: str, target: str) -> None:
        _mount(self._libc, source, target, None, _MS_BIND | _MS_REC)

    def _lay_view(self, folder: str, entries: list[str]) -> None:
        behind = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self._empty(folder)
            for name in entries:
                if name not in self._hidden[folder]:
                    self._put(f"/proc/self/fd/{behind}/{name}", os.path.join(folder, name))
            self._keep_way(folder)
            self._close(folder)
        finally:
            os.close(behind)

    def _put(self, source: str, target: str) -> None:
        """Put an entry of a folder into its view, unless the entry is gone."""
        with suppress(FileNotFoundError):
            if os.path.islink(source):
                os.symlink(os.readlink(source), target)
                return
            if os.path.isdir(source):
                os.mkdir(target)
            else:
                os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o400))
            self._bind(source, target)

    def _keep_way(self, folder: str) -> None:
        """Keep the working folder reachable if a folder above it is hidden."""
        if self._cwd.startswith(f"{folder}/") and not os.path.isdir(self._cwd):
            os.makedirs(self._cwd)
            if not any(
                os.path.join(where, name) == self._cwd
                for where in self._hidden
                for name in self._hidden[where]
            ):
                self._bind(f"/proc/self/fd/{self._cwd_handle}", self._cwd)

    def _cover(self, folder: str) -> None:
        for name in self._hidden[folder]:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                pass  # its target is hidden separately
            elif os.path.isdir(path):
                self._empty(path)
                self._keep_way(path)
                self._close(path)
            elif os.path.exists(path):
                _mount(self._libc, "/dev/null", path, None, _MS_BIND)
            self.covered[path] = None


def _drop(libc: Any, plan: dict[str, Any]) -> None:
    """Change to the named user, and drop all privileges permanently."""
    if plan["uid"] is None and os.geteuid() == 0 and plan["namespaces"]:
        for capability in range(_CAP_LAST + 1):
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                break
        _check_result(libc.prctl(_PR_SET_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0), "securebits")
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        _check_result(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    if plan["uid"] is not None:
        os.setgroups(plan["groups"])
        os.setresgid(plan["gid"], plan["gid"], plan["gid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    if sys.platform == "linux":
        _check_result(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def _can_change(path: str, *, above: bool = False) -> bool:
    """Whether this user can write to a path or, with `above`, replace the entries of a folder."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    held = above and found.st_mode & stat.S_ISVTX  # sticky: only owners rename entries
    return found.st_uid == os.getuid() or (os.access(path, os.W_OK) and not held)


def _check(hidden: list[str], kept: list[str]) -> None:
    for path in hidden:
        if os.access(path, os.R_OK):
            raise _Failed(
                f"user {os.getuid()} can read {path}: make its mode 0600, or the mode of its folder 0700"
            )
    for path in kept:
        for each in (path, *_above(path), "/"):
            if _can_change(each, above=each != path):
                raise _Failed(
                    f"user {os.getuid()} can change {each}, which contains the worker's Python or Tenure: make root its owner with mode 0755,"
                    " or run commands as another user (--command-user)"
                )


def _follow(pid: int) -> int:
    """Wait for a process, reap orphans meanwhile, and return the raw status of the process."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return status


def _end_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 125)


def _start(argv: list[str], report: int) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.set_inheritable(report, False)
    try:
        prefix = len(_COMMANDS_OWN)
        env = {name[prefix:]: value for name, value in os.environ.items() if name.startswith(_COMMANDS_OWN)}
        os.execvpe(argv[0], argv, env)
    except OSError as fault:
        _report_failure(report, fault)


def _report_failure(report: int, fault: Exception) -> NoReturn:
    number = fault.errno if isinstance(fault, OSError) else 0
    text = (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
    os.write(report, os.fsencode(f"{number or 0} {text}")[:1000])
    os._exit(126)


def _warn(path: str) -> None:
    warning = (
        f"tenure: {path} was created or replaced while this command ran, in a folder that cannot be protected. The command could"
        " read it. Keep it in a folder of its own, and change the secret.\n"
    )
    with suppress(OSError):
        os.write(2, os.fsencode(warning))


def _in_namespaces(libc: Any, plan: dict[str, Any], argv: list[str]) -> NoReturn:
    """Three processes: this one outside, the first one of the namespace, and the command."""
    report: int = plan["report"]
    _separate(libc)
    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            os.close(reading)
            mounts = _Mounts(libc, plan)
            mounts.lay()
            _drop(libc, plan)
            if not argv:
                os._exit(0)
            command = os.fork()
            if command == 0:
                os.close(writing)
                _start(argv, report)
            os.close(report)
            status = _follow(command)
            for path in mounts.exposed():
                _warn(path)
            os.write(writing, str(status).encode())
        except Exception as fault:
            _report_failure(report, fault)
        os._exit(0)
    os.close(writing)
    os.close(report)
    reported = os.read(reading, 100)
    status = _follow(first)
    _end_as(int(reported) if reported else status)


def main() -> NoReturn:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    argv, report = sys.argv[2:], int(plan["report"])
    for name in ("hide", "keep"):
        count = int(plan[name])
        plan[name], argv = argv[:count], argv[count:]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        if plan["cwd"] is not None:
            os.chdir(plan["cwd"])  # before the change of user: the new user may not be able to reach it
        libc = ctypes.CDLL(None, use_errno=True)
        if plan["namespaces"]:
            _in_namespaces(libc, plan, argv)
        _drop(libc, plan)
        if plan["check"]:
            _check(plan["hide"], plan["keep"])
        if not argv:
            os._exit(0)
        _start(argv, report)
    except Exception as fault:
        _report_failure(report, fault)


if __name__ == "__main__":
    main()
