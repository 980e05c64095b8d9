"""Whose caches and test histories a job reads and writes.

Laws:
1. The scope is in the job's input, which the plan has made. Nothing that a runner sends changes it.
2. A trusted scope is read by every job of its repository, and written by trusted jobs only. The scope of a pull request is read
   and written by the jobs of that pull request only. So nothing of an untrusted commit reaches a trusted job.
3. A job without a scope counts as untrusted, even if it may have secrets: a person may have approved a fork's job.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tenure.errors import TenureError
from tenure.limits import KEY_TEXT_CHARS_MAX

TRUSTED = "trusted:"
PULL = "pull:"
REF = "ref:"


class _Checkout(msgspec.Struct):
    repository: str
    commit: str = ""
    ref: str = ""


class _Reuse(msgspec.Struct):
    scope: str = ""


class _PlannedJob(msgspec.Struct):
    """What storage needs of a `ci.job.CiJob`."""

    checkout: _Checkout
    scope: str = ""
    reuse: _Reuse | None = None


class StorageScope(NamedTuple):
    repository: str
    name: str
    """`trusted:REPOSITORY`, `pull:REPOSITORY:NUMBER` or `ref:REPOSITORY:REF`."""
    commit: str

    @property
    def trusted(self) -> bool:
        return self.name.startswith(TRUSTED)

    @property
    def readable(self) -> tuple[str, ...]:
        """The scopes that it reads, its own first."""
        return (self.name,) if self.trusted else (self.name, f"{TRUSTED}{self.repository}")


def read_storage_scope(job: bytes) -> StorageScope:
    """The scope of a job, from the input of its step. INVALID_INPUT if the input is not a job's."""
    try:
        planned = msgspec.json.decode(job, type=_PlannedJob)
    except msgspec.DecodeError as wrong:
        raise TenureError(
            "INVALID_INPUT", f"only CI jobs have caches, and the input of this step is not a job's: {wrong}"
        ) from wrong
    repository = planned.checkout.repository
    name = planned.scope or (planned.reuse.scope if planned.reuse else "")
    others = (f"{PULL}{repository}:", f"{REF}{repository}:")
    if name and name != f"{TRUSTED}{repository}" and not name.startswith(others):
        raise TenureError(
            "INVALID_INPUT", f"the job's scope {name!r} is not one of its repository {repository!r}"
        )
    name = name or f"{REF}{repository}:{planned.checkout.ref or planned.checkout.commit}"
    return StorageScope(repository, name[:KEY_TEXT_CHARS_MAX], planned.checkout.commit)
