"""Expressions: the text between `${{` and `}}`, and the whole text of an `if`.

Laws:
1. An expression is a plain path (`inputs.a.b[0]`, `steps.build.output.x`), which is looked up, or CEL. No text is passed to eval,
   format or a shell.
2. The references of an expression are known without evaluating it: `refers` lists them. A step is always named by a literal, so
   that needs can be checked when a file is loaded.
3. Work and memory are bounded before the evaluation, from the tree and the referenced values (`tenure.expressions.cost`). Related
   expressions share one budget (`shared_budget`). CEL gets only the referenced values, and never reaches its own limits.
4. The result is JSON. A path that does not exist is an error, not an empty string.
5. Numbers never change: an integer beyond CEL's 64 bits is refused. A plain path returns every number as it is.
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

from tenure.errors import TenureError
from tenure.expressions.cel_syntax import Expr, UnsupportedSyntax, parse_cel, tokenize_cel
from tenure.expressions.cost import (
    COMPREHENSIONS,
    EMPTY_BOUND,
    EXACT_MAX,
    CostExceeded,
    ValueBound,
    bound_by_size,
    bound_cost,
    bound_value,
)
from tenure.expressions.digests import SHA256, execute_with_digests, uses_digests
from tenure.limits import (
    COMPREHENSIONS_MAX,
    COMPREHENSIONS_NESTED_MAX,
    EXPRESSION_BYTES_MAX,
    EXPRESSION_VALUE_BYTES_MAX,
    EXPRESSION_WORK_MAX,
    EXPRESSIONS_WORK_MAX,
)
from tenure.suggestions import did_you_mean

if TYPE_CHECKING:
    import cel

ROOTS = ("inputs", "steps", "run", "trigger", "slot")
FIELDS = {
    "run": ("id", "workflow", "version", "tenant", "repo", "attempt"),
    "trigger": ("type", "ref", "repo"),
}
ATTEMPT_PATH = ("run", "attempt")
"""The attempt number, which differs for each attempt."""
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
        SHA256,
    ]
)
"""The functions of CEL, and our own. Workflow files cannot use others that a version of the library may add."""

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_TAIL = re.compile(rf"\.({_NAME})|\[([0-9]{{1,9}})\]|\[\"([^\"\\]*)\"\]|\['([^'\\]*)'\]")
_PATH = re.compile(rf"({_NAME})((?:{_TAIL.pattern})*)")
_CEL_WORDS = frozenset({"true", "false", "null", "in"})
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(256))
_LONG = b"0" * 16
"""Every integer beyond 2^53 has this many digits, all written as 0 by `_DIGITS`. Ten times as fast as a regular expression."""
_INTEGER_MIN, _INTEGER_MAX = -(2**63) + 1, 2**64 - 1
"""CEL has integers from -2^63 to 2^64 - 1. The smallest one is its own negation, so it is excluded."""
_encode = msgspec.json.Encoder(enc_hook=repr).encode
_ENOUGH = EXPRESSIONS_WORK_MAX // 100
"""The work that an expression may take from a shared budget without measuring its values exactly."""

PathStep = str | int


class ExpressionReference(msgspec.Struct, frozen=True):
    root: str
    parts: tuple[PathStep, ...] = ()

    def is_known(self, scope: Mapping[str, Any]) -> bool:
        """Whether a scope has its value before a step is claimed. A run and its trigger have only the named fields."""
        if self.root not in scope:
            return False
        if self.root not in FIELDS:
            return True
        return (
            bool(self.parts)
            and (self.root, self.parts[0]) != ATTEMPT_PATH
            and self.parts[0] in scope[self.root]
        )

    def __str__(self) -> str:
        return self.root + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.parts)


MEASURE_EXACTLY = 0
"""Used instead of a size: only the values themselves tell the cost of an expression."""


def measure_values(values: Any) -> int:
    """Measure the values of an expression: the power of two above the bytes of their JSON, or MEASURE_EXACTLY if they contain an integer
    beyond 2^53. ValueError if CEL cannot take them unchanged.
    """
    try:
        body = _encode(values)
    except RecursionError as deep:
        raise ValueError("its values are nested too deep") from deep
    if len(body) > EXPRESSION_VALUE_BYTES_MAX:
        raise ValueError(
            f"it uses values of {len(body)} bytes; CEL is given at most {EXPRESSION_VALUE_BYTES_MAX}"
        )
    if _LONG in body.translate(_DIGITS) and _has_long_integer(values):
        return MEASURE_EXACTLY
    return len(body).bit_length()


class WorkBound:
    """The bound on an expression's work: cached by size, or computed from the exact values."""

    __slots__ = ("_roots", "_tree", "by_size")

    def __init__(self, tree: Expr, roots: tuple[str, ...]) -> None:
        self._tree = tree
        self._roots = roots
        self.by_size: dict[int, int] = {}
        """Known bounds by the result of `measure_values`; MEASURE_EXACTLY if a size is not enough."""

    def work(self, size: int, shape: Callable[[str], ValueBound], enough: int = EXPRESSION_WORK_MAX) -> int:
        """The largest work for values of this size; `shape` returns the bound of a root. If the bound by size is above `enough`, the exact
        values are used. CostExceeded if it is too much.
        """
        found = self.by_size.get(size)
        if found is None:
            found = MEASURE_EXACTLY
            if size != MEASURE_EXACTLY:
                with suppress(CostExceeded):
                    found = bound_cost(self._tree, dict.fromkeys(self._roots, bound_by_size(1 << size))).work
            self.by_size[size] = found
        if found != MEASURE_EXACTLY and found <= enough:
            return found
        return bound_cost(self._tree, {root: shape(root) for root in self._roots}).work


