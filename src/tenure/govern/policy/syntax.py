"""The shape of a CEL text: the library gives no tree, and a check of field paths needs one.

Law: it is given what CEL has accepted already. What it does not know of the grammar it refuses (`Unfollowed`), so that nothing
passes a check unseen.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenure.declared.expressions import tokens_of


class Unfollowed(ValueError):
    """A text that cannot be followed; what it says is meant for whoever wrote it."""


class Literally(msgspec.Struct, frozen=True):
    """A value that is written out: a text has its value, everything else its type alone."""

    type: Literal["string", "number", "boolean", "null", "bytes"]
    value: Any = None


class Name(msgspec.Struct, frozen=True):
    """A root, or the variable of a comprehension."""

    name: str


class Member(msgspec.Struct, frozen=True):
    """`of.name`"""

    of: Expr
    name: str


class Index(msgspec.Struct, frozen=True):
    """`of[by]`"""

    of: Expr
    by: Expr


class Call(msgspec.Struct, frozen=True):
    """`name(arguments)`, or `of.name(arguments)`."""

    name: str
    of: Expr | None
    arguments: tuple[Expr, ...]


class Listed(msgspec.Struct, frozen=True):
    """`[items]`"""

    items: tuple[Expr, ...]


class Mapped(msgspec.Struct, frozen=True):
    """`{key: value}`"""

    entries: tuple[tuple[Expr, Expr], ...]


class Choice(msgspec.Struct, frozen=True):
    """`condition ? yes : no`"""

    condition: Expr
    yes: Expr
    no: Expr


class Operator(msgspec.Struct, frozen=True):
    """One or two operands; the sign says what comes out."""

    sign: str
    operands: tuple[Expr, ...]


Expr = Literally | Name | Member | Index | Call | Listed | Mapped | Choice | Operator

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("<=", ">=", "==", "!=", "<", ">", "in"),
    ("+", "-"),
    ("*", "/", "%"),
)
"""Binary operators, those that bind least first."""
_WORDS: dict[str, Literally] = {
    "true": Literally("boolean"),
    "false": Literally("boolean"),
    "null": Literally("null"),
}
_DOUBLE = frozenset({"||", "&&", "<=", ">=", "==", "!="})


def parsed(source: str) -> Expr:
    """The tree of a text."""
    return _Parser(_joined(tokens_of(source))).whole()


def _joined(tokens: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Signs of two characters as one token."""
    out: list[tuple[str, str]] = []
    for kind, text in tokens:
        # CEL has no texts in which a sign that could be joined stands apart from the one it would be joined with.
        if kind == "sign" and out and out[-1][0] == "sign" and out[-1][1] + text in _DOUBLE:
            out[-1] = ("sign", out[-1][1] + text)
        else:
            out.append((kind, text))
    return out


class _Parser:
    """Recursive descent, as deep as a text of bounded length can go."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def whole(self) -> Expr:
        try:
            found = self._choice()
        except RecursionError as deep:
            raise Unfollowed("it is nested too deep") from deep
        if self._at < len(self._tokens):
            raise Unfollowed(f"{self._tokens[self._at][1]!r} cannot be followed")
        return found

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _takes(self, sign: str) -> bool:
        if self._peek() == ("sign", sign):
            self._at += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise Unfollowed(f"{self._peek()[1] or 'the end'!r} cannot be followed: {sign!r} was expected")

    def _choice(self) -> Expr:
        condition = self._binary(0)
        if not self._takes("?"):
            return condition
        yes = self._binary(0)
        self._expect(":")
        return Choice(condition, yes, self._choice())

    def _binary(self, level: int) -> Expr:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self._peek()[0] in ("sign", "name") and self._peek()[1] in _LEVELS[level]:
            sign = self._next()[1]
            left = Operator(sign, (left, self._binary(level + 1)))
        return left

    def _unary(self) -> Expr:
        for sign in ("!", "-"):
            if self._takes(sign):
                return Operator(sign, (self._unary(),))
        return self._member()

    def _member(self) -> Expr:
        found = self._primary()
        while True:
            if self._takes("."):
                kind, name = self._next()
                if kind != "name":
                    raise Unfollowed(f"{name!r} after a dot cannot be followed")
                if self._takes("("):
                    found = Call(name, found, self._items(")"))
                else:
                    found = Member(found, name)
            elif self._takes("["):
                by = self._choice()
                self._expect("]")
                found = Index(found, by)
            else:
                return found

    def _primary(self) -> Expr:
        kind, text = self._next()
        if kind == "text":
            return _text(text)
        if kind == "number":
            return Literally("number", int(text) if text.isdecimal() else None)
        if kind == "name":
            if text in _WORDS:
                return _WORDS[text]
            return Call(text, None, self._items(")")) if self._takes("(") else Name(text)
        if text == "(":
            inner = self._choice()
            self._expect(")")
            return inner
        if text == "[":
            return Listed(self._items("]"))
        if text == "{":
            return Mapped(self._entries())
        raise Unfollowed(f"{text or 'the end'!r} cannot be followed")

    def _items(self, end: str) -> tuple[Expr, ...]:
        items: list[Expr] = []
        while not self._takes(end):
            items.append(self._choice())
            if not self._takes(","):
                self._expect(end)
                break
        return tuple(items)

    def _entries(self) -> tuple[tuple[Expr, Expr], ...]:
        entries: list[tuple[Expr, Expr]] = []
        while not self._takes("}"):
            key = self._choice()
            self._expect(":")
            entries.append((key, self._choice()))
            if not self._takes(","):
                self._expect("}")
                break
        return tuple(entries)


def _text(written: str) -> Literally:
    """A text or bytes; of one with escapes the value is not needed, so it is not known."""
    start = written.index(written[-1])
    prefix = written[:start].lower()
    body = written[start:]
    quotes = 3 if body[:3] in ('"""', "'''") else 1
    value = body[quotes:-quotes]
    if "b" in prefix:
        return Literally("bytes")
    return Literally("string", None if "\\" in value and "r" not in prefix else value)
