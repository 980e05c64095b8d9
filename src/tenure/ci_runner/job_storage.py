"""Where a job's logs, artifacts, caches and test reports go. `http_storage` implements it over the runner protocol.

Laws:
1. Every call may be repeated after a failure; it has one effect.
2. A file that is downloaded or restored stays within its folder, whoever has uploaded it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from tenure.shapes.test_reports import TestHistory, TestReport

__all__ = ["JobFile", "JobStorage", "TestHistory", "TestReport"]


class JobFile(NamedTuple):
    """A regular file of an artifact."""

    path: str
    """Its path in the archive: relative, with slashes."""
    local: Path
    size: int
    mode: int = 0o644


class JobStorage(Protocol):
    async def append_log(self, data: bytes) -> None:
        """Add bytes to the job's log. They are sent in order; if too many wait, the call waits."""

    async def close_log(self) -> None:
        """Return when everything has been stored."""

    async def upload(self, name: str, files: Sequence[JobFile], retention_seconds: int | None) -> None:
        """Upload files as one artifact. It is visible when it is complete."""

    async def download(self, job: str, artifact: str, into: Path) -> None:
        """Unpack an artifact of a job that this one needs."""

    async def restore_cache(self, key: str, fallback: Sequence[str], into: Path) -> str | None:
        """Unpack the cache of the key, or the newest whose key begins with one of `fallback`. Returns its key; None: there is none."""

    async def save_cache(self, key: str, paths: Sequence[Path], root: Path) -> None:
        """Store files below `root` under a key, unless the key has a cache already."""

    async def send_report(self, report: TestReport) -> None: ...

    async def failed_before(self, tests: Sequence[str]) -> dict[str, TestHistory]:
        """The history of those of these tests that have failed before."""
