"""The identity of a process, and the proof that a process of this host has ended.

Laws:
1. A process of the same boot and the same pid namespace has ended if its pid is free, is a zombie without threads, or belongs to a
   process that started at another time. Anything else proves nothing.
2. Nothing is proven if /proc is missing, belongs to another namespace or hides processes. So there are no proofs on macOS.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import msgspec

from tenure.clock import boot_id

PID_MAX = 1 << 22
"""The largest pid of Linux."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Identifies a process among all processes of its host, past and present."""

    boot_id: str
    namespaces: str
    """Its pid namespace, and the time namespace of `start_ticks`."""
    pid: int
    start_ticks: int
    """Its start in clock ticks since boot."""

    def __str__(self) -> str:
        return (
            f"pid {self.pid}, started at tick {self.start_ticks} of boot {self.boot_id}, in {self.namespaces}"
        )


class _Stat(msgspec.Struct, frozen=True):
    state: str
    threads: int
    start_ticks: int


def _stat(pid: int) -> _Stat:
    # The name of the process, in parentheses, may contain blanks and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[17]), int(fields[19]))


def _namespace(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{name}")
    except FileNotFoundError:  # the kernel does not have this kind of namespace
        return f"{name}:-"


def make_process_name(*, host_chars_max: int = 80, random_bytes: int = 4) -> str:
    """A new name for people to read, with the host and the pid. Every call makes another one."""
    return f"{socket.gethostname()[:host_chars_max]}-{os.getpid()}-{secrets.token_hex(random_bytes)}"


def own_identity() -> ProcessIdentity | None:
    """This process; None if nothing can be proven about it."""
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
    """Whether it is proven that a process has ended (law 1)."""
    if (other.boot_id, other.namespaces) != (mine.boot_id, mine.namespaces) or not 0 < other.pid <= PID_MAX:
        return False
    try:
        os.kill(other.pid, 0)  # sends no signal; unlike /proc it hides no process
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists and belongs to another user
    try:
        found = _stat(other.pid)
    except (OSError, ValueError, IndexError):
        return False
    return found.start_ticks != other.start_ticks or (found.state in "ZX" and found.threads <= 1)
