"""A run's history for people: one line per event, with its actor.

Law: every line is one event of the run's hash-chained history, and there are no others.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenure import ids
from tenure.clock import to_datetime
from tenure.kernel import history
from tenure.reads.payloads import decode_payload

if TYPE_CHECKING:
    from tenure.engine.engine import Engine
    from tenure.kernel.run_rows import EventRow

Tone = Literal["", "good", "bad", "wait"]


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    at: datetime
    seconds: float
    """Since the run began."""
    who: str
    what: str
    tone: Tone = ""


async def load_timeline(engine: Engine, run_id: str) -> list[TimelineEntry]:
    number = ids.run_int(run_id)
    events: list[EventRow] = await engine.store.read("events_of", number)
    payloads = {row.ref: row.body for row in await engine.store.read("payloads_of", number)}
    writer = _TimelineWriter({ref: decode_payload(body) for ref, body in payloads.items()})
    return [writer.write(event, events[0].at) for event in events]


class _TimelineWriter:
    def __init__(self, payloads: dict[int, Any]) -> None:
        self._payloads = payloads
        self._holder = ""
        self._lost = False

    def write(self, event: EventRow, begun: int) -> TimelineEntry:
        body = history.decode_body(event)
        what, tone = self._describe(event, body)
        return TimelineEntry(
            seq=event.seq,
            at=to_datetime(event.at),
            seconds=(event.at - begun) / 1e6,
            who=event.actor.removeprefix("worker:"),
            what=what,
            tone=tone,
        )

    def _describe(self, event: EventRow, body: dict[str, Any]) -> tuple[str, Tone]:
        rows: dict[str, Any] = body.get("set", {})
        match event.kind:
            case "create":
                return "started the run", ""
            case "claim":
                self._holder = event.actor.removeprefix("worker:")
                again, self._lost = self._lost, False
                if again:
                    return "took over the run: recorded steps are not repeated", "good"
                return "claimed the run", ""
            case "checkpoint":
                return self._recorded(rows)
            case "open_wait":
                return self._waits(rows)
            case "suspend":
                return "suspended the run: it holds no worker while it waits", "wait"
            case "decide_approval":
                return self._decided(rows)
            case "deliver_event":
                return self._delivered(rows)
            case "lease_expired":
                self._lost = True
                seen = "is dead" if event.actor == "system:process-watch" else "sent no more heartbeats"
                return f"{self._holder} {seen}: its lease has ended, and the run can be claimed", "bad"
            case "complete":
                # The last step's result and the run's end may be one commit.
                before = f"{self._recorded(rows)[0]}; " if rows.get("checkpoint") else ""
                output = self._shown(rows["run"][""].get("output_ref"))
                return f"{before}the run succeeded: {output}", "good"
            case "fail":
                return f"the run failed: {rows['run'][''].get('reason', '')}", "bad"
            case other:
                return other, ""

    def _recorded(self, rows: dict[str, Any]) -> tuple[str, Tone]:
        lines = [self._one_recorded(key.partition("/")[2], row) for key, row in rows["checkpoint"].items()]
        bad = any(tone == "bad" for _, tone in lines)
        return "; ".join(text for text, _ in lines), "bad" if bad else "good"

    def _one_recorded(self, name: str, row: dict[str, Any]) -> tuple[str, Tone]:
        if row.get("state") == "failed":
            message = self._shown(row.get("output_ref"))
            more = "; retried soon" if row.get("next_at") else ""
            return f"{name} failed with {row['error']}: {message}{more}", "bad"
        tries = f" at attempt {row['tries']}" if row.get("tries", 1) > 1 else ""
        return f"{name} is done{tries}: {self._shown(row.get('output_ref'))}", "good"

    def _waits(self, rows: dict[str, Any]) -> tuple[str, Tone]:
        ((_, row),) = rows["wait"].items()
        if row["kind"] == "approval":
            return f"asked for approval: {row['name']}", "wait"
        return f"waits for {row['name']!r}", "wait"

    def _decided(self, rows: dict[str, Any]) -> tuple[str, Tone]:
        ((_, row),) = rows["approval"].items()
        reason = self._shown(row.get("reason_ref"))
        why = f": {reason}" if reason else ""
        return (f"approved{why}", "good") if row.get("status") == "approved" else (f"rejected{why}", "bad")

    def _delivered(self, rows: dict[str, Any]) -> tuple[str, Tone]:
        ((_, row),) = rows["inbox"].items()
        return f"delivered {row['name']!r} {self._shown(row.get('payload_ref'))}", "good"

    def _shown(self, ref: int | None) -> str:
        value = None if ref is None else self._payloads.get(ref)
        if value is None or isinstance(value, str):
            return value or ""
        return msgspec.json.encode(value).decode()
