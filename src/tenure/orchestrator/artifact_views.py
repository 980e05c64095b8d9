"""The files of a run: listed, and found by name.

Laws:
1. A name alone finds the accepted file. Of a step that has not succeeded it finds the newest in time; a late one is never found so.
2. Where several steps have such a file, nobody guesses: ARTIFACT_AMBIGUOUS names them.
3. With step and attempt the file of that attempt is found, the one in time before the late one; `late` chooses.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from tenure import ids
from tenure.artifacts import Reference
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import ArtifactState, name_problem
from tenure.orchestrator.step_views import moment
from tenure.store.port import Store
from tenure.store.remote import ArtifactLine

ArtifactPlace = tuple[str, int, int, bool]
"""Where a list goes on: name, step, attempt and lateness of the last one."""
BEFORE_ALL: ArtifactPlace = ("", -1, -1, False)
_NAMED_MAX = 5


class ArtifactView(msgspec.Struct, frozen=True, kw_only=True):
    """A named file of a run."""

    name: str
    step: str
    attempt: int
    state: ArtifactState
    """accepted (its attempt succeeded), pending (it is under way), failed (it ended otherwise), late."""
    size: int
    digest: str
    content_type: str
    worker: str
    """Who uploaded it."""
    uploaded_at: datetime
    late: bool
    """Uploaded after its lease had ended: kept as evidence, and it changed nothing."""


def artifact_view(line: ArtifactLine) -> ArtifactView:
    """An artifact as it is shown."""
    return ArtifactView(
        name=line.name,
        step=line.step,
        attempt=line.n,
        state=line.state,
        size=line.size,
        digest=line.digest,
        content_type=line.content_type,
        worker=line.worker,
        uploaded_at=moment(line.at),
        late=line.late,
    )


def place_of_line(line: ArtifactLine) -> ArtifactPlace:
    """Where a list goes on after this one."""
    return (line.name, line.idx, line.n, line.late)


async def list_artifacts(
    store: Store, run_id: int, *, after: ArtifactPlace = BEFORE_ALL, limit: int
) -> list[ArtifactLine]:
    """The files of a run by name, step and attempt."""
    found: list[ArtifactLine] = await store.read("artifacts_of", run_id, *after, limit)
    return found


async def find_artifact(
    store: Store,
    run_id: int,
    name: str,
    *,
    step: str | None = None,
    attempt: int | None = None,
    late: bool | None = None,
) -> ArtifactLine:
    """The one that is meant; see the laws above."""
    lines: list[ArtifactLine] = []
    if name_problem(name) is None:  # no other name was ever taken
        lines = await store.read("artifacts_named", run_id, name)
    named = [
        line
        for line in lines
        if step in (None, line.step) and attempt in (None, line.n) and late in (None, line.late)
    ]
    exact = step is not None and attempt is not None
    found = named if exact or late else _counted(named)
    if exact and late is None:
        found = [line for line in named if not line.late] or named
    if len(found) == 1:
        return found[0]
    if found:
        raise TenureError("ARTIFACT_AMBIGUOUS", f"{_which(name, found)}; name its step and attempt")
    where = ids.run_text(run_id)
    if named or lines:
        raise TenureError(
            "ARTIFACT_NOT_FOUND",
            f"{where} has no accepted artifact {name!r}; {_which(name, named or lines)}: name its step and attempt",
        )
    raise TenureError("ARTIFACT_NOT_FOUND", f"{where} has no artifact {name[:80]!r}")


def reference_to(line: ArtifactLine) -> bytes:
    """What its bytes are read by."""
    run = ids.run_text(line.run_id)
    return msgspec.json.encode(Reference(digest=line.digest, size=line.size, run=run))


def _counted(lines: Iterable[ArtifactLine]) -> list[ArtifactLine]:
    """Of each step the file that counts, and only the accepted ones where there are any (law 1)."""
    best: dict[int, ArtifactLine] = {}
    for line in lines:  # by step and attempt, so that the newest stays
        known = best.get(line.idx)
        if line.state == "late" or (line.state == "failed" and line.step_state == "succeeded"):
            continue
        if known is None or known.state != "accepted" or line.state == "accepted":
            best[line.idx] = line
    accepted = [line for line in best.values() if line.state == "accepted"]
    return accepted or list(best.values())


def _which(name: str, lines: list[ArtifactLine]) -> str:
    listed = ", ".join(f"{line.step!r} attempt {line.n} ({line.state})" for line in lines[:_NAMED_MAX])
    more = f" and {len(lines) - _NAMED_MAX} more" if len(lines) > _NAMED_MAX else ""
    return f"{name!r} was uploaded by step {listed}{more}"
