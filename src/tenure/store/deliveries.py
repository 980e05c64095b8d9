"""Hooks and what they were told, read and written.

Laws:
1. A delivery and the idempotency record of its key begin in one transaction, and end in one: what was accepted is never
   without its record, and a record is never completed for a delivery that is not.
2. Deliveries of one hook are taken down one after another (its row is the lock), so that of two that are the same one is
   the first.
3. A record's lock is a moment. Whoever finds it passed may take it over; of several one does. The transaction that takes it
   counts the try, before anything is done.
4. A change of a hook, and a replay, is one transaction with its line in the tenant's admin chain.
"""

from __future__ import annotations

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.behind import joined
from tenure.kernel.model import RunSpec
from tenure.kernel.service import Delivery, Hook
from tenure.limits import (
    DELIVERY_PAUSE_SECONDS_MAX,
    IDEMPOTENCY_DONE_SECONDS,
    IDEMPOTENCY_FAILED_SECONDS,
)
from tenure.store.beside import settled
from tenure.store.identity import Change, told
from tenure.store.keys import Held, Request, begun, finished, put, silent_since
from tenure.store.port import Answer, Query, Store, Transaction


class DeliveryLine(msgspec.Struct, gc=False):
    """A delivery without what it said."""

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


READS: dict[str, Answer] = {
    "hook_named": Hook,  # () ; id
    "hooks_of": Hook,  # () ; tenant, before_created_at, before_id, limit -> newest first
    "delivery_named": Delivery,  # () ; hook_id, id
    "deliveries_of": DeliveryLine,  # () ; hook_id, before_received_at, before_id, limit -> newest first
    "deliveries_set_aside": DeliveryLine,  # likewise, of those that were tried too often
    "deliveries_left": Delivery,  # () ; now, silent_since, limit -> received, and nobody's, oldest first
}
"""Queries used on their own; `deliveries.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "lock_hook": Hook,  # id
    "delivery_alike": Delivery,  # hook_id, digest, since -> the first with these bytes that is or may become a run
    "delivery_akin": Delivery,  # hook_id, fingerprint, since -> likewise with this fingerprint
    "save_hook": Hook,
    "change_hook": Hook,  # the row, with the revision after the one it expects
    "delete_hook": Hook,  # tenant, id
    "delete_deliveries": DeliveryLine,  # hook_id
    "delete_old_deliveries": DeliveryLine,  # before, limit
    "save_delivery": Delivery,
    "count_try": Delivery,  # hook_id, id -> if it is still open
    "note_delivery": Delivery,  # hook_id, id, note -> if it is still open
    "settle_delivery": Delivery,  # hook_id, id, status, run_id, note -> if it was still open
    "settle_repeats": DeliveryLine,  # hook_id, since, note, run_id
    "count_replay": Delivery,  # hook_id, id
}
"""Statements of small transactions of their own (those that only read are asked under the hook's lock)."""

ALIKE_SECONDS = 86_400.0
AKIN_SECONDS = 5.0
KEPT_SECONDS = 30 * 86_400.0
SLACK_SECONDS = 1_800.0
"""GWI-09: how long the record of a Slack command is kept."""
SOURCES = {"github": "github_webhook", "slack": "slack", "generic": "webhook"}
"""The source of a hook's keys, by its kind."""


_REPEATS = "repeats delivery "


class Taken(msgspec.Struct, frozen=True):
    """What became of a delivery that came in."""

    delivery: Delivery
    """As it lies in the table; of a repeat the first one."""
    held: Held | None
    """Its record, where there is work to do and it is the caller's."""


class Deliveries:
    """See the laws above."""

    def __init__(self, store: Store, holder: str | None = None) -> None:
        """`holder`: the server that takes deliveries here; see `keys`."""
        self._store = store
        self._holder = holder

    # --------------------------------------------------------------------------------------------- hooks

    async def hook(self, hook_id: str) -> Hook | None:
        """A hook by its unguessable id."""
        found: list[Hook] = await self._store.read("hook_named", hook_id)
        return found[0] if found else None

    async def put_hook(self, hook: Hook, change: Change) -> Hook:
        """Insert a hook of revision 1, or change the one before; CHANGED_MEANWHILE."""

        def work() -> Transaction[Hook | None]:
            now = (yield Query("now"))[0].now_us
            first = hook.revision == 1
            row = msgspec.structs.replace(hook, updated_at=now, created_at=now if first else hook.created_at)
            found = yield Query("save_hook" if first else "change_hook", scalars=msgspec.structs.astuple(row))
            if found:
                yield from told(change, now)
            return found[0] if found else None

        written = await settled(self._store, work)
        if written is None:
            raise TenureError("CHANGED_MEANWHILE", "the hook is not what it was")
        return written

    async def drop_hook(self, tenant: str, hook_id: str, change: Change) -> bool:
        """Delete a hook with what it was told; whether there was one."""

        def work() -> Transaction[bool]:
            now = (yield Query("now"))[0].now_us
            gone = yield Query("delete_hook", scalars=(tenant, hook_id))
            if gone:
                yield Query("delete_deliveries", scalars=(hook_id,))
                yield from told(change, now)
            return bool(gone)

        return await settled(self._store, work)

    # ----------------------------------------------------------------------------------------- deliveries

    async def get(self, hook_id: str, delivery_id: str) -> Delivery | None:
        """One delivery."""
        found: list[Delivery] = await self._store.read("delivery_named", hook_id, delivery_id)
        return found[0] if found else None

    async def take(self, kind: str, delivery: Delivery, *, alike: bool = True) -> Taken | None:
        """Take a delivery down, with a record in process (law 1); or find that it is a repeat: of the same key, of the
        same bytes within a day (where `alike`), of the same fingerprint within seconds. None: the hook is gone."""

        def work() -> Transaction[Taken | None]:
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
                return Taken(first, None)
            request = request_of(kind, row)
            known: list[RunSpec] = yield Query("find_keys", rows=[request.key])
            held = None if known else (yield from begun(request, self._holder))
            if not isinstance(
                held, Held
            ):  # told long ago, or to another hook of this tenant: the key is used
                run_id = known[0].run_id if known else None if held is None else held.run_id
                return Taken((yield from _repeat(row, run_id, "its key is used")), None)
            [written] = yield Query("save_delivery", scalars=msgspec.structs.astuple(row))
            return Taken(written, held)

        return await settled(self._store, work)

    async def replay(
        self, kind: str, hook_id: str, delivery_id: str, change: Change, *, by: str
    ) -> Taken | None:
        """Take a delivery down once more under `{key}:replay:{n}`, as the people in `by` want; None: there is none."""

        def work() -> Transaction[Taken | None]:
            now = (yield Query("now"))[0].now_us
            found: list[Delivery] = yield Query("count_replay", scalars=(hook_id, delivery_id))
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
                replayed_by=joined(of.replayed_by, by),
            )
            held = yield from begun(request_of(kind, row), self._holder)
            [written] = yield Query("save_delivery", scalars=msgspec.structs.astuple(row))
            about = {**change.about, "delivery": of.id, "key": row.name}
            yield from told(msgspec.structs.replace(change, about=about), now)
            return Taken(written, held if isinstance(held, Held) else None)

        return await settled(self._store, work)

    async def left(self, limit: int) -> list[Delivery]:
        """What nobody works on: received, and its lock has passed or was never taken."""
        now = (await self._store.read("now"))[0].now_us
        found: list[Delivery] = await self._store.read("deliveries_left", now, silent_since(now), limit)
        return found

    async def take_over(self, kind: str, delivery: Delivery) -> Taken | None:
        """Make a delivery that was left one's own (law 3); None: it is somebody's, or done."""

        def work() -> Transaction[Taken | None]:
            held = yield from begun(request_of(kind, delivery), self._holder)
            if not isinstance(held, Held):
                return None
            counted: list[Delivery] = yield Query("count_try", scalars=(delivery.hook_id, delivery.id))
            return Taken(counted[0], held) if counted else None

        return await settled(self._store, work)

    async def settle(
        self,
        kind: str,
        delivery: Delivery,
        held: Held,
        status: str,
        *,
        run_id: int | None = None,
        note: str = "",
        response: bytes | None = None,
    ) -> Delivery:
        """A delivery is done with, and so is its record; as it is then. What is settled already stays as it is."""
        failed = status in ("failed", "set_aside")
        seconds = IDEMPOTENCY_FAILED_SECONDS if failed else request_of(kind, delivery).done_seconds

        def work() -> Transaction[Delivery | None]:
            now = (yield Query("now"))[0].now_us
            of = (delivery.hook_id, delivery.id)
            yield Query("lock_hook", scalars=(delivery.hook_id,))
            written: list[Delivery] = yield Query("settle_delivery", scalars=(*of, status, run_id, note))
            if not written:
                written = yield Query("delivery_named", scalars=of)
                return written[0] if written else None
            if failed:
                yield finished(held, "fail", None, note, run_id, now, seconds)
            else:
                yield finished(held, "complete", response, None, run_id, now, seconds)
            if run_id is not None:
                those = (delivery.hook_id, delivery.received_at, _repeats(delivery), run_id)
                yield Query("settle_repeats", scalars=those)
            return written[0]

        return await settled(self._store, work) or delivery

    async def put_off(self, delivery: Delivery, held: Held, note: str) -> None:
        """It could not be done now: somebody takes it up after a pause, which doubles with each try."""
        pause = min(2.0 ** min(delivery.tries - 1, 16), DELIVERY_PAUSE_SECONDS_MAX)

        def work() -> Transaction[None]:
            now = (yield Query("now"))[0].now_us
            until = msgspec.structs.replace(
                held.record,
                attempts=1,
                updated_at=now,
                lock_expires_at=now + us(pause),
                holder=None,  # a pause lasts, whatever becomes of this server
            )
            yield put(held.record, until)
            yield Query("note_delivery", scalars=(delivery.hook_id, delivery.id, note))

        await settled(self._store, work)

    async def trim(self, limit: int) -> int:
        """Forget what was told long ago; how many those were."""

        def work() -> Transaction[int]:
            now = (yield Query("now"))[0].now_us
            gone = yield Query("delete_old_deliveries", scalars=(now - us(KEPT_SECONDS), limit))
            return len(gone)

        return await settled(self._store, work)


