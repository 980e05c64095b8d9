"""What the jobs of a runner share: its settings, isolation, mirrors and folders.

Law: the runner's folder is for one runner alone, which holds a lock on it. It contains the mirrors, and a folder for each job that runs, which is
removed when the job ends.
"""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import IO

import msgspec

from tenure.ci_runner.object_mirror import GitSettings, ObjectMirrors
from tenure.errors import TenureError
from tenure.outbound.address_rules import AllowedNetworks
from tenure.private_files import append_file, make_folder
from tenure.sandbox.bubblewrap import make_sandbox_files
from tenure.sandbox.isolation import UID_BASE, Isolation
from tenure.sandbox.usage_limits import UsageMeter


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
        self.mirrors = ObjectMirrors(settings.folder / "mirrors", settings.git)
        self.jobs = settings.folder / "jobs"
        self.files = settings.folder / "sandbox"
        shutil.rmtree(self.jobs, ignore_errors=True)  # what a runner that was killed has left
        make_folder(self.jobs)
        make_sandbox_files(self.files)

    def close(self) -> None:
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
