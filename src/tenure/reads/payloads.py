"""Stored payloads as values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tenure.kernel.run_rows import PayloadRow
from tenure.store.port import Store
from tenure.store.transactions import read_first, read_rows


def decode_payload(body: bytes | None) -> Any:
    """The value of a payload: JSON if it is JSON, else text, else the bytes."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


async def read_payload(store: Store, run_id: int, ref: int | None) -> Any:
    """A payload of a run, decoded; None also if it was erased."""
    row = None if ref is None else await read_first(store, PayloadRow, "payload", run_id, ref)
    return None if row is None else decode_payload(row.body)


async def read_payloads(
    store: Store, refs: Iterable[tuple[int, int | None]]
) -> dict[tuple[int, int | None], Any]:
    """Payloads of several runs, decoded, by (run, reference)."""
    wanted = sorted({(run_id, ref) for run_id, ref in refs if ref is not None})
    rows: list[PayloadRow] = await store.read("load_payloads", rows=wanted) if wanted else []
    return {(row.run_id, row.ref): decode_payload(row.body) for row in rows}


async def read_bodies(store: Store, run_id: int) -> dict[int, bytes]:
    """All payloads of a run by their references."""
    return {row.ref: row.body for row in await read_rows(store, PayloadRow, "payloads_of", run_id)}
