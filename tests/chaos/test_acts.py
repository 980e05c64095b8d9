"""Acts under crashes: after a crash at any point, no call was made without an INTENT and no key has two effects (I36, I38, failure 26).

The service is a double with its own log, in all three modes. The first half kills workers of a lab before and after every commit and
every call. The second half kills and pauses real processes.
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


class IntentCheckingService(ServiceDouble):
    """A service double that checks in the database, at each write, that an intention was recorded."""

    def __init__(self, mode: Mode) -> None:
        super().__init__(mode)
        self.intended: Callable[[str], int] = lambda _key: 0
        self.unintended: list[str] = []

    def handle(self, request: DoubleRequest) -> DoubleReply:
        if request.method in WRITES and self.intended(key := request.headers["idempotency-key"]) != 1:
            self.unintended.append(key)
        return super().handle(request)


def _count_in_sqlite(lab: Lab) -> Callable[[str], int]:
    def count(key: str) -> int:
        with closing(apsw.Connection(str(lab.folder / "lab.db"))) as database:
            found: int = database.execute(INTENDED.format("", "?"), (key,)).get
        return found

    return count


def _count_in_postgres(url: str) -> Callable[[str], int]:
    async def count(key: str) -> int:
        connection = await asyncpg.connect(url)
        try:
            return int(await connection.fetchval(INTENDED.format("tenure.", "$1"), key))
        finally:
            await connection.close()

    return lambda key: asyncio.run(count(key))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


@pytest.mark.guard_seconds(180)
@pytest.mark.parametrize("mode", ["honours", "found", "neither"])
@pytest.mark.clause("GOV-15")
async def test_a_crash_anywhere_leaves_one_effect_per_key(mode: Mode, place: str | None) -> None:
    people_asked = 0
    with IntentCheckingService(mode) as service:

        async def story(lab: Lab) -> None:
            nonlocal people_asked
            service.intended = _count_in_sqlite(lab) if place is None else _count_in_postgres(place)
            run = await lab.start(keyed, key := f"order:{len(service.effects)}:{len(service.requests)}")
            try:
                await run.result(within="1d")
            except LabStuck:
                people_asked += 1
                (unknown,) = await receipts(lab, run)
                happened = service.effects_of(key)
                assert unknown.state == "unknown"
                assert mode == "neither" or (mode == "found" and not happened), (
                    "a person was asked about a known outcome"
                )
                await settle(lab, run, "done" if happened else "retry", result=b'{"json": {"no": 1}}')
                await run.result(within="1d")
            assert service.effects_of(key) == 1
            assert [row.state for row in await receipts(lab, run)] == ["succeeded"]

        crashes = await crash_everywhere(
            story, keyed, url=place, connectors=[connector(service.url, mode)], policy=ALLOW
        )
        assert crashes >= 9, "crashes before and after the claim, the INTENT, the call and the outcome"
        assert service.unintended == []
        # Four crashes leave an INTENT, two of them with an effect that a lookup finds. "Not found" does not permit a second call.
        assert people_asked == {"honours": 0, "found": 2, "neither": 4}[mode]


@pytest.mark.guard_seconds(180)
async def test_a_crash_anywhere_asks_people_once() -> None:
    with IntentCheckingService("honours") as service:

        async def story(lab: Lab) -> None:
            service.intended = _count_in_sqlite(lab)
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
    """Three services, a database with a policy, and worker processes that signals hit at planned points."""

    def __init__(self, url: str, folder: Path, services: dict[Mode, ServiceDouble]) -> None:
        self.url, self.folder, self.services = url, folder, services
        (folder / "connectors.yaml").write_text(killing_connectors.CONNECTORS)

    def worker(self) -> WorkerProcess:
        return WorkerProcess(
            self.url,
            "tests.chaos.killing_connectors",
            connectors=str(self.folder / "connectors.yaml"),
            grace=1,
        )

    def plan_signal(self, when: str, how: str, count: int) -> None:
        """Send the signal `how` to the process once `count` of its calls reach the point `when`."""
        (self.folder / when).write_text(f"{how} {count}")

    def calls(self) -> list[str]:
        """The recorded outcomes of calls."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def effects(self) -> dict[Mode, int]:
        """The number of effects of each service."""
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
    """Wait until a run has `count` receipts with an unknown outcome, and return them."""

    async def found() -> list[ReceiptRow]:
        rows = await engine.store.read("receipts_of", run_int(run_id))
        open_ = [row for row in rows if row.state == "unknown"]
        return open_ if len(open_) == count else []

    rows: list[ReceiptRow] = await until(found, f"{count} unknown receipts")
    return rows


async def settle_by_person(engine: Watched, receipt: ReceiptRow, how: Any) -> None:
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
    """Failure 26: an outcome is looked up, an idempotent call is repeated, and otherwise a person is asked."""
    async with watching(url) as engine:
        await PolicyRegistry(engine.store, "default").install(killing_connectors.POLICY)
        with staged(url, tmp_path, monkeypatch) as stage:
            stage.plan_signal(when, "SIGKILL", 3)
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
                    await settle_by_person(engine, row, "done" if when == "after" else "retry")
                await engine.see_end(run.id)
            assert stage.effects() == dict.fromkeys(REPEATS, 1)
            assert {row.state for row in await engine.store.read("receipts_of", run_int(run.id))} == {
                "succeeded"
            }


@pytest.mark.guard_seconds(120)
async def test_a_process_paused_past_its_lease_does_not_make_its_intended_call(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second half of failure 26."""
    async with watching(url) as engine:
        await PolicyRegistry(engine.store, "default").install(killing_connectors.POLICY)
        with staged(url, tmp_path, monkeypatch) as stage:
            stage.plan_signal("before", "SIGSTOP", 1)
            with stage.worker() as stopped:
                run = await engine.start(killing_connectors.one)
                await until((tmp_path / "before.seen").exists, "the moment before the call")
                with stage.worker():
                    (row,) = await unknowns(engine, run.id, 1)
                    stopped.signal(signal.SIGCONT)
                    (late,) = await until(stage.calls, "what became of the call")
                    assert "answered" not in late
                    assert stage.services["neither"].requests == []
                    await settle_by_person(engine, row, "retry")
                    await engine.see_end(run.id)
            assert stage.effects()["neither"] == 1
