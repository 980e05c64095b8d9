"""How `tenure.run` and Tenure's own processes set the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from tenure.engine.entry_point import COLLECT_AFTER, run_in_loop


@pytest.fixture(autouse=True)
def setting() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def seen() -> tuple[int, int, int]:
    await asyncio.sleep(0)
    return gc.get_threshold()


def test_the_garbage_collector_runs_less_often_during_a_run() -> None:
    gc.set_threshold(700, 10, 10)
    assert run_in_loop(seen()) == (COLLECT_AFTER, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("theirs", [0, 50_000])
def test_existing_garbage_collector_settings_are_kept(theirs: int) -> None:
    gc.set_threshold(theirs, 5, 5)
    assert run_in_loop(seen()) == (theirs, 5, 5)
    assert gc.get_threshold() == (theirs, 5, 5)


def test_a_failure_restores_the_setting() -> None:
    gc.set_threshold(700, 10, 10)

    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_in_loop(fails())
    assert gc.get_threshold() == (700, 10, 10)
