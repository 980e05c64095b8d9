"""A group of commands whose modules are imported when one of them is used.

Law: names, order and the line about each command are known without importing any of them.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tenure.cli.common.server_option import add_server_options
from tenure.suggestions import suggest

if TYPE_CHECKING:
    from collections.abc import Iterable


WITHOUT_SERVER_OPTION = frozenset({"demo", "dev", "doctor", "migrate", "serve", "verify"})
"""Commands that need the database itself, or have a way of their own to a server."""


class CommandEntry(NamedTuple):
    """A command, before it is loaded: the module of `tenure.cli`, the panel of the help, and what it is for."""

    module: str
    panel: str
    text: str


class LazyGroup(TyperGroup):
    """See the law above."""

    lines: ClassVar[dict[str, CommandEntry]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._told = False
        """Whether only names and lines are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in order."""
        del ctx
        return list(self.lines)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; for help just its line."""
        del ctx
        line = self.lines.get(cmd_name)
        if line is None:
            return None
        if self._told:
            return TyperCommand(cmd_name, help=line.text, rich_help_panel=line.panel)
        if cmd_name not in self.commands:
            self.commands[cmd_name] = load_command(line.module, cmd_name)
        return self.commands[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, without loading what it lists."""
        self._told = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._told = False

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Names, without loading them."""
        self._told = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._told = False

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was named; a near miss is told what may have been meant."""
        if args and not args[0].startswith("-") and args[0] not in self.lines:
            ctx.fail(f"No such command '{args[0]}'.{suggest_commands(args[0], self.lines)}")
        return super().resolve_command(ctx, args)


@cache
def load_command(module: str, name: str) -> Any:
    """A command of a module of `tenure.cli`, made once: a module adds its commands to groups of its own."""
    app = typer.Typer(rich_markup_mode="rich")
    import_module(f"tenure.cli.{module}").register(app)
    app.callback()(_nothing)  # so that one command is a group too
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    return command if name in WITHOUT_SERVER_OPTION else add_server_options(command)


def _nothing() -> None:
    """A group of its own."""


def suggest_commands(given: str, known: Iterable[str]) -> str:
    """What may have been meant, as the end of a sentence."""
    near = suggest(given, known, most=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
