"""The registry of profiles: the built-in ones, one TOML file each in this folder, and the user's own.

Laws:
1. This is the only module of the kernel that reads files, and they are package data. `tenure.custom_profiles` reads and
   proves a user's own profiles, and registers them once, before anything is decided.
2. A name means one profile while a process lives: no custom profile has the name of a built-in one.
3. A run may have a profile that this process lacks. This process does not decide about the run (`for_run`:
   PROFILE_NOT_HERE), and shows it in the kernel's words (`for_display`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from tenure.errors import TenureError
from tenure.kernel.profile import Profile, parse_profile

KERNEL = "tenure"
"""The profile with the kernel's own words."""

_custom: dict[str, Profile] = {}
_built_in: dict[str, Profile] = {}
"""The built-in profiles that have been parsed."""


@cache
def built_in_names() -> tuple[str, ...]:
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml")))


def custom_names() -> tuple[str, ...]:
    return tuple(sorted(_custom))


def names() -> tuple[str, ...]:
    """The built-in profiles, then the custom ones."""
    return built_in_names() + custom_names()


def register_custom(found: Mapping[str, Profile]) -> None:
    """Replace the custom profiles."""
    assert not set(found) & set(built_in_names())
    _custom.clear()
    _custom.update(found)


def built_in_text(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def find(name: str) -> Profile | None:
    """The profile, or None if this process lacks it."""
    found = _built_in.get(name) or _custom.get(name)
    if found is None and name in built_in_names():
        found = _built_in[name] = parse_profile(built_in_text(name))
    return found


def get(name: str) -> Profile:
    """The profile that a request names."""
    found = find(name)
    if found is None:
        raise TenureError(
            "PROFILE_NOT_FOUND", f"there is no profile '{name}'; there are {', '.join(names())}"
        )
    return found


def for_run(name: str) -> Profile:
    """The profile of an existing run, for decisions."""
    found = _built_in.get(name) or find(name)
    if found is None:
        raise TenureError(
            "PROFILE_NOT_HERE", f"this process does not have the run's profile '{name}': see TENURE_PROFILES"
        )
    return found


def for_display(name: str) -> Profile:
    """The profile that shows an existing run: the kernel's own if this process lacks the run's profile."""
    return find(name) or get(KERNEL)
