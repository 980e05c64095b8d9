"""The time of a SQLite file: a process with a wrong clock does not affect others, and time never stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.clock import SECOND_US
from tenure.store.port import Save
from tenure.store.sqlite import SqliteStore
from tests.conformance.samples import a_run, a_spec
from tests.conformance.stores import ask, save
from tests.conformance.test_sqlite import opened

NOW = 1_770_000_000 * SECOND_US
HOUR = 3600


class Machine:
    """A machine: its wall clock can be set, the time since its boot cannot."""

    def __init__(self) -> None:
        self.wall_us = NOW
        self.boot_us = 1_000 * SECOND_US
        self.boot = "boot-1"

    def pass_time(self, seconds: float) -> None:
        self.wall_us += round(seconds * SECOND_US)
        self.boot_us += round(seconds * SECOND_US)

    def set_wall_clock(self, seconds: float) -> None:
        self.wall_us += round(seconds * SECOND_US)

    def reboot(self, after: float) -> None:
        """Reboot; the wall clock moves by `after` seconds meanwhile."""
        self.wall_us += round(after * SECOND_US)
        self.boot_us, self.boot = 5 * SECOND_US, self.boot + "+"


class ProcessClock:
    """The clock of a process on a machine, with a wall clock that is off by `off` seconds."""

    def __init__(self, machine: Machine, off: float = 0.0) -> None:
        self._machine = machine
        self._off_us = round(off * SECOND_US)
        self._boot = machine.boot
        """A process does not survive a reboot, so its boot id is fixed."""

    def now_us(self) -> int:
        return self._machine.wall_us + self._off_us

    def monotonic_us(self) -> int:
        return self._machine.boot_us

    def boot_us(self) -> int:
        return self._machine.boot_us

    def boot_id(self) -> str:
        return self._boot


async def seconds_ahead(store: SqliteStore, machine: Machine) -> float:
    """How far the file's time is ahead of the machine's wall clock, in seconds."""
    found: int = (await ask(store, "now"))[0].now_us
    return (found - machine.wall_us) / SECOND_US


async def commit(store: SqliteStore, machine: Machine, n: int) -> float:
    """Commit; how far the commit's time is ahead, in seconds."""
    saved = await save(store, Save(new_runs=[a_run(n)], new_specs=[a_spec(n)]))
    return (saved.now_us - machine.wall_us) / SECOND_US


@pytest.mark.parametrize("off", [HOUR, -HOUR, 7 * 86_400, 5, -5])
async def test_a_wrong_clock_is_ignored_if_another_process_has_a_right_one(
    tmp_path: Path, off: float
) -> None:
    machine, path = Machine(), tmp_path / "t.db"
    async with (
        opened(path, clock=ProcessClock(machine)) as right,
        opened(path, clock=ProcessClock(machine, off)) as wrong,
    ):
        assert await commit(right, machine, 1) == 0
        for n in range(2, 40, 2):
            machine.pass_time(400)  # over two hours in all
            assert await commit(wrong, machine, n) == 0, "commits of the wrong process have the right time"
            assert await commit(right, machine, n + 1) == 0, "the right process is not affected"
        assert wrong.clock_doubt_us == off * SECOND_US
        assert right.clock_doubt_us == 0


async def test_a_right_clock_is_eventually_trusted_after_a_wrong_start(
    tmp_path: Path,
) -> None:
    """The wrong process is alone at first, so its error goes unnoticed. Later the file's time runs slower until it is right."""
    machine, path = Machine(), tmp_path / "t.db"
    async with opened(path, clock=ProcessClock(machine, HOUR)) as wrong:
        assert await commit(wrong, machine, 1) == HOUR
    async with opened(path, clock=ProcessClock(machine)) as right:
        assert await commit(right, machine, 2) == HOUR, "the file's time never goes back"
        assert right.clock_doubt_us == -HOUR * SECOND_US
        before = HOUR + 0.0
        for n in range(3, 100):
            machine.pass_time(200)
            ahead = await commit(right, machine, n)
            assert before - 101 <= ahead <= before, "the time never stops and never jumps"
            before = ahead
        assert abs(before) <= 2
        assert right.clock_doubt_us == 0
    async with opened(path, clock=ProcessClock(machine)) as later:
        assert abs(await commit(later, machine, 200)) <= 2
        assert later.clock_doubt_us == 0, "the anchor was corrected"


