"""Acts under crashes: whatever dies wherever, no call is made without an INTENT and no key has two effects (I36, I38, failure 26).

The service is a double with a log of its own, in the three modes that there are. The first half kills workers of a lab before and
after every commit and every call; the second half kills and stops real processes.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from tenure.ids import run_int
from tenure.kernel.act_commands import SettleReceipt
from tenure.kernel.act_rows import ReceiptRow
from tenure.store.policies import PolicyRegistry
from tenure.testing import Lab, LabStuck, crash_everywhere
from tenure.testing.doubles import ServiceDouble
from tenure.testing.doubles.base import WRITES, DoubleReply, DoubleRequest
from tenure.testing.doubles.service import Mode
from tests.chaos import killing_connectors
from tests.govern.act_service import ALLOW, ASK, REPEATS, connector, keyed, receipts, settle
from tests.worker.helpers import Watched, until, watching
from tests.worker.process import WorkerProcess

INTENDED = "select count(*) from {}receipt where name = {} and state = 'intent'"


class Watchful(ServiceDouble):
    """A service that looks into the database whenever something is asked of it: whether that was intended."""

    def __init__(self, mode: Mode) -> None:
        super().__init__(mode)
        self.intended: Callable[[str], int] = lambda _key: 0
        self.unintended: list[str] = []

    def handle(self, request: DoubleRequest) -> DoubleReply:
        if request.method in WRITES and self.intended(key := request.headers["idempotency-key"]) != 1:
            self.unintended.append(key)
        return super().handle(request)


def _in_sqlite(lab: Lab) -> Callable[[str], int]:
    def count(key: str) -> int:
        with closing(apsw.Connection(str(lab.folder / "lab.db"))) as database:
            found: int = database.execute(INTENDED.format("", "?"), (key,)).get
        return found

    return count


def _in_postgres(url: str) -> Callable[[str], int]:
    async def asked(key: str) -> int:
        connection = await asyncpg.connect(url)
        try:
            return int(await connection.fetchval(INTENDED.format("tenure.", "$1"), key))
        finally:
            await connection.close()

    return lambda key: asyncio.run(asked(key))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> str | None:
    """Where a lab lies: its own SQLite file (None), or PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


@pytest.mark.guard_seconds(180)
@pytest.mark.parametrize("mode", ["honours", "found", "neither"])
@pytest.mark.clause("GOV-08", "GOV-15")
async def test_a_crash_anywhere_leaves_one_effect_per_key(mode: Mode, place: str | None) -> None:
    asked_people = 0
    with Watchful(mode) as service:

        async def story(lab: Lab) -> None:
            nonlocal asked_people
            service.intended = _in_sqlite(lab) if place is None else _in_postgres(place)
            run = await lab.start(keyed, key := f"order:{len(service.effects)}:{len(service.requests)}")
            try:
                await run.result(within="1d")
            except LabStuck:
                asked_people += 1
                (unknown,) = await receipts(lab, run)
                happened = service.effects_of(key)
                assert unknown.state == "unknown"
                assert mode == "neither" or (mode == "found" and not happened), (
                    "what can be known is not asked"
                )
                await settle(lab, run, "done" if happened else "retry", result=b'{"json": {"no": 1}}')
                await run.result(within="1d")
            assert service.effects_of(key) == 1
            assert [row.state for row in await receipts(lab, run)] == ["succeeded"]

        told = await crash_everywhere(
            story, keyed, url=place, connectors=[connector(service.url, mode)], policy=ALLOW
        )
        assert told >= 9, "a claim, the INTENT, the call and what became of it, each before and after"
        assert service.unintended == []
        # Four crashes leave an INTENT behind, two of them with an effect that can be found. "Not found" permits no second call.
        assert asked_people == {"honours": 0, "found": 2, "neither": 4}[mode]


@pytest.mark.guard_seconds(180)
async def test_a_crash_anywhere_asks_people_once() -> None:
    with Watchful("honours") as service:

        async def story(lab: Lab) -> None:
            service.intended = _in_sqlite(lab)
            run = await lab.start(keyed, key := f"order:{len(service.requests)}")
            await run.reaches("waiting_approval")
            (asked,) = await lab.engine.approvals.list(run.id)
            await lab.approve(run, digest=asked.digest)
            await run.result(within="1d")
            assert len(await lab.engine.approvals.list(run.id)) == 1
            assert service.effects_of(key) == 1

        await crash_everywhere(story, keyed, connectors=[connector(service.url, "honours")], policy=ASK)
        assert service.unintended == []


