"""Answers creations whose idempotency key was used before, in a batch under the lock.

Law: if a batch has several creations with one key, the first is decided and the others are tried again after its commit. Then
they all get its answer.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from tenure.errors import TenureError
from tenure.kernel.commands import CreateRun
from tenure.kernel.decide.idempotency import answer_recorded_key, answer_same_key
from tenure.kernel.run_rows import IdempotencyRow, RunRow, RunSpecRow
from tenure.store.idempotency import expire_records
from tenure.store.port import Query, Save

if TYPE_CHECKING:
    from tenure.orchestrator.batch import BatchOutcome, PendingCommand


def answer_used_keys(
    items: list[PendingCommand], found: dict[int, RunRow], now: int, outcome: BatchOutcome
) -> Generator[Query | Save, Any, None]:
    creating: dict[tuple[str, str, str], list[PendingCommand]] = {}
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
    # One commit writes run and record, and it may happen between two of these queries. Runs are read first, so that a run is
    # never found without its record; then again for new records, so that a record is never found without its run.
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
) -> Generator[Query | Save, Any, dict[tuple[str, str, str], RunSpecRow]]:
    specs: list[RunSpecRow] = (yield Query("find_keys", keys)) if keys else []
    return {(spec.tenant, spec.source, spec.idempotency_key or ""): spec for spec in specs}


def _answer_key(
    item: PendingCommand, spec: RunSpecRow | None, run: RunRow | None, record: IdempotencyRow | None, now: int
) -> None:
    command = item.command
    assert isinstance(command, CreateRun)
    try:
        if item.record is None and spec is not None:
            item.result = answer_same_key(command, spec, run, now)
        else:
            item.result = answer_recorded_key(command, spec, run, record)
    except TenureError as refused:
        item.error = refused


def _records(
    creating: dict[tuple[str, str, str], list[PendingCommand]], now: int
) -> Generator[Query | Save, Any, dict[tuple[str, str, str], IdempotencyRow]]:
    """The records of these keys, where a creation writes one. Expired records are deleted."""
    keys = [key for key, asking in creating.items() if any(item.record is not None for item in asking)]
    if not keys:
        return {}
    expire_records((yield Query("drop_past_keys", keys, (now,))))
    rows: list[IdempotencyRow] = yield Query("key_records", keys)
    return {(row.tenant, row.source, row.name): row for row in rows}
