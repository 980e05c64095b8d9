"""Run ids: they sort by creation, one process never repeats one, and they convert to text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import TenureError
from tenure.ids import RunIds, run_int, run_text

MOMENT = 1_794_796_333_438_622
SECOND = 1_000_000
seeds = st.integers(min_value=0, max_value=1 << 64)
moments = st.integers(min_value=0, max_value=4_000_000_000_000_000)


@given(seeds, moments)
def test_an_id_and_its_text_convert_both_ways(seed: int, moment: int) -> None:
    run_id = RunIds(seed).new(moment)
    assert run_int(run_text(run_id)) == run_id


@given(seeds, st.lists(moments, min_size=2, max_size=20))
def test_ids_of_one_process_ascend_even_if_its_clock_does_not(seed: int, times: list[int]) -> None:
    ids = RunIds(seed)
    made = [ids.new(moment) for moment in times]
    assert made == sorted(set(made))
    assert [run_text(run_id) for run_id in made] == sorted(run_text(run_id) for run_id in made)


@given(seeds, seeds, moments)
def test_ids_of_a_later_second_sort_later(seed: int, other: int, moment: int) -> None:
    assert RunIds(seed).new(moment) < RunIds(other).new(moment + SECOND)


@given(seeds, st.lists(st.sampled_from(["acme", "globex", "initech"]), max_size=60))
def test_an_id_does_not_reveal_the_number_of_runs_of_others(seed: int, tenants: list[str]) -> None:
    ids = RunIds(seed)
    made = [(tenant, ids.new(MOMENT, tenant)) for tenant in tenants]
    for tenant in set(tenants):
        own = [run_id for of, run_id in made if of == tenant]
        assert own == list(range(own[0], own[0] + len(own))), (
            "the ids of a tenant are consecutive, whatever other tenants do"
        )
    assert len({run_id for _, run_id in made}) == len(made)


def test_ids_of_different_tenants_are_unrelated() -> None:
    ids = RunIds(7)
    begun = [ids.new(MOMENT, f"t{number}") & ((1 << 31) - 1) for number in range(4_000)]
    assert len({number >> 20 for number in begun}) > 950, "at least 950 of 1024 parts"


class SameNumber:
    """A random source that always draws the same number."""

    def getrandbits(self, _bits: int) -> int:
        return 5


def test_tenants_that_begin_at_the_same_number_never_get_the_same_id() -> None:
    ids = RunIds()
    ids._chance = SameNumber()  # type: ignore[assignment]  # the only method that is used
    made = [ids.new(MOMENT, tenant) for tenant in ("acme", "globex") * 50]
    assert len(set(made)) == 100


def test_many_ids_of_one_moment_keep_its_second() -> None:
    ids = RunIds()
    made = [ids.new(MOMENT) for _ in range(10_000)]
    assert len(set(made)) == 10_000
    assert {run_text(run_id)[:22] for run_id in made} == {"run_2026-11-16_023213_"}


def test_two_processes_count_from_different_numbers_and_so_does_one_in_the_next_second() -> None:
    first, second = RunIds(), RunIds()
    a, b, c = first.new(MOMENT), second.new(MOMENT), first.new(MOMENT + SECOND)
    assert len({run_text(run_id)[22:] for run_id in (a, b, c)}) == 3


def test_the_start_numbers_of_processes_are_spread() -> None:
    """Processes that create many runs at the same moment rarely draw the same ids. The start numbers do not depend on the time."""
    begun = [RunIds(seed).new(MOMENT) & ((1 << 31) - 1) for seed in range(4_000)]
    assert len({number >> 20 for number in begun}) > 950, "at least 950 of 1024 parts"
    assert max(begun) <= 1 << 30, "there is room for as many ids after each"


@pytest.mark.parametrize(
    "text", ["", "run_2026-02-30_080000_abc123", "run_2026-02-14_080000_zzzzzz", "apr_1"]
)
def test_an_invalid_id_is_run_not_found(text: str) -> None:
    with pytest.raises(TenureError) as refused:
        run_int(text)
    assert refused.value.code == "RUN_NOT_FOUND"
