"""Where the command line writes: results to stdout, trouble to stderr.

Law: what is printed to a file or a pipe is not cut to a terminal's width.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tenure.errors import TenureError

_PIPE_WIDTH = 140


def out() -> Console:
    """The console for results."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def err() -> Console:
    """The console for trouble."""
    console = Console(stderr=True, highlight=False)
    return console if console.is_terminal else Console(stderr=True, highlight=False, width=_PIPE_WIDTH)


def escape_control(text: str) -> str:
    """A text as it may be shown: what would steer the terminal is escaped; lines stay lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def safe_text(value: object, style: str = "") -> Text:
    """What somebody else wrote, for a cell or a line: neither markup nor control characters count in it."""
    return Text(escape_control(str(value)), style=style)


def count_noun(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_json(value: Any) -> None:
    """A result for other programs: indented JSON on stdout."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def show_fields(fields: Mapping[str, Any], width: int = 15) -> None:
    """A line per field, each in full: people confirm what they see here, so nothing is cut and long lines are left to the terminal
    to wrap. A value of several lines or parts stands indented beneath its name, so that no value looks like another field."""
    for word, value in fields.items():
        head, text = word.replace("_", " ") + ":", full_text(value)
        line = f"{head}\n{textwrap.indent(text, '  ')}" if "\n" in text else f"{head:<{width}}{text}"
        out().print(safe_text(line), soft_wrap=True)


def full_text(value: Any) -> str:
    """A value in full: a text as it is, a list of plain words on one line, everything else as YAML."""
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
    """A value as YAML, its texts of several lines as such."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, said: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", said, style="|" if "\n" in said else None)

    Dumper.add_representer(str, text)
    made: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    return made.rstrip("\n")


def remedy_for(error: TenureError) -> str:
    """What to do about an error; where a database file is missing, that it may be another that is meant."""
    missing = error.data.get("missing")
    if error.code != "STORE_NOT_MIGRATED" or missing is None:
        return error.spec.remedy
    return f"{missing} was looked for: --db or TENURE_DB choose another; `tenure run` and `tenure migrate` make one."


def error_fields(error: TenureError) -> dict[str, Any]:
    """An error for other programs."""
    return {
        "code": error.code,
        "message": error.message,
        "details": error.details,
        "remedy": remedy_for(error),
        "docs": error.docs,
        "retryable": error.retryable,
    }


def show_error(error: TenureError, *, as_json: bool = False) -> None:
    """What went wrong, where, what to do about it and where to read more."""
    if as_json:
        print(msgspec.json.encode({"error": error_fields(error)}).decode(), file=sys.stderr)
        return
    lines = [error.message]
    details = [f"{detail.path or '(the whole)'}: {detail.problem}" for detail in error.details]
    lines += [f"  {line}" for line in details if line not in error.message]
    if error.details or error.code != "INVALID_INPUT":  # its remedy points to the details
        lines.append(f"What to do: {remedy_for(error)}")
    lines.append(f"More: tenure explain {error.code}")
    console = err()
    if console.is_terminal:
        console.print(
            Panel(safe_text("\n".join(lines)), title=Text(error.code), border_style="red", expand=False)
        )
    else:
        console.print(safe_text("\n".join([f"error {error.code}: {lines[0]}", *lines[1:]])), soft_wrap=True)
