"""Workflows in YAML files: loaded with every problem named, planned for the kernel, resolved for a worker.

What others use of it is listed here; how a command is executed is in `tenure.declared.commands`.
"""

from __future__ import annotations

from tenure.declared.grammar import json_schema
from tenure.declared.inputs import Input
from tenure.declared.loading import load, load_file
from tenure.declared.model import Declared, Step
from tenure.declared.resolving import Resolved, is_planned, needed_steps, resolve

__all__ = [
    "Declared",
    "Input",
    "Resolved",
    "Step",
    "is_planned",
    "json_schema",
    "load",
    "load_file",
    "needed_steps",
    "resolve",
]
