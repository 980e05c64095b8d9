"""Expressions: what stands between `${{` and `}}`, and the whole of an `if`.

Laws:
1. An expression is a plain path (`inputs.a.b[0]`, `steps.build.output.x`) that is looked up, or it is CEL. Nothing is
   ever given to eval, format or a shell.
2. What an expression looks at is known without evaluating it: `refers` lists its references, a step is always
   named, so that needs can be checked when a file is loaded.
3. Its work and memory are bounded before it is evaluated, from its tree and the values it looks at (`expression_cost`); what
   belongs together shares one budget (`shared_budget`). CEL is given those values alone, and its own limits are never reached.
4. What comes out is JSON. A path that leads nowhere is an error, never an empty text.
5. No number is changed: what does not fit CEL's integers of 64 bits is refused. (A plain path gives every number as it is.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.declared.expression_cost import (
    COMPREHENSIONS,
    EXACT_MAX,
    NOTHING,
    Exceeded,
    Shape,
    anything,
    cost_of,
    shape_of,
)
from tenure.declared.syntax import Expr, Unfollowed, parsed, tokens_of
from tenure.errors import TenureError
from tenure.limits import (
    COMPREHENSIONS_MAX,
    COMPREHENSIONS_NESTED_MAX,
    EXPRESSION_BYTES_MAX,
    EXPRESSION_VALUE_BYTES_MAX,
    EXPRESSION_WORK_MAX,
    EXPRESSIONS_WORK_MAX,
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

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_TAIL = re.compile(rf"\.({_NAME})|\[([0-9]{{1,9}})\]|\[\"([^\"\\]*)\"\]|\['([^'\\]*)'\]")
_PATH = re.compile(rf"({_NAME})((?:{_TAIL.pattern})*)")
_CEL_WORDS = frozenset({"true", "false", "null", "in"})
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(256))
_LONG = b"0" * 16
"""Every integer beyond 2^53 has so many digits, all of them written as 0 by `_DIGITS`. (Ten times as quick as a pattern.)"""
_INTEGER_MIN, _INTEGER_MAX = -(2**63) + 1, 2**64 - 1
"""CEL has them from -2^63 to 2^64 - 1; the smallest becomes itself again when its sign is turned, so it is not among ours."""
_encode = msgspec.json.Encoder(enc_hook=repr).encode
_ENOUGH = EXPRESSIONS_WORK_MAX // 100
"""What an expression takes of a shared budget without a close look at its values."""

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


LOOK_CLOSELY = 0
"""In place of a size: nothing but the values themselves tells what an expression may cost."""


def measure(values: Any) -> int:
    """Measure what an expression is to look at: below which power of two its JSON has bytes, or LOOK_CLOSELY where it has an integer
    beyond 2^53. ValueError where CEL could not take it as it is."""
    try:
        body = _encode(values)
    except RecursionError as deep:
        raise ValueError("what it looks at is nested too deep") from deep
    if len(body) > EXPRESSION_VALUE_BYTES_MAX:
        raise ValueError(
            f"it looks at {len(body)} bytes; at most {EXPRESSION_VALUE_BYTES_MAX} are given to CEL"
        )
    if _LONG in body.translate(_DIGITS) and _has_long_integer(values):
        return LOOK_CLOSELY
    return len(body).bit_length()


class Bound:
    """The bound on an expression's work: for everything of a size, remembered, and for values that are looked at closely."""

    __slots__ = ("_roots", "_tree", "by_size")

    def __init__(self, tree: Expr, roots: tuple[str, ...]) -> None:
        self._tree = tree
        self._roots = roots
        self.by_size: dict[int, int] = {}
        """What is known already, by what `measure` says; LOOK_CLOSELY where a size says too little."""

    def work(self, size: int, shape: Callable[[str], Shape], enough: int = EXPRESSION_WORK_MAX) -> int:
        """At most so much for values of this size; `shape` tells that of a root. A size that says no more than that it is above
        `enough` is not believed: the values are looked at. Exceeded where it is too much."""
        found = self.by_size.get(size)
        if found is None:
            found = LOOK_CLOSELY
            if size != LOOK_CLOSELY:
                with suppress(Exceeded):
                    found = cost_of(self._tree, dict.fromkeys(self._roots, anything(1 << size))).work
            self.by_size[size] = found
        if found != LOOK_CLOSELY and found <= enough:
            return found
        return cost_of(self._tree, {root: shape(root) for root in self._roots}).work


