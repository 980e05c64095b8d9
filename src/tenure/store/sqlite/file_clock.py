"""The time of a SQLite file, which has no clock of its own: every process reads its host's, and one of them may be wrong.

Laws:
1. Within one boot of the machine the file has an *anchor*: the difference between its time and the time since boot, which runs on
   while the machine sleeps, which nobody can set, and which all processes share. So each process knows what the time should be.
2. A reading of the wall clock within DOUBT_US of that counts. One that is further away, ahead or behind, is doubted and reported; the
   file's time goes on from the anchor, at the pace of the time since boot. So a process with a wrong clock drags nobody along, and no
   lease or timer stands still.
3. The wall clock is believed again where the anchor is the one that is wrong: when this process saw the wall clock being set, and when
   nobody has confirmed the anchor for UNCONFIRMED_US. Then the file's time runs twice as fast, or half as fast, until both agree.
   It never jumps and never goes back.
4. After a boot there is nothing to compare with but the last committed time: a later reading is believed (the machine was off), an
   earlier one is doubted.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import apsw

from tenure.clock import SECOND_US, Clock
from tenure.logs import get_logger
from tenure.store.sqlite.statements import SQL

log = get_logger(__name__)

DOUBT_US = 2 * SECOND_US
"""How far a reading may be from what the time should be."""
CONFIRM_US = 600 * SECOND_US
"""How often a process that agrees with the anchor says so."""
UNCONFIRMED_US = 3600 * SECOND_US
"""After so long without a word the anchor is not believed more than the wall clock."""


_LOAD, _SAVE = SQL["load_anchor"], SQL["save_anchor"]


@runtime_checkable
class BootClock(Protocol):
    """A clock that also knows the time since boot. Clocks of tests and of the simulator need not: then nothing is doubted."""

    def boot_us(self) -> int:
        """The time since boot, sleep included."""
        ...

    def boot_id(self) -> str:
        """Which boot it is; empty where that is not known."""
        ...


class ClockAnchor(NamedTuple):
    """What the time should be, within one boot."""

    boot: str
    offset_us: int
    """The file's time less the time since boot."""
    confirmed_us: int
    """The time since boot when somebody's wall clock last agreed."""


class FileClock:
    """What one process makes of it; see the laws above."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boot_clock = clock if isinstance(clock, BootClock) and clock.boot_id() else None
        self.anchor: ClockAnchor | None = None
        self._moved_us = 0
        """How far the file's time has come from the anchor, by law 3 or by what others have committed."""
        self._read_us: int | None = None
        self._own_us: int | None = None
        """The wall clock less the time since boot, when it was last read."""
        self._saw_it_set = False
        self.doubt_us = 0
        """How far the wall clock is ahead of the file's time, or behind (below 0), where it is doubted; else 0."""

    def read(self) -> int:
        """The time, as far as this process alone knows it."""
        wall, clock, anchor = self._clock.now_us(), self._boot_clock, self.anchor
        if clock is None or anchor is None:
            return wall
        boot = clock.boot_us()
        passed = 0 if self._read_us is None else max(0, boot - self._read_us)
        own = wall - boot
        if self._own_us is not None and abs(own - self._own_us) > DOUBT_US:
            self._saw_it_set = True
        self._read_us, self._own_us = boot, own
        expected = boot + anchor.offset_us + self._moved_us
        apart = wall - expected
        if abs(apart) <= DOUBT_US:
            self._believe()
            return max(wall, expected)
        if self._saw_it_set or boot - anchor.confirmed_us > UNCONFIRMED_US:
            move = min(passed, apart) if apart > 0 else -min(passed // 2, -apart)
            self._moved_us += move
            expected += move
        self._doubt(apart)
        return expected

    def heard(self, committed_us: int) -> None:
        """Somebody has committed at this time: the file's time goes on from there."""
        clock, anchor = self._boot_clock, self.anchor
        if clock is not None and anchor is not None:
            behind = committed_us - (clock.boot_us() + anchor.offset_us + self._moved_us)
            if behind > 0:
                self._moved_us += behind

    # ------------------------------------------------------------------------------------- the anchor

    def load(self, connection: apsw.Connection) -> None:
        """Take over the anchor of the file, if it is of this boot."""
        if self._boot_clock is None:
            return
        found = [ClockAnchor(*row) for row in connection.execute(_LOAD)]
        if found and found[0].boot == self._boot_clock.boot_id() and found[0] != self.anchor:
            self.anchor, self._moved_us = found[0], 0

    def begin(self, connection: apsw.Connection, floor_us: int) -> bool:
        """Within a transaction: give the file its anchor for this boot, if it has none (law 4). Whether something was written."""
        clock = self._boot_clock
        if clock is None:
            return False
        self.load(connection)
        if self.anchor is not None:
            return False
        boot, wall = clock.boot_us(), self._clock.now_us()
        anchor = ClockAnchor(clock.boot_id(), max(wall, floor_us) - boot, boot)
        connection.execute(_SAVE, anchor)
        self.anchor = anchor
        return True

    def confirm(self, connection: apsw.Connection) -> None:
        """Within a transaction that writes anyway: say that the wall clock agrees, where that is due."""
        clock, anchor = self._boot_clock, self.anchor
        if clock is None or anchor is None or self.doubt_us or self._read_us is None:
            return
        boot = clock.boot_us()
        moved = abs(self._moved_us) > DOUBT_US
        if moved or boot - anchor.confirmed_us >= CONFIRM_US:
            offset = max(self._clock.now_us() - boot, anchor.offset_us + self._moved_us)
            anchor = ClockAnchor(anchor.boot, offset, boot)
            connection.execute(_SAVE, anchor)
            self.anchor, self._moved_us = anchor, 0

    def _doubt(self, apart_us: int) -> None:
        if not self.doubt_us:
            log.warning(
                "clock_doubted",
                seconds_ahead=round(apart_us / SECOND_US, 3),
                advice="the file's time goes on without this clock; see docs/operating.md",
            )
        self.doubt_us = apart_us

    def _believe(self) -> None:
        if self.doubt_us:
            log.info("clock_believed")
        self.doubt_us = 0
        self._saw_it_set = False
