"""Loads the rows that decisions need: one query per kind of row, for a whole batch."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from tenure.clock import us
from tenure.kernel.fair_share import rate_full_until
from tenure.kernel.separation_of_duties import LinkedPeople
from tenure.kernel.snapshot import AdmissionFacts, GovernanceFacts, Key, Snapshot
from tenure.limits import KEY_HORIZON_SECONDS, ROWS_DECIDED_ON_LOOP_MAX
from tenure.store.port import Query, Save

RATE_WINDOW_US = 60_000_000
_FOREVER = (1 << 62, 0)

_QUERY_OF: dict[str, str] = {
    "spec": "load_specs",
    "step": "load_steps",
    "named": "load_named_steps",
    "open_steps": "load_open_steps",
    "attempt": "load_attempts",
    "checkpoint": "load_checkpoints",
    "checkpoints": "load_step_checkpoints",
    "open_waits": "load_open_waits",
    "event_waits": "load_event_waits",
    "wait": "load_waits",
    "label": "load_labeled_waits",
    "approval": "load_approvals",
    "buffered": "load_buffered",
    "inbox_id": "load_inbox_ids",
    "open_children": "load_open_children",
    "child": "load_children",
    "payload": "load_payloads",
    "act": "load_acts",
    "receipt": "load_receipts",
    "open_receipts": "load_open_receipts",
    "run_spend": "load_run_spends",
    "cost_lines": "load_cost_lines",
}
"""Need -> query; the query's rows are (run id, *rest of the need)."""


_COUNTED = {
    "open_steps": "steps_open",
    "open_waits": "waits_open",
    "event_waits": "waits_open",
    "open_children": "children_open",
    "buffered": "inbox_buffered",
    "checkpoints": "checkpoints",
}
"""Need -> the column of the run with the largest possible number of rows."""


def is_long_load(snap: Snapshot, keys: tuple[Key, ...]) -> bool:
    """Whether a load has so many rows that it would hold the event loop."""
    if len(keys) > ROWS_DECIDED_ON_LOOP_MAX:
        return True
    if (run := snap.run) is None:
        return False
    counted = [getattr(run, column) for key in keys if (column := _COUNTED.get(key[0])) is not None]
    return max(counted, default=0) > ROWS_DECIDED_ON_LOOP_MAX


def load_needs(needs: list[tuple[Snapshot, tuple[Key, ...]]], now: int) -> Generator[Query | Save, Any, None]:
    """Load the rows that decisions need into their snapshots."""
    by_query: dict[str, list[tuple[Any, ...]]] = {}
    snaps: dict[int, Snapshot] = {}
    for snap, keys in needs:
        snaps[snap.run_id] = snap
        for key in keys:
            if key[0] == "admission":
                yield from _load_facts(snap, now, *key[1:])
            elif key[0] == "outside":
                snap.outside[key] = yield from _load_outside(snap.run_id, *key[1:])
            elif key[0] == "ties":
                found = snap.outside[key] = GovernanceFacts()
                found.ties = LinkedPeople((yield Query("load_unconfirmed", [(key[1],)])))
            elif key in snap.known:
                raise AssertionError(f"{key} was loaded and is needed again")
            else:
                snap.know(key)
                by_query.setdefault(_QUERY_OF[key[0]], []).append((snap.run_id, *key[1:]))
    for name, rows in by_query.items():
        for row in (yield Query(name, list(dict.fromkeys(rows)))):
            snaps[row.run_id].add(row)


def _load_facts(
    snap: Snapshot, now: int, tenant: str, key: str | None, workflow: str, supersedes: bool = True
) -> Generator[Query | Save, Any, None]:
    """What admission depends on. The transaction holds the tenant's lock."""
    facts = AdmissionFacts()
    if key is not None:
        # A run that waits for its key checks again within this horizon. A run that is delayed for longer does not wait yet.
        queue = (yield Query("key_queue", (), (tenant, key, now + us(KEY_HORIZON_SECONDS))))[0]
        facts.holder_id = queue.holder_id
        facts.first_waiting_id = queue.first_waiting_id
        if supersedes:
            live = yield Query("live_keys", (), (tenant, key, snap.run_id))
            mine = _FOREVER if snap.run is None else (snap.run.created_at, snap.run.id)
            facts.live_ids = tuple(
                row.run_id for row in live if row.cancel_at is None and (row.created_at, row.run_id) < mine
            )
    caps = {cap.scope: cap for cap in (yield Query("caps", [(tenant,)]))}
    if any(cap.max_runs_per_min is not None for cap in caps.values()):
        rates = {
            row.workflow: (row.runs, row.first_at)
            for row in (yield Query("rates", (), (tenant, now - RATE_WINDOW_US)))
        }
        facts.rate_full_until = rate_full_until(caps, workflow, rates, RATE_WINDOW_US)
    snap.facts = facts


def _load_outside(
    run_id: int, tenant: str, name: str | None, people: tuple[str, ...]
) -> Generator[Query | Save, Any, GovernanceFacts]:
    """What governs an action. The tenant's row is locked first, so that everything else is read in the same state."""
    outside = GovernanceFacts()
    outside.governance = next(iter((yield Query("load_governance", [(tenant,)]))), None)
    outside.caps = {cap.scope: cap for cap in (yield Query("caps", [(tenant,)]))}
    if people:
        wanted = [(tenant, person) for person in people]
        outside.people = {row.id: row for row in (yield Query("load_people", wanted))}
    if name is not None:
        holder = next(iter((yield Query("load_key_holders", [(tenant, name)]))), None)
        if holder is not None and holder.run_id != run_id:
            refs = [
                (holder.run_id, ref) for ref in (holder.request_ref, holder.result_ref) if ref is not None
            ]
            bodies = {row.ref: row.body for row in (yield Query("load_payloads", refs))}
            outside.request, outside.result = bodies.get(holder.request_ref), bodies.get(holder.result_ref)
        outside.holder = holder
    return outside
