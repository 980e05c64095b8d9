"""Creates webhook notices from the feed and delivers them.

Laws:
1. It may run in every process: the process that advances a subscription creates its notices, and the process that takes a notice delivers it.
2. The notices of one run reach a subscriber one after the other. Notices of different runs do not wait for each other.
3. A notice is delivered at least once. 2xx means delivered. 410 means that the receiver is gone, and disables the subscription. Everything else is
   retried with growing delays for one day; then the notice is dead, and listed.
4. Only the status of a response matters. A small part of its body is read, and nothing of it is stored.
5. A target is an https URL of a public service. http is for this machine only. Both this machine and private networks must be allowed in the
   settings. The address is checked again when the connection is made (`tenure.outbound.address_rules`), because a name can change its address.
   Redirects are not followed, because they would bypass both checks.
"""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import httpx
import msgspec

from tenure.clock import Clock, HostClock, us
from tenure.errors import Detail, TenureError
from tenure.kernel.feed import decode_feed_lines
from tenure.kernel.notifications import Notification, build_notifications
from tenure.kernel.server_rows import FeedRow, NoticeRow, SubscriptionRow
from tenure.logs import get_logger
from tenure.outbound.address_rules import AllowedNetworks, GuardedBackend, is_allowed, literal_address
from tenure.outbound.http import trusted_certificates
from tenure.outbound.urls import parse_url
from tenure.publish.pauses import delay_after, wait_until_set
from tenure.publish.webhook_messages import encode_event, signed_headers
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


def delay_seconds(tries: int, chance: float) -> float:
    """The delay after `tries` attempts. `chance` is in [0, 1)."""
    return delay_after(tries, DELAYS_SECONDS) * (1 + JITTER * (2 * chance - 1))


def next_try_at(notice: NoticeRow, now_us: int, chance: float, at_least: float = 0.0) -> int | None:
    """When a notice is tried again, or None if it is dead. The last attempt is one day after its creation."""
    last = notice.created_at + us(TOTAL_SECONDS)
    if now_us >= last:
        return None
    return min(now_us + us(max(delay_seconds(notice.tries, chance), at_least)), last)


