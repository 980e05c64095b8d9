"""What people name on the command line: `module:name`, `file.py:name`, `FILE.yaml`; and the inputs they type.

Laws:
1. Modules are looked for in the current folder first, as `python -m` does.
2. A name that is not there is told with the names that are.
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

from tenure.canonical import DuplicateName, decode_json
from tenure.cli.common.console import err, escape_control
from tenure.cli.common.lazy_group import suggest_commands
from tenure.cli.common.session import parse_json
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.declared import DeclaredWorkflow
    from tenure.sdk.definitions import Registry, Tool, Workflow

YAML = (".yaml", ".yml")


def load_module(name: str) -> ModuleType:
    """A module by its name or its file; what goes wrong in it is shown as Python shows it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return _from_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except TenureError:
        raise
    except ModuleNotFoundError as fault:
        if fault.name is not None and name.startswith(fault.name):
            is_flow_file = name.endswith((".yaml", ".yml"))
            raise TenureError(
                "INVALID_INPUT",
                f"there is no module {name!r} here ({here}) and none is installed; name a module or a file like app.py"
                + (
                    "; workflow files need none: `tenure worker --commands` does their steps"
                    if is_flow_file
                    else ""
                ),
            ) from fault
        raise _broken(name, fault) from fault
    except Exception as fault:
        raise _broken(name, fault) from fault


def _broken(name: str, fault: Exception) -> TenureError:
    frames = [f for f in traceback.extract_tb(fault.__traceback__) if not _is_ours(f.filename)]
    told = "".join(traceback.format_list(frames) + traceback.format_exception_only(fault))
    err().print(escape_control(told), markup=False, soft_wrap=True)
    return TenureError("INVALID_INPUT", f"{name} cannot be imported: {type(fault).__name__}: {fault}")


def _is_ours(filename: str) -> bool:
    return filename.startswith("<frozen") or f"tenure{'/'}cli" in filename or "/importlib/" in filename


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TenureError("INVALID_INPUT", f"there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
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


def split_target(target: str) -> tuple[str, str]:
    """`module:name` as both; the name may be left out."""
    module, _, name = target.partition(":")
    return module, name


def load_target_workflow(target: str) -> Workflow[..., Any] | DeclaredWorkflow:
    """The workflow that a target names; see the laws above."""
    place, name = split_target(target)
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
    found = vars(module).get(name) if name else None
    if isinstance(found, Workflow):
        return found
    if name and name in mine:
        return mine[name]
    if not name and len(mine) == 1:
        return next(iter(mine.values()))
    listed = ", ".join(f"{place}:{each}" for each in sorted(mine)) or "none"
    if name:
        raise TenureError(
            "INVALID_INPUT",
            f"{place} has no workflow {name!r}.{suggest_commands(name, mine)} Its workflows: {listed}",
        )
    if not mine:
        raise TenureError(
            "INVALID_INPUT", f"{place} has no workflow: decorate a function with @tenure.workflow"
        )
    raise TenureError("INVALID_INPUT", f"{place} has several workflows; name one of {listed}")


def load_target_definitions(target: str) -> tuple[Registry | Workflow[..., Any] | Tool, ...]:
    """What a worker is to serve: the registry, workflow or tool that is named; without a name everything that
    importing the module has registered."""
    from tenure.sdk.definitions import Registry, Tool, Workflow, registry

    place, name = split_target(target)
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
            f"{place} has no registry, workflow or tool {name!r}.{suggest_commands(name, known)}"
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
    """The input of a run from `--input`s: JSON objects, @FILEs and key=value, which win."""
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    for text in given or ():
        if text.startswith(("@", "{")):
            value = parse_json(text, "--input")
            if not isinstance(value, dict):
                raise TenureError("INVALID_INPUT", f"--input {text} must be a JSON object: names and values")
            values |= value
            continue
        key, equals, rest = text.partition("=")
        if not equals or not key:
            raise TenureError(
                "INVALID_INPUT", f"--input {text}: write key=value, a JSON object in quotes, or @FILE"
            )
        texts[key] = rest
    values |= _typed(workflow, texts)
    if check:
        _check(workflow, values)
    return values


def _check(workflow: Workflow[..., Any] | DeclaredWorkflow, values: dict[str, Any]) -> None:
    """Refuse what the workflow could not take before anything is begun."""
    from tenure.declared import DeclaredWorkflow

    if isinstance(workflow, DeclaredWorkflow):
        workflow.bind(values)
    else:
        workflow.parameters.check(msgspec.json.encode(values))


def _typed(workflow: Workflow[..., Any] | DeclaredWorkflow, texts: Mapping[str, str]) -> dict[str, Any]:
    from tenure.declared import DeclaredWorkflow

    if isinstance(workflow, DeclaredWorkflow):
        return workflow.from_texts(texts)
    known = schema_properties(workflow.parameters.schema)
    for key in texts:
        if key not in workflow.parameters.names:
            listed = ", ".join(workflow.parameters.names) or "none"
            raise TenureError(
                "INVALID_INPUT",
                f"workflow {workflow.name!r} has no input {key!r}.{suggest_commands(key, workflow.parameters.names)}"
                f" Its inputs: {listed}",
            )
    return {key: _value(known.get(key, {}), text) for key, text in texts.items()}


def schema_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a JSON Schema, by name."""
    while "$ref" in schema:
        schema = {
            **schema.get("$defs", {})[schema["$ref"].rpartition("/")[2]],
            "$defs": schema.get("$defs", {}),
        }
    found: dict[str, Any] = schema.get("properties", {})
    return found


def _value(schema: dict[str, Any], text: str) -> Any:
    """A text as the type that is asked for: JSON, unless a text is."""
    if schema.get("type") == "string":
        return text
    try:
        return decode_json(text)
    except DuplicateName as twice:
        raise TenureError("INVALID_INPUT", str(twice)) from twice
    except msgspec.DecodeError:
        return text
