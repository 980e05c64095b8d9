"""Slots of cron expressions across clock changes, compared with a wall clock that is read minute by minute."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.clock import SECOND_US
from tenure.errors import TenureError
from tenure.kernel.cron import Cron, format_slot, parse_cron
from tenure.limits import MOMENT_US_MAX
from tests.cases import cases

MINUTE_US = 60 * SECOND_US


def at(text: str) -> int:
    """A time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_US


def day(cron: Cron, date: str, hours: int = 30) -> list[str]:
    """The slots from midnight UTC of a date on."""
    begin = at(date) - MINUTE_US
    return [format_slot(slot)[5:16] for slot in cron.between(begin, begin + hours * 60 * MINUTE_US)]


# ------------------------------------------------------------------------------------------- examples


def test_slots_are_after_a_time_and_at_full_minutes() -> None:
    cron = parse_cron("*/15 9 * * 1-5")
    assert cron.after(at("2026-01-05 09:00")) == at("2026-01-05 09:15")
    assert cron.after(at("2026-01-05 09:00") - 1) == at("2026-01-05 09:00")
    assert cron.after(at("2026-01-05 09:00") + 59 * SECOND_US) == at("2026-01-05 09:15")
    assert cron.after(at("2026-01-09 09:45")) == at("2026-01-12 09:00"), "from Friday to Monday"


@pytest.mark.parametrize(
    ("zone", "date", "cron", "expected"),
    [
        # Berlin skips from 02:00 to 03:00 at 01:00 UTC, and repeats 02:00-03:00 at 00:00 and 01:00 UTC.
        ("Europe/Berlin", "2026-03-29", "30 2 * * *", ["03-29T01:00", "03-30T00:30"]),
        ("Europe/Berlin", "2026-10-25", "30 2 * * *", ["10-25T00:30", "10-26T01:30"]),
        ("Europe/Berlin", "2026-03-29", "*/20 2 29 3 *", ["03-29T01:00"]),
        ("Europe/Berlin", "2026-10-25", "*/20 2 25 10 *", ["10-25T00:00", "10-25T00:20", "10-25T00:40"]),
        ("Europe/Berlin", "2026-03-29", "30 1-3 29 3 *", ["03-29T00:30", "03-29T01:00", "03-29T01:30"]),
        # New York skips at 07:00 UTC, and repeats 01:00-02:00 at 05:00 and 06:00 UTC.
        ("America/New_York", "2026-03-08", "30 2 * * *", ["03-08T07:00"]),
        ("America/New_York", "2026-11-01", "30 1 * * *", ["11-01T05:30"]),
        # Lord Howe skips half an hour, from 02:00 to 02:30, and repeats 01:30-02:00.
        ("Australia/Lord_Howe", "2026-10-03", "15 2 4 10 *", ["10-03T15:30"]),
        ("Australia/Lord_Howe", "2026-10-03", "45 2 4 10 *", ["10-03T15:45"]),
        ("Australia/Lord_Howe", "2026-04-04", "45 1 5 4 *", ["04-04T14:45"]),
        # Samoa skipped 30 December 2011.
        ("Pacific/Apia", "2011-12-30", "30 2 30 12 *", ["12-30T10:00"]),
    ],
)
def test_a_time_of_day_occurs_once_when_the_clocks_change(
    zone: str, date: str, cron: str, expected: list[str]
) -> None:
    assert day(parse_cron(cron, zone), date)[: len(expected)] == expected


@pytest.mark.parametrize(
    ("zone", "date"),
    [
        ("Europe/Berlin", "2026-03-29"),
        ("Europe/Berlin", "2026-10-25"),
        ("America/New_York", "2026-03-08"),
        ("America/New_York", "2026-11-01"),
        ("Australia/Lord_Howe", "2026-10-03"),
        ("Australia/Lord_Howe", "2026-04-04"),
    ],
)
def test_every_quarter_of_an_hour_keeps_firing(zone: str, date: str) -> None:
    slots = list(parse_cron("*/15 * * * *", zone).between(at(date), at(date) + 30 * 60 * MINUTE_US))
    assert {b - a for a, b in pairwise(slots)} == {15 * MINUTE_US}


def test_an_hourly_schedule_follows_the_wall_clock() -> None:
    cron = parse_cron("30 * * * *", "Europe/Berlin")
    assert day(cron, "2026-10-25", 3) == ["10-25T00:30", "10-25T01:30", "10-25T02:30"]
    assert day(cron, "2026-03-29", 3) == ["03-29T00:30", "03-29T01:30", "03-29T02:30"]
    half = parse_cron("0 * * * *", "Australia/Lord_Howe")
    assert day(half, "2026-10-03", 18)[-3:] == ["10-03T14:30", "10-03T16:00", "10-03T17:00"]


def test_finding_the_newest_slots_does_not_walk_the_missed_ones() -> None:
    cron = parse_cron("* * * * *", "Europe/Berlin")
    until = at("2026-06-01 12:00")
    assert cron.newest(0, until, 3) == [until - 2 * MINUTE_US, until - MINUTE_US, until]
    yearly = parse_cron("0 0 1 1 *")
    assert yearly.newest(at("2020-06-01"), until, 2) == [at("2025-01-01"), at("2026-01-01")]
    assert yearly.newest(at("2026-01-01"), until, 2) == []
    assert cron.next(until, 2) == [until + MINUTE_US, until + 2 * MINUTE_US]


