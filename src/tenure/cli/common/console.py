"""What commands print: results to stdout, warnings and errors to stderr.

Laws:
1. Output to a file or a pipe is not cut to a terminal's width.
2. Text that others wrote is printed without its markup and control characters (`safe_text`).
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tenure.errors import TenureError

_PIPE_WIDTH = 140


def out(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)


def err() -> Console:
    return out(stderr=True)


def say(text: object, style: str = "") -> None:
    """Print a line of the result, or a table. The terminal wraps long lines, so that they can be copied whole."""
    if isinstance(text, Table):
        out().print(text)
    else:
        out().print(safe_text(text, style), soft_wrap=True)


def warn(text: object, style: str = "yellow") -> None:
    """Print a line to stderr."""
    err().print(safe_text(text, style), soft_wrap=True)


def escape_control(text: str) -> str:
    """The text with its control characters escaped, except for line feeds."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def safe_text(value: object, style: str = "") -> Text:
    """A value for a cell or a line, without markup and control characters."""
    return Text(escape_control(str(value)), style=style)


def count_noun(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def show_result(value: Any, as_json: bool, *lines: object) -> None:
    """Print a result: its JSON for programs, or lines (and tables) for people."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        say(line)


def show_fields(fields: Mapping[str, Any], width: int = 15) -> None:
    """Print a line for each field, in full: people confirm what they see here. A value of several lines is indented beneath
    its name, so that no part of a value looks like another field."""
    for word, value in fields.items():
        head, text = word.replace("_", " ") + ":", full_text(value)
        say(f"{head}\n{textwrap.indent(text, '  ')}" if "\n" in text else f"{head:<{width}}{text}")


def full_text(value: Any) -> str:
    """A value in full: a string as it is, a list of plain words on one line, everything else as YAML."""
    value = msgspec.to_builtins(value)
    if value in (None, [], {}, ""):
        return "-"
    if isinstance(value, str | int | float):
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)
    if isinstance(value, list) and all(
        isinstance(one, str) and one.isprintable() and not set(one) & {",", " "} for one in value
    ):
        return ", ".join(value)
    return _yaml(value)


def _yaml(value: Any) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(
        yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    ).rstrip("\n")


def remedy_for(error: TenureError) -> str:
    """What to do about an error. If a database file is missing, another file may be meant."""
    missing = error.data.get("missing")
    if error.code != "STORE_NOT_MIGRATED" or missing is None:
        return error.spec.remedy
    return f"{missing} was looked for: --db or TENURE_DB choose another; `tenure run` and `tenure migrate` make one."


def error_fields(error: TenureError) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": error.message,
        "details": error.details,
        "remedy": remedy_for(error),
        "docs": error.docs,
        "retryable": error.retryable,
    }


def show_error(error: TenureError, *, as_json: bool = False) -> None:
    """Print to stderr what went wrong and where, what to do about it, and where to read more."""
    if as_json:
        print(msgspec.json.encode({"error": error_fields(error)}).decode(), file=sys.stderr)
        return
    lines = [error.message]
    details = [f"{detail.path or '(the whole)'}: {detail.problem}" for detail in error.details]
    shown = [f"  {line}" for line in details if line not in error.message]
    lines += shown
    if shown or error.code != "INVALID_INPUT":  # its remedy points to the details
        lines.append(f"What to do: {remedy_for(error)}")
    lines.append(f"More: tenure explain {error.code}")
    console = err()
    if console.is_terminal:
        console.print(
            Panel(safe_text("\n".join(lines)), title=Text(error.code), border_style="red", expand=False)
        )
    else:
        console.print(safe_text("\n".join([f"error {error.code}: {lines[0]}", *lines[1:]])), soft_wrap=True)
