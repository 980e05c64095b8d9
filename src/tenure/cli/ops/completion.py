"""`tenure completion`: the script that makes a shell complete commands, options and ids of runs."""

from __future__ import annotations

from typing import Annotated

import typer

SHELLS = ("bash", "zsh", "fish")
_EPILOG = """
Examples:

tenure completion bash > ~/.local/share/bash-completion/completions/tenure

tenure completion zsh > ~/.zfunc/_tenure -- with ~/.zfunc in your fpath

tenure completion fish > ~/.config/fish/completions/tenure.fish
"""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=_EPILOG)(completion)


def _known(shell: str) -> str:
    if shell not in SHELLS:
        raise typer.BadParameter(f"'{shell}' is not one of {', '.join(SHELLS)}")
    return shell


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", callback=_known)],
) -> None:
    """Print the completion script of your shell: commands, options, and the ids of runs."""
    from typer._completion_shared import get_completion_script

    from tenure.cli.main import COMPLETE_VARIABLE

    print(get_completion_script(prog_name="tenure", complete_var=COMPLETE_VARIABLE, shell=shell))