# --------------------------------------------------------------------------------------------- real processes


class Stage:
    """Three services, a database with a policy, and worker processes that can be struck."""

    def __init__(self, url: str, folder: Path, services: dict[Mode, ServiceDouble]) -> None:
        self.url, self.folder, self.services = url, folder, services
        (folder / "connectors.yaml").write_text(killing_connectors.CONNECTORS)

    def worker(self) -> WorkerProcess:
        """A worker in a process of its own."""
        return WorkerProcess(
            self.url,
            "tests.chaos.killing_connectors",
            connectors=str(self.folder / "connectors.yaml"),
            grace=1,
        )

    def strike(self, when: str, how: str, count: int) -> None:
        """The process that comes there is struck."""
        (self.folder / when).write_text(f"{how} {count}")

    def calls(self) -> list[str]:
        """What became of calls."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def effects(self) -> dict[Mode, int]:
        """What the services did."""
        return {mode: len(service.effects) for mode, service in self.services.items()}


@contextmanager
def staged(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with ExitStack() as stack:
        services: dict[Mode, ServiceDouble] = {
            mode: stack.enter_context(ServiceDouble(mode)) for mode in REPEATS
        }
        for mode, service in services.items():
            monkeypatch.setenv(killing_connectors.SERVICE.format(mode), service.url)
        monkeypatch.setenv(killing_connectors.FOLDER, str(folder))
        yield Stage(url, folder, services)


async def unknowns(engine: Watched, run_id: str, count: int) -> list[ReceiptRow]:
    """The actions of a run of which nobody knows how they ended, once there are so many."""

    async def found() -> list[ReceiptRow]:
        rows = await engine.store.read("receipts_of", run_int(run_id))
        open_ = [row for row in rows if row.state == "unknown"]
        return open_ if len(open_) == count else []

    rows: list[ReceiptRow] = await until(found, f"{count} unknown receipts")
    return rows


async def said(engine: Watched, receipt: ReceiptRow, how: Any) -> None:
    """A person says how it ended."""
    await engine.orchestrator.send(
        SettleReceipt(
            run_id=receipt.run_id,
            tenant="default",
            no=receipt.no,
            how=how,
            person="ada",
            result=b'{"json": {"no": 1}}',
        )
    )


@pytest.mark.guard_seconds(120)
@pytest.mark.parametrize(("url", "when"), [("sqlite", "before"), ("postgres", "after")], indirect=["url"])
@pytest.mark.clause("GOV-08")
async def test_a_process_killed_around_its_calls_leaves_one_effect_each(
    url: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure 26: looked up, replayed where that is idempotent, else a person is asked."""
    async with watching(url) as engine:
        await PolicyRegistry(engine.store, "default").install(killing_connectors.POLICY)
        with staged(url, tmp_path, monkeypatch) as stage:
            stage.strike(when, "SIGKILL", 3)
            with stage.worker() as first:
                run = await engine.start(killing_connectors.three)
                assert await asyncio.to_thread(first.wait, 60) == -signal.SIGKILL
            assert stage.effects() == dict.fromkeys(REPEATS, 1 if when == "after" else 0)
            with stage.worker():
                lost = await unknowns(engine, run.id, 1 if when == "after" else 2)
                assert {row.connector for row in lost} == (
                    {"neither"} if when == "after" else {"found", "neither"}
                )
                for row in lost:
                    await said(engine, row, "done" if when == "after" else "retry")
                await engine.see_end(run.id)
            assert stage.effects() == dict.fromkeys(REPEATS, 1)
            assert {row.state for row in await engine.store.read("receipts_of", run_int(run.id))} == {
                "succeeded"
            }


@pytest.mark.guard_seconds(120)
async def test_a_process_paused_past_its_lease_does_not_make_its_intended_call(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure 26, its second half."""
    async with watching(url) as engine:
        await PolicyRegistry(engine.store, "default").install(killing_connectors.POLICY)
        with staged(url, tmp_path, monkeypatch) as stage:
            stage.strike("before", "SIGSTOP", 1)
            with stage.worker() as stopped:
                run = await engine.start(killing_connectors.one)
                await until((tmp_path / "before.seen").exists, "the moment before the call")
                with stage.worker():
                    (row,) = await unknowns(engine, run.id, 1)
                    stopped.signal(signal.SIGCONT)
                    (late,) = await until(stage.calls, "what became of the call")
                    assert "answered" not in late
                    assert stage.services["neither"].requests == []
                    await said(engine, row, "retry")
                    await engine.see_end(run.id)
            assert stage.effects()["neither"] == 1
