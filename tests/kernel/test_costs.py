"""Costs and budgets in the kernel: costs are counted once, per day and currency; a run over its budget ends."""

from __future__ import annotations

import pytest

from tenure.kernel import commands as c
from tenure.kernel.act_rows import CostLineRow
from tenure.kernel.costs import Cost, sum_costs
from tenure.limits import COST_LINES_PER_RUN_MAX, CURRENCIES_PER_RUN_MAX
from tests.kernel.act_story import ALLOW, ActStory

DAY_SECONDS = 86_400


def spent(micros: int, currency: str = "USD", model: str = "large", calls: int = 1) -> tuple[Cost, ...]:
    """A cost as a message carries it."""
    return (Cost("openai", model, 10, 20, micros, currency, calls),)


def begun(**how: object) -> ActStory:
    """A run whose body is leased."""
    story = ActStory(**how)
    story.claim()
    return story


def lines(story: ActStory) -> list[CostLineRow]:
    """The run's cost lines."""
    return list(story.snap.cost_lines.values())


def test_a_run_that_exceeds_its_budget_ends() -> None:
    story = begun(budget=100, currency="EUR")
    story.checkpoint("main", "one", spent=spent(60, "EUR"))
    story.checkpoint("main", "one", spent=spent(60, "EUR"), again=True)
    assert story.run_spend.spent == 60
    story.say(c.ReportCost, "main", spent=spent(40, "EUR") + spent(70))
    assert (story.run_spend.spent, story.status) == (100, "running")
    reply = story.checkpoint("main", "two", spent=spent(1, "EUR"))
    assert (reply.state, reply.outcome) == ("refused", "BUDGET_EXCEEDED")
    assert (story.status, story.run.reason, story.attempt("main").lease) == (
        "failed",
        "BUDGET_EXCEEDED",
        "revoked",
    )


@pytest.mark.parametrize("last", ["complete", "fail"])
def test_a_final_message_over_the_budget_ends_the_run_and_is_kept_as_evidence(last: str) -> None:
    story = begun(budget=10)
    if last == "complete":
        reply = story.complete(output=b"dear", spent=spent(11))
    else:
        reply = story.do(
            c.Fail(run_id=story.run_id, idx=0, n=1, seq=1, code="X", message=b"dear", spent=spent(11))
        )
    assert (reply.outcome, story.status, story.run.reason) == ("BUDGET_EXCEEDED", "failed", "BUDGET_EXCEEDED")
    assert b"dear" in [row.body for row in story.payloads.values()]


def test_a_run_without_a_budget_counts_costs_and_continues() -> None:
    story = begun()
    story.checkpoint("main", "one", spent=spent(10**9))
    story.complete(spent=spent(5))
    assert (story.run_spend.spent, story.status) == (10**9 + 5, "succeeded")
    with begun().refuses("INVALID_INPUT"):
        begun().checkpoint("main", "one", spent=spent(-1))


def test_cost_lines_are_kept_per_provider_model_currency_and_day() -> None:
    story = begun(budget=1_000)
    story.checkpoint("main", "one", spent=spent(5) + spent(7, model="small") + spent(9, "EUR"))
    story.checkpoint("main", "two", spent=spent(6, calls=2))
    assert [(row.model, row.currency, row.calls, row.tokens_in, row.micros) for row in lines(story)] == [
        ("large", "USD", 3, 20, 11),
        ("small", "USD", 1, 10, 7),
        ("large", "EUR", 1, 10, 9),
    ]
    assert story.run_spend.spent == 18, "euros do not count against a budget in dollars"
    story.release()
    story.after(DAY_SECONDS).claim()
    story.complete(spent=spent(1))
    assert len({row.day for row in lines(story)}) == 2
    assert story.violations(settled=True) == []


def test_a_repeat_of_any_message_counts_once() -> None:
    story = begun()
    story.say(c.ReportCost, "main", spent=spent(3))
    story.say(c.ReportCost, "main", spent=spent(3), again=True)
    story.complete(spent=spent(4))
    story.complete(spent=spent(4), again=True)
    assert (story.run_spend.spent, lines(story)[0].calls) == (7, 2)


def test_a_checkpoint_that_was_refused_is_refused_again() -> None:
    story = begun(budget=1)
    story.checkpoint("main", "one", spent=spent(2))
    again = story.checkpoint("main", "one", spent=spent(2), again=True)
    assert (again.state, again.outcome, story.run_spend.spent) == ("refused", "BUDGET_EXCEEDED", 2)


def test_a_failed_try_counts() -> None:
    story = begun()
    story.fail(code="STEP_FAILED", retryable=True, spent=spent(8))
    assert (story.run_spend.spent, story.status) == (8, "retry_wait")


def test_an_act_after_the_budget_is_over_is_refused_with_the_lease() -> None:
    story = begun(budget=1)
    story.checkpoint("main", "one", spent=spent(2))
    with story.refuses("LEASE_STALE"):
        story.intend(ruling=ALLOW)
    assert story.run_spend.writes == 0


def test_above_the_line_limit_costs_are_counted_as_other() -> None:
    story = begun()
    for first in range(0, COST_LINES_PER_RUN_MAX + 50, 50):
        many = tuple(Cost("openai", f"m{no}", micros=1) for no in range(first, first + 50))
        story.say(c.ReportCost, "main", spent=many)
    kept = lines(story)
    assert len(kept) == COST_LINES_PER_RUN_MAX + 1
    assert (kept[-1].provider, kept[-1].model, kept[-1].micros) == ("others", "others", 50)
    assert story.run_spend.spent == COST_LINES_PER_RUN_MAX + 50


def test_invalid_costs_are_refused() -> None:
    many = tuple(Cost("p", "m", micros=1, currency=f"C{no}") for no in range(CURRENCIES_PER_RUN_MAX + 1))
    for wrong in (
        many,
        spent(1, ""),
        spent(10**16),
        (Cost("", "m"),),
        (Cost("p", "m\n"),),
        spent(1, calls=-1),
    ):
        story = begun()
        with story.refuses("INVALID_INPUT"):
            story.say(c.ReportCost, "main", spent=wrong)
        assert lines(story) == []


def test_reported_costs_are_summed_and_limited() -> None:
    summed = sum_costs([Cost("p", "m", 1, 2, 3), Cost("p", "m", 1, 2, 4), Cost("p", "n", micros=9)])
    assert summed == [Cost("p", "n", micros=9), Cost("p", "m", 2, 4, 7, calls=2)]
    many = sum_costs((Cost("p", f"m{no}", micros=no) for no in range(1, 101)), most=10)
    assert (len(many), many[0]) == (6, Cost("others", "others", micros=sum(range(1, 96)), calls=95))
