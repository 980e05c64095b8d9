"""Parses CEL into a tree. The CEL library offers none, and the checks of cost and of field paths need one.

Laws:
1. Unknown syntax is refused (`UnsupportedSyntax`), so that nothing escapes a check. Nesting deeper than EXPRESSION_DEPTH_MAX is
   refused before the library parses the text.
2. A chain of one operator (`a && b && c`, `a + b + c`) is one node.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import hexdigits
from typing import Any, Literal, TypeVar

import msgspec

from tenure.limits import EXPRESSION_DEPTH_MAX

T = TypeVar("T")


class UnsupportedSyntax(ValueError):
    """The text uses syntax that is not supported. The message is for its author."""


class LiteralExpr(msgspec.Struct, frozen=True):
    """A literal. Strings without escapes and integers have a value; other literals have only a type."""

    type: Literal["string", "number", "boolean", "null", "bytes"]
    value: Any = None
    size: int = 0
    """For a string or bytes: an upper bound on its bytes."""
    unescaped: str | None = None
    """The string with its escapes resolved."""


class NameExpr(msgspec.Struct, frozen=True):
    """A root, or the variable of a comprehension."""

    name: str


class MemberExpr(msgspec.Struct, frozen=True):
    of: Expr
    name: str


class IndexExpr(msgspec.Struct, frozen=True):
    of: Expr
    by: Expr


class CallExpr(msgspec.Struct, frozen=True):
    """`name(arguments)`, or `of.name(arguments)`."""

    name: str
    of: Expr | None
    arguments: tuple[Expr, ...]


class ListExpr(msgspec.Struct, frozen=True):
    items: tuple[Expr, ...]


class MapExpr(msgspec.Struct, frozen=True):
    entries: tuple[tuple[Expr, Expr], ...]


class ConditionalExpr(msgspec.Struct, frozen=True):
    condition: Expr
    yes: Expr
    no: Expr


class OperatorExpr(msgspec.Struct, frozen=True):
    """One operand, two operands, or a chain. The sign determines the type of the result."""

    sign: str
    operands: tuple[Expr, ...]


Expr = (
    LiteralExpr
    | NameExpr
    | MemberExpr
    | IndexExpr
    | CallExpr
    | ListExpr
    | MapExpr
    | ConditionalExpr
    | OperatorExpr
)

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("<=", ">=", "==", "!=", "<", ">", "in"),
    ("+", "-"),
    ("*", "/", "%"),
)
"""Binary operators, from the lowest precedence to the highest."""
_WORDS: dict[str, LiteralExpr] = {
    "true": LiteralExpr("boolean"),
    "false": LiteralExpr("boolean"),
    "null": LiteralExpr("null"),
}
_DOUBLE = frozenset({"||", "&&", "<=", ">=", "==", "!="})
_CHAINED = frozenset({"||", "&&", "+"})
_DIGITS_MAX = 24

_PREFIX = r"(?:[rR][bB]?|[bB][rR]?)?"
_RAW3 = r"""(?:[rR][bB]?|[bB][rR])(?:\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3})"""
_COOKED3 = r"""[bB]?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3})"""
_RAW = r"""(?:[rR][bB]?|[bB][rR])(?:"[^"\n]*"|'[^'\n]*')"""
_COOKED = r"""[bB]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
# An unclosed literal takes everything that follows: no expression contains one, and searching for an end from each
# following quote would take quadratic time.
_TOKEN = re.compile(
    rf"(?P<text>{_RAW3}|{_COOKED3}|(?!{_PREFIX}(?:\"{{3}}|'{{3}}))(?:{_RAW}|{_COOKED}))|(?P<open>{_PREFIX}[\"'].*)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9][0-9A-Za-z_.]*)|(?P<blank>\s+|//[^\n]*)|(?P<sign>.)",
    re.DOTALL,
)


def tokenize_cel(source: str) -> list[tuple[str, str]]:
    """The tokens of a CEL text with their kinds: text, name, number or sign. A sign is one character. What follows an unclosed quote
    is one sign.
    """
    return [
        ("sign", '"') if m.lastgroup == "open" else (m.lastgroup or "", m[0])
        for m in _TOKEN.finditer(source)
        if m.lastgroup != "blank"
    ]


def parse_cel(source: str) -> Expr:
    return _Parser(_joined(tokenize_cel(source))).whole()


def _joined(tokens: list[tuple[str, str]]) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for kind, text in tokens:
        # In CEL, two adjacent signs that could be joined are always one operator.
        if kind == "sign" and out and out[-1][0] == "sign" and out[-1][1] + text in _DOUBLE:
            out[-1] = ("sign", out[-1][1] + text)
        else:
            out.append((kind, text))
    return out


def child_expressions(tree: Expr) -> tuple[Expr, ...]:
    match tree:
        case MemberExpr(of=of):
            return (of,)
        case IndexExpr(of=of, by=by):
            return (of, by)
        case CallExpr(of=of, arguments=arguments):
            return arguments if of is None else (of, *arguments)
        case ListExpr(items=items):
            return items
        case MapExpr(entries=entries):
            return tuple(part for entry in entries for part in entry)
        case ConditionalExpr(condition=condition, yes=yes, no=no):
            return (condition, yes, no)
        case OperatorExpr(operands=operands):
            return operands
        case LiteralExpr() | NameExpr():
            return ()


def _too_deep() -> UnsupportedSyntax:
    return UnsupportedSyntax(f"it is nested deeper than {EXPRESSION_DEPTH_MAX} levels")


def _check_depth(tree: Expr) -> None:
    """Refuse trees that are too deep for recursive walks and for CEL. Iterative."""
    left = [(tree, 1)]
    while left:
        here, depth = left.pop()
        if depth > EXPRESSION_DEPTH_MAX:
            raise _too_deep()
        left += [(part, depth + 1) for part in child_expressions(here)]


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Expr:
        found = self._choice()
        if self._at < len(self._tokens):
            raise UnsupportedSyntax(f"{self._tokens[self._at][1]!r} is not supported here")
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
            raise UnsupportedSyntax(
                f"{self._peek()[1] or 'the end'!r} is not supported here: {sign!r} was expected"
            )

    def _choice(self) -> Expr:
        self._depth += 1
        if self._depth > EXPRESSION_DEPTH_MAX:
            raise _too_deep()
        found = self._binary(0)
        if self._takes("?"):
            yes = self._binary(0)
            self._expect(":")
            found = ConditionalExpr(found, yes, self._choice())
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
            found = OperatorExpr(sign, tuple(chained))
            before = sign
        return found

    def _unary(self) -> Expr:
        signs: list[str] = []
        while self._peek() in (("sign", "!"), ("sign", "-")):
            signs.append(self._next()[1])
        found = self._member()
        for sign in reversed(signs):
            found = OperatorExpr(sign, (found,))
        return found

    def _member(self) -> Expr:
        found = self._primary()
        while True:
            if self._takes("."):
                kind, name = self._next()
                if kind != "name":
                    raise UnsupportedSyntax(f"{name!r} is not supported after a dot")
                if self._takes("("):
                    found = CallExpr(name, found, self._items(")"))
                else:
                    found = MemberExpr(found, name)
            elif self._takes("["):
                by = self._choice()
                self._expect("]")
                found = IndexExpr(found, by)
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
            return CallExpr(text, None, self._items(")")) if self._takes("(") else NameExpr(text)
        if text == "(":
            inner = self._choice()
            self._expect(")")
            return inner
        if text == "[":
            return ListExpr(self._items("]"))
        if text == "{":
            return MapExpr(self._separated("}", self._entry))
        raise UnsupportedSyntax(
            f"{text!r} is not supported here" if text else "the expression ends where a value is expected"
        )

    def _items(self, end: str) -> tuple[Expr, ...]:
        return self._separated(end, self._choice)

    def _entry(self) -> tuple[Expr, Expr]:
        key = self._choice()
        self._expect(":")
        return key, self._choice()

    def _separated(self, end: str, parse: Callable[[], T]) -> tuple[T, ...]:
        items: list[T] = []
        while not self._takes(end):
            items.append(parse())
            if not self._takes(","):
                self._expect(end)
                break
        return tuple(items)


def _text(written: str) -> LiteralExpr:
    """A string or bytes. The value of a string with escapes is not needed, so it stays unknown. Escapes are never shorter than the
    characters they stand for.
    """
    size = len(written.encode())
    prefix, quote, _ = written.lower().partition(written[-1])
    body = written[len(prefix) :]
    quotes = 3 if body.startswith(3 * quote) else 1
    value = body[quotes:-quotes]
    if "b" in prefix:
        return LiteralExpr("bytes", size=size)
    if "\\" in value and "r" not in prefix:
        return LiteralExpr("string", None, size, _ESCAPE.sub(_unescaped, value))
    return LiteralExpr("string", value, size, value)


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


def _number(text: str) -> LiteralExpr:
    digits = text.rstrip("uU")
    if digits.isdecimal() and len(digits) <= _DIGITS_MAX:
        return LiteralExpr("number", int(digits))
    if digits[:2].lower() == "0x" and len(digits) <= _DIGITS_MAX and not set(digits[2:]) - set(hexdigits):
        return LiteralExpr("number", int(digits[2:] or "0", 16))
    return LiteralExpr("number")
