"""Starting a run of a registered workflow, whoever asks: a request, a hook, a schedule.

Laws:
1. What is asked is looked up and checked before there is a run: the workflow, its version, its inputs. Whoever has registered that
   version, and nobody has confirmed it, stands behind the run.
2. With a key and a recorder, the run and the record of its answer are one commit.
3. A large input lies among the artifacts, like that of a run started beside the database.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import msgspec

from tenure import ids
from tenure.embedded import Engine
from tenure.embedded.options import Options
from tenure.kernel import commands as c
from tenure.kernel.behind import joined
from tenure.kernel.decide.plans import Created
from tenure.orchestrator.batch import Recorder
from tenure.server.runs.catalog import Catalog
from tenure.server.work import run_aside
from tenure.store.port import Store


class Start(Options, frozen=True, kw_only=True):
    """What is asked for."""

    workflow: str
    version: str | None = None
    """The newest that is registered, where none is named."""
    input: Mapping[str, Any] = {}
    profile: str | None = None
    """The workflow's own, where none is named."""
    request_hash: bytes = b""
    """With a key: what makes two requests the same one."""
    context: c.Context | None = None
    behind: str = ""
    """Who else stands behind it, as `id id`."""


_catalogs: weakref.WeakKeyDictionary[Store, Catalog] = weakref.WeakKeyDictionary()


def catalog_of(store: Store) -> Catalog:
    """What is known of a database's workflows, the same one for everybody who asks in this process."""
    found = _catalogs.get(store)
    if found is None:
        found = _catalogs[store] = Catalog(store)
    return found


class Prepared(msgspec.Struct, frozen=True):
    """A run that could be made: its command, and the input that is to be kept aside where it is large."""

    command: c.CreateRun
    body: bytes


async def prepare(engine: Engine, asked: Start) -> Prepared:
    """Look up and check what is asked for (law 1)."""
    known = await catalog_of(engine.store).find(engine.tenant, asked.workflow, asked.version)
    plan, body = await run_aside(known.begin, asked.input) if known.is_large else known.begin(asked.input)
    fields = asked.fields()
    fields = {"timeout_seconds": known.timeout_seconds, **known.terms.fields(), **fields}
    command = c.CreateRun(
        context=asked.context or engine.context(asked.actor),
        run_id=engine.orchestrator.new_id(engine.tenant),
        tenant=engine.tenant,
        workspace=engine.workspace,
        workflow=known.name,
        code_version=known.version,
        profile=asked.profile or known.profile,
        plan=plan,
        input=body,
        request_hash=asked.request_hash,
        behind=joined(asked.behind, known.unconfirmed) if known.unconfirmed else asked.behind,
        **fields,
    )
    return Prepared(command, body)


async def make(engine: Engine, ready: Prepared, record: Recorder | None = None) -> Created:
    """Make it."""
    command = ready.command
    stored = await engine.kept(ready.body, ids.run_text(command.run_id))
    if stored is not ready.body:
        command = msgspec.structs.replace(command, input=stored)
    return await engine.orchestrator.create(command, record)


async def start(engine: Engine, asked: Start) -> str:
    """Start a run and answer its id. With a key, the same request again answers the same run."""
    return ids.run_text((await make(engine, await prepare(engine, asked))).run_id)
