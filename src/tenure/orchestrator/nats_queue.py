"""An external queue on NATS JetStream (`external_queue` has its laws).

Laws:
1. Steps are announced on `PREFIX.ready.TENANT.QUEUE`, in one stream with limits: old messages are discarded, and nothing grows without end.
   A stream that exists is used as it is.
2. Processes that claim from the same queues share a durable consumer, so a message goes to one of them. Its visibility time-out
   (`VISIBLE_SECONDS`) is advisory: the database's lease decides who works.
3. One task owns the connection. While NATS is away, announcements are dropped, nobody waits for it, and claims poll. The task
   connects again by itself, and makes stream and consumer again if they are gone.
4. Messages are untrusted: they are bounded, parsed strictly, and only wake.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from tenure.errors import TenureError
from tenure.logs import get_logger
from tenure.orchestrator.external_queue import ReadyStep, escape_token, parse_body

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

log = get_logger(__name__)

PREFIX = "tenure"
VISIBLE_SECONDS = 30.0
"""How long a message is invisible to others after its delivery, unless it was acknowledged."""
DELIVERIES_MAX = 5
STREAM_SECONDS_MAX = 600.0
STREAM_MESSAGES_MAX = 100_000
STREAM_BYTES_MAX = 64 * 1024 * 1024
UNSENT_MAX = 4_096
"""Announcements that wait to be sent. More than that are dropped, the oldest first."""
FETCHED_MAX = 8
"""Messages taken at once. A process that takes many keeps them from others."""
CLAIMED_REMEMBERED_MAX = 10_000
CONNECT_SECONDS = 3.0
FETCH_SECONDS = 5.0
PAUSE_SECONDS = 0.5
CONSUMER_IDLE_SECONDS = 86_400.0
"""A consumer that nobody has used for this long is removed by NATS."""


class NatsQueue:
    """An async context manager. It never fails because NATS is away."""

    def __init__(
        self, url: str, *, visible_seconds: float = VISIBLE_SECONDS, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self._url, self._prefix = parse_queue_url(url)
        self._visible_seconds = visible_seconds
        self._pause_seconds = pause_seconds
        self._unsent: deque[ReadyStep] = deque(maxlen=UNSENT_MAX)
        self._has_unsent = asyncio.Event()
        self._queues: set[str] = set()
        self._served = asyncio.Event()
        self._changed = asyncio.Event()
        self._hinted = asyncio.Event()
        self._waiting = asyncio.Event()
        self._waiters = 0
        self._delivered: list[Msg] = []
        """Delivered messages that no claim has looked for yet (law 3 of `external_queue`)."""
        self._claimed: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._acks: set[asyncio.Task[None]] = set()
        self.is_connected = False
        self.sent = self.received = self.redelivered = self.losses = 0
        """Counters: messages sent, received and received again, and connections lost."""

    async def __aenter__(self) -> NatsQueue:
        check_nats_installed()
        self._task = asyncio.create_task(self._stay_connected(), name="tenure-nats-queue")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        for ack in list(self._acks):
            ack.cancel()
        await asyncio.gather(*self._acks, return_exceptions=True)
        self._hinted.set()

    # -------------------------------------------------------------------------------- the orchestrator's side

    def announce(self, steps: Sequence[ReadyStep]) -> None:
        if self.is_connected:
            self._unsent.extend(steps)
            self._has_unsent.set()

    def serve(self, queues: Iterable[str]) -> None:
        new = set(queues) - self._queues
        if new:
            self._queues |= new
            self._served.set()
            self._changed.set()

    def note_claimed(self, steps: Iterable[tuple[int, int]]) -> None:
        for step in steps:
            self._claimed[step] = None
        while len(self._claimed) > CLAIMED_REMEMBERED_MAX:
            self._claimed.popitem(last=False)

    async def wait(self, timeout_s: float) -> bool:
        seen, self._delivered = self._delivered, []
        for message in seen:
            self._acknowledge(message)
        self._waiters += 1
        self._waiting.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._hinted.wait()
        except TimeoutError:
            return False
        finally:
            self._waiters -= 1
            if not self._waiters:
                self._waiting.clear()
        self._hinted.clear()
        return True

    def _acknowledge(self, message: Msg) -> None:
        task = asyncio.create_task(_ack(message))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    # ------------------------------------------------------------------------------------------- the connection

    async def _stay_connected(self) -> None:
        while True:
            try:
                await self._work()
            except asyncio.CancelledError:
                raise
            except Exception as fault:  # the poll finds work meanwhile (law 3)
                if self.is_connected:
                    self.losses += 1
                    log.warning("external_queue_lost", error=repr(fault))
            self.is_connected = False
            self._unsent.clear()
            self._delivered.clear()  # they belong to a connection that is gone
            self._hinted.set()  # a message may have been missed
            await asyncio.sleep(self._pause_seconds)

    async def _work(self) -> None:
        from nats.aio.client import Client

        lost = asyncio.Event()

        async def on_lost() -> None:
            lost.set()

        async def on_error(fault: Exception) -> None:
            log.debug("external_queue_error", error=repr(fault))

        client = Client()
        try:
            await client.connect(
                self._url,
                name="tenure",
                allow_reconnect=False,
                connect_timeout=int(CONNECT_SECONDS),
                ping_interval=int(FETCH_SECONDS),
                max_outstanding_pings=1,
                disconnected_cb=on_lost,
                closed_cb=on_lost,
                error_cb=on_error,
            )
            stream = client.jetstream(timeout=CONNECT_SECONDS)
            await self._make_stream(stream)
            self.is_connected = True
            log.info("external_queue_connected")
            self._hinted.set()
            await _first_fault(self._send(client), self._receive(stream), _raise_when(lost))
        finally:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await client.close()
            if client._transport is not None:  # `close` fails where the server has never answered
                client._transport.close()  # type: ignore[no-untyped-call]  # nats-py leaves it untyped

    async def _make_stream(self, stream: JetStreamContext) -> None:
        from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
        from nats.js.errors import NotFoundError

        try:
            await stream.stream_info(self._stream_name)
        except NotFoundError:
            await stream.add_stream(
                StreamConfig(
                    name=self._stream_name,
                    subjects=[f"{self._prefix}.ready.>"],
                    retention=RetentionPolicy.LIMITS,
                    discard=DiscardPolicy.OLD,
                    storage=StorageType.MEMORY,
                    max_age=STREAM_SECONDS_MAX,
                    max_msgs=STREAM_MESSAGES_MAX,
                    max_bytes=STREAM_BYTES_MAX,
                    max_msg_size=1_024,
                )
            )

    @property
    def _stream_name(self) -> str:
        return f"{self._prefix}-ready"

    async def _send(self, client: NatsClient) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            while self._unsent:
                step = self._unsent.popleft()
                subject = f"{self._prefix}.ready.{escape_token(step.tenant)}.{escape_token(step.queue)}"
                await client.publish(subject, step.body())
                self.sent += 1
            await client.flush(timeout=int(CONNECT_SECONDS))

    async def _receive(self, stream: JetStreamContext) -> None:
        while True:
            await self._served.wait()
            self._changed.clear()
            subscription = await self._subscribe(stream)
            try:
                while not self._changed.is_set():
                    await self._waiting.wait()
                    await self._fetch(subscription)
            finally:
                with contextlib.suppress(Exception):
                    await subscription.unsubscribe()

    async def _subscribe(self, stream: JetStreamContext) -> JetStreamContext.PullSubscription:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        queues = sorted(self._queues)
        name = f"claims-{sha256(repr(queues).encode()).hexdigest()[:32]}"
        config = ConsumerConfig(
            durable_name=name,
            filter_subjects=[f"{self._prefix}.ready.*.{escape_token(queue)}" for queue in queues],
            deliver_policy=DeliverPolicy.NEW,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._visible_seconds,
            max_deliver=DELIVERIES_MAX,
            inactive_threshold=CONSUMER_IDLE_SECONDS,
        )
        await stream.add_consumer(self._stream_name, config)
        return await stream.pull_subscribe_bind(durable=name, stream=self._stream_name)

    async def _fetch(self, subscription: JetStreamContext.PullSubscription) -> None:
        import nats.errors

        try:
            messages = await subscription.fetch(FETCHED_MAX, timeout=FETCH_SECONDS)
        except nats.errors.TimeoutError:
            return
        for message in messages:
            self.received += 1
            self.redelivered += message.metadata.num_delivered > 1
            step = parse_body(message.data)
            if step is None or step in self._claimed:
                self._acknowledge(message)
            else:
                self._delivered.append(message)
                self._hinted.set()


def parse_queue_url(url: str) -> tuple[str, str]:
    """The address of NATS and the prefix of subjects, which is the path of the URL: `nats://host:4222/production`."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/") or PREFIX
    if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.query or parts.fragment:
        raise TenureError(
            "INVALID_INPUT",
            "the external queue must be the address of NATS, such as nats://host:4222 or tls://host:4222/prefix",
        )
    if escape_token(prefix) != prefix:
        raise TenureError(
            "INVALID_INPUT",
            f"the prefix {prefix!r} of the external queue must consist of letters, digits, _ and -",
        )
    return urlunsplit((parts.scheme, parts.netloc, "", "", "")), prefix


def check_nats_installed() -> None:
    """INVALID_INPUT if the NATS library is not installed."""
    try:
        import nats.aio.client  # noqa: F401 - only whether it is there
    except ImportError:
        raise TenureError(
            "INVALID_INPUT", "an external queue needs the NATS library: pip install 'tenure[nats]'"
        ) from None


async def _ack(message: Msg) -> None:
    with contextlib.suppress(
        Exception
    ):  # a message that was not acknowledged comes again, which changes nothing
        await message.ack()


async def _raise_when(lost: asyncio.Event) -> None:
    await lost.wait()
    raise ConnectionError("the connection to NATS is lost")


async def _first_fault(*work: Any) -> None:
    """Run endless tasks until one fails, then end all."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
