"""Upper bounds on the work and memory of an expression, computed before it is evaluated.

CEL has no budget of its own, and 500 bytes of it can double a string until memory is exhausted. So the cost is bounded from the tree
and from the sizes of the values.

Laws:
1. Every node gets a `ValueBound`, an upper bound on the size of its value. Its work is the cost of evaluating its children and
   copying their values, in units of about 10 ns on a slow machine. CEL copies fields and variables deeply. `map` and `filter` copy
   their result once per item, so their work is quadratic.
2. Bounds grow monotonically with the values. An expression that exceeds the limits for the smallest values is refused when it is
   parsed.
3. An integer beyond 2^53 is neither compared with a double nor converted to one: CEL would round it.
4. An unknown function or macro is refused: `CostExceeded`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from tenure.expressions.cel_syntax import (
    CallExpr,
    ConditionalExpr,
    Expr,
    IndexExpr,
    ListExpr,
    LiteralExpr,
    MapExpr,
    MemberExpr,
    NameExpr,
    OperatorExpr,
    child_expressions,
)
from tenure.limits import EXPRESSION_MEMORY_BYTES_MAX, EXPRESSION_WORK_MAX

COMPREHENSIONS = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})
EXACT_MAX = 2**53

_SCALAR, _TEXT, _LIST, _MAP, _ENTRY = 8, 20, 20, 30, 20
"""Units to copy a value without its parts."""
_CHARS_PER_UNIT = 32
_BYTES_PER_UNIT = 6
"""Memory of a value, per unit of its copy."""
_UNITS_PER_BYTE = 12
"""No JSON text needs more units per byte: `{"":0}` and a comma."""
_NODE, _ROUND, _CALL = 20, 40, 60
"""Units to evaluate a node, to begin a round of a comprehension, and to call a function."""
_BEGIN = 500
_CONVERT = 4
"""Converting a value to or from CEL costs as much as this many copies."""
_REGEX_COMPILE, _REGEX_MATCH = 10, 2
"""Units per state: to compile a pattern, and to match one byte."""
_REGEX_WORST = 10_000_000
"""No pattern that CEL accepts takes longer to compile: its program has at most 10 MB."""
_WRITE, _WRITE_DOUBLE, _WRITE_MEMORY = 12, 50, 6
"""Writing the canonical form of a value costs as much as this many copies; a large double is written with all of its digits."""
_DOUBLE_CHARS, _TIME_CHARS, _DIGEST_CHARS = 330, 64, 64


class CostExceeded(ValueError):
    """An expression may cost too much, or cannot be bounded. The message is for its author."""


class ValueBound(msgspec.Struct, frozen=True):
    units: int = _SCALAR
    """Units to copy it, without the characters of its strings."""
    chars: int = 0
    """The bytes of all its strings."""
    count: int = 0
    """The number of items of a list or map, otherwise 0."""
    item: ValueBound | None = None
    """The bound on each item of a list, or on each value of a map."""
    key: ValueBound | None = None
    """The bound on each key of a map."""
    value: Any = None
    """The value itself, if it is known and a part of the expression's input."""
    known: bool = False
    total: int = 0
    """If only the size of its JSON is known: that size in bytes. `count` and `item` then depend on each other."""
    whole: bool = False
    double: bool = False

    @property
    def weight(self) -> int:
        return self.units + self.chars // _CHARS_PER_UNIT

    @property
    def memory(self) -> int:
        return self.units * _BYTES_PER_UNIT + self.chars


EMPTY_BOUND = ValueBound()
"""The bound on null, booleans and integers up to 2^53."""
_DOUBLE = ValueBound(double=True)


def bound_by_size(size: int) -> ValueBound:
    """The bound on every value whose JSON has at most `size` bytes and no integer beyond 2^53."""
    return ValueBound(
        units=_MAP + size * _UNITS_PER_BYTE,
        chars=size,
        count=_count_of(max(size, 1)),
        total=max(size, 1),
        double=True,
    )


def bound_value(value: Any) -> ValueBound:
    """The bound on a known JSON value. Its depth is bounded, because it was encoded before."""
    if isinstance(value, str):
        return ValueBound(
            units=_TEXT, chars=len(value) * (1 if value.isascii() else 4), value=value, known=True
        )
    if isinstance(value, Mapping):
        return _map_of([*map(bound_value, value)], [*map(bound_value, value.values())], value)
    if isinstance(value, list | tuple):
        return _list_of([*map(bound_value, value)], value)
    if isinstance(value, bool) or value is None:
        return EMPTY_BOUND
    if isinstance(value, int):
        return ValueBound(whole=not -EXACT_MAX <= value <= EXACT_MAX)
    return _DOUBLE


