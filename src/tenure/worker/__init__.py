"""Workers: take leases, run workflows, tools and commands under them, and say how it went."""

from __future__ import annotations

from tenure.worker.work_source import LocalWorkSource, WorkSource
from tenure.worker.worker import Worker

__all__ = ["LocalWorkSource", "WorkSource", "Worker"]
