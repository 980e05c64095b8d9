"""Which process somebody is, and whether a process of this host is certainly gone.

Laws:
1. A proof is only given about a process of the same boot and the same pid namespace, whose pid is free, is a zombie without
   threads, or belongs to a process that started at another moment. Whatever else is found says nothing.
2. What cannot be read (no /proc, that of another namespace, hidden processes) is no proof. So there is none on macOS.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tenure.clock import boot_id

PID_MAX = 1 << 22
"""The most that Linux gives."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process among all that ever were on its host."""

    boot_id: str
    namespaces: str
    """Its pid namespace, and the time namespace in which `start_ticks` is counted."""
    pid: int
    start_ticks: int
    """When it began, in clock ticks since boot."""

    def __str__(self) -> str:
        return (
            f"pid {self.pid}, started at tick {self.start_ticks} of boot {self.boot_id}, in {self.namespaces}"
        )


class _Stat(msgspec.Struct, frozen=True):
    state: str
    threads: int
    start_ticks: int


def _stat(pid: int) -> _Stat:
    """What the kernel tells of a process. (Its name, in parentheses, may have blanks and parentheses in it.)"""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[17]), int(fields[19]))


def _namespace(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{name}")
    except FileNotFoundError:  # a kernel that has none
        return f"{name}:-"


def own_identity() -> ProcessIdentity | None:
    """This process; None where nothing can be proven about it."""
    pid, boot = os.getpid(), boot_id()
    if not boot:
        return None
    try:
        if os.readlink("/proc/self") != str(pid):
            return None  # this /proc shows another pid namespace
        namespaces = f"{os.readlink('/proc/self/ns/pid')} {_namespace('time')}"
        return ProcessIdentity(boot, namespaces, pid, _stat(pid).start_ticks)
    except (OSError, ValueError, IndexError):
        return None


def is_gone(other: ProcessIdentity, mine: ProcessIdentity) -> bool:
    """Whether a process is certainly no more, as this process sees it; see the laws above."""
    if (other.boot_id, other.namespaces) != (mine.boot_id, mine.namespaces) or not 0 < other.pid <= PID_MAX:
        return False
    try:
        os.kill(other.pid, 0)  # asks, and sends nothing; unlike /proc it hides no process
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is there, and somebody else's
    try:
        found = _stat(other.pid)
    except (OSError, ValueError, IndexError):
        return False
    return found.start_ticks != other.start_ticks or (found.state in "ZX" and found.threads <= 1)
