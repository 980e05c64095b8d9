"""Draws the comparison as an SVG: bars per system on a log scale.

    python -m bench --json results.json && python -m bench.peers.plot results.json

This writes docs/benchmarks.svg. A system that was not measured has the words "not measured" instead of a bar.
"""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.places import ROOT

TARGET = ROOT / "docs" / "benchmarks.svg"
WIDTH, LABEL, RIGHT, ROW, BAR = 760, 250, 110, 26, 16
OURS, THEIRS, INK, GRID = "#2f6f4f", "#8a94a6", "#222", "#d8dce3"


class Shown(msgspec.Struct, frozen=True):
    """A bar. Without a value, the system was not measured."""

    label: str
    value: float | None
    ours: bool = False


class Panel(msgspec.Struct, frozen=True):
    """A group of bars with its own scale."""

    title: str
    unit: str
    bars: list[Shown]


def scale(values: list[float]) -> tuple[int, int]:
    """The exponents of the powers of ten below and above all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def drawn(panels: list[Panel], note: str = "") -> str:
    """The SVG of all panels."""
    parts: list[str] = []
    top = 10
    for panel in panels:
        if any(bar.value for bar in panel.bars):
            top = _panel(panel, top, parts)
    if note:
        parts.append(_text(10, top + 14, note, size=11))
        top += 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
        ' font-family="system-ui, sans-serif" role="img">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def _panel(panel: Panel, top: int, parts: list[str]) -> int:
    low, high = scale([bar.value for bar in panel.bars if bar.value])
    span = WIDTH - LABEL - RIGHT
    parts.append(_text(10, top + 18, f"{panel.title} ({panel.unit}, log scale)", size=15, bold=True))
    first = top + 32
    bottom = first + ROW * len(panel.bars)
    for power in range(low, high + 1):
        x = LABEL + span * (power - low) / (high - low)
        parts.append(f'<line x1="{x:.1f}" y1="{first}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>')
        parts.append(_text(x, bottom + 14, f"{10.0**power:,g}", size=11, anchor="middle"))
    for number, bar in enumerate(panel.bars):
        y = first + number * ROW + (ROW - BAR) / 2
        parts.append(_text(LABEL - 8, y + BAR - 3, bar.label, anchor="end"))
        if not bar.value:
            parts.append(_text(LABEL + 6, y + BAR - 3, "not measured"))
            continue
        width = span * (math.log10(bar.value) - low) / (high - low)
        colour = OURS if bar.ours else THEIRS
        parts.append(f'<rect x="{LABEL}" y="{y:g}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        parts.append(_text(LABEL + width + 6, y + BAR - 3, _number(bar.value)))
    return bottom + 34


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{INK}"{weight}>'
        f"{escape(text)}</text>"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class _Figure(msgspec.Struct):
    value: float


class _System(msgspec.Struct):
    system: str
    title: str
    figures: dict[str, _Figure]


class _Written(msgspec.Struct):
    settings: dict[str, str]
    systems: list[_System] = []


def panels_of(written: _Written) -> list[Panel]:
    def panel(title: str, unit: str, *figures: str, reverse: bool) -> Panel:
        bars = []
        for system in written.systems:
            ours = system.system.startswith("tenure")
            if ours or (system.system == "pgqueuer") == (unit == "jobs/s"):
                found = next((system.figures[name] for name in figures if name in system.figures), None)
                if found is not None or not ours:
                    bars.append(Shown(system.title, None if found is None else found.value, ours))
        bars.sort(key=lambda bar: (bar.value is None, (bar.value or 0) * (-1 if reverse else 1)))
        return Panel(title, unit, bars)

    return [
        panel("Durable steps a second, runs of five", "steps/s", "throughput", reverse=True),
        panel("Five steps alone, from submit to done", "ms p50, less is better", "lone", reverse=False),
        panel("Plain jobs a second", "jobs/s", "jobs", "throughput", reverse=True),
    ]


def main(
    report: Annotated[Path, typer.Argument(help="The file that `python -m bench --peers ... --json` wrote.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = TARGET,
) -> None:
    """Draw the comparison."""
    written = msgspec.json.decode(report.read_bytes(), type=_Written)
    if not any(system.figures for system in written.systems):
        raise typer.BadParameter("no system was measured in this report: run the bench with --peers")
    kept = ("measured", "cpus", "load")
    note = "; ".join(f"{name}: {written.settings[name]}" for name in kept if name in written.settings)
    out.write_text(drawn(panels_of(written), note))


if __name__ == "__main__":
    typer.run(main)