def test_time_ends_with_the_year_9999() -> None:
    cron = parse_cron("0 0 1 1 *", "Asia/Tokyo")
    assert cron.after(MOMENT_US_MAX) is None
    assert cron.next(MOMENT_US_MAX - 400 * 86_400 * SECOND_US, 5)[1:] == []
    assert cron.after(-5) == at("1970-12-31 15:00")


# ------------------------------------------------------------------------------------------ invalid expressions


@pytest.mark.parametrize(
    ("cron", "place", "problem"),
    [
        ("", "cron", "has 0 fields and needs 5"),
        ("* * * *", "cron", "has 4 fields"),
        ("0 * * * * *", "cron", "has 6 fields"),
        ("61 * * * *", "cron.minute", "'61' at character 1 is not a valid minute"),
        ("0 1,25 * * *", "cron.hour", "'25' at character 5 is not a valid hour"),
        ("0  0  32 * *", "cron.day_of_month", "'32' at character 7 is not a valid day of month"),
        ("0 0 * FOO *", "cron.month", "'FOO' at character 7 is not a valid month"),
        ("0 0 * * 8", "cron.day_of_week", "'8' at character 9 is not a valid day of week"),
        ("*/0 * * * *", "cron.minute", "'*/0' at character 1"),
        ("5-1 * * * *", "cron.minute", "'5-1' at character 1"),
        ("1,,2 * * * *", "cron.minute", "'' at character 3"),
        ("0 0 * * 1L/2", "cron.day_of_week", "'1L/2' at character 9"),
        ("0 0 31 2 *", "cron", "names days that its months do not have"),
        ("0 0 30 2 *", "cron", "names days that its months do not have"),
        ("9" * 300, "cron", "has 300 characters"),
    ],
)
def test_a_bad_expression_is_refused_with_the_place(cron: str, place: str, problem: str) -> None:
    with pytest.raises(TenureError) as refused:
        parse_cron(cron)
    assert refused.value.code == "SCHEDULE_INVALID"
    assert problem in refused.value.message
    assert [detail.path for detail in refused.value.details] == [place]


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "Europe", "../etc/passwd", "localtime", "a\0b"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(TenureError, match=r"SCHEDULE_INVALID: zone: .* is not a time zone"):
        parse_cron("* * * * *", zone)


@given(st.text(alphabet="0123456789*/-,#LW MONJAN\n²", max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(TenureError):  # any other exception is a defect
        assert parse_cron(text).after(0) is not None


# ------------------------------------------------------------------------------------------- random expressions

ZONES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-10-03", "2026-04-04"),
    "America/St_Johns": ("2026-03-08", "2026-11-01"),
    "Africa/Cairo": ("2026-04-23", "2026-10-29"),
    "Asia/Kathmandu": ("2026-05-01", "2026-06-01"),
    "UTC": ("2026-05-01", "2026-06-01"),
}
minutes = st.sets(st.integers(0, 59), min_size=1, max_size=4)
hours = st.sets(st.integers(0, 23), min_size=1, max_size=5) | st.just(set(range(24)))


def slots_by_wall_clock(zone: str, minutes: set[int], hours: set[int], begin: int, end: int) -> list[int]:
    """Laws 2 and 3 implemented again, by reading the wall clock at every minute."""
    place = ZoneInfo(zone)
    # A day before and after, to include slots that a clock change moves across the edges.
    seconds = range(begin // SECOND_US - 86_400, end // SECOND_US + 86_400, 60)
    walls = {second: datetime.fromtimestamp(second, place).replace(tzinfo=None) for second in seconds}

    def wanted(wall: datetime) -> bool:
        return wall.minute in minutes and wall.hour in hours

    if len(hours) == 24:
        found = {second for second, wall in walls.items() if wanted(wall)}
    else:
        found, shown, last = set(), set(), None
        for second, wall in walls.items():
            skipped = last + timedelta(minutes=1) if last is not None else wall
            while skipped < wall:  # times that the clock skipped
                if wanted(skipped):
                    found.add(second)
                skipped += timedelta(minutes=1)
            if wanted(wall) and wall not in shown:
                found.add(second)
            shown.add(wall)
            last = wall
    return sorted(s * SECOND_US for s in found if begin < s * SECOND_US <= end)


@settings(max_examples=cases(150), deadline=None)
@given(
    st.sampled_from([(zone, date) for zone, dates in ZONES.items() for date in dates]),
    minutes,
    hours,
    st.integers(-600, 600),
)
def test_slots_match_the_wall_clock(
    where: tuple[str, str], minutes: set[int], hours: set[int], shift: int
) -> None:
    zone, date = where
    text = f"{','.join(map(str, sorted(minutes)))} {','.join(map(str, sorted(hours)))} * * *"
    begin = at(date) + shift * MINUTE_US
    end = begin + 36 * 60 * MINUTE_US
    cron = parse_cron(text, zone)
    expected = slots_by_wall_clock(zone, minutes, hours, begin, end)
    assert list(cron.between(begin, end)) == expected
    for count in (1, 3):
        assert cron.newest(begin, end, count) == expected[-count:]
