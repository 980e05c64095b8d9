"""`tenure init`: create a project with a workflow in Python, one in YAML, and a test."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli.common.console import show_result
from tenure.cli.common.options import AsJson
from tenure.errors import Detail, TenureError

FILES = ("app.py", "workflow.yaml", "test_app.py", "README.md")
_FOLDER = "starter"


app = typer.Typer()


@app.command(epilog="Example:\n\ntenure init hello && cd hello && tenure run app.py --input name=Ada")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder; created if it does not exist.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Create a project: a workflow with two steps, a retry and an approval; the same in YAML; and a test.

    Existing files are not overwritten.
    """
    taken = [name for name in FILES if (folder / name).exists()]
    if taken:
        details = tuple(Detail(str(folder / name), "exists already") for name in taken)
        raise TenureError(
            "INVALID_INPUT", f"{folder} has {', '.join(taken)} already; choose another folder", details
        )
    source = resources.files("tenure.cli") / _FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write((source / f"{name}.txt").read_text(encoding="utf-8"))
    except OSError as fault:
        raise TenureError("INVALID_INPUT", f"{folder} cannot be written: {fault.strerror}") from fault
    commands = {
        "tenure run app.py --input name=Ada": "run it here; it asks you before it sends",
        "tenure runs list": "all runs; then tenure runs show RUN, tenure runs why RUN",
        "tenure run workflow.yaml": "the same as a YAML file",
        "python -m pytest": "its test, on a clock that jumps",
    }
    show_result(
        {"folder": str(folder), "files": list(FILES)},
        as_json,
        *(f"made {folder / name}" for name in FILES),
        "",
        "Next:",
        *([] if folder == Path() else [f"  cd {folder}"]),
        *(f"  {command:<38}# {what}" for command, what in commands.items()),
    )
