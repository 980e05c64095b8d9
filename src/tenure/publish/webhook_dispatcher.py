"""Creates webhook notices from the feed and delivers them.

Laws:
1. It may run in every process: the process that advances a subscription creates its notices, and the process that takes a notice delivers it.
2. The notices of one run reach a subscriber one after the other. Notices of different runs do not wait for each other.
3. A notice is delivered at least once. 2xx means delivered. 410 means that the receiver is gone, and disables the subscription. Everything else is
   retried with growing delays for one day; then the notice is dead, and listed.
4. Only the status of a response matters. A small part of its body is read, and nothing of it is stored.
"""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections.abc import Awaitable, Callable

import httpx
import msgspec

from tenure.clock import Clock, HostClock, us
from tenure.errors import TenureError
from tenure.kernel.feed import decode_feed_lines
from tenure.kernel.notifications import Notification, build_notifications
from tenure.kernel.server_rows import FeedRow, NoticeRow, SubscriptionRow
from tenure.logs import get_logger
from tenure.outbound.address_rules import AllowedNetworks
from tenure.publish.webhook_messages import encode_event, signed_headers
from tenure.publish.webhook_targets import check_url, make_client
from tenure.secrets import Secrets
from tenure.store.feed import FeedRepository
from tenure.store.subscriptions import SubscriptionRepository

log = get_logger(__name__)

PAGE_ROWS = 200
POLL_SECONDS = 0.5
SUBSCRIPTION_SCAN_SECONDS = 2.0
"""How old the list of subscriptions may be. Changes by other processes take effect after this time."""
ADVANCE_SECONDS = 10.0
"""How often a subscription without notices is advanced."""
DELIVERIES_MAX = 32
TRY_SECONDS_MAX = 15.0
TAKEN_SECONDS = 60.0
"""After this time, which is longer than an attempt, another process may try."""
TOTAL_SECONDS = 86_400.0
NOTICE_TRIES_MAX = 30
"""Twice the number of attempts in a day. A notice with more has repeatedly ended its process or met a defect."""
DELAYS_SECONDS = (5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 3 * 3_600.0)
JITTER = 0.2
ANSWER_BYTES_MAX = 16 * 1024
STOP_SECONDS = 2.0
GONE = 410

_Key = tuple[str, str]


def delay_seconds(tries: int, chance: float) -> float:
    """The delay after `tries` attempts. `chance` is in [0, 1)."""
    nominal = DELAYS_SECONDS[min(tries, len(DELAYS_SECONDS)) - 1]
    return nominal * (1 + JITTER * (2 * chance - 1))


def next_try_at(notice: NoticeRow, now_us: int, chance: float, at_least: float = 0.0) -> int | None:
    """When a notice is tried again, or None if it is dead. The last attempt is one day after its creation."""
    last = notice.created_at + us(TOTAL_SECONDS)
    if now_us >= last:
        return None
    return min(now_us + us(max(delay_seconds(notice.tries, chance), at_least)), last)


class _Wanted:
    """A followed subscription and the position up to which its feed was read."""

    def __init__(self, row: SubscriptionRow) -> None:
        self.row = row
        self.types = frozenset(msgspec.json.decode(row.types, type=list[str]))
        self.reached = row.pos
        self.written_at = time.monotonic()

    def wants(self, news: Notification) -> bool:
        told = news.item
        return (
            told.tenant == self.row.tenant
            and (not self.types or news.type in self.types)
            and (self.row.workflow is None or told.workflow == self.row.workflow)
        )


