"""Hooks and their deliveries.

Laws:
1. A delivery and the idempotency record of its key begin in one transaction, and end in one: an accepted delivery always
   has its record, and a record is completed only with its delivery.
2. Deliveries of one hook are recorded one after another (its row is the lock), so that one of two equal deliveries is
   the first.
3. A record's lock is a time. When it has passed, another process may take the record over; of several, one does. The
   transaction that takes it counts the try, before anything is done.
4. A change of a hook, and a replay, is one transaction with its line in the tenant's admin chain.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import astuple, replace

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.run_rows import RunSpecRow
from tenure.kernel.separation_of_duties import join_people
from tenure.kernel.server_rows import DeliveryRow, HookRow
from tenure.limits import (
    DELIVERY_PAUSE_SECONDS_MAX,
    IDEMPOTENCY_DONE_SECONDS,
    IDEMPOTENCY_FAILED_SECONDS,
)
from tenure.store.idempotency import (
    HeldRecord,
    KeyedRequest,
    begin_record,
    finish_record,
    replace_record,
    server_silent_since,
)
from tenure.store.identity import AdminChange, append_admin_event
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.transactions import Repository, read_first, run_transaction, timed_transaction


class DeliveryHeader(msgspec.Struct, gc=False):
    """A delivery without its body."""

    hook_id: str
    id: str
    event: str
    name: str
    received_at: int
    status: str
    run_id: int | None
    note: str
    replays: int
    tries: int


READS: dict[str, RowType] = {
    "hook_named": HookRow,  # () ; id
    "hooks_of": HookRow,  # () ; tenant, before_created_at, before_id, limit -> newest first
    "delivery_named": DeliveryRow,  # () ; hook_id, id
    "deliveries_of": DeliveryHeader,  # () ; hook_id, before_received_at, before_id, limit -> newest first
    "deliveries_set_aside": DeliveryHeader,  # likewise, of those that were tried too often
    "deliveries_left": DeliveryRow,  # () ; now, silent_since, limit -> received, and no process works on them, oldest first
}

WRITES: dict[str, RowType] = {
    "lock_hook": HookRow,  # id
    "delivery_alike": DeliveryRow,  # hook_id, digest, since -> the first with these bytes that is or may become a run
    "delivery_akin": DeliveryRow,  # hook_id, fingerprint, since -> likewise with this fingerprint
    "save_hook": HookRow,
    "change_hook": HookRow,  # the row, with the revision after the one it expects
    "delete_hook": HookRow,  # tenant, id
    "delete_deliveries": DeliveryHeader,  # hook_id
    "delete_old_deliveries": DeliveryHeader,  # before, limit
    "save_delivery": DeliveryRow,
    "count_try": DeliveryRow,  # hook_id, id -> if it is still open
    "note_delivery": DeliveryRow,  # hook_id, id, note -> if it is still open
    "settle_delivery": DeliveryRow,  # hook_id, id, status, run_id, note -> if it was still open
    "settle_repeats": DeliveryHeader,  # hook_id, since, note, run_id
    "count_replay": DeliveryRow,  # hook_id, id
}

SAME_BODY_SECONDS = 86_400.0
SAME_FINGERPRINT_SECONDS = 5.0
RETENTION_SECONDS = 30 * 86_400.0
SLACK_RECORD_SECONDS = 1_800.0
"""GWI-09: how long the record of a Slack command is kept."""
KEY_SOURCES = {
    "github": "github_webhook",
    "slack": "slack",
    "generic": "webhook",
    "servicenow": "servicenow",
}
"""The source of a hook's keys, by its kind."""

_REPEATS = "repeats delivery "


class DeliveryIntake(msgspec.Struct, frozen=True):
    """The outcome of an incoming delivery."""

    delivery: DeliveryRow
    """The stored row; for a repeat, the first delivery."""
    held: HeldRecord | None
    """Its record, if the caller holds it and there is work to do."""


