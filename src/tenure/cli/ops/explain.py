"""`tenure explain`: what an error code means, and what to do about it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenure.cli.common.console import print_json, show_result
from tenure.cli.common.lazy_group import suggest_names
from tenure.cli.common.options import AsJson
from tenure.cli.common.tables import show_table

_SKIPPED = "Not an error: the step's `if` was false, so it was skipped. It counts as succeeded, and its output is null."
_GUARD = "Nothing. Guard expressions that use its output: `steps.x.output == null ? ... : steps.x.output.y`."


def _codes(incomplete: str) -> list[tuple[str, str]]:
    from tenure.errors import CODES

    return [(code, spec.meaning) for code, spec in CODES.items() if code.startswith(incomplete.upper())]


app = typer.Typer()


@app.command()
def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE",
            help="The code, like STORE_BUSY; without one, list all codes.",
            autocompletion=_codes,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain what an error code means, what to do about it, and whether a retry may help."""
    from tenure.errors import CODES
    from tenure.kernel.run_rows import CONDITION_FALSE

    if code is None:
        if as_json:
            print_json(CODES)
        else:
            cells = list(CODES.items())
            show_table(cells, False, "", ("code", "meaning"), lambda item: (item[0], item[1].meaning))
        return
    name = code.strip().upper()
    if name == CONDITION_FALSE:  # the only reason of a step that is not an error
        fields: dict[str, Any] = {"meaning": _SKIPPED, "remedy": _GUARD, "retryable": False, "status": None}
    elif name in CODES:
        spec = CODES[name]
        fields = {
            "meaning": spec.meaning,
            "remedy": spec.remedy,
            "retryable": spec.retryable,
            "status": spec.status,
        }
    else:
        raise typer.BadParameter(
            f"'{code}' is not a code of Tenure.{suggest_names(name, CODES)} `tenure explain` lists them;"
            " the codes of your own steps mean what your code says.",
            param_hint="CODE",
        )
    lines = [name, f"  Meaning:    {fields['meaning']}", f"  What to do: {fields['remedy']}"]
    if fields["status"] is not None:
        again = (
            "yes: the same may succeed later"
            if fields["retryable"]
            else "no: the same again would end the same"
        )
        lines.append(f"  Try again:  {again} (HTTP status {fields['status']})")
    show_result({"code": name, **fields}, as_json, *lines)
