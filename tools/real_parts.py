"""Which real parts a test uses, derived from its code: so `make clauses` knows how a clause is shown without running anything.

A test shows a level (`store`, `process`, `http`, `service`, `browser`) because it starts a part that `REAL_PARTS` lists: a worker process,
a server, an S3. Nobody writes the level at the test.

Laws:
1. A part counts if the code of the test names it, or the code of a fixture or helper that the test reaches does. The walk follows functions
   and classes of `tests`, `tools`, `examples`, `bench` and `tenure.systems`, and no others: what the product starts by itself shows nothing.
2. A listed name ends the walk, so PostgreSQL, which is a process, still shows `store`.
3. A method of a class is followed only if the walk has met its class and somewhere its name.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping

import pytest

LEVELS = ("store", "process", "http", "service", "browser")
"""From the least to the most."""

# A helper that starts a part is listed by its name, `module` or `module:name`; the longest match counts.
REAL_PARTS = {
    "tools.postgres_server": ("store", "PostgreSQL"),
    "tests.databases": ("store", "PostgreSQL"),
    "tests.worker.process:WorkerProcess": ("process", "worker processes"),
    "tests.conformance.worker_processes": ("process", "worker processes"),
    "multiprocessing.context": ("process", "processes"),
    "subprocess:Popen": ("process", "processes"),
    "subprocess:run": ("process", "processes"),
    "subprocess:check_output": ("process", "processes"),
    "asyncio.subprocess:create_subprocess_exec": ("process", "processes"),
    "asyncio.subprocess:create_subprocess_shell": ("process", "processes"),
    "tenure.server.http_server:serving": ("http", "server"),
    "tests.server.test_openapi:server_process": ("http", "server"),
    "tests.cli.test_serve:served": ("http", "server"),
    "tenure.systems.stage:Stage.connect": ("http", "server"),
    "tenure.testing.doubles.github": ("service", "GitHub double"),
    "tenure.testing.doubles.slack": ("service", "Slack double"),
    "tenure.testing.doubles.servicenow": ("service", "ServiceNow double"),
    "tenure.testing.doubles.firestore": ("service", "Firestore double"),
    "tests.publish.test_firestore:emulator": ("service", "Google's emulator"),
    "tools.s3_server": ("service", "S3"),
    "tools.nats_server": ("service", "NATS"),
    "tenure.testing.git_host:GitHost": ("service", "git"),
    "playwright": ("browser", "browser"),
}

# What shows a level. A level needs a part of its own: a double of an outside service is not our server, and a server in the test's own
# process is no worker process. Only a browser shows more than itself, because it talks to a server.
ENOUGH = {
    "store": frozenset(LEVELS),
    "process": frozenset(("process",)),
    "http": frozenset(("http", "browser")),
    "service": frozenset(("service",)),
    "browser": frozenset(("browser",)),
}

_FOLLOWED = ("tests", "tools", "examples", "bench", "tenure.systems")
_EMPTY = types.CellType()
_ENTRIES = (
    "__init__",
    "__post_init__",
    "__enter__",
    "__aenter__",
    "__call__",
    "__iter__",
    "__aiter__",
    "__await__",
)
"""Methods that are called without being named."""


def parts_of(item: pytest.Item) -> dict[str, str]:
    """The real parts that a test uses, each with its level."""
    walk = _Walk()
    if isinstance(item, pytest.Function):
        walk.follow(item.obj)
        for value in getattr(getattr(item, "callspec", None), "params", {}).values():
            walk.follow(value)
        walk.fixtures(item)
    return walk.parts


def highest(parts: Mapping[str, str]) -> str:
    """The highest level of these parts."""
    return max(("store", *parts.values()), key=LEVELS.index)


def shows(parts: Mapping[str, str], wanted: str) -> bool:
    """Whether a test with these parts shows what a clause wants."""
    return any(level in ENOUGH[wanted] for level in ("store", *parts.values()))


class _Walk:
    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self._seen: set[int] = set()
        self._kept: list[object] = []  # objects whose ids are in `_seen` stay alive
        self._classes: list[type] = []
        self._names: set[str] = set(_ENTRIES)

    def fixtures(self, item: pytest.Function) -> None:
        """Follow the fixtures of a test, also those that a fixture asks for by name while it runs."""
        manager, done = item.session._fixturemanager, set[str]()
        asked = list(item.fixturenames)
        while asked:
            name = asked.pop()
            if name in done:
                continue
            done.add(name)
            for fixture in manager.getfixturedefs(name, item) or ():
                self.follow(fixture.func)
                asked += fixture.argnames
                asked += _asked_by_name(fixture.func)

    def follow(self, found: object) -> None:
        """Look at an object that code names, and at all that it reaches."""
        waiting = [found]
        while waiting or (waiting := list(self._methods())):
            waiting += self._look(waiting.pop())

    def _methods(self) -> Iterator[object]:
        """The methods of the classes met so far whose names were met, too, and that were not looked at."""
        for met in self._classes:
            for name in self._names & vars(met).keys():
                method = vars(met)[name]
                if id(method) not in self._seen:
                    yield method

    def _look(self, found: object) -> Iterable[object]:
        """What an object reaches directly. Notes the part that it is."""
        if id(found) in self._seen:
            return ()
        self._seen.add(id(found))
        self._kept.append(found)
        part = _part(found)
        if part is not None:
            level, name = part
            if level != "store":
                self.parts[name] = level
            return ()
        match found:
            case list() | tuple() | set() | frozenset():
                return tuple(found)
            case dict():
                return tuple(found.values())
            case functools.partial():
                return (found.func, *found.args, *found.keywords.values())
            case staticmethod() | classmethod():
                return (found.__func__,)
            case property():
                return (found.fget,)
            case functools.cached_property():
                return (found.func,)
            case types.MethodType():
                return (found.__func__, type(found.__self__))
            case _:
                pass
        if not _is_followed(found):
            return (found.__wrapped__,) if hasattr(found, "__wrapped__") and callable(found) else ()
        if isinstance(found, type):
            self._classes += (base for base in found.__mro__ if base not in self._classes)
            return ()
        function = inspect.unwrap(found) if callable(found) else found
        if isinstance(function, types.FunctionType):
            return self._reached(function)
        return () if isinstance(function, types.ModuleType) else (type(found),)

    def _reached(self, function: types.FunctionType) -> list[object]:
        closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        names = {name: cell.cell_contents for name, cell in closure if cell != _EMPTY}
        reached, met = _references(function.__code__, {**function.__globals__, **names})
        self._names |= met
        return reached


def _references(code: types.CodeType, names: Mapping[str, object]) -> tuple[list[object], set[str]]:
    """The objects that code names, and the names of all attributes that it uses."""
    reached: list[object] = []
    met: set[str] = set()
    base: object = None
    for line in dis.get_instructions(code):
        match line.opname:
            case "LOAD_GLOBAL" | "LOAD_NAME" | "LOAD_DEREF" | "LOAD_CLASSDEREF":
                base = names.get(line.argval)
                reached.append(base)
            case "IMPORT_NAME":
                base = _imported(line.argval)
            case "LOAD_ATTR" | "LOAD_METHOD" | "IMPORT_FROM":
                met.add(line.argval)
                module = base
                base = getattr(base, line.argval, None) if isinstance(base, types.ModuleType) else None
                reached.append(base)
                if line.opname == "IMPORT_FROM":
                    base = module
            case "LOAD_CONST" if isinstance(line.argval, types.CodeType):
                inner, attributes = _references(line.argval, names)
                reached += inner
                met |= attributes
            case "PRECALL" | "CACHE" | "RESUME" | "PUSH_NULL":
                pass
            case _:
                base = None
    return reached, met


def _imported(name: str) -> object:
    """A module that a function imports. It may not have been imported yet, because nothing runs."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _asked_by_name(function: object) -> Iterator[str]:
    """The texts in a fixture that calls `getfixturevalue`: names of fixtures among them."""
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    if code is not None and "getfixturevalue" in code.co_names:
        yield from (text for text in code.co_consts if isinstance(text, str))


def _module_of(found: object) -> str:
    if isinstance(found, types.ModuleType):
        return found.__name__
    named = getattr(found, "__module__", None)
    return named if isinstance(named, str) else ""


def _part(found: object) -> tuple[str, str] | None:
    """The level and name of the real part that an object is, if it is one."""
    module = _module_of(found)
    if isinstance(found, types.ModuleType) or not module:
        return None
    name = f"{module}:{getattr(found, '__qualname__', type(found).__qualname__)}"
    if name in REAL_PARTS:
        return REAL_PARTS[name]
    while module:
        if module in REAL_PARTS:
            return REAL_PARTS[module]
        module = module.rpartition(".")[0]
    return None


def _is_followed(found: object) -> bool:
    return f"{_module_of(found)}.".startswith(tuple(f"{package}." for package in _FOLLOWED))
