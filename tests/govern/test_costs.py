"""Costs of runs: each try is counted once, whether it succeeds or not, and a run over its budget ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import tenure
from tenure.declared import load_workflow
from tenure.errors import TenureError
from tenure.sdk import Registry, StepFunction, Workflow
from tenure.sdk.definitions import Tool
from tenure.testing import Lab
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import lab_of, post_effect
from tests.govern.ledger_databases import LedgerPlace


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


ASKED: list[str] = []
"""The calls that this process made."""


async def _ask(money: str, model: str = "large", currency: str = "USD") -> str:
    ASKED.append(money)
    tenure.report_cost("openai", model, tokens_in=10, tokens_out=5, money=money, currency=currency)
    return model


ask: Any = StepFunction(_ask, name="ask")


@tenure.step(isolate="process", retries=0)
def apart(money: str, fails: bool) -> None:
    """An isolated step, whose process cannot see the memory of the worker."""
    tenure.report_cost("openai", "large", money=money)
    if fails:
        raise tenure.Failure("STEP_FAILED", "it was dear, and came to nothing")


async def _dear(amounts: list[str]) -> int:
    for money in amounts:
        await ask(money)
    return len(amounts)


dear = Workflow(_dear, name="dear", budget="1 USD")
free = Workflow(_dear, name="free")


async def test_a_run_over_its_budget_ends_in_the_same_commit_and_starts_no_step(url: str | None) -> None:
    async with Lab(dear, url=url) as lab:
        run = await lab.start(dear, ["0.40", "0.60"])
        assert await run.result() == 2, "a run may spend all of its budget"
        ASKED.clear()
        run = await lab.start(dear, ["0.40", "0.60", "0.000001", "0.10"])
        with pytest.raises(TenureError) as refused:
            await run.result()
        assert refused.value.code == "BUDGET_EXCEEDED"
        assert ASKED == ["0.40", "0.60", "0.000001"]
        view = await lab.engine.get(run.id)
        assert (view.status, view.reason) == ("failed", "BUDGET_EXCEEDED")
        assert {step.name for step in await run.steps()} == {"ask", "ask#2", "ask#3"}
        costs = await lab.engine.costs.get(run.id)
        assert (costs.spent, costs.budget, costs.text) == (1_000_001, 1_000_000, "1.000001 of 1.00 USD")
        last = (await run.history())[-1]
        assert (last.kind, last.context["reason"]) == ("checkpoint", "BUDGET_EXCEEDED")


async def test_costs_of_the_last_step_count(url: str | None) -> None:
    async with Lab(dear, url=url) as lab:
        run = await lab.start(dear, ["1.50"])
        with pytest.raises(TenureError) as refused:
            await run.result()
        assert refused.value.code == "BUDGET_EXCEEDED"


async def test_a_run_over_its_budget_cannot_act(url: str | None) -> None:
    async def spends(money: str) -> Any:
        await ask(money)
        return (await post_effect(1))["status"]

    flow = Workflow(spends, name="spends", budget="1 USD")
    with ServiceDouble() as service:
        async with lab_of(service, flow, url=url) as lab:
            assert await (await lab.start(flow, "1")).result() == 201
            run = await lab.start(flow, "1.01")
            with pytest.raises(TenureError) as refused:
                await run.result()
            assert refused.value.code == "BUDGET_EXCEEDED"
            assert len(service.effects) == 1


async def test_costs_of_failed_tries_count_and_a_replay_adds_nothing(url: str | None) -> None:
    tries = 0

    async def flaky() -> str:
        nonlocal tries
        tries += 1
        tenure.report_cost("openai", "large", money="0.10")
        if tries < 3:
            raise ConnectionError("the network is down")
        return "done"

    step: Any = StepFunction(flaky, name="flaky", retries=3, backoff=["1s"])

    async def whole() -> str:
        done: str = await step()
        await tenure.sleep("2h")
        await ask("0.05")
        return done

    flow = Workflow(whole, name="whole")
    async with Lab(flow, url=url) as lab:
        run = await lab.start(flow)
        assert await run.result() == "done"
        costs = await lab.engine.costs.get(run.id)
        assert (costs.spent, costs.budget, costs.currency) == (350_000, None, "USD")
        assert [(line.calls, line.micros) for line in costs.lines] == [(4, 350_000)]


async def test_a_resumed_run_does_not_count_the_costs_of_reused_steps(url: str | None) -> None:
    fails = True

    async def then() -> None:
        if fails:
            raise tenure.Failure("STEP_FAILED", "not yet", retryable=False)

    step: Any = StepFunction(then, name="then", retries=0)

    async def whole() -> None:
        await ask("0.20")
        await step()

    flow = Workflow(whole, name="whole")
    async with Lab(flow, url=url) as lab:
        run = await lab.start(flow)
        with pytest.raises(TenureError):
            await run.result()
        fails = False
        again = lab.run(await lab.engine.runs.resume(run.id), flow)
        await again.result()
        assert (await lab.engine.costs.get(run.id)).spent == 200_000
        assert (await lab.engine.costs.get(again.id)).lines == ()


async def test_an_isolated_step_reports_costs() -> None:
    async def whole() -> None:
        await apart("0.10", False)
        await apart("0.20", True)

    flow = Workflow(whole, name="whole")
    async with Lab(flow) as lab:
        run = await lab.start(flow)
        with pytest.raises(TenureError):
            await run.result()
        assert (await lab.engine.costs.get(run.id)).spent == 300_000


async def test_costs_of_a_canceled_step_count(url: str | None) -> None:
    begun = asyncio.Event()

    async def long() -> None:
        tenure.report_cost("openai", "large", money="0.30")
        begun.set()
        await asyncio.Event().wait()

    step: Any = StepFunction(long, name="long")

    async def whole() -> None:
        await step()

    flow = Workflow(whole, name="whole")
    async with Lab(flow, url=url) as lab:
        run = await lab.start(flow)
        await lab.settle(leave="long")
        assert begun.is_set()
        await lab.cancel(run)
        assert await run.reaches("canceled") == "canceled"
        assert (await lab.engine.costs.get(run.id)).spent == 300_000


async def test_costs_in_another_currency_do_not_count_against_the_budget() -> None:
    async def whole() -> None:
        await ask("5", "large", "EUR")
        await ask("0.50")

    flow = Workflow(whole, name="whole", budget="1 USD")
    async with Lab(flow) as lab:
        run = await lab.start(flow)
        await run.result()
        costs = await lab.engine.costs.get(run.id)
        assert costs.text == "0.50 of 1.00 USD"
        assert [(line.currency, line.micros) for line in costs.lines] == [
            ("EUR", 5_000_000),
            ("USD", 500_000),
        ]


async def test_each_run_has_its_own_costs_and_budget() -> None:
    async def parent() -> int:
        child = await tenure.start(dear, ["0.90"])
        done: int = await child.result()
        await ask("0.20")
        return done

    flow = Workflow(parent, name="parent", budget="0.50 USD")
    async with Lab(flow, dear) as lab:
        run = await lab.start(flow)
        assert await run.result() == 1
        assert (await lab.engine.costs.get(run.id)).text == "0.20 of 0.50 USD"


async def test_a_child_has_the_budget_of_its_own_workflow() -> None:
    async def parent() -> int:
        child = await tenure.start(dear, ["1.20"])
        done: int = await child.result()
        return done

    flow = Workflow(parent, name="parent")
    async with Lab(flow, dear) as lab:
        with pytest.raises(TenureError, match="BUDGET_EXCEEDED"):
            await (await lab.start(flow)).result()


DECLARED = """
name: reviews
profile: tenure
budget: 1 USD
inputs:
  money: {type: string}
