"""Publishes the documents of agent runs from the feed, as the only writer.

Laws:
1. It may run in every process. The process that holds the lease of the publication writes; the others wait for the lease to end.
2. It reads the feed a page at a time: first the documents of the runs, then the events of the tenants, then its position is recorded. After
   a crash or an outage it begins again at the recorded position; what has been written is recognised.
3. A storage outage stops it, and nothing else: it tries the same page again, with growing delays, and keeps at most one page in memory.
4. If the feed no longer has what follows its position (STREAM_RESET), or nothing was ever published, it publishes every run as its rows are.
5. It deletes the documents of deleted runs, twice: the second time after every older lease has ended.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from tenure import ids
from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.feed import FeedItem, decode_feed_lines, decode_feed_rows
from tenure.kernel.server_rows import FeedRow, PublicationDeletionRow
from tenure.logs import get_logger
from tenure.outbound.document_store import DocumentChanged, DocumentStore
from tenure.processes import make_process_name
from tenure.publish.documents.event_writer import EventData, EventWriter, describe_events
from tenure.publish.documents.run_writer import RunEvent, RunWriter
from tenure.publish.documents.tenant_writer import LOOK_SECONDS, TenantWriter
from tenure.publish.pauses import delay_after, wait_until_set
from tenure.reads.status_document import PROFILE
from tenure.shapes.published import run_folder
from tenure.store.feed import FeedRepository
from tenure.store.port import Store
from tenure.store.publications import PublicationRepository, PublishedRun

log = get_logger(__name__)

PAGE_ROWS = 200
POLL_SECONDS = 0.1
PAUSE_SECONDS = 0.005
"""Between two pages, so that many commits are read at once."""
LEASE_SECONDS = 10.0
RECORD_SECONDS = 0.5
"""How often the position is recorded."""
DELAYS_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
LOGGED_FAILURES = 60
"""In a long outage, one of so many failures is logged."""
DELETIONS_PER_LOOK = 20
DELETION_TRY_SECONDS = 60.0
RESET_RUNS = 100
"""Runs that are published together after a reset."""
ERROR_CHARS_MAX = 200


class PublicationLost(Exception):
    """Another process holds the lease of the publication."""


class DocumentPublisher:
    """Runs as long as its async context."""

    def __init__(self, store: Store, place: str, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._store = store
        self.documents = DocumentStore(place)
        self._rows = PublicationRepository(store)
        self._feed = FeedRepository(store)
        self._runs = RunWriter(store, self.documents)
        self._events = EventWriter(self.documents)
        self._tenants = TenantWriter(store, self.documents)
        self._lease_seconds = lease_seconds
        self._holder = make_process_name()
        self._fence = 0
        self._pos = -1
        self._opened_at = 0
        """The end of the feed when this process began. What comes later is published state by state."""
        self._recorded_at = 0.0
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.problem: str | None = None
        """Why it cannot publish now."""

    @property
    def states(self) -> int:
        """How many states this process has published."""
        return self._runs.states

    @property
    def is_writer(self) -> bool:
        """Whether this process holds the lease, as far as it knows."""
        return self._fence > 0

    async def __aenter__(self) -> Self:
        await self._feed.open()
        self._opened_at = (await self._feed.bounds()).head
        self._task = asyncio.get_running_loop().create_task(self._run(), name="tenure-documents")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._fence:  # the next writer need not wait for the lease to end
            with suppress(TenureError):
                await self._rows.keep(self.documents.name, self._fence, self._pos, 0)

    def wake(self) -> None:
        """Look at the feed now, because this process has just committed."""
        self._woken.set()

    # ------------------------------------------------------------------------------------------------- lease

    async def _run(self) -> None:
        while True:
            try:
                row = await self._rows.claim(self.documents.name, self._holder, us(self._lease_seconds))
                if row is not None:
                    self._fence = self._events.fence = row.fence
                    self._pos = row.pos
                    log.info("publisher_started", place=self.documents.name, fence=row.fence, pos=row.pos)
                    await self._hold()
            except PublicationLost:
                log.warning("publisher_lease_lost", place=self.documents.name, fence=self._fence)
            except TenureError as refused:
                log.warning("publisher_failed", error=refused.code, message=refused.message)
            except Exception:
                log.error("publisher_failed", traceback=traceback.format_exc())
            finally:
                self._runs.forget()
                self._events.forget()
                self._tenants.forget()
            self._fence = 0
            await asyncio.sleep(self._lease_seconds / 4)

    async def _hold(self) -> None:
        """Publish until the lease is lost or something fails for good."""
        work = (
            self._persist("lease", self._keep_lease),
            self._persist("runs", self._follow),
            self._persist("tenants", self._look_at_tenants),
            self._persist("deletions", self._delete),
        )
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _persist(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat some work. Failures of the storage or the database are ridden out (law 3)."""
        failures = 0
        while True:
            try:
                await work()
                if failures:
                    log.info("publisher_recovered", of=what, failures=failures)
                    self.problem = None
                failures = 0
            except TenureError as refused:
                self.problem = f"{refused.code}: {refused.message}"
                failures += 1
                if failures <= len(DELAYS_SECONDS) or failures % LOGGED_FAILURES == 1:
                    log.warning(
                        "publishing_failed",
                        of=what,
                        error=refused.code,
                        message=refused.message,
                        tries=failures,
                    )
                await asyncio.sleep(delay_after(failures, DELAYS_SECONDS))
            except DocumentChanged as changed:
                log.warning("publisher_conflict", of=what, path=str(changed))
                raise PublicationLost from changed

    async def _keep_lease(self) -> None:
        await asyncio.sleep(self._lease_seconds / 3)
        await self._record()

    async def _record(self) -> None:
        self._recorded_at = time.monotonic()
        if not await self._rows.keep(self.documents.name, self._fence, self._pos, us(self._lease_seconds)):
            raise PublicationLost

    # -------------------------------------------------------------------------------------------------- runs

    async def _follow(self) -> None:
        """Publish the next page of the feed, or wait for it."""
        self._woken.clear()
        bounds = await self._feed.bounds()
        if self._pos < 0:
            await self._publish_all(max(self._opened_at, bounds.trimmed))
        if not bounds.has_all_after(self._pos):
            await self._publish_all(bounds.head)
        rows = await self._feed.after(self._pos, PAGE_ROWS)
        if rows:
            await self._publish(rows)
            self._pos = rows[-1].pos
            if time.monotonic() - self._recorded_at >= RECORD_SECONDS:
                await self._record()
            if len(rows) < PAGE_ROWS:
                await asyncio.sleep(PAUSE_SECONDS)
            return
        await wait_until_set(self._woken, POLL_SECONDS)

    async def _publish(self, rows: list[FeedRow]) -> None:
        events = [
            RunEvent(row.pos, item)
            for row in rows
            for item in decode_feed_lines(row.body)
            if item.profile == PROFILE
        ]
        if not events:
            return
        await self._runs.write(events)
        self._tenants.tenants.update(event.item.tenant for event in events)
        asking = {event.item.tenant for event in events if event.item.proposed}
        if asking:  # an event says that there is a proposal, so the list has it
            await self._tenants.write_inboxes(sorted(asking))
        by_tenant: dict[str, list[tuple[int, EventData]]] = {}
        for event in events:
            for data in describe_events(event.item):
                by_tenant.setdefault(event.item.tenant, []).append((event.pos, data))
        for tenant, found in by_tenant.items():
            await self._events.append(tenant, found, rows[-1].pos)

    async def _publish_all(self, head: int) -> None:
        """Publish every run as it is (law 4). Commits after `head` are read from the feed afterwards."""
        log.info("publisher_reset", place=self.documents.name, pos=self._pos, head=head)
        self._runs.forget()
        self._events.limit_positions(head)
        after, scanned = 0, head
        created: set[int] = set()
        while runs := await self._rows.list_runs(PROFILE, after, RESET_RUNS):
            after = runs[-1].id
            self._tenants.tenants.update(run.tenant for run in runs)
            while rows := await self._feed.after(scanned, PAGE_ROWS):
                scanned = rows[-1].pos
                created |= {item.run_id for item in decode_feed_rows(rows) if item.before is None}
            # The feed has every state of a run that was created after `head`.
            await self._runs.write(
                [RunEvent(head, _describe_now(run)) for run in runs if run.id not in created]
            )
        self._pos = head
        await self._record()

    # --------------------------------------------------------------------------------- tenants and deletions

    async def _look_at_tenants(self) -> None:
        await self._tenants.look()
        await asyncio.sleep(LOOK_SECONDS)

    async def _delete(self) -> None:
        taken = await self._rows.take_deletions(
            self.documents.name, DELETIONS_PER_LOOK, us(DELETION_TRY_SECONDS)
        )
        for row in taken:
            await self._delete_run(row)
        if not taken:
            await asyncio.sleep(LOOK_SECONDS)

    async def _delete_run(self, row: PublicationDeletionRow) -> None:
        self._runs.forget(row.run_id)
        try:
            await self.documents.delete_folder(run_folder(row.tenant, ids.run_text(row.run_id)))
        except TenureError as refused:
            again = us(delay_after(row.tries, DELAYS_SECONDS))
            await self._rows.put_deletion(row, row.rounds, again, refused.message[:ERROR_CHARS_MAX])
            return
        if row.rounds == 0:
            await self._rows.put_deletion(row, 1, us(2 * self._lease_seconds), None)
        else:
            await self._rows.drop_deletion(row)


def _describe_now(run: PublishedRun) -> FeedItem:
    """A line of the feed that says how a run is."""
    return FeedItem(
        run_id=run.id,
        seq=run.version,
        tenant=run.tenant,
        workflow=run.workflow,
        profile=run.profile,
        kind="reset",
        before=run.status,
        status=run.status,
        steps=run.steps_done,
        grew=False,
    )