def _container(units: int, items: list[ValueBound], keys: Sequence[ValueBound], value: Any) -> ValueBound:
    return ValueBound(
        units=units,
        chars=sum(part.chars for part in (*items, *keys)),
        count=len(items),
        item=_joined(items),
        key=_joined(keys),
        value=value,
        known=value is not None,
        whole=any(item.whole for item in items),
        double=any(item.double for item in items),
    )


def _list_of(items: list[ValueBound], value: Any = None) -> ValueBound:
    return _container(_LIST + sum(item.units for item in items), items, (), value)


def _map_of(keys: list[ValueBound], values: list[ValueBound], value: Any = None) -> ValueBound:
    units = _MAP + sum(part.units + _ENTRY for part in keys) + sum(part.units for part in values)
    return _container(units, values, keys, value)


def _joined(shapes: Sequence[ValueBound]) -> ValueBound | None:
    """The smallest common bound."""
    if len(shapes) <= 1:
        return shapes[0] if shapes else None
    items = [shape.item for shape in shapes if shape.item is not None]
    keys = [shape.key for shape in shapes if shape.key is not None]
    total = max(map(_bytes_of, shapes)) if any(shape.total for shape in shapes) else 0
    return ValueBound(
        units=max(shape.units for shape in shapes),
        chars=max(shape.chars for shape in shapes),
        count=max(_count_of(total), *(shape.count for shape in shapes)),
        item=_joined(items),
        key=_joined(keys),
        total=total,
        whole=any(shape.whole for shape in shapes),
        double=any(shape.double for shape in shapes),
    )


def _bytes_of(shape: ValueBound) -> int:
    """The bytes that bound a value when it is joined with a value of which only the bytes are known. Every byte counts as at least one
    unit, so no value of that many bytes is cheaper.
    """
    return shape.total or shape.chars + shape.units


def _count_of(total: int) -> int:
    """The largest number of items in that many bytes."""
    return total // 2 + 1 if total else 0


ScopeBounds = Mapping[str, ValueBound]


class ExpressionCost(msgspec.Struct, frozen=True):
    work: int
    memory: int


def bound_cost(tree: Expr, scope: ScopeBounds) -> ExpressionCost:
    """An upper bound for an expression over values with these bounds; `CostExceeded` if it is above the limits."""
    walk = _Walk()
    walk.spend(_BEGIN)
    for shape in scope.values():
        walk.spend(shape.weight * _CONVERT)
    result = walk.shape(tree, scope)
    walk.spend(result.weight * _CONVERT)
    return ExpressionCost(walk.work, walk.memory)


def _too_much(what: str) -> NoReturn:
    raise CostExceeded(f"it may take too much {what}; use less data, or do it in a step")