class Expression(msgspec.Struct, frozen=True):
    """One expression, ready to be evaluated."""

    source: str
    refers: tuple[Reference, ...]
    path: Reference | None = None
    """Where it is a plain path, that path."""
    bound: Bound | None = None
    """Where it is CEL, what it may cost."""
    wanted: dict[str, Any] = {}
    """The parts of each root that it looks at, as a tree of names; None: all of it."""

    def value(self, scope: Mapping[str, Any]) -> Any:
        """What it is worth; EXPRESSION_FAILED where it is nothing."""
        if self.path is not None:
            return _look_up(self.path, scope)
        if gone := self.wanted.keys() - scope.keys():
            raise failed(self.source, f"there is no {min(gone)!r} at this moment")
        seen = {root: _wanted(scope[root], parts) for root, parts in self.wanted.items()}
        try:
            spend(self.work(seen))
        except ValueError as refused:
            raise failed(self.source, str(refused)) from refused
        return _as_json(self.source, evaluated(self.source, seen))

    def work(self, seen: dict[str, Any]) -> int:
        """At most so much work for what it looks at; ValueError where that is too much."""
        assert self.bound is not None
        return self.bound.work(measure(seen), lambda root: shape_of(seen[root]), _ENOUGH)


def evaluated(source: str, given: Any) -> Any:
    """What CEL says, as Python has it; EXPRESSION_FAILED for everything that it raises, panics of the library included."""
    try:
        return program(source).execute(given)
    except Exception as fault:  # CEL raises many kinds, and all of them say that there is no value
        raise failed(source, reason_of(fault)) from fault
    except BaseException as fault:
        if not is_panic(fault):
            raise
        raise failed(source, "CEL has given up") from fault


def is_panic(fault: BaseException) -> bool:
    """Whether the library below CEL has panicked, which is none of Python's exceptions."""
    return type(fault).__name__ == "PanicException"


TOGETHER_TOO_MUCH = "the expressions here may take too much time together; look at less, or do it in a step"


class _Left:
    """The work that is left of a budget."""

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = EXPRESSIONS_WORK_MAX


_budget: ContextVar[_Left | None] = ContextVar("tenure_expressions", default=None)


@contextmanager
def shared_budget() -> Iterator[None]:
    """All expressions that are evaluated within share one budget of work: EXPRESSIONS_WORK_MAX."""
    if _budget.get() is not None:
        yield
        return
    token = _budget.set(_Left())
    try:
        yield
    finally:
        _budget.reset(token)


def spend(work: int) -> None:
    """Take work from the shared budget, if there is one; ValueError where it is used up."""
    left = _budget.get()
    if left is not None:
        left.work -= work
        if left.work < 0:
            raise ValueError(TOGETHER_TOO_MUCH)


def _wanted(value: Any, parts: dict[Step, Any] | None) -> Any:
    """The part of a value that is looked at. (Items of lists keep their places, so that lists stay whole.)"""
    if parts is None or not isinstance(value, Mapping):
        return value
    return {name: _wanted(value[name], below) for name, below in parts.items() if name in value}


def _wants(refers: tuple[Reference, ...]) -> dict[str, Any]:
    """References as a tree of names."""
    found: dict[str, Any] = {}
    for reference in refers:
        here: dict[Any, Any] = found
        *above, last = (reference.root, *reference.parts)
        for part in above:
            below = here.setdefault(part, {})
            if below is None:
                break
            here = below
        else:
            here[last] = None
    return found


def _has_long_integer(value: Any) -> bool:
    """Whether a value has an integer beyond 2^53; ValueError where it has one that CEL has no integer for."""
    found = False
    for part in _all(value):
        if isinstance(part, int) and not -EXACT_MAX <= part <= EXACT_MAX:
            if not _INTEGER_MIN <= part <= _INTEGER_MAX:
                raise ValueError(
                    "an integer it looks at does not fit 64 bits; pass it as a text, or by a plain path"
                )
            found = True
    return found


class Malformed(ValueError):
    """A text is no expression; what it says is meant for whoever wrote it."""


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
    # Everything is known from the tokens and our own tree before CEL sees the text.
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
        tree = parsed(source)
    except Unfollowed as fault:
        raise Malformed(f"this is no CEL that can be followed: {fault}") from fault
    try:
        compiled = program(source)
    except Exception as fault:  # the parser has no error of its own
        raise Malformed(f"this is no CEL: {reason_of(fault)}") from fault
    except BaseException as fault:
        if not is_panic(fault):
            raise
        raise Malformed("this is no CEL that can be read") from fault
    names = compiled.variables()
    for name in names:
        _check_root(name, roots, bound)
    for function in compiled.functions():
        if function.isidentifier() and function not in FUNCTIONS:
            guess = close_to(function, FUNCTIONS) or f"; there are {', '.join(sorted(FUNCTIONS))}"
            raise Malformed(f"there is no function {function!r}{guess}")
    refers = tuple(dict.fromkeys(_references(tokens, roots)))
    used = tuple(dict.fromkeys(r.root for r in refers))
    missed = {name for name in names if name in roots} - set(used)
    if missed:
        raise Malformed(f"{min(missed)!r} is used in a way that cannot be followed")
    try:
        cost_of(tree, dict.fromkeys(used, NOTHING))
    except Exceeded as fault:
        raise Malformed(f"whatever it looks at, {fault}") from fault
    return Expression(source, refers, bound=Bound(tree, used), wanted=_wants(refers))


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
    if isinstance(value, int) and not isinstance(value, bool) and value < _INTEGER_MIN:
        raise failed(source, "its integer does not fit 64 bits")
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