class HookDeliveries(Repository):
    """The hooks of a store and their deliveries; see the laws above."""

    def __init__(self, store: Store, holder: str | None = None) -> None:
        """`holder`: the server that takes deliveries here; see `IdempotencyRecords`."""
        super().__init__(store)
        self._holder = holder

    # --------------------------------------------------------------------------------------------- hooks

    async def hook(self, hook_id: str) -> HookRow | None:
        """The hook with this secret id."""
        return await read_first(self._store, HookRow, "hook_named", hook_id)

    @timed_transaction
    def put_hook(self, now: int, hook: HookRow, change: AdminChange) -> Transaction[HookRow]:
        """Insert a hook of revision 1, or change the one of the revision before (else CHANGED_MEANWHILE)."""
        first = hook.revision == 1
        row = replace(hook, updated_at=now, created_at=now if first else hook.created_at)
        found: list[HookRow] = yield Query("save_hook" if first else "change_hook", scalars=astuple(row))
        if not found:
            raise TenureError(
                "CHANGED_MEANWHILE", f"hook {hook.id} has changed since it was read: read it again"
            )
        yield from append_admin_event(change, now)
        return found[0]

    @timed_transaction
    def drop_hook(self, now: int, tenant: str, hook_id: str, change: AdminChange) -> Transaction[bool]:
        """Delete a hook with its deliveries; False: it did not exist."""
        gone = yield Query("delete_hook", scalars=(tenant, hook_id))
        if gone:
            yield Query("delete_deliveries", scalars=(hook_id,))
            yield from append_admin_event(change, now)
        return bool(gone)

    # ----------------------------------------------------------------------------------------- deliveries

    async def get(self, hook_id: str, delivery_id: str) -> DeliveryRow | None:
        return await read_first(self._store, DeliveryRow, "delivery_named", hook_id, delivery_id)

    @timed_transaction
    def take(
        self, now: int, kind: str, delivery: DeliveryRow, *, alike: bool = True
    ) -> Transaction[DeliveryIntake | None]:
        """Record a delivery, with an idempotency record in process (law 1), or find that it repeats an earlier one: the same
        key, the same bytes within a day (with `alike`), or the same fingerprint within seconds. None: the hook is deleted."""
        if not (yield Query("lock_hook", scalars=(delivery.hook_id,))):
            return None
        found = yield Query("delivery_named", scalars=(delivery.hook_id, delivery.id))
        if found:
            return (yield from _take_again(kind, found[0], self._holder))
        row = replace(delivery, received_at=now)
        first = yield from _find_original(row, now, alike=alike)
        if first is not None:
            yield from _save_repeat(row, first.run_id, _REPEATS + first.id)
            return DeliveryIntake(first, None)
        request = build_keyed_request(kind, row)
        known: list[RunSpecRow] = yield Query("find_keys", rows=[request.key])
        held = None if known else (yield from begin_record(request, self._holder))
        if isinstance(held, HeldRecord):
            [written] = yield Query("save_delivery", scalars=astuple(row))
            return DeliveryIntake(written, held)
        # Delivered long ago, or to another hook of this tenant: the key is used.
        run_id = known[0].run_id if known else None if held is None else held.run_id
        return DeliveryIntake((yield from _save_repeat(row, run_id, "its key is used")), None)

    @timed_transaction
    def replay(
        self, now: int, kind: str, hook_id: str, delivery_id: str, change: AdminChange, *, by: str
    ) -> Transaction[DeliveryIntake | None]:
        """Record a delivery once more under `{key}:replay:{n}`, for the people in `by`; None: it does not exist."""
        found: list[DeliveryRow] = yield Query("count_replay", scalars=(hook_id, delivery_id))
        if not found:
            return None
        original = found[0]
        row = replace(
            original,
            id=f"{original.id}:replay:{original.replays}",
            name=f"{original.name}:replay:{original.replays}",
            fingerprint=None,
            received_at=now,
            status="received",
            run_id=None,
            note=f"a replay of delivery {original.id}",
            replays=0,
            tries=1,
            replayed_by=join_people(original.replayed_by, by),
        )
        held = yield from begin_record(build_keyed_request(kind, row), self._holder)
        [written] = yield Query("save_delivery", scalars=astuple(row))
        about = {**change.about, "delivery": original.id, "key": row.name}
        yield from append_admin_event(replace(change, about=about), now)
        return DeliveryIntake(written, held if isinstance(held, HeldRecord) else None)

    async def list_abandoned(self, limit: int) -> list[DeliveryRow]:
        """Deliveries that no process works on: received, with a lock that has expired or was never taken."""
        now = (await self._store.read("now"))[0].now_us
        return await self._store.read("deliveries_left", now, server_silent_since(now), limit)

    async def take_over(self, kind: str, delivery: DeliveryRow) -> DeliveryIntake | None:
        """Take over a delivery that no process works on (law 3). None: another process has it, or it is done."""

        def work() -> Transaction[DeliveryIntake | None]:
            held = yield from begin_record(build_keyed_request(kind, delivery), self._holder)
            if not isinstance(held, HeldRecord):
                return None
            counted: list[DeliveryRow] = yield Query("count_try", scalars=(delivery.hook_id, delivery.id))
            return DeliveryIntake(counted[0], held) if counted else None

        return await run_transaction(self._store, work)

    @timed_transaction
    def settle(
        self,
        now: int,
        kind: str,
        delivery: DeliveryRow,
        held: HeldRecord,
        status: str,
        *,
        run_id: int | None = None,
        note: str = "",
        response: bytes | None = None,
    ) -> Transaction[DeliveryRow]:
        """End a delivery and its record; the delivery as stored. A settled delivery does not change."""
        key = (delivery.hook_id, delivery.id)
        yield Query("lock_hook", scalars=(delivery.hook_id,))
        written: list[DeliveryRow] = yield Query("settle_delivery", scalars=(*key, status, run_id, note))
        if not written:
            stored = yield Query("delivery_named", scalars=key)
            return stored[0] if stored else delivery
        if status in ("failed", "set_aside"):
            yield finish_record(held, "fail", None, note, run_id, now, IDEMPOTENCY_FAILED_SECONDS)
        else:
            kept = build_keyed_request(kind, delivery).done_seconds
            yield finish_record(held, "complete", response, None, run_id, now, kept)
        if run_id is not None:
            repeats = (delivery.hook_id, delivery.received_at, _REPEATS + delivery.id, run_id)
            yield Query("settle_repeats", scalars=repeats)
        return written[0]

    @timed_transaction
    def postpone(self, now: int, delivery: DeliveryRow, held: HeldRecord, note: str) -> Transaction[None]:
        """Try a delivery that cannot be processed now again after a pause, which doubles with each try."""
        pause = min(2.0 ** min(delivery.tries - 1, 16), DELIVERY_PAUSE_SECONDS_MAX)
        until = replace(
            held.record,
            attempts=1,
            updated_at=now,
            lock_expires_at=now + us(pause),
            holder=None,  # the pause also holds if this server dies
        )
        yield replace_record(held.record, until)
        yield Query("note_delivery", scalars=(delivery.hook_id, delivery.id, note))

    @timed_transaction
    def trim(self, now: int, limit: int) -> Transaction[int]:
        """Delete old deliveries; how many."""
        return len((yield Query("delete_old_deliveries", scalars=(now - us(RETENTION_SECONDS), limit))))