@pytest.mark.parametrize("off", [HOUR, -HOUR])
async def test_a_clock_step_during_the_check_causes_no_jump(tmp_path: Path, off: float) -> None:
    machine = Machine()
    async with opened(tmp_path / "t.db", clock=ProcessClock(machine)) as store:
        assert await commit(store, machine, 1) == 0
        machine.set_wall_clock(off)
        assert await commit(store, machine, 2) == -off, (
            "an approval of half an hour does not expire immediately"
        )
        machine.pass_time(600)
        moved = 600 if off > 0 else -300
        assert await commit(store, machine, 3) == pytest.approx(-off + moved)
        for n in range(4, 20):
            machine.pass_time(600)
            await commit(store, machine, n)
        assert abs(await seconds_ahead(store, machine)) <= 2
        assert store.clock_doubt_us == 0
        async with opened(tmp_path / "t.db", clock=ProcessClock(machine)) as other:
            assert other.clock_doubt_us == 0
            assert abs(await seconds_ahead(other, machine)) <= 2


async def test_sleep_and_idle_time_do_not_make_a_clock_suspect(tmp_path: Path) -> None:
    machine, path = Machine(), tmp_path / "t.db"
    async with opened(path, clock=ProcessClock(machine)) as store:
        await commit(store, machine, 1)
        for n, seconds in enumerate(
            (8 * HOUR, 7 * 86_400, 0.5), 2
        ):  # a suspended laptop; a week without a commit
            machine.pass_time(seconds)
            assert await commit(store, machine, n) == 0
            assert store.clock_doubt_us == 0
    machine.pass_time(30 * 86_400)
    async with opened(path, clock=ProcessClock(machine)) as store:
        assert await commit(store, machine, 9) == 0
        assert store.clock_doubt_us == 0


async def test_after_a_reboot_a_later_time_is_trusted(tmp_path: Path) -> None:
    machine, path = Machine(), tmp_path / "t.db"
    async with opened(path, clock=ProcessClock(machine)) as store:
        await commit(store, machine, 1)
    for n, off in enumerate((60, 7 * 86_400), 2):
        machine.reboot(off)
        async with opened(path, clock=ProcessClock(machine)) as store:
            assert await commit(store, machine, n) == 0
            machine.pass_time(60)
            assert await seconds_ahead(store, machine) == 0
            assert store.clock_doubt_us == 0


async def test_after_a_reboot_an_earlier_time_is_ignored(tmp_path: Path) -> None:
    machine, path = Machine(), tmp_path / "t.db"
    async with opened(path, clock=ProcessClock(machine)) as store:
        await commit(store, machine, 1)
    machine.reboot(-HOUR)
    async with opened(path, clock=ProcessClock(machine)) as store:
        assert await commit(store, machine, 2) == HOUR
        machine.pass_time(60)
        assert await seconds_ahead(store, machine) == HOUR, (
            "the time does not stop until the clock has caught up"
        )
        assert store.clock_doubt_us == -HOUR * SECOND_US
        for n in range(3, 60):
            machine.pass_time(300)
            await commit(store, machine, n)
        assert abs(await seconds_ahead(store, machine)) <= 2


async def test_a_read_only_process_sets_no_anchor(tmp_path: Path) -> None:
    machine, path = Machine(), tmp_path / "t.db"
    async with opened(path, clock=ProcessClock(machine)) as store:
        await commit(store, machine, 1)
    machine.reboot(60)
    reader = SqliteStore(path, clock=ProcessClock(machine, HOUR), only_reads=True)
    await reader.open()
    await reader.read("now")
    await reader.close()
    async with opened(path, clock=ProcessClock(machine)) as store:
        assert await commit(store, machine, 2) == 0
