"""Shows text from untrusted sources so that nothing in it can be mistaken for something else.

Law: people see exactly what is there. Characters that are invisible, move the cursor or change the writing direction are shown by their
number. Long text is truncated visibly.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import msgspec

LINE_CHARS_MAX = 300
PARAGRAPH_CHARS_MAX = 1_000
LINES_MAX = 60
CUT = "…"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
"""Control and format characters (with bidirectional marks and joiners), unassigned characters, line separators, and other spaces."""
_BLANK = frozenset("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that look blank although they count as letters or marks."""


def escape_invisible(text: str) -> str:
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char == " " or ("!" <= char <= "~"):
        return char
    if char == "\n":
        return "⏎"
    hidden = unicodedata.category(char) in _HIDDEN or char in _BLANK or "\ufe00" <= char <= "\ufe0f"
    return f"<U+{ord(char):04X}>" if hidden else char


def truncate_text(text: str, chars_max: int = LINE_CHARS_MAX) -> str:
    """The text, truncated with the number of missing characters."""
    return f"{text[:chars_max]}{_missing(len(text) - chars_max)}"


def _missing(chars: int) -> str:
    return f"{CUT} ({chars} more characters)" if chars > 0 else ""


def display_value(value: Any, chars_max: int = LINE_CHARS_MAX) -> str:
    """A value for people: strings as they are, other values as JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
    return f"{escape_invisible(text[:chars_max])}{_missing(len(text) - chars_max)}"


def display_paragraph(text: str) -> list[str]:
    return [f"  {display_value(line, PARAGRAPH_CHARS_MAX)}" for line in text.split("\n")]


def display_pairs(fields: dict[str, Any], chars_max: int = LINE_CHARS_MAX) -> list[str]:
    return [f"  {display_value(name)} = {display_value(value, chars_max)}" for name, value in fields.items()]


def display_lines(*given: str) -> list[str]:
    """The lines, truncated with the number of missing lines."""
    if len(given) <= LINES_MAX:
        return list(given)
    return [*given[: LINES_MAX - 1], f"{CUT} and {len(given) - LINES_MAX + 1} more lines"]
