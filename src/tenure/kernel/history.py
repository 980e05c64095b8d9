"""A run's history: the contents of an event, its hash, and the columns of a row that are history.

Laws:
1. Each command adds one event to its run. The body lists every edge taken, in order, with its owner, and the columns
   that changed. The stored body is exactly the bytes that were hashed.
2. An event has no payloads and no names: payloads appear as sha256(salt, payload), people as opaque ids.
3. The hash covers format, previous hash, tenant, run, sequence, kind, time, actor, initiator, cause and body, each with
   its length, so that nothing can be moved from one field to the next.
4. Folding a run's events gives its rows again, except for the columns in `Row.unlogged`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from tenure.kernel.run_rows import ROWS, EventRow, Row

FORMAT = b"tenure-event-1"

encode_body: Callable[[dict[str, Any]], bytes] = msgspec.json.Encoder().encode


def digest(salt: bytes, body: bytes) -> str:
    """The salted digest of a payload. Without the salt it reveals nothing about the payload."""
    return sha256(salt + body).hexdigest()


def event_hash(
    prev: bytes,
    tenant: str,
    run_id: int,
    seq: int,
    kind: str,
    at: int,
    actor: str,
    initiator: str,
    cause: str,
    body: bytes,
) -> bytes:
    """The hash that chains an event to the one before it."""
    head = f"{len(tenant)}:{tenant}{run_id}:{seq}:{at}:{len(kind)}:{kind}{len(actor)}:{actor}{len(initiator)}:{initiator}{len(cause)}:{cause}{len(body)}:"
    return sha256(b"%s%d:%s%s%s" % (FORMAT, len(prev), prev, head.encode(), body)).digest()


def rehash(event: EventRow, prev: bytes, tenant: str) -> bytes:
    return event_hash(
        prev,
        tenant,
        event.run_id,
        event.seq,
        event.kind,
        event.at,
        event.actor,
        event.initiator,
        event.cause,
        event.body,
    )


_CHUNK = 8
"""Columns are compared in chunks, because most of them are equal."""


class _Shape:
    """The history columns of a row type, and their defaults."""

    def __init__(self, row: type[Row]) -> None:
        fields = msgspec.structs.fields(row)
        self.columns = [(i, f.name) for i, f in enumerate(fields) if f.name not in row.unlogged]
        self.defaults = {f.name: f.default for f in fields if f.default is not msgspec.NODEFAULT}
        self.news = [(i, name, self.defaults.get(name)) for i, name in self.columns]
        self.chunks = [
            (low, low + _CHUNK, [(i, name) for i, name in self.columns if low <= i < low + _CHUNK])
            for low in range(row.fixed, len(fields), _CHUNK)
        ]


_SHAPES = {row: _Shape(row) for row in ROWS.values()}
_astuple = msgspec.structs.astuple


def changed_columns(old: Row | None, new: Row) -> dict[str, Any]:
    """The history columns that changed; for a new row those that are neither None nor their default."""
    shape = _SHAPES[type(new)]
    after = _astuple(new)
    if old is None:
        return {name: v for i, name, usual in shape.news if (v := after[i]) is not None and v != usual}
    before = _astuple(old)
    changed: dict[str, Any] = {}
    for low, high, columns in shape.chunks:
        if before[low:high] != after[low:high]:
            for i, name in columns:
                if before[i] != after[i]:
                    changed[name] = after[i]
    return changed


def row_key(row: Row) -> str:
    """A row's key within its run, as text: `0`, `0/1`, `0/build#1`; '' for the run itself."""
    return "/".join(str(getattr(row, name)) for name in row.key[1:])


def decode_body(event: EventRow) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(event.body)
    return body


def history_columns(row: Row) -> dict[str, Any]:
    """A row's history columns, as folding the events gives them, without None and defaults."""
    columns: dict[str, Any] = msgspec.to_builtins(changed_columns(None, row))
    return columns


def drop_defaults(columns: dict[str, Any], row: type[Row]) -> dict[str, Any]:
    """Folded columns without None and defaults, to compare them with `history_columns`."""
    defaults = _SHAPES[row].defaults
    return {
        name: value
        for name, value in columns.items()
        if value is not None and (name not in defaults or msgspec.to_builtins(defaults[name]) != value)
    }
