"""An engine starts even if its database is not ready yet."""

from __future__ import annotations

import itertools

from tenure.engine import Engine
from tests.conformance.tcp_proxy import TcpProxy


async def test_an_engine_starts_even_if_an_answer_of_its_database_is_lost(postgres_dsn: str) -> None:
    async with TcpProxy(postgres_dsn).serve() as wire:
        for number in itertools.count(1):
            wire.cuts = 0
            wire.cut_before_an_answer(number)
            async with Engine(wire.dsn, wait_for_database=60, sweep=False) as engine:
                await engine.runs.list()
            if not wire.cuts:
                break  # the start needs fewer answers than this
        assert number > 10
