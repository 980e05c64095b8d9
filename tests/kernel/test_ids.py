"""Ids of runs: in the order of creation, never twice from one process, and the same as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import TenureError
from tenure.ids import RunIds, run_int, run_text

MOMENT = 1_794_796_333_438_622
MILLISECOND = 1_000
moments = st.integers(min_value=0, max_value=4_000_000_000_000_000)


@given(st.integers(min_value=0, max_value=(1 << 21) - 1), moments)
def test_an_id_and_its_text_are_the_same(start: int, moment: int) -> None:
    run_id = RunIds(start).new(moment)
    assert run_int(run_text(run_id)) == run_id


@given(st.integers(min_value=0, max_value=(1 << 31) - 1), moments, st.integers(min_value=1))
def test_what_was_made_a_millisecond_later_comes_later(start: int, moment: int, behind: int) -> None:
    ids = RunIds(start)
    first = ids.new(moment)
    later = ids.new(moment + MILLISECOND + behind % 10_000_000_000)
    assert later > first
    assert run_text(later) > run_text(first)


def test_ids_of_one_moment_ascend_and_none_comes_twice() -> None:
    ids = RunIds(7)
    made = [ids.new(MOMENT) for _ in range(10_000)]
    assert made == sorted(set(made))


def test_the_count_begins_anew_without_a_repeat() -> None:
    ids = RunIds((1 << 21) - 3)
    made = [ids.new(MOMENT) for _ in range(6)]
    assert len(set(made)) == 6
    assert {run_text(run_id)[:22] for run_id in made} == {run_text(made[0])[:22]}, "they keep their second"


def test_two_processes_begin_to_count_at_different_numbers() -> None:
    assert len({RunIds().new(MOMENT) for _ in range(20)}) > 1


@pytest.mark.parametrize(
    "text", ["", "run_2026-02-30_080000_abc123", "run_2026-02-14_080000_zzzzzz", "apr_1"]
)
def test_what_is_no_id_is_no_run(text: str) -> None:
    with pytest.raises(TenureError) as refused:
        run_int(text)
    assert refused.value.code == "RUN_NOT_FOUND"
