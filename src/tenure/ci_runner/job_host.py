"""What the jobs of a runner share: its settings, isolation, mirrors and folders.

Laws:
1. The runner's folder is for one runner alone, which holds a lock on it. It contains the mirrors, and a folder for each job that runs, which is
   removed when the job ends.
2. Plans and jobs fetch into the same mirrors, within the bounds of the runner's owner. What one of them has fetched is not fetched again.
3. Git has threads of its own, one for each slot: a slow fetch keeps no other work of the runner waiting. It is stopped with its job, or with the runner.
"""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from tenure.ci.job import JobCheckout
from tenure.ci.mirror import GitMirror, GitSettings
from tenure.ci.settings import FetchSettings, RepositorySettings
from tenure.errors import TenureError
from tenure.outbound.address_rules import AllowedNetworks
from tenure.private_files import append_file, make_folder
from tenure.sandbox.bubblewrap import make_sandbox_files
from tenure.sandbox.isolation import UID_BASE, Isolation
from tenure.sandbox.usage_limits import UsageMeter

T = TypeVar("T")


class RunnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    folder: Path
    slots: int = 4
    labels: tuple[str, ...] = ()
    secrets: dict[str, str] = {}
    """Name -> reference (`env:NAME`, `file:/PATH`)."""
    git: GitSettings = GitSettings()
    reach: AllowedNetworks = AllowedNetworks()
    """Which addresses jobs may reach besides public ones."""
    tools: tuple[str, ...] = ()
    """More folders of this machine that jobs see, read-only."""
    uid_base: int = UID_BASE
    """Where the runner is root: the user of its first slot. Runners of one machine should have different ones."""
    cancel_grace_seconds: float | None = None
    """How long a canceled job may take to end. None: half of the grace period of the run's profile."""


class JobHost:
    def __init__(self, settings: RunnerSettings, isolation: Isolation, meter: UsageMeter) -> None:
        self.settings = settings
        self.isolation = isolation
        self.meter = meter
        make_folder(settings.folder)
        self._lock = _lock_folder(settings.folder)
        self.mirrors = settings.folder / "mirrors"
        self.jobs = settings.folder / "jobs"
        self.files = settings.folder / "sandbox"
        shutil.rmtree(self.jobs, ignore_errors=True)  # what a runner that was killed has left
        make_folder(self.jobs)
        make_sandbox_files(self.files)
        self.closing = threading.Event()
        self._git_threads = ThreadPoolExecutor(settings.slots, thread_name_prefix="git")

    async def fetch(self, checkout: JobCheckout) -> GitMirror:
        """Have the commit of a job in its mirror. TenureError says why it is not there."""
        owner = self.settings.git
        asked = RepositorySettings(
            name=checkout.repository,
            url=checkout.url,
            protocols=owner.protocols,
            fetch=FetchSettings(timeout_seconds=owner.timeout_seconds, size_bytes=owner.size_bytes),
        )

        def fetch(stop: Callable[[], bool]) -> GitMirror:
            mirror = GitMirror(self.mirrors, asked, owner, stop)
            mirror.fetch_change(checkout.ref, checkout.commit)
            return mirror

        return await self.run_git(fetch)

    async def run_git(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Call a function that works with git, in a thread (law 3). It is told how to ask whether it must stop."""
        canceled = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._git_threads, work, lambda: canceled.is_set() or self.closing.is_set()
            )
        except asyncio.CancelledError:
            canceled.set()
            raise

    def close(self) -> None:
        self.closing.set()
        # A thread that waits for the planner needs this event loop, so nothing here waits for the thread.
        self._git_threads.shutdown(wait=False, cancel_futures=True)
        self._lock.close()


def _lock_folder(folder: Path) -> IO[bytes]:
    held = append_file(folder / "lock")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        raise TenureError(
            "INVALID_INPUT",
            f"another CI runner works in {folder}: give this one a folder of its own (--folder)",
        ) from None
    return held
