"""Suggestions for unknown words: "did you mean 'build'?".

Comparing texts is slow, and the sender chooses their number and length. So all suggestions are made here, at a bounded cost: `suggest`
compares a limited number of short names, and `Suggestions` makes only the first few suggestions for one document.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from tenure.limits import SUGGESTIONS_MAX

WORD_CHARS_MAX = 40
"""Longer words get no suggestion, and longer names are not suggested."""
NAMES_MAX = 24
"""Names that one word is compared with."""
LISTED_MAX = 30
"""Names that an error lists."""


def suggest(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names closest to a word, best first."""
    if len(word) > WORD_CHARS_MAX:
        return []
    names = [name for name in known if len(name) <= WORD_CHARS_MAX]
    if len(names) > NAMES_MAX:  # most mistakes keep the first letter and nearly the length
        names.sort(key=lambda name: (name[:1] != word[:1], abs(len(name) - len(word))))
        del names[NAMES_MAX:]
    return get_close_matches(word, names, n=most, cutoff=cutoff)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion as the end of a sentence. For a document that may have many such errors, use `Suggestions`."""
    found = suggest(word, known)
    return f"; did you mean {found[0]!r}?" if found else ""


def list_names(known: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = list(known)
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


class Suggestions:
    """The suggestions for one document: only the first few unknown words get one."""

    def __init__(self, most: int = SUGGESTIONS_MAX) -> None:
        self._left = most

    def close_to(self, word: str, known: Iterable[str], otherwise: str = "") -> str:
        """A suggestion as the end of a sentence. If no name is close, the known names are listed after `otherwise` ("there are", "it
        has")."""
        if self._left <= 0:
            return ""
        self._left -= 1
        names = list(known)
        guess = did_you_mean(word, names)
        return guess or (f"; {otherwise} {list_names(names)}" if otherwise and names else "")
