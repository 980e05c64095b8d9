"""Expressions and templates: paths, CEL, references and limits."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import TenureError
from tenure.expressions import expression, templates
from tenure.expressions.expression import MalformedExpression

SCOPE: dict[str, Any] = {
    "inputs": {"ref": "main", "n": 3, "dry": False, "list": [1, {"a": "b"}], "none": None, "f": 1.5},
    "steps": {"run-tests": {"output": {"ok": True, "odd key": 1}}},
    "run": {"id": "run_1", "workflow": "w", "attempt": 1},
    "trigger": {"ref": None},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${{ inputs.ref }}", "main"), ("${{inputs.n}}", 3), ("${{ inputs.list[1].a }}", "b"),
        ("${{ inputs.dry }}", False), ("${{ inputs['ref'] }}", "main"), ('${{ inputs["list"][0] }}', 1),
        ("${{ steps.run-tests.output.ok }}", True), ("${{ steps['run-tests'].output['odd key'] }}", 1),
        ("${{ inputs.none }}", None), ("${{ inputs }}", SCOPE["inputs"]), ("plain", "plain"), ("", ""),
        ("a-${{ inputs.ref }}-${{ inputs.n }}", "a-main-3"), ("${{ inputs.dry }}!", "false!"),
        ("${{ inputs.none }}${{ inputs.list }}", 'null[1,{"a":"b"}]'), ("$${{ inputs.n }}}", "$3}"),
        ("${{ inputs.n + 1 }}", 4), ("${{ inputs.n > 2 ? 'big' : 'small' }}", "big"),
        ("${{ {'a': {'b': inputs.n}} }}", {"a": {"b": 3}}), ("${{ '}}' + inputs.ref }}", "}}main"),
        ("${{ has(inputs.gone) ? inputs.gone : 'x' }}", "x"), ("${{ inputs.list.size() }}", 2),
        ("${{ [1, 2].map(x, x * 2) }}", [2, 4]), ("${{ true }}", True), ("${{ 'inputs.secret' }}", "inputs.secret"),
        ("$ {{ inputs.n }}", "$ {{ inputs.n }}"), ("{{ inputs.n }}", "{{ inputs.n }}"),
    ],
)  # fmt: skip
def test_a_template_evaluates_to_its_value(text: str, value: Any) -> None:
    found = templates.parse_template(text).value(SCOPE)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inputs.gone", "inputs has no 'gone'"), ("inputs.list[7]", "inputs.list has 2 items"),
        ("inputs.ref.x", "inputs.ref is a string and has no 'x'"), ("inputs.none.x", "inputs.none is null"),
        ("inputs.ref[0]", "inputs.ref is a string, not a list"), ("slot", "'slot' is not available here"),
        ("inputs.n / 0", "division by zero"), ("inputs.gone + 1", "there is no 'gone'"),
        ("inputs.ref + 1", "string"), ("timestamp('2026-01-01T00:00:00Z')", "convert it with string"),
        ("b'abc'", "convert it with string"), ("{1: 2}", "keys of a map must be strings"), ("double('inf')", "JSON cannot represent"),
        ("slot == 1", "'slot' is not available here"),
    ],
)  # fmt: skip
def test_an_expression_without_a_value_reports_why(text: str, message: str) -> None:
    with pytest.raises(TenureError) as caught:
        expression.parse_expression(text).value(SCOPE)
    assert caught.value.code == "EXPRESSION_FAILED"
    assert message in caught.value.message
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("text", "refers"),
    [
        ("inputs.a.b[0]", ["inputs.a.b[0]"]),
        ("steps.a.output + steps['b-c'].output.x", ["steps.a.output", "steps.b-c.output.x"]),
        ("inputs.a.startsWith('steps.b') && run.id == ''", ["inputs.a", "run.id"]),
        ("x.inputs", None),
        ("[1].all(steps, steps > 0)", None),
        ("steps[inputs.a].output", ["steps", "inputs.a"]),
        ("inputs.l.map(i, i.steps.a)", ["inputs.l"]),
        ('r"\\" + steps.b.output + "x"', ["steps.b.output"]),
        ("'''a' + steps.x''' + steps.b.output", ["steps.b.output"]),
        ("steps.a.output == .steps.b.output", None),
        ("inputs.a // steps.b.output\n == 1", ["inputs.a"]),
    ],
)  # fmt: skip
def test_the_names_that_an_expression_reads_are_known(text: str, refers: list[str] | None) -> None:
    if refers is None:
        with pytest.raises(MalformedExpression):
            expression.parse_expression(text)
    else:
        assert [str(r) for r in expression.parse_expression(text).refers] == refers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'" + "x" * 3_000 + "'", "longer than 2048 bytes"), ("", "empty"), ("1 +", "CEL"), ("(" * 500, "nested deeper than 50"),
        ("foo.bar", "there is no 'foo'"), ("foo.bar == 1", "there is no 'foo'"),
        ("inputs.a.map(x, inputs.a.map(y, inputs.a.map(z, z)))", "3 comprehensions"),
        ("__import__('os')", "there is no function"), ("inputs.a; inputs.b", "CEL"),
        ("inputs.a.startswith('x')", "there is no function 'startswith'; did you mean 'startsWith'?"),
        ("inputs.a" + ".map(x, x)" * 9, "more than 8 comprehensions"),
    ],
)  # fmt: skip
def test_an_invalid_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(MalformedExpression) as caught:
        expression.parse_expression(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("sha256(inputs.ref)", b'"main"'), ("sha256(inputs.n)", b"3"), ("sha256(inputs.none)", b"null"), ("sha256(1.0)", b"1"),
        ("sha256(inputs.list)", b'[1,{"a":"b"}]'), ("sha256({'b': 1, 'a': [true, 1.5]})", b'{"a":[true,1.5],"b":1}'),
        ("sha256(sha256('x'))", b'"' + hashlib.sha256(b'"x"').hexdigest().encode() + b'"'), ("sha256('\u00e9')", '"\u00e9"'.encode()),
    ],
)  # fmt: skip
def test_sha256_is_the_digest_of_the_canonical_json(text: str, form: bytes) -> None:
    assert expression.parse_expression(text).value(SCOPE) == hashlib.sha256(form).hexdigest()


def test_a_key_can_hold_a_hash_of_chosen_fields() -> None:
    key = templates.parse_template("sn:${{ inputs.id }}:${{ sha256(inputs.fields) }}")
    one = key.value({"inputs": {"id": "7", "fields": {"state": 2, "note": "a"}}})
    assert one == key.value({"inputs": {"id": "7", "fields": {"note": "a", "state": 2.0}}})
    assert one != key.value({"inputs": {"id": "7", "fields": {"note": "b", "state": 2}}})
    assert [str(reference) for reference in key.refers] == ["inputs.id", "inputs.fields"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sha256(b'abc')", "bytes is none"), ("sha256([timestamp('2026-01-01T00:00:00Z')])", "datetime is none"),
        ("sha256(double('inf')) == 'x'", "is not a JSON number"), ("sha256({1: 2})", "is not a text"),
        ("true || sha256(double('nan')) == ''", None), ("sha256([1e308].map(x, x * 10.0))", "is not a JSON number"),
    ],
)  # fmt: skip
def test_a_value_that_is_no_json_has_no_digest(
    text: str, message: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    parsed = expression.parse_expression(text)
    if message is None:
        assert parsed.value(SCOPE) is True, "what is not evaluated cannot fail"
    else:
        with pytest.raises(TenureError) as caught:
            parsed.value(SCOPE)
        assert (caught.value.code, message in caught.value.message) == ("EXPRESSION_FAILED", True), (
            caught.value.message
        )
    assert capfd.readouterr().err == "", "the library writes nothing"


@pytest.mark.parametrize("text", ["sha256()", "sha256(1, 2)", "inputs.ref.sha256()", "inputs.ref.sha256(1)"])
def test_sha256_takes_one_value(text: str) -> None:
    with pytest.raises(MalformedExpression, match=r"sha256\(\) takes one value"):
        expression.parse_expression(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_a_value_passes_through_a_template_unchanged(value: Any) -> None:
    scope = {"inputs": {"v": value}}
    assert templates.parse_template("${{ inputs.v }}").value(scope) == value
    assert templates.parse_template("<${{ inputs.v }}>").value(scope) == f"<{templates.format_value(value)}>"


@given(json_values)
def test_results_are_never_evaluated_again(value: Any) -> None:
    hostile = {"steps": "${{ steps.secret.output }}", "value": value}
    left: list[templates.TemplatePlace] = []
    closed = templates.evaluate_known_templates(
        {"a": "${{ inputs }}", "b": "${{ run.id }}"}, {"inputs": hostile}, (), left
    )
    assert closed["a"] == hostile
    assert left == [("b",)]
    filled = templates.evaluate_open_templates(closed, {"run": {"id": "r"}}, (), frozenset(left))
    assert filled == {"a": hostile, "b": "r"}


@given(st.text(alphabet="ab${}'\" .", max_size=30))
def test_the_parts_of_a_template_join_to_its_text(text: str) -> None:
    try:
        parts = list(templates.split_template(text))
    except MalformedExpression:
        assert templates.OPEN in text
    else:
        assert "".join(part if literal else "${{" + part + "}}" for literal, part in parts) == text


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused_and_evaluates_or_fails(text: str) -> None:
    try:
        parsed = expression.parse_expression(text)
    except MalformedExpression:
        return
    code = "EXPRESSION_FAILED"
    try:
        parsed.value(SCOPE)
    except TenureError as fault:
        code = fault.code
    assert code == "EXPRESSION_FAILED"
