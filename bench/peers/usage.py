"""What a system costs: CPU time and bytes written, read from /proc, so nothing has to be installed for it.

A process's numbers include those of its children that have ended. Bytes are those the kernel charged to the
process for storage (`write_bytes`): pages made dirty, whole ones, before any of them is merged with another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Usage(NamedTuple):
    """Up to some moment, or between two."""

    cpu_seconds: float
    written_bytes: int

    def since(self, before: Usage) -> Usage:
        """The difference."""
        return Usage(self.cpu_seconds - before.cpu_seconds, self.written_bytes - before.written_bytes)


class _Process(NamedTuple):
    parent: int
    session: int
    ticks: int


def usage_of(roots: Iterable[int]) -> Usage | None:
    """Of these processes with all that descend from them or belong to their sessions; None without a /proc."""
    processes = _all()
    if not processes:
        return None
    ticks = written = 0
    for pid in _family(processes, set(roots)):
        ticks += processes[pid].ticks
        written += _written(pid)
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), written)


def family(root: int) -> list[int]:
    """A process and all that descend from it or belong to its session."""
    return sorted(_family(_all(), {root}))


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
    members = {pid for pid in roots if pid in processes}
    grown = True
    while grown:
        more = {
            pid
            for pid, process in processes.items()
            if pid not in members and (process.parent in members or process.session in roots)
        }
        members |= more
        grown = bool(more)
    return members


def _written(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "io").read_text().splitlines()
    except OSError:  # it has ended, or is not ours to see
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)
