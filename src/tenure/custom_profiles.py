"""A user's own profiles: the files of the folder that TENURE_PROFILES names, proven before anything uses them.

Laws:
1. They are read once in the life of a process, by whatever comes first: an engine, a workflow that is defined, a command.
2. All of them or none: a file that is malformed, breaks the kernel's lifecycle, takes one of our names or one that
   another file has is PROFILE_INVALID with the file's name, and what was to start does not.
3. A file is data (TOML): nothing in it is evaluated.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenure.config import PROFILES_VARIABLE, choose_profiles
from tenure.errors import Detail, TenureError
from tenure.kernel import profiles
from tenure.kernel.profile import Profile, parse_profile
from tenure.limits import PROFILE_BYTES_MAX, PROFILES_OWN_MAX

if TYPE_CHECKING:
    from tenure.kernel.refinement import ProfileProof


class CustomProfile(msgspec.Struct, frozen=True):
    """A profile of the user's own, and where it is from."""

    profile: Profile
    file: Path
    text: str


@cache
def load_custom_profiles() -> dict[str, CustomProfile]:
    """The user's own profiles by name; from now on the kernel knows them."""
    folder = choose_profiles()
    found = {} if folder is None else read_profiles(Path(folder))
    profiles.register_custom({name: own.profile for name, own in found.items()})
    return found


def read_profiles(folder: Path) -> dict[str, CustomProfile]:
    """The profiles of a folder, each proven: its *.toml files, but for hidden ones and those in folders below."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".toml" and file.name[0] != ".")
    except OSError as fault:
        raise _invalid(
            f"{PROFILES_VARIABLE} names {folder}, which is no folder to read: {fault.strerror}"
        ) from fault
    if len(files) > PROFILES_OWN_MAX:
        raise _invalid(f"{folder} has {len(files)} profiles; at most {PROFILES_OWN_MAX}")
    found: dict[str, CustomProfile] = {}
    for file in files:
        own = CustomProfile(*_proven(file))
        name = own.profile.name
        if name in found:
            raise _invalid(f"{file} has the name '{name}', and so has {found[name].file}", "name")
        found[name] = own
    return found


def _proven(file: Path) -> tuple[Profile, Path, str]:
    from tenure.kernel.refinement import prove_profile  # most processes have nothing to prove

    text = read_profile_text(file)
    try:
        profile = parse_profile(text)
    except TenureError as refused:
        raise TenureError("PROFILE_INVALID", f"{file}: {refused.message}", refused.details) from refused
    check_proof(file, prove_profile(profile))
    return profile, file, text


def read_profile_text(file: Path) -> str:
    """The text of a profile's file."""
    try:
        with file.open("rb") as opened:
            body = opened.read(PROFILE_BYTES_MAX + 1)
    except OSError as fault:
        raise _invalid(f"{file} cannot be read: {fault.strerror}") from fault
    if len(body) > PROFILE_BYTES_MAX:
        raise _invalid(f"{file} has more than {PROFILE_BYTES_MAX} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError as e:
        raise TenureError("PROFILE_INVALID", f"{file} is not UTF-8 text", (Detail("", str(e)),)) from e


def check_proof(file: Path, proof: ProfileProof) -> None:
    """Refuse a profile with one of our names, or whose proof found problems."""
    details = tuple(Detail(e.entity, problem) for e in proof.entities for problem in e.problems)
    if details:
        problems = "1 problem" if len(details) == 1 else f"{len(details)} problems"
        raise TenureError("PROFILE_INVALID", f"{file} does not fit the kernel: {problems}", details)
    if proof.profile in profiles.built_in_names():
        raise _invalid(f"{file} has the name of a profile of ours, '{proof.profile}'; choose another", "name")


def _invalid(message: str, place: str = "") -> TenureError:
    return TenureError("PROFILE_INVALID", message, (Detail(place, message),) if place else ())