class _Walk:
    """Adds up the cost of a tree (laws 1 and 3)."""

    def __init__(self) -> None:
        self.work = 0
        self.memory = 0

    def spend(self, units: int) -> None:
        self.work += units
        if self.work > EXPRESSION_WORK_MAX:
            _too_much("time")

    def shape(self, tree: Expr, scope: ScopeBounds) -> ValueBound:
        """The bound on the value of a tree. Adds up its cost."""
        self.spend(_NODE)
        made = self._shape(tree, scope)
        if not isinstance(tree, NameExpr | LiteralExpr):
            self.memory += made.memory
            if self.memory > EXPRESSION_MEMORY_BYTES_MAX:
                _too_much("memory")
        return made

    def _shape(self, tree: Expr, scope: ScopeBounds) -> ValueBound:
        match tree:
            case LiteralExpr():
                return _literal(tree)
            case NameExpr(name=name):
                return scope.get(name, EMPTY_BOUND)
            case MemberExpr(of=of, name=name):
                return self._copied(_part(self.shape(of, scope), name))
            case IndexExpr(of=of, by=by):
                inner = self.shape(of, scope)
                self.shape(by, scope)
                return self._copied(_part(inner, by.value if isinstance(by, LiteralExpr) else None))
            case CallExpr():
                return self._called(tree, scope)
            case ListExpr(items=items):
                return self._copied(_list_of([self.shape(item, scope) for item in items]))
            case MapExpr(entries=entries):
                keys = [self.shape(key, scope) for key, _ in entries]
                values = [self.shape(value, scope) for _, value in entries]
                return self._copied(_map_of(keys, values))
            case ConditionalExpr(condition=condition, yes=yes, no=no):
                self.shape(condition, scope)
                return _joined([self.shape(yes, scope), self.shape(no, scope)]) or EMPTY_BOUND
            case OperatorExpr(sign=sign, operands=operands):
                return self._operated(sign, [self.shape(part, scope) for part in operands])

    def _copied(self, shape: ValueBound) -> ValueBound:
        self.spend(2 * shape.weight)
        return shape

    def _operated(self, sign: str, parts: list[ValueBound]) -> ValueBound:
        if sign == "+":
            # Each operator copies both of its operands.
            made = parts[0]
            for part in parts[1:]:
                made = self._copied(_sum(made, part))
            return made
        if sign in ("-", "*", "/", "%"):
            return ValueBound(
                whole=any(part.whole for part in parts), double=any(part.double for part in parts)
            )
        if sign in ("==", "!=", "<", "<=", ">", ">=", "in"):
            self.spend(sum(part.weight for part in parts) // 4)
            if any(part.whole for part in parts) and any(part.double for part in parts):
                raise CostExceeded(
                    "it compares an integer beyond 2^53 with a number that has a fraction or an exponent, which CEL would round"
                )
        return EMPTY_BOUND

    def _called(self, call: CallExpr, scope: ScopeBounds) -> ValueBound:
        if call.of is not None and call.name in COMPREHENSIONS:
            return self._comprehended(call, call.of, scope)
        given = [self.shape(part, scope) for part in child_expressions(call)]
        size = sum(part.chars for part in given)
        self.spend(_CALL + sum(part.weight for part in given) + size // 4)
        match call.name:
            case "matches":
                self._matched(call, given)
                return EMPTY_BOUND
            case "string" | "bytes":
                return ValueBound(units=_TEXT, chars=max(3 * size, _DOUBLE_CHARS))
            case "sha256":
                return self._digested(call, given)
            case "dyn":
                return given[0] if given else EMPTY_BOUND
            case "double":
                if any(part.whole for part in given):
                    raise CostExceeded("double() of an integer beyond 2^53 would round it")
                return _DOUBLE
            case "int" | "uint":
                return ValueBound(whole=any(part.whole or part.chars > 0 or part.double for part in given))
            case "type" | "timestamp" | "duration":
                return ValueBound(units=_TEXT, chars=_TIME_CHARS)
            case "has" | "size" | "startsWith" | "endsWith" | "contains":
                return EMPTY_BOUND
            case name if name.startswith("get"):
                return EMPTY_BOUND
            case _:
                raise CostExceeded(f"there is no function {call.name!r}")

    def _digested(self, call: CallExpr, given: list[ValueBound]) -> ValueBound:
        """Python converts the value, writes its canonical form and hashes it."""
        if call.of is not None or len(given) != 1:
            raise CostExceeded("sha256() takes one value: sha256(inputs.fields)")
        part = given[0]
        self.spend(part.weight * (_WRITE_DOUBLE if part.double else _WRITE) + part.chars // 2)
        self.memory += part.memory * _WRITE_MEMORY
        return ValueBound(units=_TEXT, chars=_DIGEST_CHARS)

    def _matched(self, call: CallExpr, given: list[ValueBound]) -> None:
        pattern = call.arguments[-1] if call.arguments else None
        written = given[-1].value if given[-1].known else None
        if isinstance(pattern, LiteralExpr):
            written = pattern.unescaped
        if isinstance(written, str):
            compiled, states = bound_pattern_cost(written)
        elif given[-1].total:
            compiled, states = _REGEX_WORST, _REGEX_WORST
        else:
            raise CostExceeded("the pattern of matches() must be a literal or a plain path")
        self.spend(min(compiled, _REGEX_WORST))
        self.spend(states * (1 + sum(part.chars for part in given[:-1])) * _REGEX_MATCH)

    # ---------------------------------------------------------------------------------------- comprehensions

    def _comprehended(self, call: CallExpr, over: Expr, scope: ScopeBounds) -> ValueBound:
        variable = call.arguments[0] if call.arguments else None
        takes = (2, 3) if call.name == "map" else (2,)
        if not isinstance(variable, NameExpr) or len(call.arguments) not in takes:
            raise CostExceeded(f"{call.name}() takes the name of a variable and an expression")
        container = self.shape(over, scope)
        if not container.total:
            return self._rounds(call, variable.name, scope, container.count, _item(container))
        # Many small items and one large item: the cost is convex in their number, so this mix is the worst case.
        before, memory = self.work, self.memory
        few = self._rounds(call, variable.name, scope, 1, bound_by_size(container.total))
        after, self.work = self.work, before
        many = self._rounds(call, variable.name, scope, container.count, bound_by_size(2))
        self.work, self.memory = max(after, self.work), max(memory, self.memory)
        return _joined([few, many]) or EMPTY_BOUND

    def _rounds(
        self, call: CallExpr, variable: str, scope: ScopeBounds, count: int, item: ValueBound
    ) -> ValueBound:
        within = {**scope, variable: item}
        before, self.work = self.work, 0
        made = [self.shape(part, within) for part in call.arguments[1:]]
        each, self.work = self.work + item.weight + _ROUND, before
        self.spend(count * each)
        if call.name not in ("map", "filter"):
            return EMPTY_BOUND
        result = made[-1] if call.name == "map" else item
        self.spend(count * (count + 1) // 2 * result.weight)
        listed = ValueBound(
            units=_LIST + count * result.units,
            chars=count * result.chars,
            count=count,
            item=result,
            whole=result.whole,
            double=result.double,
        )
        self.memory += listed.memory
        return listed


def _literal(literal: LiteralExpr) -> ValueBound:
    if literal.type in ("string", "bytes"):
        return ValueBound(
            units=_TEXT, chars=literal.size, value=literal.value, known=literal.value is not None
        )
    if literal.type != "number":
        return EMPTY_BOUND
    if literal.value is None:
        return _DOUBLE
    return ValueBound(whole=literal.value > EXACT_MAX)


def _item(container: ValueBound) -> ValueBound:
    """The bound on each item of a comprehension. A map yields its keys. A value that may be a list or a map yields both."""
    if container.known and isinstance(container.value, Mapping):
        return container.key or EMPTY_BOUND
    seen = [shape for shape in (container.key, container.item) if shape is not None]
    return _joined(seen) or EMPTY_BOUND


def _part(shape: ValueBound, name: str | int | None) -> ValueBound:
    """The bound on a field or an item. `name` is None if it is not a literal."""
    if shape.known and name is not None:
        try:
            return bound_value(shape.value[name])
        except (KeyError, IndexError, TypeError):
            return EMPTY_BOUND  # there is no such field: the evaluation fails here
    if shape.total:
        return shape
    return shape.item or EMPTY_BOUND


def _sum(one: ValueBound, other: ValueBound) -> ValueBound:
    parts = [shape.item for shape in (one, other) if shape.item is not None]
    total = _bytes_of(one) + _bytes_of(other) if one.total or other.total else 0
    return ValueBound(
        units=one.units + other.units,
        chars=one.chars + other.chars,
        count=max(_count_of(total), one.count + other.count),
        item=_joined(parts),
        total=total,
        whole=one.whole or other.whole,
        double=one.double or other.double,
    )


# --------------------------------------------------------------------------------------------------- patterns

_PIECE = re.compile(r"\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\.|\[\^?\]?|\{[0-9, ]*\}|.", re.DOTALL)
_WIDE = 3_000
"""States of a Unicode class such as letters or words."""
_MEDIUM = 300
_COUNT_MAX = 10**9


_VERBOSE = re.compile(r"\(\?[a-zA-Z-]*x[a-zA-Z-]*[:)]")


def bound_pattern_cost(pattern: str) -> tuple[int, int]:
    """Upper bounds for a regular expression: the units to compile it, and the number of active states while it matches. Repetitions
    multiply the cost of their contents. Nothing is compiled.
    """
    if _VERBOSE.search(pattern):  # verbose mode ignores blanks and comments, which this code does not
        return _COUNT_MAX, _COUNT_MAX
    folded = 4 if "(?" in pattern and "i" in pattern else 1
    stack: list[list[tuple[int, int]]] = [[]]
    classes = 0
    for piece in _PIECE.findall(pattern):
        sequence = stack[-1]
        if classes:
            classes += {"[": 1, "]": -1}.get(piece[0], 0)
            sequence[-1] = (sequence[-1][0] + _size(piece), sequence[-1][1])
        elif piece[0] == "[":
            classes = 1
            sequence.append((_MEDIUM if "^" in piece else 4, 4))
        elif piece == "(":
            stack.append([])
        elif piece == ")" and len(stack) > 1:
            stack[-2].append(_added(stack.pop()))
        elif piece in ("*", "+", "?"):
            if sequence:
                sequence[-1] = (sequence[-1][0] * 2 + 2, sequence[-1][1] + 2)
        elif piece[0] == "{" and len(piece) > 1:
            times = max([int(n[:10]) for n in piece[1:-1].replace(" ", "").split(",") if n] or [0]) + 1
            if sequence:
                compiled, states = sequence[-1]
                sequence[-1] = (min(compiled * times, _COUNT_MAX), min(states * times, _COUNT_MAX))
        else:
            sequence.append((size := _size(piece), 1 if size < _MEDIUM else 4))
    compiled, states = _added([_added(sequence) for sequence in stack])
    return compiled * _REGEX_COMPILE * folded + 2_000, states * (2 if folded > 1 else 1)


def _size(piece: str) -> int:
    if piece[:2] in ("\\w", "\\W", "\\p", "\\P", "\\b", "\\B"):
        return _WIDE
    return _MEDIUM if piece in ("\\d", "\\D", "\\s", "\\S", ".") else 4 if piece.isascii() else 12


def _added(parts: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(part[0] for part in parts) + 2, sum(part[1] for part in parts) + 2
