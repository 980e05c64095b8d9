"""The cost of a system: CPU time and written bytes, read from /proc, so that nothing has to be installed.

The numbers of a process include its children that have ended. The bytes are those that the kernel counts for storage
(`write_bytes`): whole dirty pages, before any of them are merged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Usage(NamedTuple):
    cpu_seconds: float
    written_bytes: int

    def since(self, before: Usage) -> Usage:
        return Usage(self.cpu_seconds - before.cpu_seconds, self.written_bytes - before.written_bytes)


class _Process(NamedTuple):
    parent: int
    session: int
    ticks: int


def usage_of(roots: Iterable[int]) -> Usage | None:
    """The usage of these processes, their descendants and the members of their sessions; None without /proc."""
    processes = _all()
    if not processes:
        return None
    pids = _family(processes, set(roots))
    ticks = sum(processes[pid].ticks for pid in pids)
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), sum(map(_written, pids)))


def family(root: int) -> list[int]:
    """A process, its descendants and the members of its session."""
    return sorted(_family(_all(), {root}))


def postmaster_pid(server: Path) -> int:
    """The main process of a private PostgreSQL in this directory."""
    return int((server / "data" / "postmaster.pid").read_text().split()[0])


def _all() -> dict[int, _Process]:
    found = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(entry.name)] = _Process(int(fields[1]), int(fields[3]), sum(map(int, fields[11:15])))
    return found


def _family(processes: dict[int, _Process], roots: set[int]) -> set[int]:
    members: set[int] = set()
    more = {pid for pid, process in processes.items() if pid in roots or process.session in roots}
    while more:
        members |= more
        more = {pid for pid, process in processes.items() if process.parent in members} - members
    return members


def _written(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "io").read_text().splitlines()
    except OSError:  # it has ended, or belongs to another user
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)