class WebhookDispatcher:
    def __init__(
        self,
        feed: FeedRepository,
        subscriptions: SubscriptionRepository,
        reach: AllowedNetworks,
        secrets: Secrets,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._feed = feed
        self._subscriptions = subscriptions
        self.reach = reach
        self._secrets = secrets
        self._clock = clock or HostClock()
        self._followed: dict[_Key, _Wanted] = {}
        self._looked_at = float("-inf")
        self._told = asyncio.Event()
        self._made = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._deliveries: set[asyncio.Task[None]] = set()
        self._client: httpx.AsyncClient | None = None
        self._chance = random.Random()

    # -------------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        self._client = make_client(self.reach, TRY_SECONDS_MAX, DELIVERIES_MAX)
        self._tasks = [
            asyncio.create_task(self._forever("making", self._make), name="tenure-notices"),
            asyncio.create_task(self._forever("delivering", self._deliver_due), name="tenure-webhooks"),
        ]

    async def stop(self) -> None:
        """Stop. Deliveries in progress get a moment; other processes retry the rest."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=STOP_SECONDS)
        for task in list(self._deliveries):
            task.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def wake(self) -> None:
        """A commit happened in this process."""
        if self._followed:
            self._told.set()

    def refresh(self) -> None:
        """Subscriptions or notices were changed in this process."""
        self._looked_at = float("-inf")
        self._told.set()
        self._made.set()

    async def _forever(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except TenureError as refused:
                log.warning("publisher_failed", of=what, error=refused.code, message=refused.message)
                await asyncio.sleep(SUBSCRIPTION_SCAN_SECONDS)
            except Exception:
                log.error("publisher_failed", of=what, traceback=traceback.format_exc())
                await asyncio.sleep(SUBSCRIPTION_SCAN_SECONDS)

    # ---------------------------------------------------------------------------------------- making notices

    async def _make(self) -> None:
        self._told.clear()
        await self._look()
        more = False
        if self._followed:
            rows = await self._feed.after(min(one.reached for one in self._followed.values()), PAGE_ROWS)
            more = len(rows) == PAGE_ROWS
            if rows:
                await self._spread(rows)
        if not more:
            await _until(self._told, POLL_SECONDS if self._followed else SUBSCRIPTION_SCAN_SECONDS)

    async def _look(self) -> None:
        """Refresh the list of subscriptions every few seconds."""
        if time.monotonic() - self._looked_at < SUBSCRIPTION_SCAN_SECONDS:
            return
        self._looked_at = time.monotonic()
        head = (await self._feed.bounds()).head
        followed: dict[_Key, _Wanted] = {}
        for row in await self._subscriptions.list_active():
            key = (row.tenant, row.id)
            before = self._followed.get(key)
            if before is not None and (before.row.pos, before.row.revision) == (row.pos, row.revision):
                followed[key] = before
            else:
                followed[key] = _Wanted(row)
            if row.pos > head:  # the database was moved to another server, where positions begin again
                await self._subscriptions.advance(row, head, [])
                self._looked_at = float("-inf")
        self._followed = followed

    async def _spread(self, rows: list[FeedRow]) -> None:
        """Create the notices of these rows for every subscription that has not reached them."""
        tenants = {tenant for tenant, _ in self._followed}
        found = [(row, list(build_notifications(decode_feed_lines(row.body), tenants))) for row in rows]
        last = rows[-1].pos
        for one in list(self._followed.values()):
            if one.reached >= last:
                continue
            notices = [
                self._notice(one.row, row, news)
                for row, told in found
                if row.pos > one.reached
                for news in told
                if one.wants(news)
            ]
            one.reached = last
            if not notices and time.monotonic() - one.written_at < ADVANCE_SECONDS:
                continue
            if await self._subscriptions.advance(one.row, last, notices):
                one.row = msgspec.structs.replace(one.row, pos=last)
                one.written_at = time.monotonic()
                if notices:
                    self._made.set()
            else:  # another process was faster, or the subscription was changed: look again
                self._looked_at = float("-inf")
                self._followed.pop((one.row.tenant, one.row.id), None)

    @staticmethod
    def _notice(row: SubscriptionRow, feed: FeedRow, news: Notification) -> NoticeRow:
        body = encode_event(news, feed.at)
        return NoticeRow(
            row.tenant, row.id, feed.pos, news.part, news.item.run_id, news.type, body, feed.at, feed.at
        )

    # --------------------------------------------------------------------------------------------- delivering

    async def _deliver_due(self) -> None:
        """Take due notices up to the concurrency limit, and wait for the next."""
        self._made.clear()
        room = DELIVERIES_MAX - len(self._deliveries)
        wait = POLL_SECONDS
        due = await self._subscriptions.next_due_at() if room > 0 and self._followed else None
        if due is not None and due <= await self._subscriptions.now_us():
            taken = await self._subscriptions.take_notices(room, us(TAKEN_SECONDS))
            for notice in taken:
                task = asyncio.create_task(self._deliver(notice))
                self._deliveries.add(task)
                task.add_done_callback(self._delivered)
            if taken:
                return
        await _until(self._made, wait)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._deliveries.discard(task)
        self._made.set()  # there is capacity, and the run's next notice may go
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("delivery_failed", error=repr(fault))

    async def _deliver(self, notice: NoticeRow) -> None:
        row = await self._subscriptions.find(notice.tenant, notice.subscription)
        if row is None or row.disabled:
            return
        if (
            notice.tries > NOTICE_TRIES_MAX
        ):  # an attempt is counted before it begins: these ended without an outcome
            await self._subscriptions.fail_notice(
                notice, None, f"{NOTICE_TRIES_MAX} attempts ended without a recorded outcome"
            )
            log.error(
                "webhook_set_aside", webhook=row.id, tenant=row.tenant, notice=f"{notice.pos}-{notice.part}"
            )
            return
        status, problem, wait = await self._try(row, notice, await self._subscriptions.find_trace(notice))
        if status is not None and 200 <= status < 300:
            await self._subscriptions.delete_notice(notice)
            return
        now = await self._subscriptions.now_us()
        due = next_try_at(notice, now, self._chance.random(), wait)
        await self._subscriptions.fail_notice(notice, due, problem)
        if status == GONE:
            gone = msgspec.structs.replace(row, disabled=True, revision=row.revision + 1, updated_at=now)
            await self._subscriptions.save(gone)
            self.refresh()
        log.warning(
            "webhook_failed",
            webhook=row.id,
            tenant=row.tenant,
            notice=f"{notice.pos}-{notice.part}",
            tries=notice.tries,
            problem=problem,
            dead=due is None,
        )

    async def _try(
        self, row: SubscriptionRow, notice: NoticeRow, trace: str | None
    ) -> tuple[int | None, str, float]:
        """Send a notice: the status of the response, if there was one; the problem; and the requested delay."""
        assert self._client is not None
        try:
            check_url(row.url, self.reach)
            headers = signed_headers(
                notice, self._secrets.resolve(row.secret, row.tenant), self._clock.now_us(), trace
            )
            async with (
                asyncio.timeout(TRY_SECONDS_MAX),
                self._client.stream("POST", row.url, content=notice.body, headers=headers) as answer,
            ):
                await _drain(answer)
                return answer.status_code, f"HTTP {answer.status_code}", _retry_after(answer)
        except TenureError as refused:
            return None, refused.code, 0.0
        except TimeoutError:
            return None, f"no answer within {TRY_SECONDS_MAX:g} s", 0.0
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as fault:
            return None, f"{type(fault).__name__}: {fault}"[:200], 0.0


async def _drain(answer: httpx.Response) -> None:
    """Read a little, so that the connection can be reused. A long response is cut off with its connection."""
    left = ANSWER_BYTES_MAX
    async for chunk in answer.aiter_raw():
        left -= len(chunk)
        if left < 0:
            return


def _retry_after(answer: httpx.Response) -> float:
    given = answer.headers.get("retry-after", "")
    return min(float(given), DELAYS_SECONDS[-1]) if given.isdigit() and len(given) < 9 else 0.0


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