steps:
  - id: first
    uses: review
    with: {money: "${{ inputs.money }}"}
  - id: second
    uses: review
    with: {money: "0.10"}
"""


@pytest.mark.clause("APR-03")
async def test_a_workflow_file_has_a_budget_that_its_tools_spend(url: str | None) -> None:
    async def review(money: str) -> str:
        tenure.report_cost("openai", "small", tokens_in=7, money=money)
        return money

    registry = Registry()
    registry.add(Tool(review, name="review"))
    async with Lab(registry, url=url) as lab:
        run = await lab.submit(load_workflow(DECLARED), {"money": "0.30"})
        await run.result()
        assert (await lab.engine.costs.get(run.id)).text == "0.40 of 1.00 USD"
        first = (await run.steps())[0]
        assert [(cost.model, cost.micros, cost.tokens_in) for cost in first.costs] == [("small", 300_000, 7)]
        run = await lab.submit(load_workflow(DECLARED), {"money": "1.30"})
        with pytest.raises(TenureError) as refused:
            await run.result()
        assert refused.value.code == "BUDGET_EXCEEDED"
        assert [(step.name, step.state) for step in await run.steps()] == [
            ("first", "canceled"),
            ("second", "canceled"),
        ]


CHEAP = """
version: 1
rules:
  - {name: posts, connector: http, operation: post, allow: true}
  - name: dear
    connector: http
    operation: post
    when: run.currency == "USD" && run.spent > 1000000
    deny: it has spent enough
