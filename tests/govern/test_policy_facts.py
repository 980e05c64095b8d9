"""I58: the facts behind a verdict still hold in the commit that records the intention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.clock import SECOND_US
from tenure.errors import TenureError
from tenure.expressions.expression import parse_expression
from tenure.govern.policy import CompiledPolicy, PolicyCache, load_policy
from tenure.govern.policy.facts import (
    ACTION,
    CHECKED,
    FACTS,
    FIXED,
    ROOTS,
    SCHEMAS,
    checked_facts,
    collect_relied_facts,
    time_facts,
)
from tenure.kernel.act_commands import FIXED_COLUMNS, ReliedFacts, Ruling
from tenure.kernel.costs import Cost
from tenure.kernel.run_rows import ROWS
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import careful, lab_of, orders, receipts, verdicts
from tests.govern.policy_samples import MONDAY_10, facts, policy
from tests.kernel.act_story import ALLOW, DENY, ActStory, person

ONE_WRITE = """
version: 1
rules:
  - {name: first, connector: http, operation: post, when: run.writes < 1, allow: true}
"""
MANY_WRITES = ONE_WRITE.replace("< 1", "< 100")
POLICY_PAGE = Path(__file__).parents[2] / "docs" / "policy.md"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


# --------------------------------------------------------------------------------------------- the table


def all_facts() -> Iterator[str]:
    """Return every fact that a condition can read, by root and name."""
    yield from (f"action.{name}" for name in (*ACTION, "target", "fields"))
    for root, schema in SCHEMAS.items():
        yield from (f"{root}.{name}" for name in schema["properties"])


def test_every_fact_is_fixed_or_checked() -> None:
    assert set(all_facts()) == set(FACTS)
    assert {name.partition(".")[0] for name in FACTS} == set(ROOTS)
    columns = {f"{table}.{column}" for table, names in FIXED_COLUMNS.items() for column in names}
    for name, fact in FACTS.items():
        parts = set(fact.by.split(", "))
        if fact.how == CHECKED:
            assert parts <= set(ReliedFacts.__struct_fields__), name
        else:
            assert fact.how == FIXED
            assert parts <= columns | {"digest"}, name
    assert {
        f"{table}.{column}" for table in FIXED_COLUMNS for column in ROWS[table].__struct_fields__
    } >= columns


def test_the_page_explains_why_every_fact_is_reliable() -> None:
    acts: dict[str, str] = {}
    for line in POLICY_PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and cells[2] in ("fixed", "checked"):
            for name in cells[1].split(", "):
                acts[name.strip("`")] = cells[2]
    assert acts == {name: fact.how for name, fact in FACTS.items()}


@pytest.mark.parametrize(
    ("condition", "read"),
    [
        ("run.writes < 3", {"run.writes"}),
        ('run["writes"] < 3', {"run.writes"}),
        ("run.workflow == 'a' && has(run.spent)", {"run.spent"}),
        ("run.workflow == 'a' && action.key != ''", set()),
        ("run.exists(name, name == 'x')", {"run.writes", "run.spent"}),
        ("run == {}", {"run.writes", "run.spent"}),
        ("'admin' in person.roles", {"person.roles"}),
        ("time.hour < 3 || time.weekday == 1", {"time.hour", "time.weekday"}),
        ("size(time) > 3", {"time.now", "time.date", "time.hour", "time.minute", "time.weekday"}),
    ],
)
def test_the_facts_that_a_condition_reads_are_known(condition: str, read: set[str]) -> None:
    assert checked_facts(parse_expression(condition, ROOTS).refers) == read


# ------------------------------------------------------------------------------------- what is relied on


def relied_on(*rules: str, now: int = MONDAY_10, **given: Any) -> ReliedFacts | None:
    asked = CompiledPolicy(load_policy(policy(*rules)), 1)
    acts = facts(now=now, **given)
    return collect_relied_facts(asked, asked.ruling(acts), acts, "person:ada", person("ada"), now)


def test_a_ruling_relies_only_on_what_its_rules_read() -> None:
    assert relied_on("allow: true") is None
    assert relied_on("when: run.workflow == 'triage'\nallow: true") is None
    assert relied_on("when: run.spent < 5\nallow: true") == ReliedFacts(spent=0)
    assert relied_on("when: '\"x\" in person.groups'\nallow: true") == ReliedFacts(
        person=("ada", '["approver"]', "[]")
    )


def test_a_changed_write_count_matters_only_if_the_verdict_changes() -> None:
    few = "when: run.writes < 1\nallow: true"
    assert relied_on(few) == ReliedFacts(writes=(0, 0))
    assert relied_on("when: run.writes < 5\nallow: true", run={"writes": 2}) == ReliedFacts(writes=(0, 4))
    assert relied_on("when: run.writes < 900\nallow: true", run={"writes": 100}) == ReliedFacts(
        writes=(84, 116)
    )
    assert relied_on("when: run.writes % 2 == 0\nallow: true", run={"writes": 4}) == ReliedFacts(
        writes=(4, 4)
    )
    both = relied_on(
        "when: run.writes < 900 && timestamp(time.now) < timestamp('2026-02-01T00:00:00Z')\nallow: true"
    )
    assert both is not None
    assert both.writes == (0, 0), "only one of two facts gets a range, because combinations are not evaluated"


def test_a_changed_time_matters_only_if_the_verdict_changes() -> None:
    def until(condition: str, now: int = MONDAY_10) -> tuple[int, int]:
        relied = relied_on(f"when: {condition}\nallow: true", now=now)
        assert relied is not None
        assert relied.since is not None
        assert relied.until is not None
        return (relied.since - now) // SECOND_US, (relied.until - now) // SECOND_US

    assert until("time.minute < 59") == (0, 60)
    assert until("time.hour < 19", MONDAY_10 + 60 * SECOND_US) == (-60, 3540)
    assert until("time.weekday < 6") == (-36_000, 50_400)
    assert until("time.date != '' && time.minute >= 0") == (0, 60), "the shortest period applies"
    assert until("timestamp(time.now) < timestamp('2026-02-01T00:00:00Z')") == (-2, 21)
    assert until("timestamp(time.now) < timestamp('2026-01-12T10:00:05Z')") == (-2, 5)
    assert time_facts(MONDAY_10)["now"] == "2026-01-12T10:00:00Z"


# -------------------------------------------------------------------------------- the commit looks again


def story() -> ActStory:
    acts = ActStory(requester="person:bob")
    acts.claim()
    return acts


def relying(ruling: Ruling = ALLOW, **on: Any) -> Ruling:
    return Ruling(
        version=1, outcome=ruling.outcome, rules=ruling.rules, why=ruling.why, relied=ReliedFacts(**on)
    )


def _spend(acts: ActStory) -> None:
    acts.checkpoint("main", "one", spent=(Cost("openai", "large", 1, 2, 40),))


def _close(acts: ActStory) -> None:
    acts.people["bob"] = person("bob", "release", closed_at=1)


def _regroup(acts: ActStory) -> None:
    acts.people["bob"] = person("bob")


def _leave(acts: ActStory) -> None:
    del acts.people["bob"]


BOB = ("bob", '["approver"]', '["release"]')


@pytest.mark.parametrize("ruling", [ALLOW, DENY], ids=lambda ruling: ruling.outcome)
@pytest.mark.parametrize(
    ("on", "change"),
    [
        ({"writes": (0, 0)}, lambda acts: acts.intend(acts.act("other#1"))),
        ({"spent": 0}, _spend),
        ({"person": BOB}, _close),
        ({"person": BOB}, _regroup),
        ({"person": BOB}, _leave),
        ({"until": 5 * SECOND_US}, lambda acts: acts.after(5)),
        ({"since": 9 * SECOND_US}, lambda _: None),
    ],
    ids=["writes", "spent", "closed", "groups", "gone", "until", "since"],
)
def test_a_verdict_is_valid_only_while_its_facts_are_unchanged(
    on: dict[str, Any], change: Any, ruling: Ruling
) -> None:
    def ask(acts: ActStory) -> str:
        if ruling.outcome == "deny":
            return acts.propose(ruling=given).state
        return acts.intend(ruling=given).state

    acts = story()
    on = {name: value + acts.now if name in ("since", "until") else value for name, value in on.items()}
    given = relying(ruling, **on)
    if "since" not in on:
        fresh = story()
        assert ask(fresh) == ("call" if ruling.outcome == "allow" else "refused")
        assert not fresh.violations()
    change(acts)
    before = acts.run_spend.writes
    assert ask(acts) == "again"
    assert acts.run_spend.writes == before
    assert acts.verdicts == [verdict for verdict in acts.verdicts if verdict.label == "other#1"]
    assert not acts.violations()


def test_a_verdict_records_its_facts_but_no_roles() -> None:
    acts = story()
    acts.intend(ruling=relying(writes=(0, 3), spent=0, person=BOB))
    assert [verdict.relied for verdict in acts.verdicts] == ['{"writes":[0,3],"spent":0}']
    acts.intend(acts.act("b#1"), relying(person=BOB))
    assert acts.verdicts[-1].relied is None


# --------------------------------------------------------------------------------------- through the door


async def test_one_of_five_concurrent_acts_passes_if_one_write_is_allowed(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, orders, url=url, policy=ONE_WRITE) as lab:
            run = await lab.start(orders, [1, 2, 3, 4, 5])
            with pytest.raises(TenureError) as refused:
                await run.result()
            assert refused.value.code == "POLICY_DENIED"
            assert len([row for row in await receipts(lab, run) if row.state != "failed"]) == 1
            assert len(service.effects) <= 1


async def test_many_concurrent_acts_pass_if_their_verdicts_do_not_change(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, orders, url=url, policy=MANY_WRITES) as lab:
            run = await lab.start(orders, list(range(40)))
            assert await run.result() == [201] * 40
            assert len(service.effects) == 40
            assert all(row.relied for row in await verdicts(lab, run))


async def test_facts_that_keep_changing_have_a_code_and_are_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, orders, careful, policy=ONE_WRITE) as lab:
            asked, real = 0, PolicyCache.judge

            async def outdated(policies: PolicyCache, *given: Any, **how: Any) -> Ruling:
                nonlocal asked
                asked += 1
                ruling_now = await real(policies, *given, **how)
                return (
                    Ruling(version=ruling_now.version, outcome="allow", relied=ReliedFacts(writes=(7, 7)))
                    if asked <= 5
                    else ruling_now
                )

            monkeypatch.setattr(PolicyCache, "judge", outdated)
            run = await lab.start(orders, [1])
            assert await run.result() == [201]
            assert asked == 6, "five rounds, then the act's retry"
            assert len(service.effects) == 1
            asked = -1000
            acts = await lab.start(careful, 1)
            assert await acts.result() == "not done: POLICY_FACTS_CHANGED, 10"
            assert await receipts(lab, acts) == []
