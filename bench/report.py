"""The output of the bench: a JSON line for each figure, and a table with versions and settings."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.figures import Figure
from bench.places import ROOT

PIPE_WIDTH = 150


class Line(msgspec.Struct):
    """A figure as it is printed."""

    figure: str
    value: float
    unit: str
    against: float
    ratio: float
    bar: float
    met: bool


class Result(msgspec.Struct):
    """A figure with its samples."""

    line: Line
    against_is: str
    bar_is: str
    samples: list[tuple[float, float]]
    """(against, value), in the order of the measurements."""


def result_of(figure: Figure, pairs: list[tuple[float, float]]) -> Result:
    """Compare the medians."""
    against = statistics.median(pair[0] for pair in pairs)
    value = statistics.median(pair[1] for pair in pairs)
    ratio = value / against
    met = ratio <= figure.bar if figure.at_most else ratio >= figure.bar
    shown = str(figure.bar) if figure.bar.numerator == 1 else f"{float(figure.bar):g}"
    line = Line(
        figure.name,
        rounded(value),
        figure.unit,
        rounded(against),
        round(ratio, 4),
        round(float(figure.bar), 4),
        met,
    )
    return Result(line, figure.against, f"{'at most' if figure.at_most else 'at least'} {shown}", pairs)


def rounded(number: float) -> float:
    return round(number) if number >= 100 else round(number, 3)


def print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


def print_table(results: list[Result], settings: Mapping[str, str]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    table = Table(title="Tenure's figures", title_justify="left")
    for head in ("figure", "value", "against", "ratio", "bar", "met"):
        table.add_column(head, justify="right" if head in ("value", "ratio") else "left")
    for result in results:
        line = result.line
        table.add_row(
            line.figure,
            f"{line.value:,} {line.unit}",
            f"{line.against:,} ({result.against_is})",
            f"{line.ratio:.3f}",
            result.bar_is,
            "[green]yes[/]" if line.met else "[red]no[/]",
        )
    console.print(table)
    behind = Table(show_header=False, title="Versions and settings", title_justify="left")
    behind.add_column(style="bold")
    behind.add_column(overflow="fold")
    for name, value in settings.items():
        behind.add_row(name, value)
    console.print(behind)


def write_json(path: Path, **report: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def versions() -> dict[str, str]:
    packages = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("msgspec", "asyncpg", "apsw", "uvloop")
    )
    return {
        "tenure": f"{metadata.version('tenure')}, commit {_commit()}",
        "python": f"{platform.python_version()} on {platform.platform(terse=True)}",
        "packages": packages,
        "cpus": str(os.cpu_count()),
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "bench")
        return git("rev-parse", "--short=12", "HEAD") + (" with uncommitted changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown (git failed)"
