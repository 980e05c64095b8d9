"""Path segments that may have any characters, also a slash: keys of steps (`plan/review#2`), names of artifacts.

Laws:
1. The client percent-encodes them into one segment (`plan%2Freview%232`). They are decoded here, once.
2. An encoded slash never divides a path: the router sees the segments as they were sent. The name of an artifact is the rest of its
   path, so there both forms are the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from litestar.types import Scope


def keep_slashes(scope: Scope) -> None:
    """Let the router see an encoded slash as it was sent (law 2). The server decodes the whole path."""
    raw = scope.get("raw_path") or b""
    if b"%2f" in raw or b"%2F" in raw:
        parts = raw.decode("ascii", "replace").split("/")
        scope["path"] = "/".join(unquote(part).replace("/", "%2F") for part in parts)


def _segments(scope: Any) -> list[str]:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("ascii", "replace").partition("?")[0].removeprefix("/").split("/")


def decode_segment(scope: Any, place: int) -> str:
    """The decoded segment at a place, counted from 0: in `/runs/ID/steps/KEY/logs` the key is at 3."""
    return unquote([part for part in _segments(scope) if part][place])


def decode_rest_of_path(scope: Any, place: int) -> str:
    """Everything from a place on, decoded: in `/runs/ID/artifacts/logs/build.txt` the name begins at 3. Its slashes may be encoded or
    not."""
    return unquote("/".join(_segments(scope)[place:]))


def step_key(scope: Any) -> str:
    """The key of the step in `/runs/ID/steps/KEY/...`."""
    return decode_segment(scope, 3)
