"""Values that people type: durations, times, JSON, codes and `key=value` pairs."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import typer

from tenure.canonical import DuplicateName, decode_json
from tenure.clock import HostClock
from tenure.errors import TenureError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CODE = re.compile(r"[A-Z0-9_]{1,64}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def parse_seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `2h`, `1d` in seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"'{text}' is not a duration like 90s, 5m, 2h or 1d")
    length = float(found[1]) * _UNITS[found[2]]
    if not math.isfinite(length):
        raise typer.BadParameter(f"'{text}' is too long")
    return length


def now() -> datetime:
    return datetime.fromtimestamp(HostClock().now_us() / 1e6, UTC)


def parse_time(text: str) -> datetime:
    """`+5m`, or a time as in 2026-02-14T08:00:00Z; without a zone it is UTC."""
    if text.startswith("+"):
        try:
            return now() + timedelta(seconds=parse_seconds(text[1:]))
        except OverflowError as wrong:
            raise typer.BadParameter(f"'{text}' is too far in the future") from wrong
    try:
        parsed = datetime.fromisoformat(text)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError) as wrong:
        raise typer.BadParameter(
            f"'{text}' is neither +DURATION nor a time like 2026-02-14T08:00Z"
        ) from wrong


def parse_json(text: str | None, what: str) -> Any:
    """A JSON value from the command line, or from a file as `@FILE`."""
    if text is None:
        return None
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            raise TenureError("INVALID_INPUT", f"{what}: {text[1:]} cannot be read: {fault}") from fault
    try:
        return decode_json(text)
    except RecursionError as fault:
        raise TenureError("INVALID_INPUT", f"{what} is nested too deeply") from fault
    except msgspec.DecodeError as fault:
        raise TenureError("INVALID_INPUT", f"{what} is not JSON: {fault}; a text needs its quotes") from fault


def parse_json_or_text(text: str, where: str = "") -> Any:
    """The text as JSON if it is JSON, else the text itself."""
    try:
        return decode_json(text)
    except DuplicateName as twice:
        raise TenureError("INVALID_INPUT", f"{where}{twice}") from twice
    except msgspec.DecodeError:
        return text


def parse_code(text: str) -> str:
    if _CODE.fullmatch(text) is None:
        raise typer.BadParameter(f"'{text}' is not a code: 1 to 64 of A-Z, 0-9 and _, like NOT_NEEDED")
    return text


def parse_pairs(given: list[str] | None) -> dict[str, str]:
    """`key=value` options as a dictionary."""
    found: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"'{text}' is not key=value")
        found[key] = value
    return found


def read_bytes(file: Path, most: int = -1) -> bytes:
    """A file's bytes. With `most`, at most one byte more: the caller refuses a larger file."""
    try:
        with file.open("rb") as opened:
            return opened.read(most if most < 0 else most + 1)
    except OSError as fault:
        raise TenureError("INVALID_INPUT", f"{file} cannot be read: {fault.strerror}") from fault
