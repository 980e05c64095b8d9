"""Expressions: what stands between `${{` and `}}`, and the whole of an `if`.

Laws:
1. An expression is a plain path (`inputs.a.b[0]`, `steps.build.output.x`) that is looked up, or it is CEL. Nothing is
   ever given to eval, format or a shell.
2. What an expression looks at is known without evaluating it: `refers` lists its references, a step is always
   named, so that needs can be checked when a file is loaded.
3. Its cost is bounded before it is evaluated: bytes, nested comprehensions, and the items those may walk over.
4. What comes out is JSON. A path that leads nowhere is an error, never an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.errors import TenureError
from tenure.limits import (
    COMPREHENSION_CHARS_MAX,
    COMPREHENSION_ITEMS_MAX,
    COMPREHENSIONS_MAX,
    COMPREHENSIONS_NESTED_MAX,
    EXPRESSION_BYTES_MAX,
    NESTED_COMPREHENSION_ITEMS_MAX,
)
from tenure.suggestions import close_to

if TYPE_CHECKING:
    import cel

ROOTS = ("inputs", "steps", "run", "trigger", "slot")
FIELDS = {
    "run": ("id", "workflow", "version", "tenant", "repo", "attempt"),
    "trigger": ("type", "ref", "repo"),
}
"""What may be asked of a run and of what set it off."""
TRY = ("run", "attempt")
"""The number of the try: another one each time."""
FUNCTIONS = frozenset(
    [
        "size",
        "startsWith",
        "endsWith",
        "contains",
        "matches",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "dyn",
        "type",
        "duration",
        "timestamp",
        "getFullYear",
        "getMonth",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
    ]
)
"""CEL's own. Others that a version of the package has are not part of our files."""
COMPREHENSIONS = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_TAIL = re.compile(rf"\.({_NAME})|\[([0-9]{{1,9}})\]|\[\"([^\"\\]*)\"\]|\['([^'\\]*)'\]")
_PATH = re.compile(rf"({_NAME})((?:{_TAIL.pattern})*)")
_RAW = r"""(?:[rR][bB]?|[bB][rR])(?:\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}|"[^"\n]*"|'[^'\n]*')"""
_COOKED = (
    r"""[bB]?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
)
_TOKEN = re.compile(
    rf"(?P<text>{_RAW}|{_COOKED})|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9][0-9A-Za-z_.]*)"
    r"|(?P<blank>\s+|//[^\n]*)|(?P<sign>.)",
    re.DOTALL,
)
_CEL_WORDS = frozenset({"true", "false", "null", "in"})

Step = str | int


class Reference(msgspec.Struct, frozen=True):
    """A root, and the names behind it as far as they are written out."""

    root: str
    parts: tuple[Step, ...] = ()

    def is_known(self, scope: Mapping[str, Any]) -> bool:
        """Whether a scope has it before a step is claimed: of a run and its trigger, only what is named there."""
        if self.root not in scope:
            return False
        if self.root not in FIELDS:
            return True
        return bool(self.parts) and (self.root, self.parts[0]) != TRY and self.parts[0] in scope[self.root]

    def __str__(self) -> str:
        """As it is written."""
        return self.root + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.parts)


class Expression(msgspec.Struct, frozen=True):
    """One expression, ready to be evaluated."""

    source: str
    refers: tuple[Reference, ...]
    path: Reference | None = None
    """Where it is a plain path, that path."""
    nested: int = 0
    """How many comprehensions stand inside each other."""
    listed: int = 0
    """At most so many items does it list itself."""
    joined: int = 1
    """At most so many lists does it join."""

    def value(self, scope: Mapping[str, Any]) -> Any:
        """What it is worth; EXPRESSION_FAILED where it is nothing."""
        if self.path is not None:
            return _look_up(self.path, scope)
        if gone := {r.root for r in self.refers} - scope.keys():
            raise failed(self.source, f"there is no {min(gone)!r} at this moment")
        seen = {r.root: scope[r.root] for r in self.refers}
        if self.nested:
            self.check_cost(*measured(seen))
        try:
            made = program(self.source).execute(dict(seen))
        except Exception as fault:  # CEL raises many kinds, and all of them say that there is no value
            raise failed(self.source, reason_of(fault)) from fault
        return _as_json(self.source, made)

    def check_cost(self, longest: int, size: int) -> None:
        """Refuse to evaluate a comprehension over what is `measured` to be too much (law 3)."""
        most = COMPREHENSION_ITEMS_MAX if self.nested == 1 else NESTED_COMPREHENSION_ITEMS_MAX
        longest = max(self.listed, longest) * self.joined
        if longest > most:
            raise failed(
                self.source,
                f"it may walk over {longest} items; with {self.nested} nested comprehension(s) it may look at {most}",
            )
        if size * longest**self.nested > COMPREHENSION_CHARS_MAX:
            raise failed(
                self.source, "its result could have more text than is ever kept; shorten what it looks at"
            )


class Malformed(ValueError):
    """A text is no expression; what it says is meant for whoever wrote it."""


def measured(value: Any) -> tuple[int, int]:
    """The items of the longest list or map within a value, and the characters of all its texts."""
    longest = size = 0
    for part in _all(value):
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, Mapping | list | tuple):
            longest = max(longest, len(part))
    return longest, size


def failed(source: str, why: str) -> TenureError:
    """An expression has no value."""
    shown = source if len(source) <= 200 else f"{source[:197]}..."
    return TenureError("EXPRESSION_FAILED", f"{shown}: {why}", expression=source)


@lru_cache(maxsize=4096)
def parse(source: str, roots: tuple[str, ...] = ROOTS) -> Expression:
    """An expression from its text, or Malformed. `roots` is what it may look at."""
    source = source.strip()
    if not source:
        raise Malformed("the expression is empty")
    if len(source.encode()) > EXPRESSION_BYTES_MAX:
        raise Malformed(f"the expression is over {EXPRESSION_BYTES_MAX} bytes long")
    path = _PATH.fullmatch(source)
    if path is not None and path[1] not in _CEL_WORDS:
        reference = Reference(path[1], tuple(_parts(path[2])))
        _check_root(reference.root, roots, frozenset())
        return Expression(source, (reference,), reference)
    return _parse_cel(source, roots)


@lru_cache(maxsize=1024)
def program(source: str) -> cel.Program:
    """A CEL text, compiled; parse it first."""
    import cel  # late: it brings a whole terminal toolkit along, and most runs have no expression

    return cel.compile(source)


def _parts(tail: str) -> Iterator[Step]:
    for name, index, double, single in _TAIL.findall(tail):
        yield int(index) if index else name or double or single


def _check_root(root: str, roots: tuple[str, ...], bound: frozenset[str]) -> None:
    if root not in roots and root not in bound:
        raise Malformed(f"there is no {root!r}; an expression looks at {', '.join(roots)}")


def _parse_cel(source: str, roots: tuple[str, ...]) -> Expression:
    # The depth is known from the tokens, before CEL sees the text.
    tokens = tokens_of(source)
    nested, bound = _comprehensions(tokens)
    if nested > COMPREHENSIONS_NESTED_MAX:
        raise Malformed(
            f"{nested} comprehensions inside each other; at most {COMPREHENSIONS_NESTED_MAX} are evaluated"
        )
    for before, (_, text) in zip([("sign", ""), *tokens], tokens, strict=False):
        if text == "." and before[0] == "sign" and before[1] not in ")]}":
            raise Malformed("a name does not begin with a dot")
    if sum(text in COMPREHENSIONS for _, text in tokens) > COMPREHENSIONS_MAX:
        raise Malformed(f"over {COMPREHENSIONS_MAX} comprehensions in one expression")
    if shadowed := bound & set(roots):
        raise Malformed(f"a comprehension's variable may not be named {min(shadowed)!r}")
    try:
        compiled = program(source)
    except Exception as fault:  # the parser has no error of its own
        raise Malformed(f"this is no CEL: {reason_of(fault)}") from fault
    names = compiled.variables()
    for name in names:
        _check_root(name, roots, bound)
    for function in compiled.functions():
        if function.isidentifier() and function not in FUNCTIONS:
            guess = close_to(function, FUNCTIONS) or f"; there are {', '.join(sorted(FUNCTIONS))}"
            raise Malformed(f"there is no function {function!r}{guess}")
    refers = dict.fromkeys(_references(tokens, roots))
    missed = {name for name in names if name in roots} - {r.root for r in refers}
    if missed:
        raise Malformed(f"{min(missed)!r} is used in a way that cannot be followed")
    signs = [text for kind, text in tokens if kind == "sign"]
    listed, joined = signs.count(",") + 1, signs.count("+") + 1
    return Expression(source, tuple(refers), nested=nested, listed=listed, joined=joined)


def tokens_of(source: str) -> list[tuple[str, str]]:
    """The tokens of a CEL text, each with its kind: text, name, number or sign. A sign is one character."""
    return [(m.lastgroup or "", m[0]) for m in _TOKEN.finditer(source) if m.lastgroup != "blank"]


def _comprehensions(tokens: list[tuple[str, str]]) -> tuple[int, frozenset[str]]:
    """How deep comprehensions are nested, and the names they bind."""
    deepest, stack, bound = 0, [], set()
    for i, (kind, text) in enumerate(tokens):
        if kind != "sign":
            continue
        if text in "([{":
            before = tokens[max(0, i - 2) : i]
            is_macro = (
                text == "(" and len(before) == 2 and before[0][1] == "." and before[1][1] in COMPREHENSIONS
            )
            stack.append(is_macro)
            deepest = max(deepest, sum(stack))
            if is_macro and i + 1 < len(tokens) and tokens[i + 1][0] == "name":
                bound.add(tokens[i + 1][1])
        elif text in ")]}" and stack:
            stack.pop()
    return deepest, frozenset(bound)


def _references(tokens: list[tuple[str, str]], roots: tuple[str, ...]) -> Iterator[Reference]:
    """The references of a CEL text: each root with the names written out behind it."""
    for i, (kind, text) in enumerate(tokens):
        if kind != "name" or text not in roots or (i and tokens[i - 1][1] == "."):
            continue
        parts: list[Step] = []
        at = i + 1
        while at + 1 < len(tokens):
            sign, (next_kind, word) = tokens[at][1], tokens[at + 1]
            if sign == "." and next_kind == "name":
                if at + 2 < len(tokens) and tokens[at + 2][1] == "(":
                    break  # a method, not a field
                parts.append(word)
                at += 2
            elif sign == "[" and at + 2 < len(tokens) and tokens[at + 2][1] == "]":
                if (
                    next_kind == "text"
                    and word[0] in "\"'"
                    and "\\" not in word
                    and word[:3] not in ('"""', "'''")
                ):
                    parts.append(word[1:-1])
                elif next_kind == "number" and word.isdecimal():
                    parts.append(int(word))
                else:
                    break
                at += 3
            else:
                break
        yield Reference(text, tuple(parts))


