"""Limits on what a sandbox uses: memory, processes and disk.

Laws:
1. Where a cgroup can be made, the kernel counts memory and processes. Everywhere, what each sandbox uses is measured every second, and a sandbox
   above a limit is ended with the name of that limit.
2. Pages that several processes share count once: the sum of the resident pages is only a first look.
3. One round measures all sandboxes. Files are counted in a thread, and a long count is followed by a long pause.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from tenure.logs import get_logger

log = get_logger(__name__)

MEASURE_SECONDS = 1.0
DISK_PAUSE_SHARE = 10.0
"""Counting files may take this part of the time: a count of a second is followed by ten seconds of pause."""
CGROUP_ROOT = Path("/sys/fs/cgroup")
PROCESSES_SPARE = 16
"""How many processes above its limit a sandbox may begin before the kernel refuses: it is measured and ended first."""
CGROUP_REMOVE_TRIES = 50
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512

Resource = Literal["memory", "processes", "disk"]


class UsageLimits(msgspec.Struct, frozen=True, kw_only=True):
    memory_bytes: int
    processes: int
    disk_bytes: int


class UsageExceeded(msgspec.Struct, frozen=True):
    resource: Resource
    used: int
    limit: int

    def __str__(self) -> str:
        unit = "processes" if self.resource == "processes" else f"bytes of {self.resource}"
        return f"it used {self.used} {unit}; its limit is {self.limit}"


class MeasuredSandbox:
    """A sandbox under measurement. `exceeded` is set when it is above a limit."""

    def __init__(
        self,
        pid: int,
        limits: UsageLimits,
        folders: Sequence[Path],
        on_exceeded: Callable[[UsageExceeded], None],
        cgroup: Cgroup | None,
    ) -> None:
        self.pid = pid
        self.limits = limits
        self.folders = tuple(folders)
        self.cgroup = cgroup
        self.exceeded: UsageExceeded | None = None
        self._on_exceeded = on_exceeded
        self._disk: asyncio.Task[None] | None = None

    def exceed(self, resource: Resource, used: int, limit: int) -> None:
        if self.exceeded is None:
            self.exceeded = UsageExceeded(resource, used, limit)
            log.warning("sandbox_over_limit", pid=self.pid, resource=resource, used=used, limit=limit)
            self._on_exceeded(self.exceeded)

    def check_cgroup(self) -> None:
        if self.cgroup is None:
            return
        if self.cgroup.count_kills():
            self.exceed("memory", self.limits.memory_bytes, self.limits.memory_bytes)
        if self.cgroup.count_refused_forks():
            self.exceed("processes", self.limits.processes + PROCESSES_SPARE, self.limits.processes)

    def check(self, processes: list[tuple[int, int]]) -> None:
        """Compare what was found, as (process id, resident bytes), with the limits."""
        self.check_cgroup()
        if len(processes) > self.limits.processes:
            self.exceed("processes", len(processes), self.limits.processes)
        if sum(resident for _, resident in processes) > self.limits.memory_bytes:
            used = sum(_proportional_bytes(pid, resident) for pid, resident in processes)
            if used > self.limits.memory_bytes:
                self.exceed("memory", used, self.limits.memory_bytes)
        if self._disk is None or self._disk.done():
            self._disk = asyncio.ensure_future(self._check_disk())

    async def _check_disk(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        used = await asyncio.to_thread(count_disk_bytes, self.folders, self.limits.disk_bytes)
        if used > self.limits.disk_bytes:
            self.exceed("disk", used, self.limits.disk_bytes)
        await asyncio.sleep((loop.time() - began) * DISK_PAUSE_SHARE)

    def end(self) -> None:
        if self._disk is not None:
            self._disk.cancel()


class UsageMeter:
    """Measures all sandboxes of a process: an async context manager."""

    def __init__(self, *, every_seconds: float = MEASURE_SECONDS, cgroup_name: str | None = None) -> None:
        self._every = every_seconds
        self._measured: set[MeasuredSandbox] = set()
        self._task: asyncio.Task[None] | None = None
        self._cgroup_name = cgroup_name
        self._made = 0

    async def __aenter__(self) -> UsageMeter:
        if self._cgroup_name is not None:
            await asyncio.to_thread(remove_abandoned_cgroups)
        self._task = asyncio.ensure_future(self._measure())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def add(
        self,
        pid: int,
        limits: UsageLimits,
        folders: Sequence[Path],
        on_exceeded: Callable[[UsageExceeded], None],
    ) -> MeasuredSandbox:
        """Measure a sandbox from its first program on: the process `pid` and its descendants, and the files in `folders`."""
        cgroup = None
        if self._cgroup_name is not None:
            self._made += 1
            cgroup = make_cgroup(f"{self._cgroup_name}-{self._made}", limits, _list_tree(pid))
        measured = MeasuredSandbox(pid, limits, folders, on_exceeded, cgroup)
        self._measured.add(measured)
        return measured

    async def remove(self, measured: MeasuredSandbox) -> None:
        """End the measurement of a sandbox that has been closed."""
        self._measured.discard(measured)
        measured.check_cgroup()
        measured.end()
        if measured.cgroup is not None:
            await measured.cgroup.remove()

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            if not self._measured:
                continue
            try:
                trees = await asyncio.to_thread(_read_trees, [each.pid for each in self._measured])
            except OSError as fault:
                log.warning("usage_not_measured", error=repr(fault))
                continue
            for each in tuple(self._measured):
                each.check(trees.get(each.pid, []))


def _read_trees(roots: list[int]) -> dict[int, list[tuple[int, int]]]:
    """The descendants of processes, each as (process id, resident bytes)."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split(b" ")
            children.setdefault(int(fields[1]), []).append((int(name), int(fields[21]) * _PAGE_BYTES))
    trees: dict[int, list[tuple[int, int]]] = {}
    for root in roots:
        found: list[tuple[int, int]] = []
        waiting = [root]
        while waiting:
            below = children.get(waiting.pop(), [])
            found += below
            waiting += [pid for pid, _ in below]
        trees[root] = found
    return trees


