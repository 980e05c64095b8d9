"""Creations whose idempotency key has been used, in a batch under the lock.

Law: of several creations with one key in a batch the first goes on and the others wait for it; once it is there they are
all answered with what it came to.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from tenure.errors import TenureError
from tenure.kernel.commands import CreateRun
from tenure.kernel.decide.keyed import recorded, same_key
from tenure.kernel.model import Idempotency, Run, RunSpec
from tenure.store.keys import expired
from tenure.store.port import Query, Save

if TYPE_CHECKING:
    from tenure.orchestrator.batch import Item, Outcome


def settle_keys(
    items: list[Item], found: dict[int, Run], now: int, outcome: Outcome
) -> Generator[Query | Save, Any, None]:
    """Answer the creations whose idempotency key has been used; of several in one batch the others wait for
    the first, and are all answered once it is there."""
    creating: dict[tuple[str, str, str], list[Item]] = {}
    answered = {id(item) for item in outcome.done}
    for item in items:
        command = item.command
        if (
            isinstance(command, CreateRun)
            and command.idempotency_key is not None
            and id(item) not in answered
        ):
            key = (command.tenant, command.source, command.idempotency_key)
            creating.setdefault(key, []).append(item)
    if not creating:
        return
    # Run and record are one commit, which may happen between two of these looks: the run first, so that it is not without
    # its record; and once more where there is a record now, so that this is not without its run.
    made = yield from _made(list(creating))
    records = yield from _records(creating, now)
    made |= yield from _made([key for key in records if key not in made])
    for key, asking in creating.items():
        spec, record = made.get(key), records.get(key)
        if spec is None and record is None:
            outcome.again += asking[1:]
            continue
        run = None if spec is None else found.get(spec.run_id)
        if run is None and spec is not None:
            run = next(iter((yield Query("get_run", (), (spec.run_id,)))), None)
        for item in asking:
            _answer_key(item, spec, run, record, now)
        outcome.done += asking


def _made(
    keys: list[tuple[str, str, str]],
) -> Generator[Query | Save, Any, dict[tuple[str, str, str], RunSpec]]:
    """The runs that keys have made."""
    specs: list[RunSpec] = (yield Query("find_keys", keys)) if keys else []
    return {(spec.tenant, spec.source, spec.idempotency_key or ""): spec for spec in specs}


def _answer_key(
    item: Item, spec: RunSpec | None, run: Run | None, record: Idempotency | None, now: int
) -> None:
    """Answer a creation whose key has been used."""
    command = item.command
    assert isinstance(command, CreateRun)
    try:
        if item.record is None and spec is not None:
            item.result = same_key(command, spec, run, now)
        else:
            item.result = recorded(command, spec, run, record)
    except TenureError as refused:
        item.error = refused


def _records(
    creating: dict[tuple[str, str, str], list[Item]], now: int
) -> Generator[Query | Save, Any, dict[tuple[str, str, str], Idempotency]]:
    """The records of the keys whose creations have one of their own; those past their time make room."""
    keys = [key for key, asking in creating.items() if any(item.record is not None for item in asking)]
    if not keys:
        return {}
    expired((yield Query("drop_past_keys", keys, (now,))))
    rows: list[Idempotency] = yield Query("key_records", keys)
    return {(row.tenant, row.source, row.name): row for row in rows}
