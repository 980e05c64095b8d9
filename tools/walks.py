"""Prints two walks through the code: the calls of `POST /runs`, and the calls that record a step's result.

    python -m tools.walks

A walk lists the modules of tenure in the order of their first call, with their called functions. It counts the shapes: the classes of
tenure whose instances are passed between those functions. A profile function records the walk while the code runs on SQLite with warm
caches.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import msgspec

import tenure
from bench.service import create_key
from tenure.cli.workflows.registration import register_workflows
from tenure.engine import Engine
from tenure.orchestrator import cap_cache
from tenure.server.app import make_app
from tenure.server.context import ServerContext
from tenure.server.settings import Settings
from tenure.services import catalog
from tenure.store.sqlite import store as sqlite_store

BODY = b'{"workflow": "walk", "input": {"word": "a"}, "labels": {"team": "blue"}}'


class Walk:
    """The modules and functions that were called, and the shapes that were passed."""

    def __init__(self) -> None:
        self.functions: dict[str, list[str]] = {}
        """Module -> functions, both in the order of the first call."""
        self.calls: list[str] = []
        """`module:function`, in the order of the first call."""
        self.shapes: set[str] = set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, value: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("tenure."):
            return
        if event == "return":
            self._note_shape(value)
        elif event == "call":
            name = frame.f_code.co_qualname.replace(".<locals>", "")
            if "<" not in name and name not in (known := self.functions.setdefault(module, [])):
                known.append(name)
                self.calls.append(f"{module}:{name}")
            for argument in frame.f_locals.values():
                self._note_shape(argument)

    def _note_shape(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, msgspec.Struct) and kind.__module__.startswith("tenure."):
            self.shapes.add(kind.__name__)

    def lines(self) -> Iterator[str]:
        count = sum(map(len, self.functions.values()))
        yield f"{len(self.functions)} modules, {count} functions, {len(self.shapes)} shapes"
        for module, names in self.functions.items():
            yield f"  {module.removeprefix('tenure.')}: {', '.join(names)}"
        yield f"  shapes: {', '.join(sorted(self.shapes))}"


@contextmanager
def _machine_speed_ignored() -> Iterator[None]:
    """A walk is the same on every machine: no commit is fast enough to be made inline, and nothing cached expires."""
    with (
        patch.object(sqlite_store, "FAST_COMMIT_SECONDS", 0.0),
        patch.object(cap_cache, "CAPS_SECONDS", float("inf")),
        patch.object(catalog, "CACHE_SECONDS", float("inf")),
    ):
        yield


RecordWalk = Callable[[], Coroutine[Any, Any, Walk]]


async def walk_run_creation() -> Walk:
    """`POST /runs`, from the application's entry to the answer."""
    walk = Walk()
    with _machine_speed_ignored(), tempfile.TemporaryDirectory() as folder:
        async with Engine(f"sqlite:{folder}/walk.db", sweep=False) as engine:
            await register_workflows(engine, [_workflow])
            key = await create_key(engine, "operator")
            app: Any = make_app(ServerContext(engine, Settings(log_requests=False, log_runs=False)))
            for warm in (True, True, False):
                scope, answers = _http_scope(key), list[Any]()

                async def receive() -> Any:
                    return {"type": "http.request", "body": BODY, "more_body": False}

                async def send(message: Any, answers: list[Any] = answers) -> None:
                    answers.append(message)

                if warm:
                    await app(scope, receive, send)
                else:
                    with walk.recording():
                        await app(scope, receive, send)
                assert answers[0]["status"] == 201, answers
    return walk


def _http_scope(key: str) -> Any:
    return {
        "type": "http",
        "method": "POST",
        "path": "/runs",
        "raw_path": b"/runs",
        "root_path": "",
        "query_string": b"",
        "scheme": "http",
        "http_version": "1.1",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
        "headers": [
            (b"authorization", f"Bearer {key}".encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(BODY)).encode()),
        ],
    }


_walk = Walk()
_recording = _walk.recording()


@tenure.step
async def _finish_first(word: str) -> str:
    await asyncio.sleep(0.05)  # by then, the caller that started the run waits for its result
    _recording.__enter__()
    return word.upper()


@tenure.step
async def _begin_second(word: str) -> str:
    _recording.__exit__(None, None, None)
    return word


@tenure.workflow(name="walk")
async def _workflow(word: str) -> str:
    return await _begin_second(await _finish_first(word))


async def walk_step_result() -> Walk:
    """A step of a code-first workflow, from the return of its function to the start of the next step."""
    with _machine_speed_ignored(), tempfile.TemporaryDirectory() as folder:
        async with Engine(f"sqlite:{folder}/walk.db", sweep=False) as engine, engine.worker(_workflow):
            run = await engine.start(_workflow, "a")
            assert await run.result() == "A"
    return _walk


async def main() -> None:
    for record in (walk_run_creation, walk_step_result):
        walk = await record()
        print(f"{(inspect.getdoc(record) or '').splitlines()[0]}\n" + "\n".join(walk.lines()) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
