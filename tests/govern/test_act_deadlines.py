"""A call whose deadline passed before it was sent is retried. A call with an unknown outcome is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tenure import clock
from tenure.errors import TenureError
from tenure.govern import act_calls
from tenure.testing import Lab
from tenure.testing.doubles import ServiceDouble
from tenure.testing.lab import LabRun
from tests.govern.act_service import careful, lab_of, order, receipts


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


class Stalls:
    """Stall the process `times` times between the INTENT and the call. Its clock is then past the deadline."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left = times
        monkeypatch.setattr(act_calls, "clock", SimpleNamespace(boot_seconds=self._boot_seconds))

    def _boot_seconds(self) -> float:
        if self.left:
            self.left -= 1
            return clock.boot_seconds() + 3600
        return clock.boot_seconds()


async def receipt_facts(lab: Lab, run: LabRun[Any]) -> list[tuple[str, str | None, int, bool]]:
    rows = await receipts(lab, run)
    return [(row.state, row.error, row.n, row.eligible_at is not None) for row in rows]


async def test_a_call_that_missed_its_deadline_is_retried_within_the_acts_retries(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, url=url) as lab:
            Stalls(monkeypatch, 2)
            run = await lab.start(order, 7)
            assert await run.result() == [1, 700]
            assert await receipt_facts(lab, run) == [
                ("failed", "ACTION_LATE", 1, True),
                ("failed", "ACTION_LATE", 1, True),
                ("succeeded", None, 1, False),
            ]
            assert len(service.effects) == 1


async def test_the_next_attempt_retries_it_under_its_own_lease(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow `careful` catches a failed act, but not a failed attempt."""
    with ServiceDouble() as service:
        async with lab_of(service, careful, url=url) as lab:
            Stalls(monkeypatch, 4)
            run = await lab.start(careful, 7)
            assert await run.result() == "done, 70"
            found = await receipt_facts(lab, run)
            assert found[:-1] == [("failed", "ACTION_LATE", n, True) for n in (1, 1, 1, 2)]
            assert found[-1][:3] == ("succeeded", None, 2)
            assert len(service.effects) == 1


async def test_a_machine_that_is_always_late_ends_the_run_after_the_last_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, careful) as lab:
            Stalls(monkeypatch, 10_000)
            run = await lab.start(careful, 7)
            with pytest.raises(TenureError) as failed:
                await run.result()
            assert failed.value.code == "ACTION_LATE"
            found = await receipt_facts(lab, run)
            attempts = {n for _, _, n, _ in found}
            assert len(attempts) > 1
            assert len(found) == 3 * len(attempts)
            assert all(one[:2] == ("failed", "ACTION_LATE") for one in found)
            assert service.requests == []


async def test_an_act_uses_a_lease_that_was_renewed_while_it_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The policy takes longer than the lease had left when the act began. Heartbeats extend the lease, so the call is in time."""
    with ServiceDouble() as service:
        async with lab_of(service, order) as lab:
            lease_seconds = [-1.0]
            real = act_calls.ActLease.of.__func__  # type: ignore[attr-defined]  # a class method

            def of(cls: Any, lease: Any, until: Any) -> Any:
                assert callable(until), "the deadline is read when it is needed, not when the act begins"
                return real(cls, lease, lambda: clock.boot_seconds() + lease_seconds[0])

            monkeypatch.setattr(act_calls.ActLease, "of", classmethod(of))
            run = await lab.start(order, 7)
            assert await run.result() == [1, 700], "the call deadline must come from the commit of the INTENT"
            assert len(service.effects) == 1
