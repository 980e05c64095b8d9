"""Workflows in YAML files: loading with every problem named, planning for the kernel, resolving step inputs."""

from __future__ import annotations

from tenure.declared.grammar import json_schema
from tenure.declared.loader import load_workflow, load_workflow_file
from tenure.declared.model import DeclaredWorkflow
from tenure.declared.step_resolver import StepResolver

__all__ = [
    "DeclaredWorkflow",
    "StepResolver",
    "json_schema",
    "load_workflow",
    "load_workflow_file",
]