class Expression(msgspec.Struct, frozen=True):
    source: str
    refers: tuple[ExpressionReference, ...]
    path: ExpressionReference | None = None
    """The path, if the expression is a plain path."""
    bound: WorkBound | None = None
    """The cost, if the expression is CEL."""
    wanted: dict[str, Any] = {}
    """The used parts of each root, as a tree of names. None: all of it."""

    def value(self, scope: Mapping[str, Any]) -> Any:
        """The value in a scope; EXPRESSION_FAILED if there is none."""
        if self.path is not None:
            return _look_up(self.path, scope)
        if gone := self.wanted.keys() - scope.keys():
            raise expression_error(self.source, f"{min(gone)!r} is not available here")
        seen = {root: _wanted(scope[root], parts) for root, parts in self.wanted.items()}
        try:
            spend_work(self.work(seen))
        except ValueError as refused:
            raise expression_error(self.source, str(refused)) from refused
        return _as_json(self.source, evaluate_cel(self.source, seen))

    def work(self, seen: dict[str, Any]) -> int:
        """The largest work for the given values; ValueError if it is too much."""
        assert self.bound is not None
        return self.bound.work(measure_values(seen), lambda root: bound_value(seen[root]), _ENOUGH)


def evaluate_cel(source: str, given: Any) -> Any:
    """The result of CEL as a Python value; EXPRESSION_FAILED for everything it raises, panics of the library included."""
    try:
        program = compile_cel(source)
        return execute_with_digests(program, given) if uses_digests(source) else program.execute(given)
    except Exception as fault:  # CEL raises many types, and each means that there is no value
        raise expression_error(source, cel_error_reason(fault)) from fault
    except BaseException as fault:
        if not is_panic(fault):
            raise
        raise expression_error(source, "CEL failed internally") from fault


def is_panic(fault: BaseException) -> bool:
    """Whether the CEL library panicked. A panic is not a Python Exception."""
    return type(fault).__name__ == "PanicException"


SHARED_BUDGET_USED_UP = (
    "the expressions here may take too much time together; use less data, or do it in a step"
)


class _Left:
    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = EXPRESSIONS_WORK_MAX


_budget: ContextVar[_Left | None] = ContextVar("tenure_expressions", default=None)


@contextmanager
def shared_budget() -> Iterator[None]:
    """Expressions that are evaluated inside share one budget of work: EXPRESSIONS_WORK_MAX."""
    if _budget.get() is not None:
        yield
        return
    token = _budget.set(_Left())
    try:
        yield
    finally:
        _budget.reset(token)


