"""What the jobs of a runner share: its settings, isolation, mirrors and folders.

Law: the runner's folder is for the runner alone. It holds the mirrors, and a folder for each job that runs, which is removed when the job ends.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from tenure.ci_runner.object_mirror import GitSettings, ObjectMirrors
from tenure.outbound.address_rules import AllowedNetworks
from tenure.private_files import make_folder
from tenure.sandbox.bubblewrap import make_sandbox_files
from tenure.sandbox.isolation import Isolation
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
    cancel_grace_seconds: float | None = None
    """How long a canceled job may take to end. None: half of the grace period of the run's profile."""


class JobHost:
    def __init__(self, settings: RunnerSettings, isolation: Isolation, meter: UsageMeter) -> None:
        self.settings = settings
        self.isolation = isolation
        self.meter = meter
        make_folder(settings.folder)
        self.mirrors = ObjectMirrors(settings.folder / "mirrors", settings.git)
        self.jobs = settings.folder / "jobs"
        self.files = settings.folder / "sandbox"
        shutil.rmtree(self.jobs, ignore_errors=True)  # what a runner that was killed has left
        make_folder(self.jobs)
        make_sandbox_files(self.files)
