"""A run's history: what an event holds, how it is hashed, and how it folds back into rows.

Laws:
1. One event per command and run. Its body lists every edge taken, in order, with its owner, and the
   columns that changed; it is stored as the exact bytes that were hashed.
2. No payload and no name: payloads appear as sha256(salt, payload), people by opaque id.
3. The hash covers format, previous hash, tenant, run, sequence, kind, time, actor, initiator, cause and
   body, each with its length, so nothing can be moved from one field to the next.
4. Folding a run's events gives its rows again, apart from the columns named `beside`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

import msgspec

from tenure.kernel.run_rows import ROWS, EventRow, Row

FORMAT = b"tenure-event-1"

encode_body: Callable[[dict[str, Any]], bytes] = msgspec.json.Encoder().encode
"""The bytes of an event."""


def digest(salt: bytes, body: bytes) -> str:
    """The name of a payload in the history; without the salt it says nothing about the payload."""
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
    """The hash an event should have."""
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


class _Shape:
    """How rows of one type become changes: which columns are history, and what they are by default.

    Columns come in chunks, so that two rows that hardly differ are compared a chunk at a time.
    """

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
    """The history columns that changed; of a new row those that are neither None nor their default."""
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
    """A row's key within its run, as text: `0`, `0.1`, `0/build#1`; '' for the run itself."""
    key = type(row).key
    if len(key) == 1:
        return ""
    rest = [getattr(row, name) for name in key[1:]]
    return "/".join(map(str, rest))


def decode_body(event: EventRow) -> dict[str, Any]:
    """What an event says."""
    body: dict[str, Any] = msgspec.json.decode(event.body)
    return body


def fold_events(events: Iterable[EventRow]) -> dict[str, dict[str, dict[str, Any]]]:
    """A run's rows as its events tell them: table -> key -> column -> value (bytes as base64)."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for event in events:
        for table, changed in decode_body(event).get("set", {}).items():
            rows = tables.setdefault(table, {})
            for key, columns in changed.items():
                rows.setdefault(key, {}).update(columns)
    return tables


def history_columns(row: Row) -> dict[str, Any]:
    """A row's history columns, in the form `fold_events` gives them, None and defaults left out."""
    columns: dict[str, Any] = msgspec.to_builtins(changed_columns(None, row))
    return columns


def drop_defaults(columns: dict[str, Any], row: type[Row]) -> dict[str, Any]:
    """Folded columns with None and defaults left out, to be compared with `history_columns`."""
    defaults = _SHAPES[row].defaults
    return {
        name: value
        for name, value in columns.items()
        if value is not None and (name not in defaults or msgspec.to_builtins(defaults[name]) != value)
    }
