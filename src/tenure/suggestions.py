"""What may have been meant by a word that is not known: "did you mean 'build'?".

Comparing texts is slow, and whoever sends the word chooses how many there are and how long. So every suggestion of
Tenure is made here, and its cost is bounded: `suggest` looks at a bounded number of bounded names, and `Suggestions`
makes only the first few suggestions of one document.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from tenure.limits import SUGGESTIONS_MAX

WORD_CHARS_MAX = 40
"""Longer words get no suggestion, and longer names are none."""
NAMES_MAX = 24
"""Names that one word is compared with."""
LISTED_MAX = 30
"""Names that an error lists."""


def suggest(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that are closest to a word, best first."""
    if len(word) > WORD_CHARS_MAX:
        return []
    names = [name for name in known if len(name) <= WORD_CHARS_MAX]
    if len(names) > NAMES_MAX:  # most mistakes are behind the first letter, and change the length little
        names.sort(key=lambda name: (name[:1] != word[:1], abs(len(name) - len(word))))
        del names[NAMES_MAX:]
    return get_close_matches(word, names, n=most, cutoff=cutoff)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A guess at what was meant, as the end of a sentence. For an error that is raised at once; where one document may have
    many such errors, use `Suggestions`."""
    found = suggest(word, known)
    return f"; did you mean {found[0]!r}?" if found else ""


def list_names(known: Iterable[str]) -> str:
    """Names in an error: the first of them, and how many more there are."""
    names = list(known)
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


class Suggestions:
    """The suggestions for one document: the first few words get one, the others none."""

    def __init__(self, most: int = SUGGESTIONS_MAX) -> None:
        self._left = most

    def close_to(self, word: str, known: Iterable[str], otherwise: str = "") -> str:
        """A guess at what was meant, as the end of a sentence. `otherwise` introduces the list of known names, which stands
        where nothing is close: "there are", "it has"."""
        if self._left <= 0:
            return ""
        self._left -= 1
        names = list(known)
        guess = did_you_mean(word, names)
        return guess or (f"; {otherwise} {list_names(names)}" if otherwise and names else "")
