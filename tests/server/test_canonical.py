"""The canonical form of JSON, by the examples of RFC 8785."""

import struct

import msgspec
import pytest

from tenure.canonical import canonical, number

NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
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
"""Appendix B: the bits of a double, and how it is written."""


@pytest.mark.parametrize(("bits", "written"), NUMBERS.items())
def test_numbers_are_written_as_ecmascript_does(bits: str, written: str) -> None:
    [double] = struct.unpack(">d", bytes.fromhex(bits))
    assert number(double) == written


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_what_is_no_number_is_refused(bits: str) -> None:
    [double] = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(ValueError, match="no such number"):
        number(double)


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
    )
    assert canonical(msgspec.json.decode(given)) == expected


def test_names_are_in_the_order_of_their_utf_16_units() -> None:
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
def test_two_texts_of_one_value_are_one(one: bytes, other: bytes) -> None:
    assert canonical(msgspec.json.decode(one)) == canonical(msgspec.json.decode(other))


def test_the_quick_way_writes_what_the_long_one_does() -> None:
    from tenure.canonical import _written

    value = {"b": [1, -2, None, True, 'é\x1f"\\'], "a": {"~": {}, "A": [], "": "x"}, "\x7f": 2**53}
    assert canonical(value) == _written(value).encode()