def spend_work(work: int) -> None:
    """Take work from the shared budget, if there is one; ValueError if the budget is used up."""
    left = _budget.get()
    if left is not None:
        left.work -= work
        if left.work < 0:
            raise ValueError(SHARED_BUDGET_USED_UP)


def _wanted(value: Any, parts: dict[PathStep, Any] | None) -> Any:
    """The used part of a value. Lists stay whole, so that their items keep their positions."""
    if parts is None or not isinstance(value, Mapping):
        return value
    return {name: _wanted(value[name], below) for name, below in parts.items() if name in value}


def _wants(refers: tuple[ExpressionReference, ...]) -> dict[str, Any]:
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
    """Whether a value contains an integer beyond 2^53; ValueError if CEL cannot represent it."""
    long = [part for part in _all(value) if isinstance(part, int) and not -EXACT_MAX <= part <= EXACT_MAX]
    if any(not _INTEGER_MIN <= part <= _INTEGER_MAX for part in long):
        raise ValueError(
            "it uses an integer that does not fit into 64 bits; pass it as a string, or use a plain path"
        )
    return bool(long)


class MalformedExpression(ValueError):
    """The text is not an expression. The message is for its author."""


def expression_error(source: str, why: str) -> TenureError:
    shown = source if len(source) <= 200 else f"{source[:197]}..."
    return TenureError("EXPRESSION_FAILED", f"{shown}: {why}", expression=source)


@lru_cache(maxsize=4096)
def parse_expression(source: str, roots: tuple[str, ...] = ROOTS) -> Expression:
    """Parse an expression, or raise MalformedExpression. It may reference only `roots`."""
    source = source.strip()
    if not source:
        raise MalformedExpression("the expression is empty")
    if len(source.encode()) > EXPRESSION_BYTES_MAX:
        raise MalformedExpression(f"the expression is longer than {EXPRESSION_BYTES_MAX} bytes")
    path = _PATH.fullmatch(source)
    if path is not None and path[1] not in _CEL_WORDS:
        reference = ExpressionReference(path[1], tuple(_parts(path[2])))
        _check_root(reference.root, roots, frozenset())
        return Expression(source, (reference,), reference)
    return _parse_cel(source, roots)


@lru_cache(maxsize=1024)
def compile_cel(source: str) -> cel.Program:
    import cel  # late: it loads a terminal toolkit, and most runs have no expression

    return cel.compile(source)


def _parts(tail: str) -> Iterator[PathStep]:
    for name, index, double, single in _TAIL.findall(tail):
        yield int(index) if index else name or double or single


def _check_root(root: str, roots: tuple[str, ...], bound: frozenset[str]) -> None:
    if root not in roots and root not in bound:
        raise MalformedExpression(f"there is no {root!r}; an expression can use {', '.join(roots)}")


def _parse_cel(source: str, roots: tuple[str, ...]) -> Expression:
    # The tokens and the own tree are checked before CEL sees the text.
    tokens = tokenize_cel(source)
    nested, bound = _comprehensions(tokens)
    if nested > COMPREHENSIONS_NESTED_MAX:
        raise MalformedExpression(
            f"{nested} comprehensions are nested; at most {COMPREHENSIONS_NESTED_MAX} are allowed"
        )
    for before, (_, text) in zip([("sign", ""), *tokens], tokens, strict=False):
        if text == "." and before[0] == "sign" and before[1] not in ")]}":
            raise MalformedExpression("a name must not begin with a dot")
    if sum(text in COMPREHENSIONS for _, text in tokens) > COMPREHENSIONS_MAX:
        raise MalformedExpression(f"more than {COMPREHENSIONS_MAX} comprehensions in one expression")
    if shadowed := bound & set(roots):
        raise MalformedExpression(f"the variable of a comprehension must not be named {min(shadowed)!r}")
    try:
        tree = parse_cel(source)
    except UnsupportedSyntax as fault:
        raise MalformedExpression(f"this is not supported CEL: {fault}") from fault
    try:
        compiled = compile_cel(source)
    except Exception as fault:  # the parser has no exception type of its own
        raise MalformedExpression(f"this is not CEL: {cel_error_reason(fault)}") from fault
    except BaseException as fault:
        if not is_panic(fault):
            raise
        raise MalformedExpression("this is not CEL") from fault
    names = compiled.variables()
    for name in names:
        _check_root(name, roots, bound)
    for function in compiled.functions():
        if function.isidentifier() and function not in FUNCTIONS:
            guess = did_you_mean(function, FUNCTIONS) or f"; there are {', '.join(sorted(FUNCTIONS))}"
            raise MalformedExpression(f"there is no function {function!r}{guess}")
    refers = tuple(dict.fromkeys(_references(tokens, roots)))
    used = tuple(dict.fromkeys(r.root for r in refers))
    if missed := {name for name in names if name in roots} - set(used):
        raise MalformedExpression(f"{min(missed)!r} is used in a way that is not supported")
    try:
        bound_cost(tree, dict.fromkeys(used, EMPTY_BOUND))
    except CostExceeded as fault:
        raise MalformedExpression(f"with any input, {fault}") from fault
    return Expression(source, refers, bound=WorkBound(tree, used), wanted=_wants(refers))


