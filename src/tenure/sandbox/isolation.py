"""Which isolation this machine can give to jobs, found by trying.

Law: a machine that cannot start a sandbox is refused with SANDBOX_UNAVAILABLE. Jobs run without isolation only if the owner of the runner
asks for that, and everybody who looks at a job sees it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from tenure.errors import TenureError
from tenure.sandbox.bubblewrap import make_sandbox_files
from tenure.sandbox.sandbox import (
    IsolationKind,
    SandboxCommand,
    SandboxSpec,
    base_environment,
    make_job_folders,
    make_output_pipe,
    open_sandbox,
)

UID_BASE = 1_900_000_000
"""The first user id of sandboxes where root starts them: above the ids of people, containers and services."""


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    kind: IsolationKind
    landlock: int = 0
    """The version of Landlock; 0: none."""
    uid_base: int | None = None
    """The user of slot N is `uid_base + N`. None: this process is not root, and all sandboxes have its user."""

    def uid(self, slot: int) -> int | None:
        return None if self.uid_base is None else self.uid_base + slot

    def __str__(self) -> str:
        if self.kind == "none":
            return "none: jobs can read what the runner can read"
        users = "" if self.uid_base is None else ", a user for each slot"
        return f"bubblewrap{users}{', Landlock' if self.landlock else ''}"


async def choose_isolation(kind: IsolationKind, *, uid_base: int = UID_BASE) -> Isolation:
    """Try to start a sandbox of this kind. SANDBOX_UNAVAILABLE if that fails."""
    if kind == "none":
        return Isolation(kind="none")
    base = uid_base if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="tenure-sandbox-") as made:
        files, folder = Path(made, "files"), Path(made, "job")
        make_sandbox_files(files)
        make_job_folders(folder, base)
        spec = SandboxSpec(folder=folder, files=files, uid=base, processes=64, file_bytes=1 << 20)
        reading, writing = make_output_pipe()
        try:
            async with open_sandbox(spec, output=writing) as sandbox:
                check = SandboxCommand(
                    argv=("sh", "-c", "test ! -e /sys && touch proof && test ! -w /usr"),
                    cwd=spec.inside("workspace"),
                    env=base_environment(spec, {}),
                )
                exit_code = await sandbox.run(check)
                if exit_code:
                    raise TenureError(
                        "SANDBOX_UNAVAILABLE", f"the check of a sandbox failed with exit code {exit_code}"
                    )
                return Isolation(kind=kind, landlock=sandbox.landlock, uid_base=base)
        finally:
            os.close(reading)
            os.close(writing)
