"""Text of others in words for people: nothing in it can pass for something else.

Law: what people are shown is what is there. Characters that do not show, that move the cursor or that turn the direction of reading are
shown by their number, and nothing is longer than fits.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import msgspec

LINE_CHARS_MAX = 300
LINES_MAX = 60
CUT = "…"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, formats (bidi marks and joiners are among them), what has no meaning, and breaks of lines."""
_BLANK = frozenset("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that take no or blank room although their category is a letter's or a mark's."""


def visible(text: str) -> str:
    """A text with everything in it to be seen."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char == " " or ("!" <= char <= "~"):
        return char
    if char == "\n":
        return "⏎"
    category = unicodedata.category(char)
    hidden = category in _HIDDEN or category == "Zs" or char in _BLANK or "\ufe00" <= char <= "\ufe0f"
    return f"<U+{ord(char):04X}>" if hidden else char


def bounded(text: str, chars_max: int = LINE_CHARS_MAX) -> str:
    """A text that fits, and says how much of it does not."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}{CUT} ({len(text) - chars_max} more characters)"


def shown(value: Any, chars_max: int = LINE_CHARS_MAX) -> str:
    """A value as people read it: texts as they are, all else as JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
    more = len(text) - chars_max
    return visible(text) if more <= 0 else f"{visible(text[:chars_max])}{CUT} ({more} more characters)"


def lines(*given: str) -> list[str]:
    """Lines that fit, the last one of which says how many do not."""
    if len(given) <= LINES_MAX:
        return list(given)
    return [*given[: LINES_MAX - 1], f"{CUT} and {len(given) - LINES_MAX + 1} more lines"]
