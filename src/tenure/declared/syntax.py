"""The tree of a CEL text: the library gives none, and checks of cost and of field paths need one.

Laws:
1. What it does not know of the grammar it refuses (`Unfollowed`), so that nothing passes a check unseen; so is what is nested
   deeper than EXPRESSION_DEPTH_MAX, before the library's own parser sees it.
2. A chain of one operator (`a && b && c`, `a + b + c`) is one node.
"""

from __future__ import annotations

import re
from string import hexdigits
from typing import Any, Literal

import msgspec

from tenure.limits import EXPRESSION_DEPTH_MAX


class Unfollowed(ValueError):
    """A text that cannot be followed; what it says is meant for whoever wrote it."""


class Literally(msgspec.Struct, frozen=True):
    """A value that is written out. A text without escapes and an integer have their value, everything else its type alone."""

    type: Literal["string", "number", "boolean", "null", "bytes"]
    value: Any = None
    size: int = 0
    """Of a text or bytes: at most so many bytes."""
    unescaped: str | None = None
    """A text, whatever escapes it was written with."""


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
    """One operand, two, or a chain of more; the sign says what comes out."""

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
_CHAINED = frozenset({"||", "&&", "+"})
_DIGITS_MAX = 24
"""No integer of CEL has more."""

_PREFIX = r"(?:[rR][bB]?|[bB][rR]?)?"
_RAW3 = r"""(?:[rR][bB]?|[bB][rR])(?:\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3})"""
_COOKED3 = r"""[bB]?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3})"""
_RAW = r"""(?:[rR][bB]?|[bB][rR])(?:"[^"\n]*"|'[^'\n]*')"""
_COOKED = r"""[bB]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
# A literal that does not end takes all that follows it: no text with one is an expression, and to look for an end from each of the
# quotes behind it would take time in the square of the length.
_TOKEN = re.compile(
    rf"(?P<text>{_RAW3}|{_COOKED3}|(?!{_PREFIX}(?:\"{{3}}|'{{3}}))(?:{_RAW}|{_COOKED}))|(?P<open>{_PREFIX}[\"'].*)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9][0-9A-Za-z_.]*)|(?P<blank>\s+|//[^\n]*)|(?P<sign>.)",
    re.DOTALL,
)


def tokens_of(source: str) -> list[tuple[str, str]]:
    """The tokens of a CEL text, each with its kind: text, name, number or sign. A sign is one character; what follows a quote that
    nothing closes is one, too."""
    return [
        ("sign", '"') if m.lastgroup == "open" else (m.lastgroup or "", m[0])
        for m in _TOKEN.finditer(source)
        if m.lastgroup != "blank"
    ]


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


def parts_of(tree: Expr) -> tuple[Expr, ...]:
    """The trees right beneath a tree."""
    match tree:
        case Member(of=of):
            return (of,)
        case Index(of=of, by=by):
            return (of, by)
        case Call(of=of, arguments=arguments):
            return arguments if of is None else (of, *arguments)
        case Listed(items=items):
            return items
        case Mapped(entries=entries):
            return tuple(part for entry in entries for part in entry)
        case Choice(condition=condition, yes=yes, no=no):
            return (condition, yes, no)
        case Operator(operands=operands):
            return operands
        case Literally() | Name():
            return ()


def _too_deep() -> Unfollowed:
    return Unfollowed(f"it is nested deeper than {EXPRESSION_DEPTH_MAX} levels")


def _check_depth(tree: Expr) -> None:
    """Refuse what those who walk the tree, and CEL itself, could not follow; without recursion."""
    left = [(tree, 1)]
    while left:
        here, depth = left.pop()
        if depth > EXPRESSION_DEPTH_MAX:
            raise _too_deep()
        left += [(part, depth + 1) for part in parts_of(here)]


class _Parser:
    """Recursive descent, as deep as a text of bounded length can go."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Expr:
        found = self._choice()
        if self._at < len(self._tokens):
            raise Unfollowed(f"{self._tokens[self._at][1]!r} cannot be followed")
        _check_depth(found)
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
        self._depth += 1
        if self._depth > EXPRESSION_DEPTH_MAX:
            raise _too_deep()
        found = self._binary(0)
        if self._takes("?"):
            yes = self._binary(0)
            self._expect(":")
            found = Choice(found, yes, self._choice())
        self._depth -= 1
        return found

    def _binary(self, level: int) -> Expr:
        if level == len(_LEVELS):
            return self._unary()
        found = self._binary(level + 1)
        chained: list[Expr] = [found]
        before = ""
        while self._peek()[0] in ("sign", "name") and self._peek()[1] in _LEVELS[level]:
            sign = self._next()[1]
            right = self._binary(level + 1)
            if sign != before or sign not in _CHAINED:
                chained = [found]
            chained.append(right)
            found = Operator(sign, tuple(chained))
            before = sign
        return found

    def _unary(self) -> Expr:
        signs: list[str] = []
        while self._peek() in (("sign", "!"), ("sign", "-")):
            signs.append(self._next()[1])
        found = self._member()
        for sign in reversed(signs):
            found = Operator(sign, (found,))
        return found

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
            return _number(text)
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
        raise Unfollowed(
            f"{text!r} cannot be followed" if text else "the expression ends where a value is expected"
        )

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
    """A text or bytes; of one with escapes the value is not needed, so it is not known. Escapes are never shorter than what they
    stand for."""
    size = len(written.encode())
    start = written.index(written[-1])
    prefix = written[:start].lower()
    body = written[start:]
    quotes = 3 if body[:3] in ('"""', "'''") else 1
    value = body[quotes:-quotes]
    if "b" in prefix:
        return Literally("bytes", size=size)
    if "\\" in value and "r" not in prefix:
        return Literally("string", None, size, _ESCAPE.sub(_unescaped, value))
    return Literally("string", value, size, value)


_ESCAPE = re.compile(
    r"\\(?:[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unescaped(escape: re.Match[str]) -> str:
    two, four, eight, octal, other = escape.groups()
    if other is not None:
        return _ESCAPES.get(other, other)
    code = int(octal, 8) if octal else int(two or four or eight, 16)
    return chr(code) if code <= 0x10FFFF else "?"


def _number(text: str) -> Literally:
    digits = text.rstrip("uU")
    if digits.isdecimal() and len(digits) <= _DIGITS_MAX:
        return Literally("number", int(digits))
    if digits[:2].lower() == "0x" and len(digits) <= _DIGITS_MAX and not set(digits[2:]) - set(hexdigits):
        return Literally("number", int(digits[2:] or "0", 16))
    return Literally("number")