def _proportional_bytes(pid: int, resident: int) -> int:
    """The memory of a process, with its part of what it shares."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return resident


def count_disk_bytes(folders: Sequence[Path], enough: int) -> int:
    """What the files in folders occupy. Counting stops above `enough`. Links are not followed."""
    used = 0
    waiting = [str(each) for each in folders]
    while waiting and used <= enough:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    used += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return used


class Cgroup:
    """The cgroup of one sandbox, in the unified hierarchy or in those of memory and of process ids."""

    def __init__(self, folders: list[Path], kills: Path) -> None:
        self._folders = folders
        self._kills = kills

    def count_kills(self) -> int:
        """How many processes the kernel has ended because of the memory limit."""
        return _read_count(self._kills, "oom_kill")

    def count_refused_forks(self) -> int:
        return _read_count(self._folders[-1] / "pids.events", "max")

    async def remove(self) -> None:
        for folder in self._folders:
            for _ in range(CGROUP_REMOVE_TRIES):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # the kernel still has its last process
                    await asyncio.sleep(0.02)
                else:
                    break


def _read_count(file: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def _list_tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            text = Path(f"/proc/{each}/task/{each}/children").read_text(encoding="ascii")
            found += [int(child) for child in text.split()]
    return found


def make_cgroup(name: str, limits: UsageLimits, pids: Sequence[int]) -> Cgroup | None:
    """Put processes into a cgroup of their own with these limits. None if this process may not make one."""
    for build in (_build_unified, _build_separate):
        folders: list[Path] = []
        try:
            return build(name, limits, pids, folders)
        except OSError:
            for folder in folders:
                with suppress(OSError):
                    _move(folder.parent, pids)
                    folder.rmdir()
    return None


def _move(folder: Path, pids: Sequence[int]) -> None:
    for pid in pids:
        (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")


def remove_abandoned_cgroups() -> None:
    """Remove the empty cgroups of processes that were killed. A name is `tenure-PID-...`."""
    places = (("", CGROUP_ROOT), ("memory", CGROUP_ROOT / "memory"), ("pids", CGROUP_ROOT / "pids"))
    for controller, top in places:
        with suppress(OSError):
            for folder in (top / _own_cgroup(controller)).glob("tenure-*-*"):
                pid = folder.name.split("-")[1]
                if pid.isdigit() and not Path("/proc", pid).exists():
                    with suppress(OSError):
                        folder.rmdir()


def _own_cgroup(controller: str) -> str:
    """The path of this process's cgroup in a hierarchy; the unified one has no name."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.lstrip("/")
    raise FileNotFoundError(2, "no such cgroup", controller)


def _build_unified(name: str, limits: UsageLimits, pids: Sequence[int], folders: list[Path]) -> Cgroup:
    above = CGROUP_ROOT / _own_cgroup("")
    enabled = (above / "cgroup.subtree_control").read_text(encoding="ascii").split()
    if not {"memory", "pids"} <= set(enabled):  # whoever delegates the cgroup to the runner enables them
        raise FileNotFoundError(2, "memory and pids are not delegated", str(above))
    folder = above / name
    folder.mkdir()
    folders.append(folder)
    (folder / "memory.max").write_text(str(limits.memory_bytes), encoding="ascii")
    with suppress(OSError):
        (folder / "memory.swap.max").write_text("0", encoding="ascii")
    (folder / "pids.max").write_text(str(limits.processes + PROCESSES_SPARE), encoding="ascii")
    _move(folder, pids)
    return Cgroup(folders, folder / "memory.events")


def _build_separate(name: str, limits: UsageLimits, pids: Sequence[int], folders: list[Path]) -> Cgroup:
    for controller, file, value in (
        ("memory", "memory.limit_in_bytes", limits.memory_bytes),
        ("pids", "pids.max", limits.processes + PROCESSES_SPARE),
    ):
        folder = CGROUP_ROOT / controller / _own_cgroup(controller) / name
        folder.mkdir()
        folders.append(folder)
        (folder / file).write_text(str(value), encoding="ascii")
        _move(folder, pids)
    return Cgroup(folders, folders[0] / "memory.oom_control")
