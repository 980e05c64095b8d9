"""The dispatcher: makes notices from the feed and delivers them.

Laws:
1. It may run in every process: who moves a subscription on makes its notices, who takes a notice delivers it.
2. Notices of one run go to one subscriber one after the other; those of different runs do not wait for each other.
3. A notice is delivered at least once. 2xx says that it was; 410 that nobody is there any more, which switches the
   subscription off; everything else is tried again, later and later, for a day. Then it is dead, and listed.
4. Of an answer only its status matters; no more than a little of its body is read, and none of it is kept.
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
from tenure.kernel.feed import decoded
from tenure.kernel.news import News, news_of
from tenure.kernel.service import Feed, Notice, Subscription
from tenure.logs import get_logger
from tenure.publish.messages import body_of, headers_of
from tenure.publish.targets import Reach, check_url, make_client
from tenure.secrets import Secrets
from tenure.store.feeding import Feeding

log = get_logger(__name__)

PAGE_ROWS = 200
POLL_SECONDS = 0.5
LOOK_SECONDS = 2.0
"""How old the list of subscriptions may be: what is made elsewhere counts after this."""
ADVANCE_SECONDS = 10.0
"""How often a subscription is moved on although there was nothing for it."""
DELIVERIES_MAX = 32
"""At the same time."""
TRY_SECONDS_MAX = 15.0
TAKEN_SECONDS = 60.0
"""Longer than a try takes: after this another process may try."""
TOTAL_SECONDS = 86_400.0
NOTICE_TRIES_MAX = 30
"""Twice as many as fit into a day: a notice that has more ended its process, or met a defect, again and again."""
DELAYS_SECONDS = (5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 3 * 3_600.0)
JITTER = 0.2
ANSWER_BYTES_MAX = 16 * 1024
STOP_SECONDS = 2.0
GONE = 410

_Key = tuple[str, str]


def delay_seconds(tries: int, chance: float) -> float:
    """How long to wait after so many tries; `chance` is in [0, 1)."""
    nominal = DELAYS_SECONDS[min(tries, len(DELAYS_SECONDS)) - 1]
    return nominal * (1 + JITTER * (2 * chance - 1))


def due_again(notice: Notice, now_us: int, chance: float, at_least: float = 0.0) -> int | None:
    """When a notice is tried again, or None: it is dead. The last try is a day after it was made."""
    last = notice.created_at + us(TOTAL_SECONDS)
    if now_us >= last:
        return None
    return min(now_us + us(max(delay_seconds(notice.tries, chance), at_least)), last)


class _Wanted:
    """A subscription as it is followed: where it is, and how far we have looked for it."""

    def __init__(self, row: Subscription) -> None:
        self.row = row
        self.types = frozenset(msgspec.json.decode(row.types, type=list[str]))
        self.reached = row.pos
        self.written_at = time.monotonic()

    def wants(self, news: News) -> bool:
        told = news.told
        return (
            told.tenant == self.row.tenant
            and (not self.types or news.type in self.types)
            and (self.row.workflow is None or told.workflow == self.row.workflow)
        )


class Publisher:
    """See the laws above."""

    def __init__(
        self, feeding: Feeding, reach: Reach, secrets: Secrets, *, clock: Clock | None = None
    ) -> None:
        self._feeding = feeding
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
        """Begin."""
        self._client = make_client(self.reach, TRY_SECONDS_MAX, DELIVERIES_MAX)
        self._tasks = [
            asyncio.create_task(self._forever("making", self._make), name="tenure-notices"),
            asyncio.create_task(self._forever("delivering", self._deliver_due), name="tenure-webhooks"),
        ]

    async def stop(self) -> None:
        """End; what is under way has a moment, and is tried again by others otherwise."""
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
        """Something was committed here."""
        if self._followed:
            self._told.set()

    def refresh(self) -> None:
        """Subscriptions or notices were changed here."""
        self._looked_at = float("-inf")
        self._told.set()
        self._made.set()

    async def _forever(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except TenureError as refused:
                log.warning("publisher_failed", of=what, error=refused.code, message=refused.message)
                await asyncio.sleep(LOOK_SECONDS)
            except Exception:
                log.error("publisher_failed", of=what, traceback=traceback.format_exc())
                await asyncio.sleep(LOOK_SECONDS)

    # ---------------------------------------------------------------------------------------- making notices

    async def _make(self) -> None:
        """One look at what is new."""
        self._told.clear()
        await self._look()
        more = False
        if self._followed:
            rows = await self._feeding.after(min(one.reached for one in self._followed.values()), PAGE_ROWS)
            more = len(rows) == PAGE_ROWS
            if rows:
                await self._spread(rows)
        if not more:
            await _until(self._told, POLL_SECONDS if self._followed else LOOK_SECONDS)

    async def _look(self) -> None:
        """Who wants to be told, every other second."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        head = (await self._feeding.bounds()).head
        followed: dict[_Key, _Wanted] = {}
        for row in await self._feeding.live():
            key = (row.tenant, row.id)
            before = self._followed.get(key)
            if before is not None and (before.row.pos, before.row.revision) == (row.pos, row.revision):
                followed[key] = before
            else:
                followed[key] = _Wanted(row)
            if row.pos > head:  # the database was carried over to another server, where positions begin anew
                await self._feeding.advance(row, head, [])
                self._looked_at = float("-inf")
        self._followed = followed

    async def _spread(self, rows: list[Feed]) -> None:
        """Make the notices of these rows for everybody who has not got there yet."""
        tenants = {tenant for tenant, _ in self._followed}
        found = [(row, list(news_of(decoded(row.body), tenants))) for row in rows]
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
            if await self._feeding.advance(one.row, last, notices):
                one.row = msgspec.structs.replace(one.row, pos=last)
                one.written_at = time.monotonic()
                if notices:
                    self._made.set()
            else:  # somebody else was there, or it was changed: look again
                self._looked_at = float("-inf")
                self._followed.pop((one.row.tenant, one.row.id), None)

    @staticmethod
    def _notice(row: Subscription, feed: Feed, news: News) -> Notice:
        body = body_of(news, feed.at)
        return Notice(
            row.tenant, row.id, feed.pos, news.part, news.told.run_id, news.type, body, feed.at, feed.at
        )

    # --------------------------------------------------------------------------------------------- delivering

    async def _deliver_due(self) -> None:
        """Take what is due, as much as there is room for, and wait for the next."""
        self._made.clear()
        room = DELIVERIES_MAX - len(self._deliveries)
        wait = POLL_SECONDS
        due = await self._feeding.next_due() if room > 0 and self._followed else None
        if due is not None and due <= await self._feeding.now_us():
            taken = await self._feeding.take(room, us(TAKEN_SECONDS))
            for notice in taken:
                task = asyncio.create_task(self._deliver(notice))
                self._deliveries.add(task)
                task.add_done_callback(self._delivered)
            if taken:
                return
        await _until(self._made, wait)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._deliveries.discard(task)
        self._made.set()  # there is room, and the run's next notice may go
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("delivery_failed", error=repr(fault))

    async def _deliver(self, notice: Notice) -> None:
        row = await self._feeding.subscription(notice.tenant, notice.subscription)
        if row is None or row.disabled:
            return
        if (
            notice.tries > NOTICE_TRIES_MAX
        ):  # each try is counted before it begins: these ended without a word
            await self._feeding.failed(
                notice, None, f"{NOTICE_TRIES_MAX} attempts ended without a recorded outcome"
            )
            log.error(
                "webhook_set_aside", webhook=row.id, tenant=row.tenant, notice=f"{notice.pos}-{notice.part}"
            )
            return
        status, problem, wait = await self._try(row, notice, await self._feeding.trace_of(notice))
        if status is not None and 200 <= status < 300:
            await self._feeding.done(notice)
            return
        now = await self._feeding.now_us()
        due = due_again(notice, now, self._chance.random(), wait)
        await self._feeding.failed(notice, due, problem)
        if status == GONE:
            gone = msgspec.structs.replace(row, disabled=True, revision=row.revision + 1, updated_at=now)
            await self._feeding.put(gone)
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
        self, row: Subscription, notice: Notice, trace: str | None
    ) -> tuple[int | None, str, float]:
        """Send it: the answer's status, if there was one; what is wrong; and how long we are asked to wait."""
        assert self._client is not None
        try:
            check_url(row.url, self.reach)
            headers = headers_of(
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
    """Read a little, so that the connection can be used again; a long answer is cut off with its connection."""
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