def _look_up(path: Reference, scope: Mapping[str, Any]) -> Any:
    here: Any = scope.get(path.root)
    if path.root not in scope:
        raise failed(str(path), f"there is no {path.root!r} at this moment")
    walked = path.root
    for part in path.parts:
        if isinstance(part, int):
            if not isinstance(here, list | tuple):
                raise failed(str(path), f"{walked} is {_kind(here)}, not a list")
            if part >= len(here):
                raise failed(str(path), f"{walked} has {len(here)} items")
            here = here[part]
            walked += f"[{part}]"
        else:
            if not isinstance(here, Mapping):
                raise failed(str(path), f"{walked} is {_kind(here)} and has no {part!r}")
            if part not in here:
                raise failed(str(path), f"{walked} has no {part!r}")
            here = here[part]
            walked += f".{part}"
    return here


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a text"}
    if isinstance(value, list | tuple):
        return "a list"
    return names.get(type(value), "a map" if isinstance(value, Mapping) else type(value).__name__)


def _all(value: Any) -> Iterator[Any]:
    """A value and everything within it, without recursion: outputs may be deep."""
    left = [value]
    while left:
        here = left.pop()
        yield here
        if isinstance(here, Mapping):
            left.extend(here.values())
        elif isinstance(here, list | tuple):
            left.extend(here)


def _as_json(source: str, value: Any) -> Any:
    """CEL knows times, bytes and maps with numbers for keys; a step's input does not."""
    if isinstance(value, float) and not isfinite(value):
        raise failed(source, f"it is {value}, which JSON cannot say")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(source, item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise failed(source, "a map's keys are texts")
        return {key: _as_json(source, item) for key, item in value.items()}
    raise failed(source, f"it is a {type(value).__name__}; make it a text with string(...)")


def reason_of(fault: BaseException) -> str:
    """The first line of what CEL says, without the expression it repeats."""
    if isinstance(fault, KeyError):
        return f"there is no {fault.args[0]!r}" if fault.args else "a key is missing"
    said = str(fault)
    _, found, rest = said.partition("ERROR: <input>:")
    line = (rest if found else said).splitlines()[0] if said else type(fault).__name__
    for needless in (" expecting {", ". Check ", ". CEL does not"):
        line = line.partition(needless)[0]
    return line if len(line) <= 300 else f"{line[:297]}..."
