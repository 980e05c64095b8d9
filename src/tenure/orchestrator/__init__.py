"""The only writer: commands in, commits out. See `core.py`."""

from tenure.orchestrator.core import Orchestrator

__all__ = ["Orchestrator"]
