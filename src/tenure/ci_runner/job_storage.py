"""Where a job's log, artifacts, caches and reports go: the port of the CI runner. `http_storage` sends them to a server.

Laws:
1. A storage belongs to one lease. What was accepted stays; a lease that has ended adds nothing that counts.
2. Files are named relative to the workspace. A storage writes nothing outside of the folder that it is given, whatever an archive contains.
3. A method returns when the content is stored or restored, and raises TenureError otherwise. LEASE_STALE is never tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from tenure.shapes.test_reports import TestHistory, TestReport

__all__ = ["JobFile", "JobStorage", "TestHistory", "TestReport"]


class JobFile(msgspec.Struct, frozen=True):
    """A file of an artifact."""

    path: str
    """In the archive: relative, with `/`, without `..`."""
    local: Path
    size: int
    mode: int
    """The permission bits."""


class JobStorage(Protocol):
    async def append_log(self, data: bytes) -> None:
        """Add bytes to the job's log. Returns when there is room for more."""

    async def close_log(self) -> None:
        """Returns when everything that was appended is stored."""

    async def upload(self, name: str, files: Sequence[JobFile], retention_seconds: int | None) -> str:
        """Store an artifact. Returns its digest: equal files have equal digests."""

    async def download(self, job: str, artifact: str, into: Path) -> None:
        """Put the files of another job's artifact into a folder."""

    async def restore_cache(self, key: str, fallback: Sequence[str], into: Path) -> str | None:
        """Put the files of a cache into a folder. Returns the key of that cache, or None if there is none."""

    async def save_cache(self, key: str, paths: Sequence[Path], root: Path) -> None:
        """Store files and folders below `root` under a key. A key that is in use keeps its content."""

    async def send_report(self, report: TestReport) -> None: ...

    async def failed_before(self, tests: Sequence[str]) -> dict[str, TestHistory]:
        """The history of these tests, as far as there is one."""