def _comprehensions(tokens: list[tuple[str, str]]) -> tuple[int, frozenset[str]]:
    """The nesting depth of comprehensions, and the names that they bind."""
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


def _references(tokens: list[tuple[str, str]], roots: tuple[str, ...]) -> Iterator[ExpressionReference]:
    """The references of a CEL text: each root with the literal names after it."""
    for i, (kind, text) in enumerate(tokens):
        if kind != "name" or text not in roots or (i and tokens[i - 1][1] == "."):
            continue
        parts: list[PathStep] = []
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
        yield ExpressionReference(text, tuple(parts))


def _look_up(path: ExpressionReference, scope: Mapping[str, Any]) -> Any:
    here: Any = scope.get(path.root)
    if path.root not in scope:
        raise expression_error(str(path), f"{path.root!r} is not available here")
    walked = path.root
    for part in path.parts:
        if isinstance(part, int):
            if not isinstance(here, list | tuple):
                raise expression_error(str(path), f"{walked} is {_kind(here)}, not a list")
            if part >= len(here):
                raise expression_error(str(path), f"{walked} has {len(here)} items")
        elif not isinstance(here, Mapping):
            raise expression_error(str(path), f"{walked} is {_kind(here)} and has no {part!r}")
        elif part not in here:
            raise expression_error(str(path), f"{walked} has no {part!r}")
        here = here[part]
        walked += f"[{part}]" if isinstance(part, int) else f".{part}"
    return here


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    if isinstance(value, list | tuple):
        return "a list"
    return names.get(type(value), "a map" if isinstance(value, Mapping) else type(value).__name__)


def _all(value: Any) -> Iterator[Any]:
    """A value and everything in it. Iterative, because outputs may be deeply nested."""
    left = [value]
    while left:
        here = left.pop()
        yield here
        if isinstance(here, Mapping):
            left.extend(here.values())
        elif isinstance(here, list | tuple):
            left.extend(here)


def _as_json(source: str, value: Any) -> Any:
    """CEL has times, bytes and maps with numeric keys. A step's input has not."""
    if isinstance(value, float) and not isfinite(value):
        raise expression_error(source, f"it is {value}, which JSON cannot represent")
    if isinstance(value, int) and not isinstance(value, bool) and value < _INTEGER_MIN:
        raise expression_error(source, "its integer does not fit into 64 bits")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(source, item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise expression_error(source, "the keys of a map must be strings")
        return {key: _as_json(source, item) for key, item in value.items()}
    raise expression_error(source, f"it is a {type(value).__name__}; convert it with string(...)")


def cel_error_reason(fault: BaseException) -> str:
    """The first line of CEL's message, without the repeated expression."""
    if isinstance(fault, KeyError):
        return f"there is no {fault.args[0]!r}" if fault.args else "a key is missing"
    message = str(fault)
    _, found, rest = message.partition("ERROR: <input>:")
    line = (rest if found else message).splitlines()[0] if message else type(fault).__name__
    for needless in (" expecting {", ". Check ", ". CEL does not"):
        line = line.partition(needless)[0]
    return line if len(line) <= 300 else f"{line[:297]}..."
