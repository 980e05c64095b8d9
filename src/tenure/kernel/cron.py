"""The slots of a cron expression in a time zone.

Laws:
1. A slot is a moment, to the minute of the zone's clock.
2. An expression that names certain hours has each time of the day once, also when the clocks change: a time that the
   clock skips runs at the first moment after the gap, and a time that the clock shows twice runs at the first of the two.
   Two times that fall on one moment this way are one slot.
3. An expression for every hour (`*/15 * * * *`) follows the clock: it fires in both passes of a repeated hour, and not in
   a skipped hour.
4. An expression without a slot is refused when it is read, with the place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tenure.clock import SECOND_US
from tenure.errors import Detail, TenureError
from tenure.limits import MOMENT_US_MAX, NAME_CHARS_MAX

FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_HOURS = frozenset(range(24))
_TURN = timedelta(hours=4)
"""No clock has been set back by more than this since 1970."""
_WIDTH_US = 3_600 * SECOND_US
_WIDER = 4
_NOT_CRON = (CronSimError, AssertionError, TypeError, ValueError)
"""What the parser raises for invalid text; the last three for unusual combinations."""
_ANY_DAY = datetime(2024, 1, 1, tzinfo=UTC)
_NO_PLACES = frozenset({"localtime", "posixrules", "Factory"})
"""Names that are not zones, or that differ between machines."""


class Cron:
    """A cron expression in a time zone. Use `parse_cron` to create one."""

    def __init__(self, text: str, zone: ZoneInfo) -> None:
        self.text = text
        self.zone = zone
        self._every_hour = CronSim(text, _ANY_DAY).hours >= _HOURS

    def after(self, at_us: int) -> int | None:
        """The first slot after a moment. None: there is none before the year 10000."""
        try:
            found = self._after(max(at_us, 0) // SECOND_US)
        except (OverflowError, ValueError, OSError):  # the calendar ends there
            return None
        return found * SECOND_US if found is not None and found * SECOND_US <= MOMENT_US_MAX else None

    def between(self, after_us: int, until_us: int) -> Iterator[int]:
        """The slots after `after_us` and up to `until_us`, in order."""
        slot = self.after(after_us)
        while slot is not None and slot <= until_us:
            yield slot
            slot = self.after(slot)

    def next(self, after_us: int, count: int) -> list[int]:
        """At most `count` slots after a moment."""
        found: list[int] = []
        while len(found) < count and (slot := self.after(found[-1] if found else after_us)) is not None:
            found.append(slot)
        return found

    def newest(self, after_us: int, until_us: int, count: int) -> list[int]:
        """The last `count` slots after `after_us` and up to `until_us`, oldest first. The cost depends on `count`, not on
        the length of that time."""
        width = _WIDTH_US
        while True:
            begin = max(after_us, until_us - width)
            found = deque(self.between(begin, until_us), maxlen=count)
            if len(found) == count or begin == after_us:
                return list(found)
            width *= _WIDER

    def _after(self, second: int) -> int | None:
        here = self._local(second)
        if self._every_hour and self._turns_near(second):
            here -= _TURN  # the clock may show earlier times again
        best: int | None = None
        for wall in CronSim(self.text, here.replace(tzinfo=UTC)):
            found = self._moments(wall.replace(tzinfo=None))
            best = min((m for m in found if m > second and (best is None or m < best)), default=best)
            if found and found[0] > second:
                return best  # later times of the clock are not earlier moments
        return best

    def _local(self, second: int) -> datetime:
        return datetime.fromtimestamp(second, self.zone).replace(tzinfo=None)

    def _offset(self, second: int) -> timedelta | None:
        return datetime.fromtimestamp(second, self.zone).utcoffset()

    def _turns_near(self, second: int) -> bool:
        turn = int(_TURN.total_seconds())
        now = self._offset(second)
        return self._offset(max(second - turn, 0)) != now or self._offset(second + turn) != now

    def _moments(self, wall: datetime) -> list[int]:
        """The moments of a clock time, by laws 2 and 3."""
        both = [int(wall.replace(tzinfo=self.zone, fold=fold).timestamp()) for fold in (0, 1)]
        shown = [second for second in dict.fromkeys(both) if self._local(second) == wall]
        if self._every_hour:
            return shown
        return shown[:1] or [self._after_leap(both[1], both[0])]

    def _after_leap(self, before: int, behind: int) -> int:
        """The first moment after the gap of the clock between two moments."""
        old = self._offset(before)
        while behind - before > 1:
            middle = (before + behind) // 2
            if self._offset(middle) == old:
                before = middle
            else:
                behind = middle
        return behind


def parse_cron(text: str, zone: str = "UTC") -> Cron:
    """Read a cron expression of five fields. Raises SCHEDULE_INVALID with the problem and its character."""
    found = _zone(zone)
    if len(text) > NAME_CHARS_MAX:
        raise _invalid("cron", f"has {len(text)} characters; at most {NAME_CHARS_MAX}")
    fields = text.split()
    if len(fields) != len(FIELDS):
        raise _invalid("cron", f"{text!r} has {len(fields)} fields and needs 5: {', '.join(FIELDS)}")
    _check_fields(text, fields)
    normal = " ".join(fields)
    try:
        cron = Cron(normal, found)
    except _NOT_CRON as fault:
        raise _invalid("cron", f"{text!r} names days that its months do not have") from fault
    if cron.after(int(_ANY_DAY.timestamp()) * SECOND_US) is None:
        raise _invalid("cron", f"{text!r} names a date that never comes")
    return cron


def _check_fields(text: str, fields: list[str]) -> None:
    """Check each part of each field by itself, so that the error can name it."""
    place = 0
    for number, field in enumerate(fields):
        place = text.index(field, place)
        inside = 0
        for term in field.split(","):
            alone = ["*"] * len(FIELDS)
            alone[number] = term
            try:
                CronSim(" ".join(alone), _ANY_DAY)
            except _NOT_CRON as fault:
                problem = f"{term!r} at character {place + inside + 1} is not a valid {FIELDS[number]}"
                raise _invalid(f"cron.{FIELDS[number].replace(' ', '_')}", problem) from fault
            inside += len(term) + 1
        place += len(field)


def _zone(name: str) -> ZoneInfo:
    try:
        if name in _NO_PLACES:
            raise ValueError(name)
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as fault:
        raise _invalid(
            "zone", f"{name!r} is not a time zone; write one such as Europe/Berlin or UTC"
        ) from fault


def _invalid(path: str, problem: str) -> TenureError:
    return TenureError("SCHEDULE_INVALID", f"{path}: {problem}", (Detail(path, problem),))


def format_slot(slot_us: int) -> str:
    """A slot as text for keys and references: UTC, to the second."""
    return f"{datetime.fromtimestamp(slot_us // SECOND_US, UTC):%Y-%m-%dT%H:%M:%SZ}"