def request_of(kind: str, delivery: Delivery) -> Request:
    """A delivery as a request under its key."""
    return Request(
        tenant=delivery.tenant,
        source=SOURCES[kind],
        name=delivery.name,
        hash=delivery.digest,
        done_seconds=SLACK_SECONDS if kind == "slack" else IDEMPOTENCY_DONE_SECONDS,
    )


def _repeats(first: Delivery) -> str:
    return f"{_REPEATS}{first.id}"


def _repeat(row: Delivery, run_id: int | None, note: str) -> Transaction[Delivery]:
    """Take down a delivery that has no effect of its own."""
    row = msgspec.structs.replace(row, status="duplicate", run_id=run_id, note=note)
    [written] = yield Query("save_delivery", scalars=msgspec.structs.astuple(row))
    return written  # type: ignore[no-any-return]  # a query answers rows of its own kind


def _repeated(kind: str, found: Delivery, holder: str | None) -> Transaction[Taken]:
    """The same delivery again: one that failed is begun anew while it may be, and one that was left is taken over; any
    other stays what it is."""
    if (
        found.status == "duplicate" and found.run_id is None
    ):  # the first was in process when it was taken down
        return Taken((yield from _original(kind, found)), None)
    if found.status not in ("failed", "received"):
        return Taken(found, None)
    held = yield from begun(request_of(kind, found), holder)
    if not isinstance(held, Held):
        return Taken(found, None)
    if found.status == "failed":
        opened = (found.hook_id, found.id, "received", None, "")
        yield Query("settle_delivery", scalars=opened)
    [counted] = yield Query("count_try", scalars=(found.hook_id, found.id))
    return Taken(counted, held)


def _original(kind: str, repeat: Delivery) -> Transaction[Delivery]:
    """What a repeat repeats, as it is now."""
    if repeat.note.startswith(_REPEATS):
        name = repeat.note.removeprefix(_REPEATS)
        found: list[Delivery] = yield Query("delivery_named", scalars=(repeat.hook_id, name))
        return found[0] if found else repeat
    known: list[RunSpec] = yield Query("find_keys", rows=[request_of(kind, repeat).key])
    return msgspec.structs.replace(repeat, run_id=known[0].run_id) if known else repeat


def _first(row: Delivery, now: int, *, alike: bool) -> Transaction[Delivery | None]:
    """The delivery that this one repeats under another id, if there is one."""
    if alike:
        found = yield Query("delivery_alike", scalars=(row.hook_id, row.digest, now - us(ALIKE_SECONDS)))
        if found:
            return found[0]  # type: ignore[no-any-return]  # a query answers rows of its own kind
    if row.fingerprint is not None:
        found = yield Query("delivery_akin", scalars=(row.hook_id, row.fingerprint, now - us(AKIN_SECONDS)))
        if found:
            return found[0]  # type: ignore[no-any-return]  # likewise
    return None
