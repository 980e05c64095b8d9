"""Segments of a path that may hold anything, a slash too: keys of steps (`plan/review#2`), names of artifacts.

Laws:
1. They are percent-encoded into one segment by who asks (`plan%2Freview%232`), and decoded here, once.
2. An encoded slash never divides a path: routes are found by the segments as they were sent. The name of an artifact is the rest of
   its path, so that there both forms are the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from litestar.types import Scope


def keep_slashes(scope: Scope) -> None:
    """Let the router see an encoded slash as it was sent (law 2): servers hand on the whole path decoded."""
    raw = scope.get("raw_path") or b""
    if b"%2f" in raw or b"%2F" in raw:
        parts = raw.decode("ascii", "replace").split("/")
        scope["path"] = "/".join(unquote(part).replace("/", "%2F") for part in parts)


def decode_segment(scope: Any, place: int) -> str:
    """The decoded segment at a place, counted from 0: of `/runs/ID/steps/KEY/logs` the key is at 3."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    parts = [part for part in raw.decode("ascii", "replace").partition("?")[0].split("/") if part]
    return unquote(parts[place])


def decode_rest_of_path(scope: Any, place: int) -> str:
    """Everything from a place on, decoded: of `/runs/ID/artifacts/logs/build.txt` the name is from 3 on. Slashes may be sent as they
    are or encoded."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    parts = raw.decode("ascii", "replace").partition("?")[0].removeprefix("/").split("/")
    return unquote("/".join(parts[place:]))


def step_key(scope: Any) -> str:
    """The key of the step in `/runs/ID/steps/KEY/...`."""
    return decode_segment(scope, 3)
