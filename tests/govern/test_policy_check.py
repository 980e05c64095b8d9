"""Validation of policy files, and the messages about invalid ones."""

from __future__ import annotations

import pytest

from tenure.errors import TenureError
from tenure.govern.policy import load_policy
from tenure.govern.policy.connector_check import check_policy
from tenure.govern.policy.grammar import policy_json_schema
from tests.govern.policy_samples import CONNECTORS, policy
from tools import json_schemas
from tools.generated_files import find_stale


def problems(text: str) -> list[str]:
    with pytest.raises(TenureError) as refused:
        check_policy(text, "p.yaml", CONNECTORS)
    assert refused.value.code == "POLICY_INVALID"
    return refused.value.message.splitlines()


def condition_problem(condition: str) -> str:
    [line] = problems(policy(f'when: "{condition}"\nallow: true'))
    assert line.startswith("p.yaml:6:")
    return line


GOOD = [
    "action.fields.note == 'x'",
    "has(action.fields.note) && action.fields.note.size() > 3",
    "action['fields']['note'] == 'x'",
    "action.fields.labels.exists(l, l.startsWith('p'))",
    "action.fields.people.all(p, p.login != 'root')",
    "action.fields.people.filter(p, p.login != '').map(p, p.login).exists(l, l == 'a')",
    "action.fields.people[0].login == 'ada'",
    "(action.tier == 'high' ? action.fields : action.fields).note == ''",
    "[action.target.repo, 'x'].exists(r, r == 'y')",
    "{'a': action.fields}.a.note == ''",
    "action.fields.extra.anything.below == 1",
    "'note' in action.fields",
    "action.tier == 'low' && !action.reverses && action.key != ''",
    "run.trigger.type == 'api' && run.budget != null && run.spent < run.budget",
    "'ops' in person.groups || person.kind == 'local' || tenant.id == 'acme'",
    "time.date == '2026-01-01' && timestamp(time.now).getHours() == 3",
    "duration('1h') > duration('5m') && -1 < 2 && 3 - 1 == 2",
    "action.reverses",
]


@pytest.mark.parametrize("condition", GOOD)
def test_a_condition_over_known_facts_passes(condition: str) -> None:
    assert len(check_policy(policy(f'when: "{condition}"\nallow: true'), "p.yaml", CONNECTORS).rules) == 1


BAD = {
    "action.fields.notes == 'x'": "there is no action.fields.notes; did you mean 'note'?",
    "has(action.fields.notes)": "there is no action.fields.notes",
    "action.field.note == 'x'": "there is no action.field; did you mean 'fields'?",
    "action['fields']['notes'] == 'x'": "there is no action.fields.notes",
    "(action.fields).notes == 'x'": "there is no action.fields.notes",
    "dyn(action.fields).notes == 'x'": "there is no dyn(...).notes",
    "(true ? action.fields : action.fields).notes == 1": "there is no (...).notes",
    "[action.fields][0].notes == 1": "there is no (...)[0].notes",
    "[action.fields].exists(f, f.notes == 1)": "there is no f.notes",
    "[action].map(a, a.fields).exists(f, f.notes == 1)": "there is no f.notes",
    "{'a': action.fields}.a.notes == 1": "there is no (...).a.notes",
    "action.fields.people.all(p, p.name != 'root')": "there is no p.name",
    "action.fields.people.filter(p, true)[0].name == ''": "there is no",
    "action.fields.people[0].name == 'ada'": "there is no action.fields.people[0].name",
    "action.fields[run.workflow] == 'x'": "write the name of the field as a literal",
    "action.fields.note.length == 3": "the value before it is a string",
    "action.fields.labels.first == 3": "the value before it is a list",
    "'notes' in action.fields": "there is no action.fields.notes",
    "run.labels.team == 'a'": "there is no run.labels",
    "run.trigger == 'api' || run.triger.type == ''": "there is no run.triger",
    "person.name == 'Ada'": "there is no person.name",
    "tenant.name == 'Ada'": "there is no tenant.name",
    "time.minutes == 3": "there is no time.minutes; did you mean 'minute'?",
    "inputs.a == 3": "there is no 'inputs'",
    "action.fields.size + 1": "it is a number, but a condition must be true or false",
    "action.fields.note": "it is a string, but a condition must be true or false",
    "action.fields.note.all(c, c == 'x')": "needs a list or a map",
    "action.fields.labels.all(a, action.fields.labels.all(b, action.fields.labels.all(c, a == c)))": "3 comprehensions",
    "1 +": "this is not supported CEL",
    "exec('rm')": "there is no function 'exec'",
}


