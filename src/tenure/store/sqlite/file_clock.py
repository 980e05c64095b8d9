"""The time of a SQLite file. A file has no clock of its own: every process reads its host's clock, and one of them may be wrong.

Laws:
1. Within one boot of the machine the file has an *anchor*: the difference between its time and the time since boot. The time
   since boot runs on while the machine sleeps, cannot be set, and is the same for all processes. So each process knows the
   expected time.
2. A reading of the wall clock within DOUBT_US of the expected time counts. Any other reading is ignored and reported; the
   file's time then continues from the anchor, at the pace of the time since boot. So a process with a wrong clock affects no
   other process, and no lease or timer stands still.
3. The wall clock is trusted again if the anchor seems to be wrong: this process saw the wall clock being set, or no process has
   confirmed the anchor for UNCONFIRMED_US. Then the file's time runs twice as fast, or half as fast, until both agree. It never
   jumps and never goes back.
4. After a boot only the last committed time is known: a later reading is trusted (the machine was off), an earlier one is
   ignored.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import apsw

from tenure.clock import SECOND_US, Clock
from tenure.logs import get_logger
from tenure.store.sqlite.statements import SQL

log = get_logger(__name__)

DOUBT_US = 2 * SECOND_US
"""How far a reading may be from the expected time."""
CONFIRM_US = 600 * SECOND_US
"""How often a process that agrees with the anchor confirms it."""
UNCONFIRMED_US = 3600 * SECOND_US
"""After this long without a confirmation, the wall clock is trusted more than the anchor."""

_LOAD, _SAVE = SQL["load_anchor"], SQL["save_anchor"]


@runtime_checkable
class BootClock(Protocol):
    """A clock that also knows the time since boot. With any other clock (tests, the simulator) no reading is ignored."""

    def boot_us(self) -> int:
        """The time since boot, including sleep."""

    def boot_id(self) -> str:
        """The id of this boot; empty if it is not known."""


class ClockAnchor(NamedTuple):
    """What the expected time is computed from, within one boot."""

    boot: str
    offset_us: int
    """The file's time less the time since boot."""
    confirmed_us: int
    """The time since boot when a wall clock last agreed."""


class FileClock:
    """The file's time as one process computes it; see the laws above."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boot_clock = clock if isinstance(clock, BootClock) and clock.boot_id() else None
        self.anchor: ClockAnchor | None = None
        self._moved_us = 0
        """How far the file's time has moved from the anchor, by law 3 or by commits of other processes."""
        self._read_us: int | None = None
        self._own_us: int | None = None
        """The wall clock less the time since boot, when it was last read."""
        self._saw_it_set = False
        self.doubt_us = 0
        """How far the wall clock is ahead of the file's time (below 0: behind), if it is ignored; else 0."""

    def read(self) -> int:
        """The file's time, without what other processes have committed since `heard`."""
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
        """Note the time of another commit: the file's time is not before it."""
        clock, anchor = self._boot_clock, self.anchor
        if clock is not None and anchor is not None:
            behind = committed_us - (clock.boot_us() + anchor.offset_us + self._moved_us)
            if behind > 0:
                self._moved_us += behind

    # ------------------------------------------------------------------------------------- the anchor

    def load(self, connection: apsw.Connection) -> None:
        """Load the anchor of the file, if it is of this boot."""
        if self._boot_clock is None:
            return
        found = [ClockAnchor(*row) for row in connection.execute(_LOAD)]
        if found and found[0].boot == self._boot_clock.boot_id() and found[0] != self.anchor:
            self.anchor, self._moved_us = found[0], 0

    def begin(self, connection: apsw.Connection, floor_us: int) -> bool:
        """Within a transaction: write an anchor for this boot, if the file has none (law 4). Returns whether it wrote one."""
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
        """Within a transaction that writes anyway: confirm the anchor, if a confirmation is due and the wall clock agrees."""
        clock, anchor = self._boot_clock, self.anchor
        if clock is None or anchor is None or self.doubt_us or self._read_us is None:
            return
        boot = clock.boot_us()
        if abs(self._moved_us) > DOUBT_US or boot - anchor.confirmed_us >= CONFIRM_US:
            offset = max(self._clock.now_us() - boot, anchor.offset_us + self._moved_us)
            anchor = ClockAnchor(anchor.boot, offset, boot)
            connection.execute(_SAVE, anchor)
            self.anchor, self._moved_us = anchor, 0

    def _doubt(self, apart_us: int) -> None:
        if not self.doubt_us:
            log.warning(
                "clock_ignored",
                seconds_ahead=round(apart_us / SECOND_US, 3),
                advice="the file's time continues without this clock; see docs/operating.md",
            )
        self.doubt_us = apart_us

    def _believe(self) -> None:
        if self.doubt_us:
            log.info("clock_accepted")
        self.doubt_us = 0
        self._saw_it_set = False
