"""The canonical form of JSON: the examples of RFC 8785, integers in full, and one form for each value."""

import json
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure import canonical as canonical_form
from tenure.canonical import DuplicateName, canonical, canonical_number, decode_json, encode_json, is_equal
from tenure.errors import TenureError
from tenure.limits import CANONICAL_DIGITS_MAX
from tests.cases import cases
from tests.server.cpu_cost import grows_too_fast

NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
"""Appendix B: the bits of a double, and its text."""
IN_FULL = {
    "4430000000000000": "295147905179352825856",
    "44b52d02c7e14af5": "99999999999999974834176",
    "44b52d02c7e14af6": "99999999999999991611392",
    "44b52d02c7e14af7": "100000000000000008388608",
    "444b1ae4d6e2ef4e": "999999999999999737856",
    "444b1ae4d6e2ef4f": "999999999999999868928",
    "444b1ae4d6e2ef50": "1000000000000000000000",
}
"""The rest of Appendix B. Here our addition to the RFC makes a difference: integers are written in full."""


@pytest.mark.parametrize(("bits", "written"), (NUMBERS | IN_FULL).items())
def test_numbers_are_written_as_in_ecmascript_and_integers_in_full(bits: str, written: str) -> None:
    [double] = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_number(double) == written


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_values_that_are_not_numbers_are_refused(bits: str) -> None:
    [double] = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(TenureError, match="not a JSON number"):
        canonical_number(double)
    for value in (double, [double], {"a": double}):
        with pytest.raises(ValueError, match="JSON has no"):
            encode_json(value)


def test_the_example_of_section_3_2() -> None:
    given = rb"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = bytes.fromhex(
        "7b226c69746572616c73223a5b6e756c6c2c747275652c66616c73655d2c226e756d62657273223a5b3333333333333333332e33"
        "3333333333332c31652b33302c342e352c302e3030322c31652d32375d2c22737472696e67223a22e282ac245c75303030665c6e"
        "4127425c225c5c5c5c5c222f227d"
    ).replace(b"1e+30", b"1000000000000000019884624838656")
    assert canonical(msgspec.json.decode(given)) == expected


def test_names_are_sorted_by_utf_16_units() -> None:
    given = rb"""{
      "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh",
      "1": "One", "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O"
    }"""
    written: dict[str, str] = msgspec.json.decode(canonical(msgspec.json.decode(given)))
    assert list(written.values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1, "b": [true, {"d": null, "c": "x"}]}', b'{"b":[true,{"c":"x","d":null}],"a":1.0}'),
        (b'{"a": 100}', b'{"a": 1e2}'),
        (b'{"a": "\\u0061/"}', b'{"a": "a\\/"}'),
    ],
)
def test_two_texts_of_one_value_have_one_form(one: bytes, other: bytes) -> None:
    assert canonical(msgspec.json.decode(one)) == canonical(msgspec.json.decode(other))


@settings(max_examples=cases(300))
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.dictionaries(st.text(max_size=3), st.just(1), max_size=4),
)
@example(0.001, {"b": [1, -2, None, True, 'é\x1f"\\'], "a": {"~": {}, "A": [], "": "x"}, "\x7f": 2**53})
@example(0.00099999, {"\ud7ff": 1, "\ue000": 1, "\U0001f600": 1, "é": 1})
@example(2**53 - 0.5, {"\uffff": 1, "\U00010000": 1})
def test_the_fast_encoder_writes_the_same_as_the_slow_one(double: float, names: dict[str, Any]) -> None:
    value = [double, names]
    assert canonical(value) == canonical_form._Writer().write(value).encode()


# ----------------------------------------------------------------------------------------------- equality

_NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**53 + n for n in (-1, 0, 1, 2)]),
    st.sampled_from(
        [float(2**53), 0, -0.0, 1, 1.0, 10**21, 1e21, 10**23, 1e23, int(1e23), 2**63, 2**64, 1e300]
    ),
    st.integers(-(2**70), 2**70).map(float),
)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def equal(one: Any, other: Any) -> bool:
    """The same rule in another form: numbers are compared by exact value, everything else by type and parts."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return Fraction(one) == Fraction(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(part, other[name]) for name, part in one.items())
    return bool(one == other)


@settings(max_examples=cases(300), deadline=None)
@given(VALUES, VALUES)
@example(9007199254740993, 9007199254740992)
@example(9007199254740993, 9007199254740992.0)
@example(1234567890123456789, 1234567890123456788)
@example(295147905179352830000, 295147905179352825856.0)
@example(True, 1)
@example("\ufb33", "\ufb33")
def test_two_values_have_the_same_form_exactly_if_they_are_equal(one: Any, other: Any) -> None:
    assert is_equal(one, other) == equal(one, other)
    for value in (one, other):
        read = decode_json(canonical(value))
        assert equal(read, value), "the digested text has the given value"
        assert canonical(read) == canonical(value)
        assert equal(decode_json(encode_json(value)), value), "the sent text has the given value"


@settings(max_examples=cases(200), deadline=None)
@given(VALUES, st.booleans())
def test_a_text_with_duplicate_names_is_refused(value: Any, escaped: bool) -> None:
    text = json.dumps({"a": value, "b:": ["x:y", value]}, ensure_ascii=escaped)
    assert equal(decode_json(text), json.loads(text))
    twice = text[:-1] + ', "a": 1}'
    nested = f'[{text}, {{"c": {twice}}}]'
    hidden = text[:-1] + r', "\u0061": "\u003a\u003A::"}'
    for wrong in (twice, nested, hidden):
        with pytest.raises(DuplicateName, match="'a' twice"):
            decode_json(wrong.encode())


@pytest.mark.parametrize("value", ["\ud800", {"\ud800": 1}, ["x", "\udfff"]])
def test_half_of_a_surrogate_pair_has_no_form(value: Any) -> None:
    with pytest.raises(TenureError) as refused:
        canonical([0.5, value])
    assert refused.value.code == "INVALID_INPUT"
    with pytest.raises(ValueError, match="surrogates"):
        encode_json(value)


def test_names_that_become_one_text_are_refused() -> None:
    with pytest.raises(DuplicateName):
        encode_json({"a": {1: "x", "1": "y"}})
    assert encode_json({1: "x", "2": "y"}) == b'{"1":"x","2":"y"}'


# -------------------------------------------------------------------------------------------------------- cost

SHAPES: dict[str, Callable[[int], Any]] = {
    "large doubles": lambda n: [1e308] * n,
    "doubles without a fraction": lambda n: [1e20, 1.0] * (n // 2),
    "doubles with a fraction": lambda n: [0.1 + i for i in range(n)],
    "small doubles": lambda n: [1e-9] * n,
    "integers beyond 2^53": lambda n: [2**60] * (n // 4),
    "long integers": lambda n: [10**4000] * (n // 800),
    "names beyond the basic plane": lambda n: [{"\U0001f600": 1}] * (n // 2),
    "names of one object": lambda n: {f"\U0001f600{i}": 1 for i in range(n // 2)},
    "texts": lambda n: ["\u00e9"] * n,
    "lists": lambda n: [[]] * n,
}
NUMBERS_OF_A_BODY = 160_000
"""About as many of the shortest numbers as fit into a body of 1 MiB."""


@pytest.mark.parametrize("shape", SHAPES)
def test_encoding_takes_linear_time(shape: str) -> None:
    def work(size: int) -> Callable[[], Any]:
        value = SHAPES[shape](size)
        return lambda: canonical(value)

    assert grows_too_fast(work, NUMBERS_OF_A_BODY) == ""


def test_the_size_of_large_doubles_is_limited() -> None:
    """Counts the numbers that are written in full, so that the speed of the machine does not matter."""
    fitting = CANONICAL_DIGITS_MAX // 309
    assert len(canonical([1e308] * fitting)) == fitting * 310 + 1
    for size in (fitting + 1, 2 * fitting, 12 * fitting):
        for value in ([1e308] * size, {"a": [-1e308] * size}):
            written: list[float] = []

            def note(one: float, written: list[float] = written) -> str:
                written.append(one)
                return canonical_number(one)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(canonical_form, "canonical_number", note)
                with pytest.raises(TenureError, match="send them as texts"):
                    canonical(value)
            assert len(written) <= fitting + 1
    assert canonical([1e20] * 200_000).count(b"0") == 20 * 200_000, "shorter numbers do not count"
