"""ETags: what a caller has seen already is not sent again.

Law: a tag names what was answered, so it changes whenever that could: of a run with every event of its history.
"""

from __future__ import annotations


def make_etag(version: int, shape: str | None) -> str:
    """The tag of a run at a version, in the shape of a profile."""
    return f'"{version}.{shape}"' if shape else f'"{version}"'


def matches_etag(header: str | None, tag: str) -> bool:
    """Whether an If-None-Match names this tag."""
    if header is None:
        return False
    given = [one.strip().removeprefix("W/") for one in header.split(",")]
    return tag in given or given == ["*"]
