"""No expression can end the process: its work and memory are bounded before CEL evaluates it.

The expressions here are evaluated in a process with real limits of memory (RLIMIT_AS) and CPU time, in which CEL would abort.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.errors import TenureError
from tenure.expressions import expression
from tenure.expressions.cost import (
    CostExceeded,
    _Walk,
    bound_by_size,
    bound_cost,
    bound_pattern_cost,
    bound_value,
)
from tenure.expressions.expression import MalformedExpression
from tenure.limits import COMPREHENSIONS_NESTED_MAX, EXPRESSION_WORK_MAX
from tests.cases import cases
from tests.expressions.evaluator import CPU_SECONDS, Evaluator
from tests.expressions.meter import metered_work

DOUBLED = ".map(x, " + "+".join("x" * 30) + ")"
SCOPE: dict[str, Any] = {
    "inputs": {
        "text": "a" * 20_000,
        "list": list(range(700)),
        "texts": ["abc " * 25] * 200,
        "maps": [{"id": i, "tags": ["x"] * 20, "text": "y" * 200} for i in range(60)],
        "large": "a" * 1_000_000,
        "many": [{"b": i} for i in range(20_000)],
        "number": 1.5,
        "pattern": "(a{1,50}b?){1,40}c",
    },
    "run": {"id": "run_1"},
}


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    """One process for all tests."""
    made = Evaluator()
    yield made
    made.close()


VERBOSE = [
    'inputs.large.matches("(?x)#[\\n(?:[a-z]{1,60}x?){0,60}[^a-z]")',
    'inputs.large.matches("(?ix:(?:[a-z]{1,60}x?){ 0,60}[^a-z])")',
]
NASTY = [
    *VERBOSE,
    '["AAAA"]' + DOUBLED * 6,
    "[b'AAAA']" + DOUBLED * 6,
    "[['A', 'A']]" + DOUBLED * 6,
    '["AAAA"]' + ".map(x, x+x+x+x+x+x+x+x+x+x+x+x+x+x+x+x)" * 8,
    "[[1, 2, 3]].map(x, x.map(y, x).map(z, x + x))",
    "+".join(["inputs.large"] * 150),
    "+".join(["inputs.list"] * 150),
    "inputs.list.map(x, inputs.list.map(y, inputs.text))",
    "inputs.texts.map(x, inputs.texts.map(y, x + y))",
    "inputs.list.map(x, inputs.list)",
    "inputs.texts.map(x, string(inputs.large))",
    "inputs.many.map(x, x)",
    "inputs.many.filter(x, true)",
    "inputs.many.filter(x, inputs.many.exists(y, x == y))",
    "inputs.many.all(x, inputs.many.all(y, x.b + y.b >= 0))",
    "inputs.many.exists_one(x, inputs.large.contains(string(x.b)))",
    "inputs.list.all(x, inputs.many == inputs.many)",
    "inputs.list.all(x, {'a': inputs.many, 'b': inputs.many}.a == [])",
    "inputs.list.map(x, {'a': {'b': [x, x, inputs.text]}})",
    "sha256(inputs)",
    "sha256(inputs.many)",
    "inputs.list.map(x, sha256(inputs.large))",
    "inputs.list.all(x, sha256(inputs.maps) != '')",
    "sha256(inputs.list.map(x, 1e308))",
    "sha256([inputs.large, inputs.large, inputs.large])",
    "inputs.large.matches('(a{1,50}b?){1,40}c')",
    "inputs.large.matches(inputs.pattern)",
    "inputs.text.matches('(a{1,50}b?){1,40}c')",
    "inputs.text.matches('([a-z]{0,100}){0,90}[0-9]')",
    "inputs.list.all(x, 'a'.matches('(\\\\w{10}){9}'))",
    "inputs.list.all(x, 'a'.matches(r'\\pL{100}'))",
    "inputs.texts.all(x, 'a'.matches(x))",
    "'a'.matches('(?:){1000000000}')",
    "'a'.matches('((((a{100}){100}){100}){100})')",
    "'a'.matches('" + "(" * 900 + ")" * 900 + "')",
    "(" * 1_000 + "1" + ")" * 1_000,
    "!" * 2_000 + "true",
    "-" * 2_000 + "1",
    "[" * 1_000 + "]" * 1_000,
    '{"a":' * 300 + "1" + "}" * 300,
    "true ? " * 250 + "1" + " : 1" * 250,
    "inputs" + ".a" * 900,
    "inputs" + "[0]" * 600,
    "1" + "+1-1" * 400,
    "size(" * 300 + "''" + ")" * 300,
    "1" * 2_000,
    "0x" + "f" * 2_000,
    "1e" + "9" * 1_000,
    "1." + "1" * 2_000,
    "9223372036854775807 + 1",
    "-(-9223372036854775807 - 1)",
    "[9223372036854775807, -9223372036854775807].map(x, x * x)",
    "int(1e300)",
    "uint(-1)",
    "double('1e999')",
    "1 / 0",
    "1 % 0",
    "timestamp('9999-12-31T23:59:59Z') + duration('1000000000h')",
    "timestamp('0001-01-01T00:00:00Z') - duration('1000000000h')",
    "duration('9999999999999999999999h')",
    "duration('-9223372036854775808ns') - duration('9223372036854775807ns') - duration('9223372036854775807ns')",
    "string(timestamp('2020-01-01T00:00:00+99:99'))",
    "timestamp(inputs.large)",
    "duration(inputs.large)",
    "int(inputs.large)",
    "inputs.list[9223372036854775807]",
    "inputs.list[-1]",
    "'\\ud800'",
    "b'\\377' + b'\\000'",
    "string(b'\\377')",
    "[1].map(x, x, x, x)",
    "[1].map(1, 1)",
    "[1].all(x, y, true)",
    "[1].transformList(i, v, v)",
    "optional.of(1)",
    "inputs.?a",
    "Foo{a: 1}",
    "cel.bind(x, 1, x)",
]


@pytest.mark.guard_seconds(300)
@pytest.mark.parametrize("source", NASTY, ids=lambda source: source[:40])
def test_known_hostile_expressions_stay_within_the_budget(evaluator: Evaluator, source: str) -> None:
    said = evaluator.ask(source, SCOPE)
    assert said["cpu"] < CPU_SECONDS, said


# ------------------------------------------------------------------------------------------ random expressions

_ATOMS = st.sampled_from(
    [
        "'AAAA'", "''", "b'AA'", "[1, 2, 3]", "['ab', 'cd']", "[[1], [2]]", "{'k': 'v'}", "{}", "7", "1.5", "true", "null",
        "inputs.text", "inputs.list", "inputs.texts", "inputs.maps", "inputs", "inputs.maps[0].tags", "inputs.large",
        "x", "x", "y", "inputs.number", "run.id",
    ]
)  # fmt: skip
_PATTERNS = st.sampled_from(
    [
        "'a+'",
        r"r'(\\w+\\s?)+$'",
        "'(a|b)*c'",
        "'[a-z]{1,40}x'",
        "'(a{1,9}){1,9}b'",
        r"r'^\\pL+\\d$'",
        "x",
        "inputs.pattern",
    ]
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda p: f"({p[0]} + {p[1]})"),
        st.tuples(inner, st.integers(2, 12)).map(lambda p: "(" + " + ".join([p[0]] * p[1]) + ")"),
        two.map(lambda p: f"[{p[0]}, {p[1]}]"),
        st.tuples(inner, st.integers(2, 12)).map(lambda p: "[" + ", ".join([p[0]] * p[1]) + "]"),
        two.map(lambda p: f"{{'a': {p[0]}, 'b': {p[1]}}}"),
        two.map(lambda p: f"{p[0]}.map(x, {p[1]})"),
        two.map(lambda p: f"{p[0]}.map(y, {p[1]})"),
        two.map(lambda p: f"{p[0]}.filter(x, {p[1]} != null)"),
        two.map(lambda p: f"{p[0]}.all(x, {p[1]} != 1)"),
        two.map(lambda p: f"{p[0]}.exists_one(y, {p[1]} == y)"),
        two.map(lambda p: f"({p[0]} == {p[1]})"),
        two.map(lambda p: f"({p[0]} in {p[1]})"),
        two.map(lambda p: f"(true ? {p[0]} : {p[1]})"),
        st.tuples(inner, _PATTERNS).map(lambda p: f"{p[0]}.matches({p[1]})"),
        inner.map(lambda one: f"string({one})"),
        inner.map(lambda one: f"size({one})"),
        inner.map(lambda one: f"sha256({one})"),
        inner.map(lambda one: f"{one}[0]"),
        inner.map(lambda one: f"{one}.tags"),
        inner.map(lambda one: f"{one}.a"),
    )


EXPRESSIONS = st.recursive(_ATOMS, _grown, max_leaves=9).map(
    lambda text: f"[{text}].map(x, {text})" if "x" in text else text
)


@pytest.mark.guard_seconds(300)
@settings(max_examples=cases(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EXPRESSIONS)
def test_random_expressions_stay_within_the_budget(evaluator: Evaluator, source: str) -> None:
    said = evaluator.ask(source, SCOPE)
    assert said["cpu"] < CPU_SECONDS, said


# ----------------------------------------------------------------------------------------------- the bounds


@pytest.mark.parametrize(
    "source",
    [
        "inputs.list.map(x, x * 2)",
        "inputs.texts.filter(x, x.contains('b'))",
        "inputs.list.exists(x, x == 7)",
        "inputs.maps.map(m, {'id': m.id, 'text': m.text})",
        "inputs.maps.all(m, m.tags.all(t, t == 'x'))",
        "inputs.text.matches('^a+$')",
        "inputs.maps.exists(m, m.text.matches(r'^\\w+$'))",
        "inputs.large.startsWith('aaa') && size(inputs.large) > 10",
        "'<' + inputs.text + '>' + inputs.text",
        "[1, 2, 3].map(x, x + 1) + [4]",
        "timestamp('2026-01-05T12:00:00Z').getHours() == 12",
    ],
)
def test_realistic_expressions_fit_the_budget(source: str) -> None:
    assert expression.parse_expression(source).value(SCOPE) is not None


@pytest.mark.parametrize("source", VERBOSE)
def test_a_pattern_that_the_cost_model_cannot_read_is_refused(source: str) -> None:
    with pytest.raises((MalformedExpression, TenureError), match="it may take too much"):
        expression.parse_expression(source).value(SCOPE)


@pytest.mark.parametrize("source", NASTY[2:6])
def test_an_expression_that_always_exceeds_the_budget_is_refused_at_load(source: str) -> None:
    with pytest.raises(MalformedExpression, match="with any input, it may take too much"):
        expression.parse_expression(source)


def test_an_expression_over_its_budget_raises_an_error() -> None:
    one = expression.parse_expression("inputs.l.map(x, x)")
    assert one.value({"inputs": {"l": ["a"] * 500}}) == ["a"] * 500
    with pytest.raises(TenureError, match="may take too much time") as refused:
        one.value({"inputs": {"l": ["a"] * 5_000}})
    assert refused.value.code == "EXPRESSION_FAILED"
    with pytest.raises(TenureError, match="bytes; CEL is given at most"):
        expression.parse_expression("size(inputs.t) > 0").value({"inputs": {"t": "x" * 5_000_000}})


def test_related_expressions_share_one_budget() -> None:
    one = expression.parse_expression("inputs.l.map(x, x)")
    scope = {"inputs": {"l": ["a"] * 600}}
    found: list[Any] = []

    def again_and_again() -> None:
        while len(found) < 100:
            found.append(one.value(scope))

    with expression.shared_budget(), pytest.raises(TenureError, match="too much time together"):
        again_and_again()
    assert 1 < len(found) < 20
    assert one.value(scope)


def test_an_expression_gets_only_the_values_it_reads() -> None:
    scope = {"inputs": {"a": {"b": 1}, "other": "x" * 10_000_000, "huge": 2**70}}
    assert expression.parse_expression("inputs.a.b + 1").value(scope) == 2
    assert expression.parse_expression("has(inputs.a.c)").value(scope) is False
    assert expression.parse_expression("has(inputs.a.b) && !has(inputs.none)").value(scope) is True


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(max_size=40),
    lambda below: st.lists(below, max_size=6) | st.dictionaries(st.text(max_size=8), below, max_size=6),
    max_leaves=20,
)


@settings(max_examples=cases(200), deadline=None)
@given(
    _VALUES,
    st.sampled_from(
        ["inputs.v == inputs.v", "[inputs.v].map(x, [x, x])", "[inputs.v].all(x, x != 1)", "[inputs.v]"]
    ),
)
def test_size_bounds_hold_for_every_value(value: Any, source: str) -> None:
    """The bound for a size is no lower than the bound for a value of that size."""
    found = expression.parse_expression(source)
    assert found.bound is not None
    seen = {"inputs": {"v": value}}

    def shape(root: str) -> Any:
        return bound_value(seen[root])

    by_size = found.bound.work(expression.measure_values(seen), shape)
    exact = found.bound.work(expression.MEASURE_EXACTLY, shape)
    assert exact <= by_size <= EXPRESSION_WORK_MAX


# ------------------------------------------------------------------------ no bound is below the real work

_MADE = "inputs.v.map(x, inputs.v)"
_FORTY = f"[{', '.join(['inputs.v'] * 40)}]"
MIXED = [
    f"(inputs.c ? inputs.v : {_MADE}).map(w, w.map(z, w))",
    f"(inputs.c ? inputs.v : {_MADE}).map(w, {' + '.join('w' * 20)})",
    f"(inputs.c ? inputs.v : {_MADE}).all(w, (w + w + w + w + w + w).map(z, 1) != [])",
    f"(inputs.c ? inputs.v : {_FORTY}).map(w, w.map(z, w))",
    f"(inputs.c ? inputs.v : {_FORTY}).all(w, w.map(z, w + w + w) != [])",
    f"(inputs.v + {_FORTY}).filter(w, w != 1)",
    f"(inputs.v + {_MADE}).map(w, [w, w, w])",
    f"[inputs.v, {_FORTY}].map(w, w.map(z, w))",
    f"[inputs.v, {_MADE}][1].map(w, w.map(z, w))",
]
"""A value of which only the size is known, and, instead of it or next to it, a much larger value that was made from it."""


def too_low(source: str, seen: dict[str, Any]) -> str:
    """Why a bound of an expression is below its work for these values; "" if none is."""
    bounded = expression.parse_expression(source).bound
    if bounded is None:
        return ""  # a plain path
    tree, size = bounded._tree, expression.measure_values(seen)
    try:
        work = metered_work(tree, seen)
    except (LookupError, TypeError):
        return ""
    for how, scope in (
        ("size", {"inputs": bound_by_size(1 << size)}),
        ("values", {"inputs": bound_value(seen["inputs"])}),
    ):
        with suppress(CostExceeded):
            bound = bound_cost(tree, scope).work
            if bound < work:
                return f"{source[:100]} takes {work}, and at most {bound} by its {how}"
    return ""


@pytest.mark.parametrize("source", MIXED, ids=lambda source: source[:60])
def test_values_next_to_a_value_of_unknown_type_are_counted(source: str) -> None:
    reasons = [too_low(source, {"inputs": {"c": False, "v": [1] * count}}) for count in (5, 17, 49)]
    assert [one for one in reasons if one] == []


_PLAIN = st.sampled_from(
    ["inputs.v", "inputs.v", "inputs.w", "[]", "[1, 2]", "[inputs.v]", "[inputs.w, inputs.w]", "x", "y"]
)


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda p: f"({p[0]} + {p[1]})"),
        two.map(lambda p: f"(inputs.c ? {p[0]} : {p[1]})"),
        st.tuples(inner, st.integers(2, 20)).map(lambda p: "(" + " + ".join([p[0]] * p[1]) + ")"),
        st.tuples(inner, st.integers(2, 20)).map(lambda p: "[" + ", ".join([p[0]] * p[1]) + "]"),
        st.tuples(inner, inner, st.sampled_from("xy")).map(lambda p: f"{p[0]}.map({p[2]}, {p[1]})"),
        st.tuples(inner, inner, st.sampled_from("xy")).map(lambda p: f"{p[0]}.all({p[2]}, {p[1]} != [])"),
        two.map(lambda p: f"{p[0]}.filter(x, {p[1]} != [])"),
        inner.map(lambda one: f"{one}[0]"),
    )


@settings(max_examples=cases(60), deadline=None)
@given(
    st.recursive(_PLAIN, _wider, max_leaves=6),
    st.booleans(),
    st.integers(0, 60),
    st.lists(st.sampled_from([1, "", "text" * 9, [1, 1], {"a": 1}]), max_size=9),
)
def test_the_bound_is_never_below_the_actual_cost(
    source: str, choice: bool, count: int, other: list[Any]
) -> None:
    seen = {"inputs": {"c": choice, "v": [1] * count, "w": other}}
    with suppress(MalformedExpression):
        assert too_low(source, seen) == ""


def test_nested_comprehensions_are_analysed_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts steps. Each comprehension is analysed twice (few large items, many small ones). The depth of nesting is limited."""
    steps = 0
    walked = _Walk.shape

    def shape(self: _Walk, tree: Any, scope: Any) -> Any:
        nonlocal steps
        steps += 1
        return walked(self, tree, scope)

    monkeypatch.setattr(_Walk, "shape", shape)
    taken = []
    for count in (1, 2, 4):  # side by side, each nested as deeply as allowed
        inner = "x"
        for _ in range(COMPREHENSIONS_NESTED_MAX):
            inner = f"inputs.v.exists(x, {inner} != 1)"
        source = " && ".join([inner] * count)
        tree = expression.parse_expression(source).bound
        assert tree is not None
        steps = 0
        bound_cost(tree._tree, {"inputs": bound_by_size(8)})
        taken.append(steps)
    assert taken[2] <= 2 * taken[1] <= 4 * taken[0] + 4
    assert taken[0] <= 2**COMPREHENSIONS_NESTED_MAX * 10
    deeper = "x"
    for _ in range(COMPREHENSIONS_NESTED_MAX + 1):
        deeper = f"inputs.v.exists(x, {deeper} != 1)"
    steps = 0
    with pytest.raises(MalformedExpression):
        expression.parse_expression(deeper)
    assert steps == 0, "it is refused before it is analysed"


