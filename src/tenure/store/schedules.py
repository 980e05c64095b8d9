"""Schedules: which runs to start, and when next."""

from __future__ import annotations

import msgspec

from tenure.kernel.registry_rows import ScheduleRow
from tenure.store.port import RowType, Store
from tenure.store.transactions import write_rows

READS: dict[str, RowType] = {
    "schedules_due": ScheduleRow,  # () ; now, limit -> earliest first
    "schedules_of": ScheduleRow,  # () ; tenant, after_name, limit -> by name
    "schedule_named": ScheduleRow,  # () ; tenant, name
}
WRITES: dict[str, RowType] = {
    "save_schedule": ScheduleRow,
    "advance_schedule": ScheduleRow,
    "delete_schedule": ScheduleRow,
}


async def save_schedule(store: Store, schedule: ScheduleRow) -> ScheduleRow | None:
    """Insert a schedule of revision 1, or change the one of the revision before. None: the schedule exists already, or
    another process has changed it. (The store sets `created_at` and `updated_at`.)"""
    row = msgspec.structs.astuple(schedule)
    written: list[ScheduleRow] = await write_rows(store, "save_schedule", *row[:16], *row[18:], timed=True)
    return written[0] if written else None


async def advance_schedule(
    store: Store, schedule: ScheduleRow, next_at: int | None, last_slot: int | None
) -> bool:
    """Advance a schedule from the slot it was read with; False: another process did, or changed it."""
    of = (schedule.tenant, schedule.name, schedule.revision, schedule.next_at)
    return bool(await write_rows(store, "advance_schedule", *of, next_at, last_slot))


async def delete_schedule(store: Store, tenant: str, name: str) -> bool:
    """Delete a schedule; False: it did not exist."""
    return bool(await write_rows(store, "delete_schedule", tenant, name))
