"""The stage of a system: a folder, a database, a server, people, processes, and the parts of its story.

Laws:
1. A system lists the parts of its story. `happened` marks one after it was seen from outside: over HTTP, in a database, in
   a file, at a double. A part that was never marked is missing, and the story has failed.
2. No process and no double outlives the stage, however it ends.
3. Everything that the stage makes is in its folder, except for a database or a place for files that the user named.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, overload

import httpx
import msgspec

from tenure.artifacts import ARTIFACTS_VARIABLE
from tenure.engine.engine import Engine
from tenure.private_files import append_file, make_folder, write_file
from tenure.services.identity.principals import OPERATOR

TENANT = "acme"
SERVER = "The server"
"""The name of the server's address among the addresses of a system."""
LOOK_SECONDS = 0.05
STUCK_SECONDS = 90.0
"""Longer than any part of a story takes."""
STOP_SECONDS = 10.0
_ADDRESS = re.compile(r"https?://[\w.:\[\]]+")

Found = TypeVar("Found")


class StageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user chose."""

    folder: Path
    database: str | None = None
    """Default: a SQLite file in the folder."""
    files: str | None = None
    """Where documents, logs and artifacts are kept: a folder or `s3://BUCKET/PREFIX`. Default: in the folder."""
    port: int = 0


class StoryPart(msgspec.Struct, frozen=True):
    text: str
    detail: str = ""


class StoryFailed(Exception):
    """A part of the story did not happen; the text says which."""


class StageProcess:
    """A process of the system, for example a worker."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    async def kill(self) -> None:
        """End it as a crash does."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
        await self.kill()


class Stage:
    def __init__(
        self,
        options: StageOptions,
        parts: tuple[str, ...],
        show: Callable[[str], None],
        exits: AsyncExitStack,
    ) -> None:
        self.folder = options.folder
        self.port = options.port
        self.database = options.database or f"sqlite:{options.folder / 'tenure.db'}"
        self.files = options.files or str(options.folder / "files")
        self.exits = exits
        """Whatever is entered here is closed with the stage."""
        self.say = show
        self.addresses: dict[str, str] = {}
        """What the user can look at while the system runs, by name."""
        self._parts = parts
        self._happened: dict[str, StoryPart] = {}

    # ------------------------------------------------------------------------------------------ the story

    def happened(self, part: str, detail: str = "") -> None:
        """Mark a part of the story as seen."""
        assert part in self._parts, f"{part!r} is not a part of this story"
        self._happened[part] = StoryPart(part, detail)
        self.say(f"✓ {part}" + (f": {detail}" if detail else ""))

    def check(self, part: str, holds: object, detail: str = "") -> None:
        """Mark a part of the story if it holds, and end the story if it does not."""
        if not holds:
            raise StoryFailed(f"this did not happen: {part}" + (f" ({detail})" if detail else ""))
        self.happened(part, detail)

    @property
    def story(self) -> list[StoryPart]:
        return list(self._happened.values())

    @property
    def missing(self) -> list[str]:
        return [part for part in self._parts if part not in self._happened]

    @overload
    async def until(
        self, what: str, look: Callable[[], Awaitable[Found | None]], seconds: float = STUCK_SECONDS
    ) -> Found: ...

    @overload
    async def until(
        self, what: str, look: Callable[[], Found | None], seconds: float = STUCK_SECONDS
    ) -> Found: ...

    async def until(self, what: str, look: Callable[[], Any], seconds: float = STUCK_SECONDS) -> Any:
        """Look again and again until there is something."""
        end = time.monotonic() + seconds
        while True:
            found = look()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
            if time.monotonic() > end:
                raise StoryFailed(f"waited {seconds:.0f} seconds for {what}")
            await asyncio.sleep(LOOK_SECONDS)

    # ------------------------------------------------------------------------------------------ processes

    async def start(self, name: str, *arguments: str, env: dict[str, str] | None = None) -> StageProcess:
        """Start a `tenure` command as a process of its own. Its output is in `logs/NAME.log`."""
        logs = self.folder / "logs"
        make_folder(logs)
        path = logs / f"{name}.log"
        with append_file(path) as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tenure.cli",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TENURE_DB": self.database, **(env or {})},
            )
        started = StageProcess(name, process, path)
        self.exits.push_async_callback(started.stop)
        return started

    async def until_printed(self, process: StageProcess, text: str) -> str:
        """Wait until a process has printed a line with this text. Returns the line."""

        def look() -> str | None:
            found = next((line for line in process.output().splitlines() if text in line), None)
            if found is None and process.process.returncode is not None:
                raise StoryFailed(f"{process.name} ended: {process.output()[-2_000:]}")
            return found

        return await self.until(f"{process.name} to print {text!r}", look)

    async def start_server(self, name: str, *options: str) -> tuple[StageProcess, str]:
        """Start `tenure serve`. Returns the process and its address."""
        server = await self.start(name, "serve", "--port", str(self.port), *options)
        return server, await self.until_listening(server)

    async def until_listening(self, server: StageProcess) -> str:
        """Wait until a server has started. Returns its address."""
        line = await self.until_printed(server, "server_started")
        found = _ADDRESS.search(line)
        assert found is not None, line
        return found[0]

    async def describe(self) -> list[str]:
        """How to look around: where things are, a key of its own for the user, and commands."""
        key_file = self.folder / "your.key"
        async with Engine(self.database, sweep=False) as engine:
            write_file(key_file, await self.create_client(engine, "you", "viewer", "operator"))
        lines = [f"{what}: {where}" for what, where in self.addresses.items()]
        lines += [
            f"Files and logs: {self.folder}",
            f"The tenant is {TENANT}. Look around, in another terminal:",
        ]
        lines.append(
            f"  export TENURE_SERVER={self.addresses[SERVER]} TENURE_KEY_FILE={key_file}; unset TENURE_DB"
        )
        lines += [
            f"  tenure runs {verb}" for verb in ("list", "show RUN", "events RUN --timeline", "why RUN")
        ]
        return lines

    # ------------------------------------------------------------------------------------------- secrets

    @property
    def secrets_folder(self) -> Path:
        """The secrets of all tenants: a folder for each."""
        return self.folder / "secrets"

    def write_secrets(self, **values: str) -> Path:
        """Write the secrets of the tenant, each to a file with its name. Returns the folder."""
        folder = self.secrets_folder / TENANT
        make_folder(self.secrets_folder)
        make_folder(folder)
        for name, value in values.items():
            write_file(folder / name, value)
        return folder

    # --------------------------------------------------------------------------------------------- people

    async def create_tenant(self, engine: Engine, tenant: str = TENANT) -> None:
        await engine.scoped(tenant="", caller=OPERATOR).tenants.create(tenant, name=tenant.title())

    async def create_person(
        self, engine: Engine, person: str, *roles: str, groups: tuple[str, ...] = (), tenant: str = TENANT
    ) -> str:
        """The key of a new person."""
        people = engine.scoped(tenant=tenant, caller=OPERATOR).people
        await people.create(name=person.title(), roles=roles, groups=groups, person=person)
        return (await people.enrol((await people.invite(person)).code)).key.key

    async def create_client(self, engine: Engine, client: str, *roles: str, tenant: str = TENANT) -> str:
        """The key of a new program."""
        scoped = engine.scoped(tenant=tenant, caller=OPERATOR)
        await scoped.clients.create(name=client, roles=roles, client=client)
        return (await scoped.keys.create(client, name="stage")).key

    async def connect(self, address: str, key: str | None = None) -> httpx.AsyncClient:
        """HTTP as the holder of a key."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        client = httpx.AsyncClient(base_url=address, headers=headers, timeout=30.0)
        return await self.exits.enter_async_context(client)


@asynccontextmanager
async def open_stage(
    options: StageOptions, parts: tuple[str, ...], show: Callable[[str], None]
) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as exits:
        stage = Stage(options, parts, show, exits)
        exits.enter_context(_keep_artifacts(f"{stage.files.rstrip('/')}/artifacts"))
        yield stage


@contextmanager
def _keep_artifacts(place: str) -> Iterator[None]:
    """Let this process and those that it starts keep artifacts at a place."""
    before = os.environ.get(ARTIFACTS_VARIABLE)
    os.environ[ARTIFACTS_VARIABLE] = place
    try:
        yield
    finally:
        if before is None:
            del os.environ[ARTIFACTS_VARIABLE]
        else:
            os.environ[ARTIFACTS_VARIABLE] = before


async def expect_json(request: Awaitable[httpx.Response]) -> Any:
    """The JSON of the response to a request that must succeed."""
    response = await request
    if not response.is_success:
        sent = response.request
        raise StoryFailed(f"{sent.method} {sent.url}: {response.status_code} {response.text}")
    return response.json() if response.content else None
