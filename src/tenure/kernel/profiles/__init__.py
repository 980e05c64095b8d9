"""The profiles that come with Tenure: one TOML file each, beside this module.

Law: this is the only place of the kernel that reads anything, and what it reads is package data.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from tenure.errors import TenureError
from tenure.kernel.profile import Profile, parse


@cache
def names() -> tuple[str, ...]:
    """The profiles there are, in alphabetical order."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml")))


@cache
def get(name: str) -> Profile:
    """The profile of this name, read once."""
    if name not in names():
        raise TenureError(
            "PROFILE_NOT_FOUND", f"there is no profile '{name}'; there are {', '.join(names())}"
        )
    return parse(resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def load_text(text: str) -> Profile:
    """A profile from a user's own text."""
    return parse(text)
