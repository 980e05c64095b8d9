"""`tenure completion`: the script that lets a shell complete commands, options and ids of runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

_EPILOG = """
Examples:

tenure completion bash > ~/.local/share/bash-completion/completions/tenure

tenure completion zsh > ~/.zfunc/_tenure -- with ~/.zfunc in your fpath

tenure completion fish > ~/.config/fish/completions/tenure.fish
"""


app = typer.Typer()


@app.command(epilog=_EPILOG)
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")
    ],
) -> None:
    """Print the completion script of your shell: commands, options, and the ids of runs."""
    from typer._completion_shared import get_completion_script

    from tenure.cli.main import COMPLETE_VARIABLE

    print(get_completion_script(prog_name="tenure", complete_var=COMPLETE_VARIABLE, shell=shell))
