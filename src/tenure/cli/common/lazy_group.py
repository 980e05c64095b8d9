"""A group of commands whose modules are imported when one of them is used.

Law: names, order and the summary of each command are known without importing its module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tenure.cli.common.server_option import add_server_options
from tenure.suggestions import suggest

WITHOUT_SERVER_OPTION = frozenset(
    {"demo", "dev", "doctor", "migrate", "publish", "serve", "status-server", "verify"}
)
"""Commands that need the database itself, or have no use for a server."""


class CommandEntry(NamedTuple):
    """A command before it is loaded: its module in `tenure.cli`, its panel in the help, and its summary."""

    module: str
    panel: str
    text: str


class LazyGroup(TyperGroup):
    entries: ClassVar[dict[str, CommandEntry]] = {}
    _summaries_only = False
    """Whether `get_command` returns placeholders with a summary instead of loading commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        if self._summaries_only:
            return TyperCommand(cmd_name, help=entry.text, rich_help_panel=entry.panel)
        return load_command(entry.module, cmd_name)

    @contextmanager
    def _without_loading(self) -> Iterator[None]:
        self._summaries_only = True
        try:
            yield
        finally:
            self._summaries_only = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._without_loading():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._without_loading():
            return super().shell_complete(ctx, incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            ctx.fail(f"No such command '{args[0]}'.{suggest_names(args[0], self.entries)}")
        return super().resolve_command(ctx, args)


@cache
def load_command(module: str, name: str) -> Any:
    """A command of the `app` in a module of `tenure.cli`."""
    root = typer.Typer(rich_markup_mode="rich")
    root.add_typer(import_module(f"tenure.cli.{module}").app)
    command: Any = typer.main.get_group(root).commands[name]
    return command if name in WITHOUT_SERVER_OPTION else add_server_options(command)


def suggest_names(given: str, known: Iterable[str]) -> str:
    """The known names that are close to what was typed, as a sentence."""
    near = suggest(given, known, most=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
