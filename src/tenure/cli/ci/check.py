"""`tenure ci check`: check pipeline files and CI settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tenure.cli.common.console import count_noun, error_fields, print_json, say, show_error
from tenure.cli.common.options import AsJson
from tenure.errors import TenureError

app = typer.Typer()


@app.command()
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE...]", help="Pipeline files.  \\[default: .tenure/ci.yaml]", show_default=False
        ),
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check this file with CI settings as well.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check pipeline files and print every problem with its line and column. Ends with 1 if there is one.

    What a repository allows (labels, hosts, secrets, limits) is checked by `tenure ci plan --settings FILE`.
    """
    pipelines = files or ([] if settings else [Path(".tenure/ci.yaml")])
    checked = [_check_file(file, as_json, settings=False) for file in pipelines]
    if settings is not None:
        checked.append(_check_file(settings, as_json, settings=True))
    if as_json:
        print_json(checked)
    if not all(one["valid"] for one in checked):
        raise typer.Exit(1)


def _check_file(file: Path, as_json: bool, *, settings: bool) -> dict[str, Any]:
    from tenure.ci.pipeline import load_pipeline_file
    from tenure.ci.settings import load_settings_file

    try:
        if settings:
            names = list(load_settings_file(file).repositories)
            found = {"repositories": names}
            summary = f"repositories {', '.join(names)}"
        else:
            jobs = load_pipeline_file(file).jobs
            found = {"jobs": [job.instance_name(one) for job in jobs.values() for one in job.combinations]}
            summary = count_noun(len(found["jobs"]), "job")
    except TenureError as error:
        if not as_json:
            show_error(error)
        return {"file": str(file), "valid": False, "error": error_fields(error)}
    if not as_json:
        say(f"{file}: {summary}: fine")
    return {"file": str(file), "valid": True, **found}
