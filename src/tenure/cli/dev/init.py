"""`tenure init`: a project that runs: a workflow in Python, one in YAML, a test, and what to type."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.options import AsJson
from tenure.errors import Detail, TenureError

FILES = ("app.py", "workflow.yaml", "test_app.py", "README.md")
_FOLDER = "starter"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog="Example:\n\ntenure init hello && cd hello && tenure run app.py --input name=Ada")(
        init
    )


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where; made if it is not there.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Make a project that runs: a workflow with two steps, a retry and an approval; the same in YAML; a test.

    Nothing that exists is overwritten.
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
    if as_json:
        print_json({"folder": str(folder), "files": list(FILES)})
        return
    _show_next(folder)


def _show_next(folder: Path) -> None:
    console = out()
    for name in FILES:
        console.print(safe_text(f"made {folder / name}"))
    console.print()
    console.print(safe_text("Next:"))
    lines = [] if folder == Path() else [(f"cd {folder}", "")]
    lines += [
        ("tenure run app.py --input name=Ada", "run it here; it asks you before it sends"),
        ("tenure runs list", "what there is; tenure runs show RUN, tenure runs why RUN"),
        ("tenure run workflow.yaml", "the same as a YAML file"),
        ("python -m pytest", "its test, on a clock that jumps"),
    ]
    for command, what in lines:
        console.print(safe_text(f"  {command:<38}{'# ' if what else ''}{what}".rstrip()), soft_wrap=True)
