"""Custom profiles: the files of the folder that TENURE_PROFILES names, proven before they are used.

Laws:
1. A process reads them once, when it first needs them: for an engine, the definition of a workflow, or a command.
2. All files must be valid. A file that is malformed, contradicts the kernel's lifecycle, or has the name of a built-in profile or of
   another file's profile is PROFILE_INVALID with the file's name, and the process does not start.
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
    profile: Profile
    file: Path
    text: str


@cache
def load_custom_profiles() -> dict[str, CustomProfile]:
    """The custom profiles by name. They are registered with the kernel."""
    folder = choose_profiles()
    found = {} if folder is None else read_profiles(Path(folder))
    profiles.register_custom({name: own.profile for name, own in found.items()})
    return found


def read_profiles(folder: Path) -> dict[str, CustomProfile]:
    """The proven profiles of a folder: its *.toml files, without hidden files and subfolders."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".toml" and file.name[0] != ".")
    except OSError as fault:
        raise _invalid(
            f"{PROFILES_VARIABLE} names {folder}, which cannot be read: {fault.strerror}"
        ) from fault
    if len(files) > PROFILES_OWN_MAX:
        raise _invalid(f"{folder} has {len(files)} profiles; at most {PROFILES_OWN_MAX}")
    found: dict[str, CustomProfile] = {}
    for file in files:
        own = _load_proven(file)
        name = own.profile.name
        if name in found:
            raise _invalid(f"{file} and {found[name].file} have the same name, '{name}'", "name")
        found[name] = own
    return found


def _load_proven(file: Path) -> CustomProfile:
    from tenure.kernel.refinement import prove_profile  # most processes have nothing to prove

    text = read_profile_text(file)
    try:
        profile = parse_profile(text)
    except TenureError as refused:
        raise TenureError("PROFILE_INVALID", f"{file}: {refused.message}", refused.details) from refused
    check_proof(file, prove_profile(profile))
    return CustomProfile(profile, file, text)


def read_profile_text(file: Path) -> str:
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
    """Refuse a profile that has a built-in name, or whose proof found problems."""
    details = tuple(Detail(e.entity, problem) for e in proof.entities for problem in e.problems)
    if details:
        problems = "1 problem" if len(details) == 1 else f"{len(details)} problems"
        raise TenureError("PROFILE_INVALID", f"{file} does not fit the kernel: {problems}", details)
    if proof.profile in profiles.built_in_names():
        raise _invalid(
            f"{file} has the name of a built-in profile, '{proof.profile}'; choose another", "name"
        )


def _invalid(message: str, place: str = "") -> TenureError:
    return TenureError("PROFILE_INVALID", message, (Detail(place, message),) if place else ())
