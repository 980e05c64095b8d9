"""Log lines of runs. They are deleted with their run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure.kernel.registry_rows import LogLineRow
from tenure.limits import (
    LABEL_CHARS_MAX,
    LOG_FIELDS_BYTES_MAX,
    LOG_LINES_PER_RUN_MAX,
    LOG_TEXT_CHARS_MAX,
    NAME_CHARS_MAX,
)
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.transactions import run_transaction

READS: dict[str, RowType] = {"log_lines_of": LogLineRow}  # () ; run_id, after_no, limit -> in order
WRITES: dict[str, RowType] = {"save_log_line": LogLineRow, "delete_old_log_lines": LogLineRow}


async def append_log_lines(store: Store, lines: Sequence[LogLineRow]) -> None:
    """Append lines to the logs of runs, in a transaction of its own."""
    if lines:
        await run_transaction(store, lambda: write_log_lines(lines))


def write_log_lines(lines: Sequence[LogLineRow]) -> Transaction[None]:
    """Append lines to the logs of runs, in the order given, as a part of a transaction.

    Lines of runs that do not exist are dropped. If a run has more than `limits.LOG_LINES_PER_RUN_MAX` lines, the oldest are
    deleted; the number of the first line that is left shows how many.
    """
    now = (yield Query("now"))[0].now_us
    rows = [_stored_line(line) for line in sorted(lines, key=lambda line: line.run_id)]
    newest: dict[int, int] = {}
    for line in (yield Query("save_log_line", rows, (now,))):
        newest[line.run_id] = max(line.no, newest.get(line.run_id, 0))
    over = [
        (run_id, no - LOG_LINES_PER_RUN_MAX)
        for run_id, no in sorted(newest.items())
        if no > LOG_LINES_PER_RUN_MAX
    ]
    if over:
        yield Query("delete_old_log_lines", over)


def _stored_line(line: LogLineRow) -> tuple[Any, ...]:
    """A line as it is stored. A log line must not fail its run, so a part that is too long is cut and marked as cut."""
    fields = line.fields if len(line.fields.encode()) <= LOG_FIELDS_BYTES_MAX else '{"fields": "too large"}'
    return (
        line.run_id,
        line.at,
        _storable(line.step, LABEL_CHARS_MAX),
        _storable(line.level, NAME_CHARS_MAX),
        _storable(line.text, LOG_TEXT_CHARS_MAX),
        _storable(fields, LOG_FIELDS_BYTES_MAX),
    )


def _storable(text: str, chars_max: int) -> str:
    """Text that both databases accept: without NUL and lone surrogates, and not too long."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"
