"""The tries that did not succeed, told from a run's history: what went wrong, and who took over.

Law: everything here is read from events and the payloads they name; the row of a step knows only its last try. The last
try of a step that has failed for good is not among them: it is the step's own line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tenure.clock import to_datetime
from tenure.kernel import history
from tenure.kernel.run_rows import EventRow, StepRow
from tenure.reads.payloads import decode_payload
from tenure.shapes.steps import FailedAttempt

RUN = "run"
"""What the body of a code-first run is called: it is the run itself."""
_OVER = frozenset({"failed", "timed_out", "canceled"})


def find_failed_attempts(
    events: Iterable[EventRow], steps: Iterable[StepRow], bodies: Mapping[int, bytes]
) -> list[FailedAttempt]:
    """See the law above, in order of time."""
    telling = _Telling({str(s.idx): RUN if s.kind == "body" else s.name for s in steps}, bodies)
    return [told for event in events for told in telling.of(event)]


class _Telling:
    def __init__(self, names: Mapping[str, str], bodies: Mapping[int, bytes]) -> None:
        self._names = names
        self._bodies = bodies
        self._checkpoints: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, str] = {}
        self._lost: set[str] = set()
        """The steps whose last try was lost."""

    def of(self, event: EventRow) -> Iterator[FailedAttempt]:
        """What an event tells of tries."""
        changed: dict[str, Any] = history.decode_body(event).get("set", {})
        for key, row in changed.get("checkpoint", {}).items():
            yield from self._checkpoint(event, key, row)
        for key, row in changed.get("attempt", {}).items():
            yield from self._attempt(event, key, row, changed.get("step", {}))

    def _checkpoint(self, event: EventRow, key: str, row: dict[str, Any]) -> Iterator[FailedAttempt]:
        known = self._checkpoints.setdefault(key, {})
        known |= row
        if known.get("state") != "failed" or known.get("next_at") is None or "output_ref" not in row:
            return
        yield FailedAttempt(
            step=key.partition("/")[2],
            at=to_datetime(event.at),
            state="failed",
            attempt=known.get("tries", 1),
            worker=event.actor.removeprefix("worker:"),
            code=known.get("error") or "",
            message=self._said(known["output_ref"]),
        )

    def _attempt(
        self, event: EventRow, key: str, row: dict[str, Any], steps: dict[str, Any]
    ) -> Iterator[FailedAttempt]:
        idx, _, n = key.partition("/")
        told: dict[str, Any] = {
            "step": self._names.get(idx, idx),
            "at": to_datetime(event.at),
            "attempt": int(n),
        }
        if "owner" in row:
            self._owners[key] = row["owner"]
            if idx in self._lost:
                self._lost.discard(idx)
                yield FailedAttempt(**told, state="taken over", worker=row["owner"])
        step = steps.get(idx, {})
        if row.get("state") not in ("failed", "stale", "timed_out") or step.get("state") in _OVER:
            return
        lost = row["state"] == "stale"
        if lost:
            self._lost.add(idx)
        yield FailedAttempt(
            **told,
            state="lost" if lost else "failed",
            worker=self._owners.get(key, ""),
            code=row.get("reason") or step.get("last_error") or "",
            message="" if lost else self._said(step.get("error_ref")),
        )

    def _said(self, ref: int | None) -> str:
        value = decode_payload(self._bodies.get(ref or 0))
        return "" if value is None else value if isinstance(value, str) else str(value)
