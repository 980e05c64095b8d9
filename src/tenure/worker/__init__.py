"""Workers: work sources (local and remote), lease sessions, heartbeats, isolation, and the runner protocol."""

from __future__ import annotations

from tenure.worker.work_source import LocalWorkSource, WorkSource
from tenure.worker.worker import Worker

__all__ = ["LocalWorkSource", "WorkSource", "Worker"]
