"""The profiles there are: those that come with Tenure, one TOML file each beside this module, and a user's own.

Laws:
1. This is the only place of the kernel that reads anything, and what it reads is package data. A user's own profiles
   are brought by whoever has read and proven them (`tenure.custom_profiles`), once, before anything is decided.
2. A name means one thing in a process for as long as it lives: no own profile has the name of one of ours.
3. A run may have a profile that this process lacks. It is decided about elsewhere (`for_run`: PROFILE_NOT_HERE), and
   shown here in the kernel's own words (`for_display`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from tenure.errors import TenureError
from tenure.kernel.profile import Profile, parse_profile

KERNEL = "tenure"
"""The profile whose words are the kernel's own."""

_own: dict[str, Profile] = {}
_ours: dict[str, Profile] = {}
"""Those that were asked for."""


@cache
def built_in_names() -> tuple[str, ...]:
    """The profiles that come with Tenure, in alphabetical order."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml")))


def custom_names() -> tuple[str, ...]:
    """The user's own profiles, in alphabetical order."""
    return tuple(sorted(_own))


def names() -> tuple[str, ...]:
    """The profiles there are: ours, then the user's own."""
    return built_in_names() + custom_names()


def register_custom(found: Mapping[str, Profile]) -> None:
    """Have these as the user's own profiles, by name: all that there are."""
    assert not set(found) & set(built_in_names())
    _own.clear()
    _own.update(found)


def built_in_text(name: str) -> str:
    """The file of a profile that comes with Tenure."""
    return resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def find(name: str) -> Profile | None:
    """The profile of this name; None where this process has none."""
    found = _ours.get(name) or _own.get(name)
    if found is None and name in built_in_names():
        found = _ours[name] = parse_profile(built_in_text(name))
    return found


def get(name: str) -> Profile:
    """The profile that somebody names."""
    found = find(name)
    if found is None:
        raise TenureError(
            "PROFILE_NOT_FOUND", f"there is no profile '{name}'; there are {', '.join(names())}"
        )
    return found


def for_run(name: str) -> Profile:
    """The profile of a run there is, to decide by."""
    found = _ours.get(name) or find(name)
    if found is None:
        raise TenureError(
            "PROFILE_NOT_HERE", f"this process does not have the run's profile '{name}': see TENURE_PROFILES"
        )
    return found


def for_display(name: str) -> Profile:
    """The profile of a run there is, to show it by; the kernel's own where this process lacks it."""
    return find(name) or get(KERNEL)


def load_text(text: str) -> Profile:
    """A profile from a user's own text."""
    return parse_profile(text)