@pytest.mark.parametrize(
    ("source", "value", "outcome"),
    [
        ("[inputs.v]", 9007199254740993, [9007199254740993]),
        ("[inputs.v]", 18446744073709551615, [18446744073709551615]),
        ("[inputs.v]", 18446744073709551616, "64 bits"),
        ("[inputs.v]", -9223372036854775808, "64 bits"),
        ("inputs.v", 2**200, 2**200),
        ("inputs.v == 9007199254740992.0", 9007199254740993, "would round"),
        ("inputs.v in [9007199254740992.0]", 9007199254740993, "would round"),
        ("inputs.v == 9007199254740993", 9007199254740992.0, "would round"),
        ("inputs.v < 0.5", 9007199254740993, "would round"),
        ("inputs.v == 9007199254740992", 9007199254740993, False),
        ("double(inputs.v) > 0.0", 9007199254740993, "round it"),
        ("inputs.v == 1.0", 1, True),
        ("string(inputs.v)", 9007199254740993, "9007199254740993"),
        ("int(string(inputs.v)) == inputs.v", 9007199254740993, True),
    ],
)
def test_numbers_are_not_changed(source: str, value: Any, outcome: Any) -> None:
    found = expression.parse_expression(source)
    if isinstance(outcome, str) and not source.startswith("string"):
        with pytest.raises(TenureError, match=outcome):
            found.value({"inputs": {"v": value}})
    else:
        assert found.value({"inputs": {"v": value}}) == outcome


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ("a+", "a{100}"),
        ("(ab)+", "(ab){50}"),
        ("[a-z]", "[a-z]{9}"),
        ("a", r"\w"),
        ("(a{9}){9}", "(a{99}){99}"),
        ("(a)", "((a){50}){50}"),
    ],
)
def test_repetitions_make_a_pattern_expensive(small: str, large: str) -> None:
    assert bound_pattern_cost(small)[0] < bound_pattern_cost(large)[0]


def test_a_panic_of_the_library_is_an_ordinary_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As the library raises it."""

    class Panics:
        def execute(self, given: Any) -> Any:
            raise PanicException("index out of bounds")

    found = expression.parse_expression("[inputs.v]")
    monkeypatch.setattr(expression, "compile_cel", lambda _: Panics())
    with pytest.raises(TenureError, match="CEL failed internally"):
        found.value({"inputs": {"v": 1}})
