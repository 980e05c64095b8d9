"""`tenure explain`: what an error code means, and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.lazy_group import suggest_commands
from tenure.cli.common.options import AsJson

_SKIPPED = (
    "No error: the step's `if` was false, so it was skipped. It counts as succeeded, and its output is null."
)
_GUARD = "Nothing. Guard what looks at its output: `steps.x.output == null ? ... : steps.x.output.y`."


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(explain)


def _codes(incomplete: str) -> list[tuple[str, str]]:
    from tenure.errors import CODES

    return [(code, spec.meaning) for code, spec in CODES.items() if code.startswith(incomplete.upper())]


def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE",
            help="The code, like STORE_BUSY; without one all are listed.",
            autocompletion=_codes,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what an error code means, what to do about it, and whether trying again may help."""
    from tenure.errors import CODES
    from tenure.kernel.run_rows import CONDITION_FALSE

    if code is None:
        if as_json:
            print_json(CODES)
        else:
            from tenure.cli.runs.run_tables import make_table

            made = make_table("code", "meaning")
            for name, spec in CODES.items():
                made.add_row(safe_text(name), safe_text(spec.meaning))
            out().print(made)
        return
    name = code.strip().upper()
    if name == CONDITION_FALSE:  # the one reason of a step that is no error
        if as_json:
            print_json(
                {"code": name, "meaning": _SKIPPED, "remedy": _GUARD, "retryable": False, "status": None}
            )
        else:
            told = f"{name}\n  Meaning:    {_SKIPPED}\n  What to do: {_GUARD}"
            out().print(safe_text(told), soft_wrap=True)
        return
    if name not in CODES:
        raise typer.BadParameter(
            f"'{code}' is none of Tenure's codes.{suggest_commands(name, CODES)} `tenure explain` lists them;"
            " the codes of your own steps mean what your code says.",
            param_hint="CODE",
        )
    spec = CODES[name]
    if as_json:
        print_json(
            {
                "code": name,
                "meaning": spec.meaning,
                "remedy": spec.remedy,
                "retryable": spec.retryable,
                "status": spec.status,
            }
        )
        return
    again = "the same may succeed later" if spec.retryable else "the same again would end the same"
    for line in (
        name,
        f"  Meaning:    {spec.meaning}",
        f"  What to do: {spec.remedy}",
        f"  Try again:  {'yes' if spec.retryable else 'no'}: {again} (HTTP status {spec.status})",
    ):
        out().print(safe_text(line), soft_wrap=True)