class _FollowedSubscription:
    """A followed subscription and the position up to which its feed was read."""

    def __init__(self, row: SubscriptionRow) -> None:
        self.row = row
        self.types = frozenset(msgspec.json.decode(row.types, type=list[str]))
        self.reached = row.pos
        self.written_at = time.monotonic()

    def wants(self, notification: Notification) -> bool:
        item = notification.item
        return (
            item.tenant == self.row.tenant
            and (not self.types or notification.type in self.types)
            and (self.row.workflow is None or item.workflow == self.row.workflow)
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
        self._followed: dict[tuple[str, str], _FollowedSubscription] = {}
        self._refreshed_at = float("-inf")
        self._woken = asyncio.Event()
        self._due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._deliveries: set[asyncio.Task[None]] = set()
        self._client: httpx.AsyncClient | None = None
        self._chance = random.Random()

    # -------------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        self._client = _make_client(self.reach, TRY_SECONDS_MAX, DELIVERIES_MAX)
        self._tasks = [
            asyncio.create_task(self._repeat("making", self._follow_feed), name="tenure-notices"),
            asyncio.create_task(self._repeat("delivering", self._deliver_due), name="tenure-webhooks"),
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
        """Look at the feed now, because this process has just committed."""
        if self._followed:
            self._woken.set()

    def refresh(self) -> None:
        """Look at everything now, because this process has changed subscriptions or notices."""
        self._refreshed_at = float("-inf")
        self._woken.set()
        self._due.set()

    async def _repeat(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
                continue
            except TenureError as refused:
                log.warning("publisher_failed", of=what, error=refused.code, message=refused.message)
            except Exception:
                log.error("publisher_failed", of=what, traceback=traceback.format_exc())
            await asyncio.sleep(SUBSCRIPTION_SCAN_SECONDS)

    # ---------------------------------------------------------------------------------------- making notices

    async def _follow_feed(self) -> None:
        self._woken.clear()
        await self._refresh_subscriptions()
        more = False
        if self._followed:
            rows = await self._feed.after(min(one.reached for one in self._followed.values()), PAGE_ROWS)
            more = len(rows) == PAGE_ROWS
            if rows:
                await self._make_notices(rows)
        if not more:
            await wait_until_set(self._woken, POLL_SECONDS if self._followed else SUBSCRIPTION_SCAN_SECONDS)

    async def _refresh_subscriptions(self) -> None:
        """Load the list of subscriptions again if it is too old."""
        if time.monotonic() - self._refreshed_at < SUBSCRIPTION_SCAN_SECONDS:
            return
        self._refreshed_at = time.monotonic()
        head = (await self._feed.bounds()).head
        followed: dict[tuple[str, str], _FollowedSubscription] = {}
        for row in await self._subscriptions.list_active():
            key = (row.tenant, row.id)
            known = self._followed.get(key)
            if known is None or (known.row.pos, known.row.revision) != (row.pos, row.revision):
                known = _FollowedSubscription(row)
            followed[key] = known
            if row.pos > head:  # the database was moved to another server, where positions begin again
                await self._subscriptions.advance(row, head, [])
                self._refreshed_at = float("-inf")
        self._followed = followed

    async def _make_notices(self, rows: list[FeedRow]) -> None:
        """Create the notices of these rows for every subscription that has not reached them."""
        tenants = {tenant for tenant, _ in self._followed}
        found = [(row, list(build_notifications(decode_feed_lines(row.body), tenants))) for row in rows]
        last = rows[-1].pos
        for one in list(self._followed.values()):
            if one.reached >= last:
                continue
            notices = [
                NoticeRow(
                    one.row.tenant,
                    one.row.id,
                    row.pos,
                    notification.part,
                    notification.item.run_id,
                    notification.type,
                    encode_event(notification, row.at),
                    row.at,
                    row.at,
                )
                for row, notifications in found
                if row.pos > one.reached
                for notification in notifications
                if one.wants(notification)
            ]
            one.reached = last
            if not notices and time.monotonic() - one.written_at < ADVANCE_SECONDS:
                continue
            if await self._subscriptions.advance(one.row, last, notices):
                one.row = msgspec.structs.replace(one.row, pos=last)
                one.written_at = time.monotonic()
                if notices:
                    self._due.set()
            else:  # another process was faster, or the subscription was changed: look again
                self._refreshed_at = float("-inf")
                self._followed.pop((one.row.tenant, one.row.id), None)

    # --------------------------------------------------------------------------------------------- delivering

    async def _deliver_due(self) -> None:
        self._due.clear()
        room = DELIVERIES_MAX - len(self._deliveries)
        due = await self._subscriptions.next_due_at() if room > 0 and self._followed else None
        if due is not None and due <= await self._subscriptions.now_us():
            taken = await self._subscriptions.take_notices(room, us(TAKEN_SECONDS))
            for notice in taken:
                task = asyncio.create_task(self._deliver(notice))
                self._deliveries.add(task)
                task.add_done_callback(self._delivered)
            if taken:
                return
        await wait_until_set(self._due, POLL_SECONDS)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._deliveries.discard(task)
        self._due.set()  # there is capacity, and the run's next notice may be sent
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("delivery_failed", error=repr(fault))

    async def _deliver(self, notice: NoticeRow) -> None:
        row = await self._subscriptions.find(notice.tenant, notice.subscription)
        if row is None or row.disabled:
            return
        if notice.tries > NOTICE_TRIES_MAX:
            # An attempt is counted before it begins: these attempts ended without an outcome.
            await self._subscriptions.fail_notice(
                notice, None, f"{NOTICE_TRIES_MAX} attempts ended without a recorded outcome"
            )
            log.error(
                "webhook_set_aside", webhook=row.id, tenant=row.tenant, notice=f"{notice.pos}-{notice.part}"
            )
            return
        status, problem, wait = await self._send(row, notice, await self._subscriptions.find_trace(notice))
        if status is not None and 200 <= status < 300:
            await self._subscriptions.delete_notice(notice)
            return
        now = await self._subscriptions.now_us()
        due = next_try_at(notice, now, self._chance.random(), wait)
        await self._subscriptions.fail_notice(notice, due, problem)
        if status == GONE:
            await self._subscriptions.save(
                msgspec.structs.replace(row, disabled=True, revision=row.revision + 1, updated_at=now)
            )
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

    async def _send(
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
    async for _chunk in answer.aiter_raw():
        if answer.num_bytes_downloaded > ANSWER_BYTES_MAX:
            return


def _retry_after(answer: httpx.Response) -> float:
    given = answer.headers.get("retry-after", "")
    return min(float(given), DELAYS_SECONDS[-1]) if given.isdigit() and len(given) < 9 else 0.0


# ---- Where webhooks may go.

LOCAL_NAMES = frozenset({"localhost"})


def check_url(url: str, reach: AllowedNetworks) -> None:
    """Refuse a URL that webhooks may not go to, as far as its text tells."""
    try:
        problem = _find_target_problem(parse_url(url), reach)
    except ValueError as refused:
        problem = str(refused)
    if problem is not None:
        raise TenureError("INVALID_INPUT", f"url {problem}", (Detail("url", problem),))


def _find_target_problem(url: httpx.URL, reach: AllowedNetworks) -> str | None:
    address = literal_address(url.host)
    local = url.host.lower().rstrip(".") in LOCAL_NAMES or (
        address is not None and ip_address(address).is_loopback
    )
    if url.scheme == "http" and not (local and reach.loopback):
        return "must be an https URL"
    if (local and not reach.loopback) or (address is not None and not is_allowed(address, reach)):
        return "leads to an address where webhooks do not go: allow private targets in the server's settings"
    return None


def _make_client(reach: AllowedNetworks, seconds: float, connections: int) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(
        retries=0,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        trust_env=False,
        verify=trusted_certificates(None),
    )
    transport._pool._network_backend = GuardedBackend(reach, "webhooks")  # httpx has no argument for it
    return httpx.AsyncClient(
        transport=transport, timeout=seconds, follow_redirects=False, trust_env=False, cookies=_NoCookies()
    )


class _NoCookies(httpx.Cookies):
    def extract_cookies(self, response: httpx.Response) -> None:
        pass
