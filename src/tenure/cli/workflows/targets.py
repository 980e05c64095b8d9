"""Targets on the command line (`module:name`, `file.py:name`, `FILE.yaml`), and the inputs of workflows.

Laws:
1. Modules are searched in the current folder first, as `python -m` does.
2. An error about an unknown name lists the known names.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.cli.common.arguments import parse_json, parse_json_or_text
from tenure.cli.common.console import warn
from tenure.cli.common.lazy_group import suggest_names
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.declared import DeclaredWorkflow
    from tenure.sdk.definitions import Registry, Tool, Workflow

YAML = (".yaml", ".yml")


def load_module(name: str) -> ModuleType:
    """Import a module by its name or its file. If its code fails, print Python's traceback."""
    here = _add_to_path(Path.cwd())
    try:
        return _load_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except TenureError:
        raise
    except ModuleNotFoundError as fault:
        if fault.name is not None and name.startswith(fault.name):
            hint = "; workflow files need none: `tenure worker --commands` does their steps"
            raise TenureError(
                "INVALID_INPUT",
                f"there is no module {name!r} here ({here}) and none is installed; name a module or a file like app.py"
                + (hint if name.endswith(YAML) else ""),
            ) from fault
        raise _import_error(name, fault) from fault
    except Exception as fault:
        raise _import_error(name, fault) from fault


def _add_to_path(folder: Path) -> str:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return str(folder)


def _import_error(name: str, fault: Exception) -> TenureError:
    frames = [f for f in traceback.extract_tb(fault.__traceback__) if not _is_ours(f.filename)]
    warn("".join(traceback.format_list(frames) + traceback.format_exception_only(fault)), "")
    return TenureError("INVALID_INPUT", f"{name} cannot be imported: {type(fault).__name__}: {fault}")


def _is_ours(filename: str) -> bool:
    return filename.startswith("<frozen") or "tenure/cli" in filename or "/importlib/" in filename


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TenureError("INVALID_INPUT", f"there is no file {path}")
    _add_to_path(path.resolve().parent)
    known = sys.modules.get(path.stem)
    if known is not None and known.__file__ is not None and Path(known.__file__).resolve() == path.resolve():
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def load_target_workflow(target: str) -> Workflow[..., Any] | DeclaredWorkflow:
    """The workflow that a target names, or the only one of its module."""
    place, _, name = target.partition(":")
    if place.endswith(YAML):
        from tenure.declared import load_workflow_file

        return load_workflow_file(Path(place))
    from tenure.sdk.definitions import Workflow, registry

    module = load_module(place)
    mine = {
        flow.name: flow
        for flow in (*vars(module).values(), *registry.workflows.values())
        if isinstance(flow, Workflow) and flow.function.__module__ == module.__name__
    }
    found = vars(module).get(name)
    if isinstance(found, Workflow):
        return found
    if name in mine:
        return mine[name]
    if not name and len(mine) == 1:
        return next(iter(mine.values()))
    listed = ", ".join(f"{place}:{each}" for each in sorted(mine)) or "none"
    if name:
        raise TenureError(
            "INVALID_INPUT",
            f"{place} has no workflow {name!r}.{suggest_names(name, mine)} Its workflows: {listed}",
        )
    if not mine:
        raise TenureError(
            "INVALID_INPUT", f"{place} has no workflow: decorate a function with @tenure.workflow"
        )
    raise TenureError("INVALID_INPUT", f"{place} has several workflows; name one of {listed}")


def load_target_definitions(target: str) -> tuple[Registry | Workflow[..., Any] | Tool, ...]:
    """What a worker serves: the registry, workflow or tool that is named, or a list of them. Without a name: `app` if the module
    has one, else everything that importing it has registered."""
    from tenure.sdk.definitions import Registry, Tool, Workflow, registry

    place, _, name = target.partition(":")
    module = load_module(place)
    found = vars(module).get(name or "app")
    if isinstance(found, Registry | Workflow | Tool):
        return (found,)
    if (
        isinstance(found, list | tuple)
        and found
        and all(isinstance(f, Registry | Workflow | Tool) for f in found)
    ):
        return tuple(found)
    if name:
        known = [key for key, value in vars(module).items() if isinstance(value, Registry | Workflow | Tool)]
        raise TenureError(
            "INVALID_INPUT",
            f"{place} has no registry, workflow or tool {name!r}.{suggest_names(name, known)}"
            f" It has: {', '.join(known) or 'none'}; without a name everything it registers is served",
        )
    if not (registry.workflows or registry.tools):
        raise TenureError(
            "INVALID_INPUT",
            f"{place} registers nothing: decorate functions with @tenure.workflow or @tenure.tool",
        )
    return (registry,)


# ---------------------------------------------------------------------------------------------- inputs


def parse_inputs(
    workflow: Workflow[..., Any] | DeclaredWorkflow, given: list[str] | None, *, check: bool = True
) -> dict[str, Any]:
    """The input of a run from its `--input` options: JSON objects, @FILEs, and key=value, which has precedence."""
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    for text in given or ():
        if text.startswith(("@", "{")):
            values |= parse_object(text)
            continue
        key, equals, rest = text.partition("=")
        if not equals or not key:
            raise TenureError(
                "INVALID_INPUT", f"--input {text}: write key=value, a JSON object in quotes, or @FILE"
            )
        texts[key] = rest
    values |= _convert_texts(workflow, texts)
    if check:
        from tenure.declared import DeclaredWorkflow

        if isinstance(workflow, DeclaredWorkflow):
            workflow.bind(values)
        else:
            workflow.parameters.check(msgspec.json.encode(values))
    return values


def parse_object(text: str) -> dict[str, Any]:
    """An `--input` that is a JSON object or a @FILE with one."""
    value = parse_json(text, "--input")
    if not isinstance(value, dict):
        raise TenureError("INVALID_INPUT", f"--input {text} must be a JSON object: names and values")
    return value


def _convert_texts(
    workflow: Workflow[..., Any] | DeclaredWorkflow, texts: Mapping[str, str]
) -> dict[str, Any]:
    from tenure.declared import DeclaredWorkflow

    if isinstance(workflow, DeclaredWorkflow):
        return workflow.from_texts(texts)
    known = schema_properties(workflow.parameters.schema)
    for key in texts:
        if key not in workflow.parameters.names:
            listed = ", ".join(workflow.parameters.names) or "none"
            raise TenureError(
                "INVALID_INPUT",
                f"workflow {workflow.name!r} has no input {key!r}.{suggest_names(key, workflow.parameters.names)}"
                f" Its inputs: {listed}",
            )
    return {
        key: text if known.get(key, {}).get("type") == "string" else parse_json_or_text(text)
        for key, text in texts.items()
    }


def schema_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a JSON Schema, by name."""
    while "$ref" in schema:
        schema = {
            **schema.get("$defs", {})[schema["$ref"].rpartition("/")[2]],
            "$defs": schema.get("$defs", {}),
        }
    return dict(schema.get("properties", {}))
