"""Durations as text."""

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.durations import PATTERN, UNIT_SECONDS, parse_duration
from tenure.errors import TenureError
from tenure.limits import RUN_TIMEOUT_SECONDS_MAX


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("90s", 90), ("5m", 300), ("2h", 7_200), ("1d", 86_400), ("1h30m", 5_400), ("250ms", 0.25), ("1.5h", 5_400),
        ("30", 30), ("0.5", 0.5), ("0s", 0), ("1d2h3m4s5ms", 93_784.005), (15, 15), (2.5, 2.5),
        (timedelta(minutes=2), 120),
    ],
)  # fmt: skip
def test_a_duration_is_parsed_to_seconds(text: Any, length: float) -> None:
    assert parse_duration(text) == pytest.approx(length)


@pytest.mark.parametrize(
    "value",
    [
        "", " 5m", "5 m", "5M", "m5", "5m1h", "5m5m", "-1s", "1:30", "1e3s", "٣s", "5min", "5m\n", ".5s", "1_0s", "inf",
        "nan", -1, -0.5, float("inf"), float("nan"), 10**400, True, None, [5], b"5s", timedelta(seconds=-1), "367d",
        "9" * 400, RUN_TIMEOUT_SECONDS_MAX + 1,
    ],
)  # fmt: skip
def test_an_invalid_duration_is_refused_in_one_line(value: Any) -> None:
    with pytest.raises(TenureError, match="not a length of time") as caught:
        parse_duration(value)
    assert caught.value.code == "INVALID_INPUT"
    assert len(caught.value.message) < 200


@given(st.lists(st.sampled_from(list(UNIT_SECONDS)), min_size=1, unique=True), st.data())
def test_units_in_their_order_add_up(units: list[str], data: st.DataObject) -> None:
    units.sort(key=list(UNIT_SECONDS).index)
    numbers = [data.draw(st.integers(0, 300)) for _ in units]
    text = "".join(f"{number}{unit}" for number, unit in zip(numbers, units, strict=True))
    total = sum(number * UNIT_SECONDS[unit] for number, unit in zip(numbers, units, strict=True))
    if total > RUN_TIMEOUT_SECONDS_MAX:
        with pytest.raises(TenureError):
            parse_duration(text)
    else:
        assert parse_duration(text) == pytest.approx(total)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused_as_the_pattern_says(text: str) -> None:
    try:
        length = parse_duration(text)
    except TenureError:
        assert re.fullmatch(PATTERN, text) is None or len(text) > 3
    else:
        assert 0 <= length <= RUN_TIMEOUT_SECONDS_MAX
        assert re.fullmatch(PATTERN, text)
