"""The short form of `make hunt`: a few faults of each kind, on both stores. Nothing is lost, doubled or stuck."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.harness import Hunt, Place, Tally
from tools.postgres_server import QUICK_SETTINGS, PrivatePostgres


def check(tally: Tally) -> None:
    wrong = [*tally.lost, *tally.doubled, *tally.stuck, *tally.findings]
    assert tally.clean, f"seed {tally.seed}: " + "; ".join(wrong)
    assert tally.ended["succeeded"] > tally.runs // 2, tally.ended


@pytest.mark.guard_seconds(280)
async def test_killed_paused_and_drained_workers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    place = Place("sqlite", f"sqlite:{tmp_path / 'runs.db'}")
    async with Hunt(place, tmp_path, random.randrange(2**32)) as hunt:
        await hunt.kills(4)
        await hunt.stops(2)
        await hunt.drains(2)
    check(hunt.tally)


@pytest.mark.guard_seconds(280)
async def test_cut_connections_and_postgresql_crashes_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with PrivatePostgres(QUICK_SETTINGS) as server:
        async with Hunt(Place("postgres", server.dsn(), server), tmp_path, random.randrange(2**32)) as hunt:
            await hunt.kills(3)
            await hunt.stops(2)
            await hunt.drains(2)
            await hunt.cuts(10)
            await hunt.crashes(1)
    check(hunt.tally)
