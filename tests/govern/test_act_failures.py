"""Acts when the policy or the connector fails: no call is made, or the outcome of the call is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.errors import TenureError
from tenure.govern.connector import CallFault, ConnectorCall
from tenure.testing import Lab
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import ALLOW, ASK, careful, connector, lab_of, order, receipts, verdicts
from tests.worker.helpers import until


async def test_a_policy_that_cannot_be_read_is_retried_before_any_call() -> None:
    """The database is unavailable when the policy is read. The step is released and continues later."""
    with ServiceDouble() as service:
        async with lab_of(service, order) as lab:
            policies = lab.engine.work_source.governor.policies
            asked = policies.judge
            away = [TenureError("STORE_UNAVAILABLE", "away")] * 2

            async def ruling(*given: Any, **how: Any) -> Any:
                if away:
                    assert service.requests == []
                    raise away.pop()
                return await asked(*given, **how)

            policies.judge = ruling  # type: ignore[method-assign]  # an injected fault
            run = await lab.start(order, 7)
            assert await run.result() == [1, 700]
            assert len(service.effects) == 1


async def test_a_policy_that_fails_to_evaluate_denies() -> None:
    """I41."""
    with ServiceDouble() as service:
        async with lab_of(service, order) as lab:

            async def ruling(*_given: Any, **_how: Any) -> Any:
                raise ZeroDivisionError

            lab.engine.work_source.governor.policies.judge = ruling  # type: ignore[method-assign]  # a defect
            run = await lab.start(order, 7)
            with pytest.raises(TenureError, match="POLICY_DENIED"):
                await run.result()
            assert [row.error for row in await verdicts(lab, run)] == ["POLICY_ERROR"]
            assert service.requests == []


async def test_a_connector_that_fails_to_describe_its_action_does_nothing() -> None:
    with ServiceDouble() as service:
        broken = connector(service.url)

        def render(*_given: Any) -> list[str]:
            raise ZeroDivisionError

        broken.render = render  # type: ignore[assignment, method-assign]  # a defect
        async with Lab(careful, connectors=[broken], policy=ASK) as lab:
            run = await lab.start(careful, 7)
            assert await run.result() == "not done: INTERNAL_ERROR, 70"
            assert await lab.engine.approvals.list(run.id) == []
            assert service.requests == []


async def test_a_connector_that_fails_during_the_call_leaves_an_unknown_receipt() -> None:
    """A call whose outcome cannot be classified is unknown, never failed."""
    with ServiceDouble("neither") as service:
        broken = connector(service.url, "neither")
        sound = broken.call

        async def call(call: ConnectorCall) -> Any:
            await sound(call)
            raise ZeroDivisionError

        def classify(_fault: BaseException) -> CallFault:
            raise ZeroDivisionError

        broken.call = call  # type: ignore[method-assign]  # a defect
        broken.classify = classify  # type: ignore[assignment, method-assign]  # another one
        async with Lab(careful, connectors=[broken], policy=ALLOW) as lab:
            run = await lab.start(careful, 7)
            await lab.settle()
            assert [row.state for row in await receipts(lab, run)] == ["unknown"]
            assert len(service.effects) == 1
            await lab.cancel(run)
            await run.reaches("canceled")


async def test_a_run_canceled_during_a_call_keeps_the_outcome() -> None:
    """Rule 20: receipts are recorded until the deadline of the cancellation."""
    with ServiceDouble() as service:
        async with lab_of(service, careful) as lab:
            service.hold()
            run = await lab.start(careful, 7)
            await until(lambda: service.held, "the call")
            await lab.cancel(run)
            service.release()
            await run.reaches("canceled")
            assert [row.state for row in await receipts(lab, run)] == ["succeeded"]
            assert len(service.effects) == 1
