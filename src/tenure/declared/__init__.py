"""Workflows in YAML files: loaded with every problem named, planned for the kernel, resolved before a step is handed out.

What others use of it is listed here; how a command is executed is in `tenure.declared.commands`.
"""

from __future__ import annotations

from tenure.declared.grammar import json_schema
from tenure.declared.inputs import Input
from tenure.declared.loading import load, load_file
from tenure.declared.model import Declared, Step
from tenure.declared.resolution import StepResolver
from tenure.declared.resolving import Resolved, command_of, prepare

__all__ = [
    "Declared",
    "Input",
    "Resolved",
    "Step",
    "StepResolver",
    "command_of",
    "json_schema",
    "load",
    "load_file",
    "prepare",
]