@pytest.mark.parametrize("condition", BAD)
def test_a_condition_over_unknown_facts_is_refused_with_its_line(condition: str) -> None:
    assert BAD[condition] in condition_problem(condition)


def test_a_field_must_exist_in_every_operation_of_its_rule() -> None:
    text = policy("when: \"action.fields.note == ''\"\nallow: true").replace(
        "label.add", "[label.add, label.remove]"
    )
    [line] = problems(text)
    assert "there is no action.fields.note; there are labels (of forge.label.remove)" in line


def test_a_long_condition_is_refused() -> None:
    assert "longer than 2048 bytes" in condition_problem("true" + " && true" * 300)


def test_all_problems_are_reported_at_once_with_their_lines() -> None:
    lines = problems("""\
version: 2
rules:
  - name: one
    connector: forge
    operation: label.ad
    when: action.fields.nope == 1
    allow: true
  - name: one
    connector: forg
    operation: label.add
    deny: no
    color: red
  - name: three
    connector: forge
    operation: "*"
    allow: false
  - name: four
    connector: forge
    operation: label.add
    when: time.noon
    approval: {people: 0, tier: huge, within: soon}
  - name: five
    connector: forge
    operation: label.add
    allow: true
    deny: both
tests:
  - name: a
    action: forge.label.zap
    expect: allow
  - name: b
    action: forge.label.add
    run: {label: x}
    expect: maybe
more: 1
""")
    assert [line.split(":")[1] for line in lines] == sorted((line.split(":")[1] for line in lines), key=int)
    for line, part in {
        1: "must be an integer from 1 to 1",
        5: "forge has no operation 'label.ad'; did you mean 'label.add'?",
        8: "rule 'one' is already defined in line 3",
        12: "has no 'color'",
        15: "must be an operation: letters",
        16: "must be true",
        20: "there is no time.noon",
        21: "must be an integer from 1 to 20",
        22: "exactly one of allow, deny, approval",
        29: "there is no operation forge.label.zap",
        34: "must be one of allow, deny, needs_approval",
        35: "has no 'more'",
    }.items():
        assert any(problem.startswith(f"p.yaml:{line}:") and part in problem for problem in lines), (
            line,
            part,
            lines,
        )


@pytest.mark.parametrize(
    "text", ["", "version: 1\n", "rules: []\nversion: 1\n", "[]", "version: 1\nrules: &a [*a]", "\t"]
)
def test_an_invalid_policy_is_refused(text: str) -> None:
    with pytest.raises(TenureError) as refused:
        load_policy(text)
    assert refused.value.code == "POLICY_INVALID"


def test_too_many_rules_about_one_operation_are_refused() -> None:
    assert (
        "101 rules are for forge.label.add; at most 100 are allowed"
        in problems(policy(*["allow: true"] * 101))[0]
    )


def test_the_schema_for_editors_is_up_to_date() -> None:
    assert find_stale(json_schemas.texts()) == [], "run `make docs`"
    kinds = policy_json_schema()["properties"]["rules"]["items"]["oneOf"]
    assert [{"allow", "deny", "approval"} & set(kind["properties"]) for kind in kinds] == [
        {"allow"},
        {"deny"},
        {"approval"},
    ]
