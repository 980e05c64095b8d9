"""An external queue (NATS JetStream) wakes claims. Killed, cut off, restarted, and with messages lost, repeated and forged, it changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import pytest

from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.ids import run_int
from tenure.orchestrator import claims, core
from tenure.orchestrator.external_queue import ReadyStep, escape_token, parse_body
from tenure.orchestrator.nats_queue import NatsQueue, parse_queue_url
from tenure.store.policies import PolicyRegistry
from tests.chaos import killing_connectors
from tests.chaos.test_acts import staged
from tests.conformance.tcp_proxy import TcpProxy
from tests.engine.stage import queues
from tests.govern.act_service import REPEATS
from tests.worker.helpers import until, watching
from tests.worker.process import WorkerProcess
from tools.nats_server import PrivateNats

STEP = ReadyStep("acme", "default", 7, 0)


@pytest.fixture
def nats_server() -> Iterator[PrivateNats]:
    with PrivateNats() as server:
        yield server


def address_of(proxy: TcpProxy) -> str:
    return f"nats://127.0.0.1:{urlsplit(proxy.dsn).port}"


async def connected(queue: NatsQueue) -> None:
    await until(lambda: queue.is_connected, "the queue is connected")


async def inject(server: PrivateNats, run_id: str) -> None:
    """Send what nobody should send: repeated, stale and forged messages."""
    client = await nats.connect(server.url)
    for _ in range(3):
        await client.publish(
            "tenure.ready.default.default", ReadyStep("default", "default", run_int(run_id), 0).body()
        )
    for body in (b"", b"1/1", b"x" * 500, b"9999999999999999999/9", b"{}"):
        await client.publish("tenure.ready.other.default", body)
    await client.flush()
    await client.close()


@pytest.mark.guard_seconds(180)
@pytest.mark.clause("GOV-11")
async def test_a_queue_that_is_killed_cut_off_and_restarted_doubles_and_loses_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nats_server: PrivateNats
) -> None:
    with staged(url, tmp_path, monkeypatch) as stage:
        async with (
            TcpProxy(nats_server.url).serve() as proxy,
            watching(url, queue=address_of(proxy)) as engine,
        ):
            await PolicyRegistry(engine.store, "default").install(killing_connectors.POLICY)
            queue = engine.orchestrator.external_queue
            assert isinstance(queue, NatsQueue)
            await connected(queue)
            how: dict[str, Any] = {
                "connectors": str(tmp_path / "connectors.yaml"),
                "queue": address_of(proxy),
            }
            target = "tests.chaos.killing_connectors"
            with WorkerProcess(url, target, **how, slots=2), WorkerProcess(url, target, **how, slots=2):
                runs: list[str] = []

                async def start(count: int = 3) -> None:
                    runs.extend([(await engine.start(killing_connectors.three)).id for _ in range(count)])

                async def end_all() -> None:
                    for run in runs:
                        await engine.see_end(run)

                await start()
                for run in runs:
                    await inject(nats_server, run)
                await end_all()
                assert queue.sent >= 3, "ready steps were announced"

                await start()
                nats_server.kill()
                await start()  # nobody announces these: polling finds them
                await end_all()
                await until(lambda: not queue.is_connected, "the loss is noticed")

                await asyncio.to_thread(nats_server.start)
                await connected(queue)
                before = queue.sent
                await start()
                await until(lambda: queue.sent > before, "steps are announced again")
                await inject(nats_server, runs[0])
                await end_all()

                proxy.mute()  # a partition: connections stay open, and nothing comes back
                await start()
                await end_all()
                await until(lambda: queue.losses >= 2, "the partition is noticed", 60)
                proxy.unmute()
                await connected(queue)
                await start()
                await end_all()
        receipts = [row for run in runs for row in await _receipts(url, run)]
        assert [state for state in receipts if state != "succeeded"] == []
        assert len(receipts) == len(runs) * len(REPEATS)
        assert stage.effects() == dict.fromkeys(REPEATS, len(runs)), "every step was done once"


async def _receipts(url: str, run: str) -> list[str]:
    async with Engine(url, only_reads=True) as engine:
        return [row.state for row in await engine.store.read("receipts_of", run_int(run))]


async def test_a_message_alone_wakes_a_waiting_claim(
    url: str, nats_server: PrivateNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (core, claims):
        monkeypatch.setattr(module, "POLL_SECONDS", 3600.0)
    async with (
        watching(url, queue=nats_server.url) as engine,
        Engine(url, sweep=False, queue=nats_server.url) as other,
    ):

        async def never(timeout_s: float) -> bool:
            await asyncio.sleep(timeout_s)
            return False

        monkeypatch.setattr(other.store, "wait_for_work", never)
        for one in (engine, other):
            assert isinstance(one.orchestrator.external_queue, NatsQueue)
            await connected(one.orchestrator.external_queue)
        await engine.create("w", [{"name": "a"}])
        served = await queues(engine)
        assert len(await other.orchestrator.claim("w", queues=served)) == 1
        waiting = asyncio.create_task(other.orchestrator.claim("w", queues=served, wait_seconds=3600))
        received = other.orchestrator.external_queue
        assert isinstance(received, NatsQueue)
        await until(lambda: received._waiters, "the claim waits")
        async with asyncio.timeout(30):
            while not waiting.done():  # the consumer may not be there yet, and gets only what comes after it
                await engine.create("w", [{"name": "a"}])
                await asyncio.wait({waiting}, timeout=1)
        [lease] = await waiting
        assert lease.tenant == "default"
        assert received.received >= 1


async def test_a_message_whose_process_dies_is_delivered_to_another(nats_server: PrivateNats) -> None:
    async with NatsQueue(nats_server.url) as sender, NatsQueue(nats_server.url, visible_seconds=1) as first:
        first.serve(["default"])
        await connected(sender)
        await connected(first)
        while not first.received:
            sender.announce([STEP])
            await first.wait(0.5)
        # It never waits again: for the queue, it died before its claim.
        async with NatsQueue(nats_server.url, visible_seconds=1) as second:
            second.serve(["default"])
            await connected(second)
            async with asyncio.timeout(30):
                while not second.redelivered:
                    await second.wait(1)


async def test_a_step_that_was_claimed_here_does_not_wake_and_an_answered_message_does_not_return(
    nats_server: PrivateNats,
) -> None:
    async with NatsQueue(nats_server.url, visible_seconds=1) as queue:
        queue.serve(["default"])
        await connected(queue)
        while not queue.received:
            queue.announce([STEP])
            await queue.wait(0.5)
        queue.note_claimed([(7, 0)])
        while await queue.wait(0.3):  # acknowledges what came, until it is quiet
            pass
        received = queue.received
        queue.announce([STEP])
        assert not await queue.wait(2)
        assert queue.received > received, "it came, and did not wake"
        assert queue.redelivered == 0


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("acme", "acme"), ("a.b", "a=2Eb"), ("*", "=2A"), (">", "=3E"), ("a b", "a=20b"), ("a=2Eb", "a=3D2Eb"), ("é", "=C3=A9"),
        ("", "=sha256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    ],
)  # fmt: skip
def test_names_are_escaped_into_one_token(name: str, token: str) -> None:
    assert escape_token(name) == token


def test_long_names_stay_different_and_short() -> None:
    tokens = {escape_token("é" * 100 + end) for end in ("a", "b", "a.")}
    assert len(tokens) == 3
    assert max(map(len, tokens)) <= 100


def test_only_our_messages_name_a_step() -> None:
    assert parse_body(STEP.body()) == (7, 0)
    for body in (
        b"",
        b"7",
        b"7/",
        b"/0",
        b"-7/0",
        b"7/0/0",
        b"7 /0",
        b"1" * 20 + b"/0",
        b"x" * 1_000,
        "\u0667/0".encode(),
    ):
        assert parse_body(body) is None


def test_the_address_of_a_queue_is_checked() -> None:
    assert parse_queue_url("nats://u:p@host:4222/production") == ("nats://u:p@host:4222", "production")
    assert parse_queue_url("tls://host")[1] == "tenure"
    for wrong in ("redis://host", "nats://", "nats://host/a.b", "nats://host/a/b", "nats://host?x=1"):
        with pytest.raises(TenureError, match="external queue"):
            parse_queue_url(wrong)
