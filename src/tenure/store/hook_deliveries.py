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
from tenure.store.transactions import run_transaction


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
    "deliveries_left": DeliveryRow,  # () ; now, silent_since, limit -> received, and nobody's, oldest first
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
KEY_SOURCES = {"github": "github_webhook", "slack": "slack", "generic": "webhook"}
"""The source of a hook's keys, by its kind."""


_REPEATS = "repeats delivery "


class DeliveryIntake(msgspec.Struct, frozen=True):
    """The outcome of an incoming delivery."""

    delivery: DeliveryRow
    """The stored row; for a repeat, the first delivery."""
    held: HeldRecord | None
    """Its record, if the caller holds it and there is work to do."""


class HookDeliveries:
    """The hooks of a store and their deliveries; see the laws above."""

    def __init__(self, store: Store, holder: str | None = None) -> None:
        """`holder`: the server that takes deliveries here; see `IdempotencyRecords`."""
        self._store = store
        self._holder = holder

    # --------------------------------------------------------------------------------------------- hooks

    async def hook(self, hook_id: str) -> HookRow | None:
        """The hook with this secret id."""
        found: list[HookRow] = await self._store.read("hook_named", hook_id)
        return found[0] if found else None

    async def put_hook(self, hook: HookRow, change: AdminChange) -> HookRow:
        """Insert a hook of revision 1, or change the one of the revision before (else CHANGED_MEANWHILE)."""

        def work() -> Transaction[HookRow | None]:
            now = (yield Query("now"))[0].now_us
            first = hook.revision == 1
            row = msgspec.structs.replace(hook, updated_at=now, created_at=now if first else hook.created_at)
            found = yield Query("save_hook" if first else "change_hook", scalars=msgspec.structs.astuple(row))
            if found:
                yield from append_admin_event(change, now)
            return found[0] if found else None

        written = await run_transaction(self._store, work)
        if written is None:
            raise TenureError(
                "CHANGED_MEANWHILE", f"hook {hook.id} has changed since it was read: read it again"
            )
        return written

    async def drop_hook(self, tenant: str, hook_id: str, change: AdminChange) -> bool:
        """Delete a hook with its deliveries; False: there was none."""

        def work() -> Transaction[bool]:
            now = (yield Query("now"))[0].now_us
            gone = yield Query("delete_hook", scalars=(tenant, hook_id))
            if gone:
                yield Query("delete_deliveries", scalars=(hook_id,))
                yield from append_admin_event(change, now)
            return bool(gone)

        return await run_transaction(self._store, work)

    # ----------------------------------------------------------------------------------------- deliveries

    async def get(self, hook_id: str, delivery_id: str) -> DeliveryRow | None:
        found: list[DeliveryRow] = await self._store.read("delivery_named", hook_id, delivery_id)
        return found[0] if found else None

    async def take(self, kind: str, delivery: DeliveryRow, *, alike: bool = True) -> DeliveryIntake | None:
        """Record a delivery, with an idempotency record in process (law 1), or find that it repeats an earlier one: the same
        key, the same bytes within a day (with `alike`), or the same fingerprint within seconds. None: the hook is deleted."""

        def work() -> Transaction[DeliveryIntake | None]:
            now = (yield Query("now"))[0].now_us
            if not (yield Query("lock_hook", scalars=(delivery.hook_id,))):
                return None
            found = yield Query("delivery_named", scalars=(delivery.hook_id, delivery.id))
            if found:
                return (yield from _repeated(kind, found[0], self._holder))
            row = msgspec.structs.replace(delivery, received_at=now)
            first = yield from _first(row, now, alike=alike)
            if first is not None:
                yield from _repeat(row, first.run_id, _repeats(first))
                return DeliveryIntake(first, None)
            request = build_keyed_request(kind, row)
            known: list[RunSpecRow] = yield Query("find_keys", rows=[request.key])
            held = None if known else (yield from begin_record(request, self._holder))
            if not isinstance(
                held, HeldRecord
            ):  # delivered long ago, or to another hook of this tenant: the key is used
                run_id = known[0].run_id if known else None if held is None else held.run_id
                return DeliveryIntake((yield from _repeat(row, run_id, "its key is used")), None)
            [written] = yield Query("save_delivery", scalars=msgspec.structs.astuple(row))
            return DeliveryIntake(written, held)

        return await run_transaction(self._store, work)

    async def replay(
        self, kind: str, hook_id: str, delivery_id: str, change: AdminChange, *, by: str
    ) -> DeliveryIntake | None:
        """Record a delivery once more under `{key}:replay:{n}`, for the people in `by`; None: it does not exist."""

        def work() -> Transaction[DeliveryIntake | None]:
            now = (yield Query("now"))[0].now_us
            found: list[DeliveryRow] = yield Query("count_replay", scalars=(hook_id, delivery_id))
            if not found:
                return None
            of = found[0]
            row = msgspec.structs.replace(
                of,
                id=f"{of.id}:replay:{of.replays}",
                name=f"{of.name}:replay:{of.replays}",
                fingerprint=None,
                received_at=now,
                status="received",
                run_id=None,
                note=f"a replay of delivery {of.id}",
                replays=0,
                tries=1,
                replayed_by=join_people(of.replayed_by, by),
            )
            held = yield from begin_record(build_keyed_request(kind, row), self._holder)
            [written] = yield Query("save_delivery", scalars=msgspec.structs.astuple(row))
            about = {**change.about, "delivery": of.id, "key": row.name}
            yield from append_admin_event(msgspec.structs.replace(change, about=about), now)
            return DeliveryIntake(written, held if isinstance(held, HeldRecord) else None)

        return await run_transaction(self._store, work)

    async def left(self, limit: int) -> list[DeliveryRow]:
        """Deliveries that nobody works on: received, with a lock that has expired or was never taken."""
        now = (await self._store.read("now"))[0].now_us
        found: list[DeliveryRow] = await self._store.read(
            "deliveries_left", now, server_silent_since(now), limit
        )
        return found

    async def take_over(self, kind: str, delivery: DeliveryRow) -> DeliveryIntake | None:
        """Take over a delivery that nobody works on (law 3). None: somebody has it, or it is done."""

        def work() -> Transaction[DeliveryIntake | None]:
            held = yield from begin_record(build_keyed_request(kind, delivery), self._holder)
            if not isinstance(held, HeldRecord):
                return None
            counted: list[DeliveryRow] = yield Query("count_try", scalars=(delivery.hook_id, delivery.id))
            return DeliveryIntake(counted[0], held) if counted else None

        return await run_transaction(self._store, work)

    async def settle(
        self,
        kind: str,
        delivery: DeliveryRow,
        held: HeldRecord,
        status: str,
        *,
        run_id: int | None = None,
        note: str = "",
        response: bytes | None = None,
    ) -> DeliveryRow:
        """End a delivery and its record; the delivery as stored. A settled delivery is left as it is."""
        failed = status in ("failed", "set_aside")
        seconds = IDEMPOTENCY_FAILED_SECONDS if failed else build_keyed_request(kind, delivery).done_seconds

        def work() -> Transaction[DeliveryRow | None]:
            now = (yield Query("now"))[0].now_us
            of = (delivery.hook_id, delivery.id)
            yield Query("lock_hook", scalars=(delivery.hook_id,))
            written: list[DeliveryRow] = yield Query("settle_delivery", scalars=(*of, status, run_id, note))
            if not written:
                written = yield Query("delivery_named", scalars=of)
                return written[0] if written else None
            if failed:
                yield finish_record(held, "fail", None, note, run_id, now, seconds)
            else:
                yield finish_record(held, "complete", response, None, run_id, now, seconds)
            if run_id is not None:
                those = (delivery.hook_id, delivery.received_at, _repeats(delivery), run_id)
                yield Query("settle_repeats", scalars=those)
            return written[0]

        return await run_transaction(self._store, work) or delivery

    async def postpone(self, delivery: DeliveryRow, held: HeldRecord, note: str) -> None:
        """The delivery cannot be processed now: it is taken up again after a pause, which doubles with each try."""
        pause = min(2.0 ** min(delivery.tries - 1, 16), DELIVERY_PAUSE_SECONDS_MAX)

        def work() -> Transaction[None]:
            now = (yield Query("now"))[0].now_us
            until = msgspec.structs.replace(
                held.record,
                attempts=1,
                updated_at=now,
                lock_expires_at=now + us(pause),
                holder=None,  # the pause also holds if this server dies
            )
            yield replace_record(held.record, until)
            yield Query("note_delivery", scalars=(delivery.hook_id, delivery.id, note))

        await run_transaction(self._store, work)

    async def trim(self, limit: int) -> int:
        """Delete old deliveries; how many."""

        def work() -> Transaction[int]:
            now = (yield Query("now"))[0].now_us
            gone = yield Query("delete_old_deliveries", scalars=(now - us(RETENTION_SECONDS), limit))
            return len(gone)

        return await run_transaction(self._store, work)


