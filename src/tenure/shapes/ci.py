"""Requests for CI runs."""

from __future__ import annotations

import msgspec


class CiTrigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to run CI for."""

    repository: str
    """Its name in the CI settings, or its name at GitHub."""
    ref: str = ""
    """A branch, or a full ref such as refs/tags/v1. Empty: the default branch."""
    head: str = ""
    """The commit. Empty: the newest of the ref."""
    base: str = ""
    """The commit to compare with. Empty: where the ref left the default branch."""