def build_keyed_request(kind: str, delivery: DeliveryRow) -> KeyedRequest:
    """A delivery as a request under its idempotency key."""
    return KeyedRequest(
        tenant=delivery.tenant,
        source=KEY_SOURCES[kind],
        name=delivery.name,
        hash=delivery.digest,
        done_seconds=SLACK_RECORD_SECONDS if kind == "slack" else IDEMPOTENCY_DONE_SECONDS,
    )


def _save_repeat(row: DeliveryRow, run_id: int | None, note: str) -> Transaction[DeliveryRow]:
    """Record a delivery that has no effect of its own."""
    row = replace(row, status="duplicate", run_id=run_id, note=note)
    [written] = yield Query("save_delivery", scalars=astuple(row))
    return written  # type: ignore[no-any-return]  # a query answers rows of its own kind


def _take_again(kind: str, found: DeliveryRow, holder: str | None) -> Transaction[DeliveryIntake]:
    """The outcome of a delivery that arrives again. If it failed and may be tried again, or no process works on it, it is
    taken over; else it does not change."""
    if found.status == "duplicate" and found.run_id is None:
        # The original was in process when this one was recorded.
        return DeliveryIntake((yield from _load_original(kind, found)), None)
    if found.status not in ("failed", "received"):
        return DeliveryIntake(found, None)
    held = yield from begin_record(build_keyed_request(kind, found), holder)
    if not isinstance(held, HeldRecord):
        return DeliveryIntake(found, None)
    if found.status == "failed":
        yield Query("settle_delivery", scalars=(found.hook_id, found.id, "received", None, ""))
    [counted] = yield Query("count_try", scalars=(found.hook_id, found.id))
    return DeliveryIntake(counted, held)


def _load_original(kind: str, repeat: DeliveryRow) -> Transaction[DeliveryRow]:
    """The delivery that a repeat repeats, as it is now."""
    if repeat.note.startswith(_REPEATS):
        name = repeat.note.removeprefix(_REPEATS)
        found: list[DeliveryRow] = yield Query("delivery_named", scalars=(repeat.hook_id, name))
        return found[0] if found else repeat
    known: list[RunSpecRow] = yield Query("find_keys", rows=[build_keyed_request(kind, repeat).key])
    return replace(repeat, run_id=known[0].run_id) if known else repeat


def _find_original(row: DeliveryRow, now: int, *, alike: bool) -> Transaction[DeliveryRow | None]:
    """The delivery that this one repeats under another id, or None."""
    found: list[DeliveryRow] = []
    if alike:
        found = yield Query("delivery_alike", scalars=(row.hook_id, row.digest, now - us(SAME_BODY_SECONDS)))
    if not found and row.fingerprint is not None:
        since = now - us(SAME_FINGERPRINT_SECONDS)
        found = yield Query("delivery_akin", scalars=(row.hook_id, row.fingerprint, since))
    return found[0] if found else None