def build_keyed_request(kind: str, delivery: DeliveryRow) -> KeyedRequest:
    """A delivery as a request under its idempotency key."""
    return KeyedRequest(
        tenant=delivery.tenant,
        source=KEY_SOURCES[kind],
        name=delivery.name,
        hash=delivery.digest,
        done_seconds=SLACK_RECORD_SECONDS if kind == "slack" else IDEMPOTENCY_DONE_SECONDS,
    )


def _repeats(first: DeliveryRow) -> str:
    return f"{_REPEATS}{first.id}"


def _repeat(row: DeliveryRow, run_id: int | None, note: str) -> Transaction[DeliveryRow]:
    """Record a delivery that has no effect of its own."""
    row = msgspec.structs.replace(row, status="duplicate", run_id=run_id, note=note)
    [written] = yield Query("save_delivery", scalars=msgspec.structs.astuple(row))
    return written  # type: ignore[no-any-return]  # a query answers rows of its own kind


def _repeated(kind: str, found: DeliveryRow, holder: str | None) -> Transaction[DeliveryIntake]:
    """The same delivery again: a failed one is tried again while that is allowed, one that nobody works on is taken over; any
    other stays as it is."""
    if (
        found.status == "duplicate" and found.run_id is None
    ):  # the first was in process when this was recorded
        return DeliveryIntake((yield from _original(kind, found)), None)
    if found.status not in ("failed", "received"):
        return DeliveryIntake(found, None)
    held = yield from begin_record(build_keyed_request(kind, found), holder)
    if not isinstance(held, HeldRecord):
        return DeliveryIntake(found, None)
    if found.status == "failed":
        opened = (found.hook_id, found.id, "received", None, "")
        yield Query("settle_delivery", scalars=opened)
    [counted] = yield Query("count_try", scalars=(found.hook_id, found.id))
    return DeliveryIntake(counted, held)


