"""Evaluation of policies: deny precedes approval, approval precedes allow, and an error or a missing rule denies."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tenure.errors import TenureError
from tenure.govern.policy import CompiledPolicy, load_policy
from tenure.kernel.act_commands import Ruling
from tests.govern.policy_samples import facts, policy


def ruled(*rules: str, **given: Any) -> Ruling:
    return CompiledPolicy(load_policy(policy(*rules)), 4).ruling(facts(**given))


@pytest.mark.clause("GOV-16")
def test_an_action_that_a_rule_allows_is_allowed_with_version_and_rules() -> None:
    verdict = ruled("allow: true")
    assert (verdict.outcome, verdict.version, json.loads(verdict.rules), verdict.error) == (
        "allow",
        4,
        [["r0", "allow"]],
        None,
    )


@pytest.mark.clause("GOV-16", "GOV-17")
def test_an_action_without_a_matching_rule_is_denied() -> None:
    for verdict in (
        ruled("allow: true", operation="label.remove"),
        ruled("allow: true", connector="other"),
        ruled("when: run.writes > 5\nallow: true"),
    ):
        assert (verdict.outcome, verdict.error) == ("deny", "POLICY_NO_RULE")


def test_all_matching_rules_are_evaluated_and_a_denial_wins() -> None:
    verdict = ruled(
        "allow: true", "approval: {people: 2}", "deny: not today", "when: run.writes > 5\ndeny: too many"
    )
    assert verdict.outcome == "deny"
    assert verdict.error is None
    assert verdict.why == "r2: not today"
    assert json.loads(verdict.rules) == [
        ["r0", "allow"],
        ["r1", "needs_approval"],
        ["r2", "deny"],
        ["r3", "not"],
    ]


@pytest.mark.clause("GOV-16")
def test_an_approval_takes_precedence_over_an_allowance() -> None:
    verdict = ruled("allow: true", "approval: {people: 2, group: ops, within: 2h}\nwhy: labels page people")
    assert (verdict.outcome, verdict.people, verdict.people_in, verdict.within_seconds) == (
        "needs_approval",
        2,
        "ops",
        7200.0,
    )
    assert verdict.why == "r1: labels page people"


def test_the_strictest_approval_is_required() -> None:
    verdict = ruled(
        "approval: {tier: low, people: 1, group: ops, within: 1d}",
        "approval: {tier: high, people: 2, within: 3d}",
        "approval: {tier: med, people: 1, group: ops, within: 1h}",
        tier="med",
    )
    assert (verdict.tier, verdict.people, verdict.people_in, verdict.within_seconds) == (
        "high",
        2,
        "ops",
        3600.0,
    )


def test_rules_that_require_different_groups_deny() -> None:
    verdict = ruled("approval: {group: ops}", "approval: {group: security}", "approval: {people: 2}")
    assert (verdict.outcome, verdict.error) == ("deny", "POLICY_ERROR")
    assert verdict.why.startswith("r0, r1: these rules require different groups (ops, security)")


def test_an_approval_without_a_tier_has_the_tier_of_the_action() -> None:
    assert ruled("approval: {}", tier="high").tier == "high"
    assert ruled("approval: {tier: low}", "approval: {}", tier="med").tier == "med"
    assert ruled("approval: {}").within_seconds == 86_400.0


@pytest.mark.clause("GOV-17")
@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("action.fields.missing == 1", "missing"),
        ("action.fields.labels", "must be true or false"),
        ("size(action.fields.labels)", "must be true or false"),
        ("'yes'", "must be true or false"),
        ("run.budget > 3", "r1"),
        ("run.repo.size() > 3", "r1"),
        ("1 / run.writes > 0", "r1"),
        ("action.fields.labels[7] == 'x'", "r1"),
        ("time.nothing", "nothing"),
    ],
)
def test_a_condition_that_fails_or_is_not_boolean_denies(condition: str, why: str) -> None:
    """I41: a policy error is a denial, recorded."""
    verdict = ruled("allow: true", f'when: "{condition}"\nallow: true')
    assert (verdict.outcome, verdict.error) == ("deny", "POLICY_ERROR")
    assert json.loads(verdict.rules) == [["r0", "allow"], ["r1", "error"]]
    assert why in verdict.why


@pytest.mark.clause("GOV-17")
def test_facts_that_cannot_be_read_deny() -> None:
    asked = CompiledPolicy(load_policy(policy("when: run.writes >= 0\nallow: true")), 1)
    for broken in (
        {},
        {"action": None},
        facts(fields={"labels": object()}),
    ):
        verdict = asked.ruling(broken)
        assert (verdict.outcome, verdict.error) == ("deny", "POLICY_ERROR"), broken.keys()


def test_a_comprehension_over_the_budget_denies_without_running() -> None:
    condition = 'when: "action.fields.labels.all(a, action.fields.labels.all(b, a == b))"\nallow: true'
    assert ruled(condition).outcome == "allow"
    assert ruled(condition, fields={"labels": ["x"] * 1_000}).error == "POLICY_ERROR"


def test_conditions_over_the_shared_budget_deny() -> None:
    condition = 'when: "size(action.fields.labels.map(a, a)) > 0"\nallow: true'
    labels = {"labels": ["x"] * 600}
    assert ruled(condition, fields=labels).outcome == "allow"
    verdict = ruled(*[condition] * 20, fields=labels)
    assert verdict.error == "POLICY_ERROR"
    assert "too much time together" in verdict.why


def test_many_conditions_over_large_facts_stay_within_the_budget() -> None:
    condition = "when: run.writes < 3 && action.fields.title.startsWith('x')\nallow: true"
    assert (
        ruled(*[condition] * 60, fields={"title": "x" * 100_000, "labels": ["y" * 100] * 500}).outcome
        == "allow"
    )


def test_a_condition_that_always_exceeds_the_budget_is_refused_at_load() -> None:
    with pytest.raises(TenureError, match="with any input, it may take too much"):
        load_policy(
            policy(
                "when: size(['AAAA']"
                + ".map(x, x + x + x + x + x + x + x + x + x + x + x)" * 8
                + ") > 0\nallow: true"
            )
        )


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        ("action.fields.amount == 9007199254740992", "deny"),
        ("action.fields.amount == 9007199254740993", "allow"),
    ],
)
def test_amounts_are_compared_exactly(condition: str, outcome: str) -> None:
    verdict = ruled(f"when: {condition}\nallow: true", fields={"amount": 9007199254740993})
    assert verdict.outcome == outcome
    rounded = ruled(f"when: {condition}.0\nallow: true", fields={"amount": 9007199254740993})
    assert rounded.error == "POLICY_ERROR"


def test_conditions_can_use_time_person_and_run() -> None:
    rule = (
        "when: time.weekday <= 5 && time.hour >= 8 && time.hour < 18 && 'triage' in person.groups && run.writes < 3"
        " && timestamp(time.now) > timestamp('2026-01-01T00:00:00Z')\nallow: true"
    )
    person = {"groups": ["triage"]}
    assert ruled(rule, person=person).outcome == "allow"
    assert ruled(rule).outcome == "deny"
    assert ruled(rule, person=person, run={"writes": 3}).outcome == "deny"
    assert ruled(rule, person=person, now=1_768_212_000_000_000 + 9 * 3_600_000_000).outcome == "deny"


def test_conditions_can_use_digests() -> None:
    digest = hashlib.sha256(b'"o1"').hexdigest()
    names = facts()["action"]
    rule = f"when: sha256(action.connector) == sha256({names['connector']!r})\nallow: true"
    assert ruled(rule).outcome == "allow"
    assert ruled(f"when: sha256(action.connector) == '{digest}'\nallow: true").error == "POLICY_NO_RULE"
    broken = ruled("allow: true", "when: sha256(b'x') == ''\ndeny: never")
    assert (broken.outcome, broken.error) == ("deny", "POLICY_ERROR"), "a condition that fails denies"
    assert "sha256() takes a JSON value" in broken.why


def test_a_rule_may_cover_several_operations() -> None:
    text = policy("allow: true").replace("label.add", "[label.add, label.remove]")
    asked = CompiledPolicy(load_policy(text), 1)
    assert asked.ruling(facts()).outcome == "allow"
    assert asked.ruling(facts(operation="label.remove")).outcome == "allow"
    assert asked.ruling(facts(operation="label")).outcome == "deny"
