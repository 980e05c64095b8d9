"""Where the command line writes: results to stdout, trouble to stderr.

Law: what is printed to a file or a pipe is not cut to a terminal's width.
"""

from __future__ import annotations

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


def print_json(value: Any) -> None:
    """A result for other programs: indented JSON on stdout."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def show_error(error: TenureError) -> None:
    """What went wrong, where, what to do about it and where to read more."""
    lines = [error.message]
    lines += [f"  {detail.path or '(the whole)'}: {detail.problem}" for detail in error.details]
    lines += [f"What to do: {error.spec.remedy}", f"More: {error.docs}"]
    console = err()
    if console.is_terminal:
        console.print(Panel(Text("\n".join(lines)), title=Text(error.code), border_style="red", expand=False))
    else:
        console.print(Text("\n".join([f"error {error.code}: {lines[0]}", *lines[1:]])), soft_wrap=True)
