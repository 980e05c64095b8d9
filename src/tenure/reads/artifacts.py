"""The files of a run: listed, and found by name.

Laws:
1. A name alone finds the accepted file. If the step has not succeeded, it finds the newest file that was in time, never a late
   one.
2. If several steps have such a file, ARTIFACT_AMBIGUOUS names them.
3. With step and attempt, the file of that attempt is found: the file that was in time, else the late one. `late` chooses one of
   them.
4. A step that has the result of an earlier step has the files of that step, under its own name, as long as that step's run exists.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import artifact_name_problem
from tenure.kernel.run_rows import StepRow
from tenure.shapes.runs import Artifact
from tenure.store.artifacts import ArtifactDetail
from tenure.store.port import Store
from tenure.store.transactions import read_rows

ArtifactPosition = tuple[str, int, int, bool]
"""The position after which a page begins: name, step, attempt and lateness of an artifact."""
FIRST_POSITION: ArtifactPosition = ("", -1, -1, False)
_NAMED_MAX = 5


def to_artifact(line: ArtifactDetail) -> Artifact:
    return Artifact(
        name=line.name,
        step=line.step,
        attempt=line.n,
        state=line.state,
        size=line.size,
        digest=line.digest,
        content_type=line.content_type,
        worker=line.worker,
        uploaded_at=to_datetime(line.at),
        late=line.late,
        expires_at=to_optional_datetime(line.expires_at),
        deleted_at=to_optional_datetime(line.deleted_at),
    )


def artifact_position(line: ArtifactDetail) -> ArtifactPosition:
    return (line.name, line.idx, line.n, line.late)


async def list_artifacts(
    store: Store, run_id: int, *, after: ArtifactPosition = FIRST_POSITION, limit: int
) -> list[ArtifactDetail]:
    """The files of a run by name, step and attempt."""
    lines: list[ArtifactDetail] = await store.read("artifacts_of", run_id, *after, limit)
    linked = [line for line in await _read_linked(store, run_id) if artifact_position(line) > after]
    return sorted([*lines, *linked], key=artifact_position)[:limit] if linked else lines


async def _read_linked(store: Store, run_id: int) -> list[ArtifactDetail]:
    """The files of earlier steps whose results steps of this run have (law 4)."""
    reused = await read_rows(store, StepRow, "reused_steps_of", run_id)
    lines: list[ArtifactDetail] = []
    for step in reused:
        originals: list[StepRow] = await store.read(
            "load_named_steps", rows=[(step.reused_run, step.reused_step)]
        )
        for original in originals:
            files = await read_rows(
                store, ArtifactDetail, "artifacts_of_step", original.run_id, original.idx, original.attempt
            )
            lines += [replace(file, idx=step.idx, step=step.name) for file in files if not file.late]
    return lines


async def find_artifact(
    store: Store,
    run_id: int,
    name: str,
    *,
    step: str | None = None,
    attempt: int | None = None,
    late: bool | None = None,
) -> ArtifactDetail:
    """The artifact with a name; see the laws above."""
    lines: list[ArtifactDetail] = []
    if artifact_name_problem(name) is None:  # no artifact has another name
        lines = await store.read("artifacts_named", run_id, name)
        lines += [line for line in await _read_linked(store, run_id) if line.name == name]
    named = [
        line
        for line in lines
        if step in (None, line.step) and attempt in (None, line.n) and late in (None, line.late)
    ]
    exact = step is not None and attempt is not None
    found = named if exact or late else _select_current(named)
    if exact and late is None:
        found = [line for line in named if not line.late] or named
    if len(found) == 1:
        return found[0]
    if found:
        raise TenureError("ARTIFACT_AMBIGUOUS", f"{_describe(name, found)}; name its step and attempt")
    if lines:
        raise TenureError(
            "ARTIFACT_NOT_FOUND",
            f"{ids.run_text(run_id)} has no accepted artifact {name!r}; {_describe(name, named or lines)}: name its step and"
            " attempt",
        )
    raise TenureError("ARTIFACT_NOT_FOUND", f"{ids.run_text(run_id)} has no artifact {name[:80]!r}")


def _select_current(lines: Iterable[ArtifactDetail]) -> list[ArtifactDetail]:
    """The file of each step that a name alone finds; if any are accepted, only those (law 1)."""
    best: dict[int, ArtifactDetail] = {}
    for line in lines:  # by step and attempt, so that the newest is kept
        known = best.get(line.idx)
        if line.state == "late" or (line.state == "failed" and line.step_state == "succeeded"):
            continue
        if known is None or known.state != "accepted" or line.state == "accepted":
            best[line.idx] = line
    accepted = [line for line in best.values() if line.state == "accepted"]
    return accepted or list(best.values())


def _describe(name: str, lines: list[ArtifactDetail]) -> str:
    listed = ", ".join(f"{line.step!r} attempt {line.n} ({line.state})" for line in lines[:_NAMED_MAX])
    more = f" and {len(lines) - _NAMED_MAX} more" if len(lines) > _NAMED_MAX else ""
    return f"{name!r} was uploaded by step {listed}{more}"