"""


async def test_a_policy_can_use_the_spend_of_a_run(url: str | None) -> None:
    async def spends(money: str) -> Any:
        await ask(money)
        return (await post_effect(1))["status"]

    flow = Workflow(spends, name="spends")
    with ServiceDouble() as service:
        async with lab_of(service, flow, url=url, policy=CHEAP) as lab:
            assert await (await lab.start(flow, "1")).result() == 201
            run = await lab.start(flow, "1.01")
            with pytest.raises(TenureError) as refused:
                await run.result()
            assert refused.value.code == "POLICY_DENIED"
            assert len(service.effects) == 1


async def test_costs_are_summed_by_workflow_provider_model_and_day(url: str | None) -> None:
    async def mixed() -> None:
        await ask("0.20", "small")
        await ask("0.01", "large", "EUR")

    other = Workflow(mixed, name="mixed")
    async with Lab(free, other, url=url) as lab:
        await (await lab.start(free, ["0.10", "0.30"])).result()
        await (await lab.start(free, ["0.05"])).result()
        first = (await lab.engine.costs.report(by="tenant")).until
        await lab.jump("1d")
        await (await lab.start(other)).result()

        async def added(by: Any, *names: str, **how: Any) -> list[tuple[Any, ...]]:
            view = await lab.engine.costs.report(by=by, **how)
            return [(*(getattr(one, name) for name in names), one.text, one.runs) for one in view.items]

        assert await added("tenant") == [("0.65 USD", 3), ("0.01 EUR", 1)]
        assert await added("workflow", "workflow") == [
            ("free", "0.45 USD", 2), ("mixed", "0.20 USD", 1), ("mixed", "0.01 EUR", 1),
        ]  # fmt: skip
        assert await added("model", "provider", "model") == [
            ("openai", "large", "0.45 USD", 2), ("openai", "small", "0.20 USD", 1), ("openai", "large", "0.01 EUR", 1),
        ]  # fmt: skip
        assert await added("day", "day") == [
            (first + timedelta(days=1), "0.20 USD", 1), (first + timedelta(days=1), "0.01 EUR", 1), (first, "0.45 USD", 2),
        ]  # fmt: skip
        assert (await lab.engine.costs.report(by="provider")).items[0].calls == 4
        with pytest.raises(TenureError, match="not added up"):
            await lab.engine.costs.report(by="moon")  # type: ignore[arg-type]  # the invalid type under test


async def test_sums_that_overflow_are_capped(
    ledger_place: LedgerPlace,
) -> None:
    """The costs that runners report are limited per run, but the sum over many runs can overflow the database type."""
    huge = 2**62
    rows = ", ".join(
        f"({run}, 1, 'acme', 'w', 9, 'p', 'm', '{currency}', {n}, {n}, {n}, {n})"
        for run, currency, n in ((1, "USD", huge), (2, "USD", huge), (3, "USD", huge), (4, "EUR", huge - 1))
    )
    async with ledger_place.opened() as store:
        await ledger_place.execute_sql(
            "insert into cost_line (run_id, no, tenant, workflow, day, provider, model, currency, calls, tokens_in, tokens_out,"
            f" micros) values {rows}"
        )
        found = await store.read("cost_totals", "acme", 0, 10, "tenant", 10)
        assert [(row.currency, row.micros, row.calls) for row in found] == [
            ("USD", 2**63 - 1, 2**63 - 1),
            ("EUR", huge - 1, huge - 1),
        ]


async def test_invalid_days_are_refused() -> None:
    async with Lab(free) as lab:
        long_ago = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
        for at in ({"since": long_ago}, {"until": long_ago}):
            with pytest.raises(TenureError, match="outside of the calendar"):
                await lab.engine.costs.report(by="tenant", **at)
        view = await lab.engine.costs.report(by="tenant", until=datetime(1, 1, 1, tzinfo=UTC))
        assert (view.items, view.since.year) == ([], 1970)
