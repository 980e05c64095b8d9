"""Lists and single objects in a terminal: tables, fields and times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from tenure.cli.common.console import out, print_json, safe_text, show_fields

T = TypeVar("T")


def make_table(*columns: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def show_table(
    found: Sequence[T],
    as_json: bool,
    empty: str,
    columns: Sequence[str],
    cells: Callable[[T], Iterable[object]],
    *,
    whole_ids: bool = False,
) -> None:
    """Print a list: its JSON for programs, or a table with a row of cells for each object.

    With `whole_ids` the first column is never broken, however narrow the terminal: people copy ids.
    """
    if as_json:
        print_json(found)
        return
    if not found:
        out().print(empty)
        return
    made, rows = make_table(*columns), [[cell(value) for value in cells(one)] for one in found]
    for row in rows:
        made.add_row(*row)
    if whole_ids:
        first = made.columns[0]
        first.no_wrap, first.overflow = True, "ignore"
        first.min_width = max(len(row[0].plain) for row in rows)
    out().print(made)


def cell(value: object) -> Text:
    return value if isinstance(value, Text) else safe_text(value)


def show_list(found: Sequence[Any], what: str, columns: Sequence[str], as_json: bool) -> None:
    """Print a list whose columns are fields of its objects. The first column is the id."""
    titles = [column.replace("_", " ") for column in columns]
    show_table(
        found,
        as_json,
        f"no {what}",
        titles,
        lambda one: (_text(getattr(one, column)) for column in columns),
        whole_ids=True,
    )


def show_struct(made: Any, as_json: bool) -> None:
    """Print a struct, a line for each field."""
    if as_json:
        print_json(made)
        return
    fields = {name: getattr(made, name) for name in made.__struct_fields__}
    show_fields(
        {name: value if isinstance(value, list) else _text(value) for name, value in fields.items()}, 17
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return format_time(value) if isinstance(value, datetime) else str(value)


def format_time(at: datetime | None) -> str:
    """A time to the second, or an empty string."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"