def _original(kind: str, repeat: DeliveryRow) -> Transaction[DeliveryRow]:
    """The delivery that a repeat repeats, as it is now."""
    if repeat.note.startswith(_REPEATS):
        name = repeat.note.removeprefix(_REPEATS)
        found: list[DeliveryRow] = yield Query("delivery_named", scalars=(repeat.hook_id, name))
        return found[0] if found else repeat
    known: list[RunSpecRow] = yield Query("find_keys", rows=[build_keyed_request(kind, repeat).key])
    return msgspec.structs.replace(repeat, run_id=known[0].run_id) if known else repeat


def _first(row: DeliveryRow, now: int, *, alike: bool) -> Transaction[DeliveryRow | None]:
    """The delivery that this one repeats under another id, or None."""
    if alike:
        found = yield Query("delivery_alike", scalars=(row.hook_id, row.digest, now - us(SAME_BODY_SECONDS)))
        if found:
            return found[0]  # type: ignore[no-any-return]  # a query answers rows of its own kind
    if row.fingerprint is not None:
        found = yield Query(
            "delivery_akin", scalars=(row.hook_id, row.fingerprint, now - us(SAME_FINGERPRINT_SECONDS))
        )
        if found:
            return found[0]  # type: ignore[no-any-return]  # likewise
    return None
