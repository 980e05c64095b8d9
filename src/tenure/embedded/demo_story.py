"""A run's history told to people: a line for each thing that happened, with who did it.

Law: every line is one event of the run's hash-chained history, and nothing else is told.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenure import ids
from tenure.kernel import history
from tenure.orchestrator.views import decoded, moment

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine
    from tenure.kernel.model import Event

Tone = Literal["", "good", "bad", "wait"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One event, told."""

    seq: int
    at: datetime
    seconds: float
    """Since the run began."""
    who: str
    what: str
    tone: Tone = ""


async def story(engine: Engine, run_id: str) -> list[Line]:
    """The history of a run, told."""
    number = ids.run_int(run_id)
    events: list[Event] = await engine.store.read("events_of", number)
    payloads = {row.ref: row.body for row in await engine.store.read("payloads_of", number)}
    teller = _Teller({ref: decoded(body) for ref, body in payloads.items()})
    return [teller.tell(event, events[0].at) for event in events]


class _Teller:
    def __init__(self, payloads: dict[int, Any]) -> None:
        self._payloads = payloads
        self._holder = ""
        self._lost = False

    def tell(self, event: Event, begun: int) -> Line:
        """One event as a line."""
        body = history.decode_body(event)
        what, tone = self._told(event, body)
        return Line(
            seq=event.seq,
            at=moment(event.at),
            seconds=(event.at - begun) / 1e6,
            who=event.actor.removeprefix("worker:"),
            what=what,
            tone=tone,
        )

    def _told(self, event: Event, body: dict[str, Any]) -> tuple[str, Tone]:
        rows: dict[str, Any] = body.get("set", {})
        match event.kind:
            case "create":
                return "asked for the run", ""
            case "claim":
                return self._claimed(event)
            case "checkpoint":
                return self._recorded(rows)
            case "open_wait":
                return self._waits(rows)
            case "suspend":
                return "let go of the run: nobody holds it while it waits", "wait"
            case "decide_approval":
                return self._decided(rows)
            case "deliver_event":
                return self._delivered(rows)
            case "lease_expired":
                self._lost = True
                seen = "is gone" if event.actor == "system:process-watch" else "was not heard of any more"
                return f"{self._holder} {seen}: its lease is over, the run is free", "bad"
            case "complete":
                # The last step's result and the run's end may be one commit.
                before = f"{self._recorded(rows)[0]}; " if rows.get("checkpoint") else ""
                output = self._shown(rows["run"][""].get("output_ref"))
                return f"{before}the run has succeeded: {output}", "good"
            case "fail":
                return f"the run has failed: {rows['run'][''].get('reason', '')}", "bad"
            case other:
                return other, ""

    def _claimed(self, event: Event) -> tuple[str, Tone]:
        self._holder = event.actor.removeprefix("worker:")
        again, self._lost = self._lost, False
        if again:
            return "took over where the record ends: what was recorded is not done again", "good"
        return "took the run", ""

    def _recorded(self, rows: dict[str, Any]) -> tuple[str, Tone]:
        """What was recorded of steps: one of them, or several in one commit."""
        told = [self._one_recorded(key.partition("/")[2], row) for key, row in rows["checkpoint"].items()]
        bad = any(tone == "bad" for _, tone in told)
        return "; ".join(text for text, _ in told), "bad" if bad else "good"

    def _one_recorded(self, name: str, row: dict[str, Any]) -> tuple[str, Tone]:
        if row.get("state") == "failed":
            said = self._shown(row.get("output_ref"))
            more = "; tried again soon" if row.get("next_at") else ""
            return f"{name} failed with {row['error']}: {said}{more}", "bad"
        tries = f" at try {row['tries']}" if row.get("tries", 1) > 1 else ""
        return f"{name} is done{tries}: {self._shown(row.get('output_ref'))}", "good"

    def _waits(self, rows: dict[str, Any]) -> tuple[str, Tone]:
        ((_, row),) = rows["wait"].items()
        if row["kind"] == "approval":
            return f"asked people: {row['name']}", "wait"
        return f"waits for {row['name']!r}", "wait"

    def _decided(self, rows: dict[str, Any]) -> tuple[str, Tone]:
        ((_, row),) = rows["approval"].items()
        said = self._shown(row.get("reason_ref"))
        why = f": {said}" if said else ""
        return (f"said yes{why}", "good") if row.get("status") == "approved" else (f"said no{why}", "bad")

    def _delivered(self, rows: dict[str, Any]) -> tuple[str, Tone]:
        ((_, row),) = rows["inbox"].items()
        return f"delivered {row['name']!r} {self._shown(row.get('payload_ref'))}", "good"

    def _shown(self, ref: int | None) -> str:
        value = None if ref is None else self._payloads.get(ref)
        if value is None or isinstance(value, str):
            return value or ""
        return msgspec.json.encode(value).decode()
