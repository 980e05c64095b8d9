"""Starts one command where it cannot see its worker: a program of its own, run by `confinement.Confinement`.

    python -I -S command_launcher.py PLAN ARGV...

Laws:
1. PLAN is JSON: `namespaces`, `uid` and `gid` (or null), `groups`, `hide` (paths), `cwd`, `report` (a file descriptor) and `check`.
2. With `namespaces` the command has its own process ids, its own /proc and its own mounts, in which an empty folder or file lies over
   each hidden path. It gains no privileges, and as root it has no capabilities.
3. It ends as the command ends: with its exit code, or by its signal. SIGTERM and SIGINT are for the command alone.
4. What cannot be set up is told on `report` as `errno text`, and nothing is started. Without ARGV only the setting up is tried; with
   `check` a hidden path that can still be read is a failure.
5. It imports nothing of Tenure: it starts in a few milliseconds, and has no secret in its memory.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any, NoReturn

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 24, 28, 38
_NO_ROOT_LOCKED = (
    0x3  # SECBIT_NOROOT and its lock: becoming root, or executing as root, gives no capabilities
)
_CAP_LAST = 63
_CAPABILITY_VERSION_3 = 0x20080522


class _Failed(Exception):
    """Something could not be set up."""


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _called(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(libc: Any, source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = None if kind is None else kind.encode()
    _called(
        libc.mount(source.encode(), os.fsencode(target), encoded, flags, data.encode()), f"mount {target}"
    )


def _separate(libc: Any) -> None:
    """Namespaces of its own; with a user namespace where that is what gives the right to have them."""
    wanted = _NEWNS | _NEWPID | _NEWIPC
    if os.geteuid() == 0 and libc.unshare(wanted) == 0:
        return
    uid, gid = os.geteuid(), os.getegid()
    _called(libc.unshare(wanted | _NEWUSER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _hide(libc: Any, paths: list[str]) -> None:
    """Mounts of its own, with nothing to be seen at these paths."""
    _mount(libc, "none", "/", None, _MS_REC | _MS_PRIVATE)
    for path in paths:
        where = os.path.realpath(path)
        if os.path.isdir(where):
            _mount(libc, "tmpfs", where, "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "mode=0555,size=4k")
        elif os.path.exists(where):
            _mount(libc, "/dev/null", where, None, _MS_BIND)
    _mount(libc, "proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _drop(libc: Any, plan: dict[str, Any]) -> None:
    """Another user, if one is named, and in any case no privileges and no way to gain some."""
    if plan["uid"] is None and os.geteuid() == 0 and plan["namespaces"]:
        for capability in range(_CAP_LAST + 1):
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                break
        _called(libc.prctl(_PR_SET_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0), "securebits")
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        _called(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    if plan["uid"] is not None:
        os.setgroups(plan["groups"])
        os.setresgid(plan["gid"], plan["gid"], plan["gid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    if sys.platform == "linux":
        _called(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def _check(paths: list[str]) -> None:
    for path in paths:
        if os.access(path, os.R_OK):
            raise _Failed(f"{path} can be read by user {os.getuid()}: make it 0600, or its folder 0700")


def _follow(pid: int) -> int:
    """Wait for a process and, as the first of its namespace, for the orphans meanwhile; its raw status."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return status


def _end_as(status: int) -> NoReturn:
    """End the way that process ended."""
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
        os.execvp(argv[0], argv)
    except OSError as fault:
        _tell(report, fault)


def _tell(report: int, fault: Exception) -> NoReturn:
    number = fault.errno if isinstance(fault, OSError) else 0
    text = (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
    os.write(report, f"{number or 0} {text}".encode()[:1000])
    os._exit(126)


def _in_namespaces(libc: Any, plan: dict[str, Any], argv: list[str]) -> NoReturn:
    """Three processes: this one outside, the first of the namespace, and the command."""
    report: int = plan["report"]
    _separate(libc)
    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            os.close(reading)
            _hide(libc, plan["hide"])
            _drop(libc, plan)
            if not argv:
                os._exit(0)
            command = os.fork()
            if command == 0:
                os.close(writing)
                _start(argv, report)
            os.close(report)
            status = _follow(command)
            os.write(writing, str(status).encode())
        except Exception as fault:
            _tell(report, fault)
        os._exit(0)
    os.close(writing)
    os.close(report)
    told = os.read(reading, 100)
    status = _follow(first)
    _end_as(int(told) if told else status)


def main() -> NoReturn:
    """Set up what the plan says, and start the command."""
    plan: dict[str, Any] = json.loads(sys.argv[1])
    argv, report = sys.argv[2:], int(plan["report"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        if plan["cwd"] is not None:
            os.chdir(plan["cwd"])  # before another user is taken, who may not reach it by its path
        libc = _libc()
        if plan["namespaces"]:
            _in_namespaces(libc, plan, argv)
        _drop(libc, plan)
        if plan["check"]:
            _check(plan["hide"])
        if not argv:
            os._exit(0)
        _start(argv, report)
    except Exception as fault:
        _tell(report, fault)


if __name__ == "__main__":
    main()
