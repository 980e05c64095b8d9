"""What an expression may cost: an upper bound on its work and memory, before it is evaluated.

CEL has no budget of its own, and 500 bytes can double a text until memory ends. So its cost is bounded from its tree and the sizes of
the values that it looks at.

Laws:
1. Every part of the tree gets a `Shape`: an upper bound on the size of its value. Its work is the sum of what evaluating its parts
   and copying their values takes, in units of about 10 ns on a slow machine. CEL copies fields and variables deeply, and `map`
   and `filter` copy the list they make once for each item: their work is quadratic.
2. Bounds only grow with the values: what does not fit with the smallest values never does, and is refused when it is written down.
3. An integer beyond 2^53 and a double are not compared, and the integer is not made a double: CEL would round it.
4. A function or macro that is not known here is refused: `Exceeded`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from tenure.declared.syntax import (
    Call,
    Choice,
    Expr,
    Index,
    Listed,
    Literally,
    Mapped,
    Member,
    Name,
    Operator,
)
from tenure.limits import EXPRESSION_MEMORY_BYTES_MAX, EXPRESSION_WORK_MAX

COMPREHENSIONS = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})
EXACT_MAX = 2**53

_SCALAR, _TEXT, _LIST, _MAP, _ENTRY = 8, 20, 20, 30, 20
"""Units to copy a value, without its parts."""
_CHARS_PER_UNIT = 32
_BYTES_PER_UNIT = 6
"""Memory of a value, for each unit of its copy."""
_UNITS_PER_BYTE = 12
"""No JSON text of a value has more units of copy for each of its bytes: `{"":0}` and a comma."""
_NODE, _ROUND, _CALL = 20, 40, 60
"""Units to evaluate a part of a tree, to begin a round of a comprehension, to call a function."""
_BEGIN = 500
"""Units for every expression."""
_CONVERT = 4
"""A value costs so many copies on its way into CEL, or out of it."""
_REGEX_COMPILE, _REGEX_MATCH = 10, 2
"""Units for each state: to compile a pattern, and to match one byte."""
_REGEX_WORST = 10_000_000
"""No pattern that CEL accepts takes longer to compile: its program has at most 10 MB."""
_DOUBLE_CHARS, _TIME_CHARS = 330, 64


class Exceeded(ValueError):
    """An expression may cost too much, or cannot be bounded; what it says is meant for whoever wrote it."""


class Shape(msgspec.Struct, frozen=True):
    """An upper bound on a value."""

    units: int = _SCALAR
    """To copy it, without the characters of its texts."""
    chars: int = 0
    """Bytes of all its texts."""
    count: int = 0
    """Items of a list or a map; 0 where it is none."""
    item: Shape | None = None
    """What bounds each item of a list, each value of a map."""
    key: Shape | None = None
    """What bounds each key of a map."""
    value: Any = None
    """The value itself, where it is known and a part of what the expression is given."""
    known: bool = False
    total: int = 0
    """Where nothing is known but the bytes of its JSON: so many. `count` and `item` then follow from each other."""
    whole: bool = False
    """Whether it may hold an integer beyond 2^53."""
    double: bool = False
    """Whether it may hold a double."""

    @property
    def weight(self) -> int:
        """Units to copy it."""
        return self.units + self.chars // _CHARS_PER_UNIT

    @property
    def memory(self) -> int:
        """Bytes that it takes."""
        return self.units * _BYTES_PER_UNIT + self.chars


NOTHING = Shape()
_TRUTH = NOTHING
_INTEGER = NOTHING
_DOUBLE = Shape(double=True)


def anything(size: int) -> Shape:
    """A bound on every value whose JSON has at most so many bytes and no integer beyond 2^53."""
    return Shape(
        units=_MAP + size * _UNITS_PER_BYTE,
        chars=size,
        count=_count_of(max(size, 1)),
        total=max(size, 1),
        double=True,
    )


def shape_of(value: Any) -> Shape:
    """The bound on a JSON value that is known. (Its depth is bounded by whoever encoded it before.)"""
    if isinstance(value, str):
        return Shape(units=_TEXT, chars=len(value) * (1 if value.isascii() else 4), value=value, known=True)
    if isinstance(value, Mapping):
        keys, values = [shape_of(key) for key in value], [shape_of(part) for part in value.values()]
        units = _MAP + sum(part.units + _ENTRY for part in keys) + sum(part.units for part in values)
        return _container(value, units, values, keys)
    if isinstance(value, list | tuple):
        items = [shape_of(part) for part in value]
        return _container(value, _LIST + sum(part.units for part in items), items, [])
    if isinstance(value, bool) or value is None:
        return NOTHING
    if isinstance(value, int):
        return Shape(whole=not -EXACT_MAX <= value <= EXACT_MAX)
    return _DOUBLE


def _container(value: Any, units: int, items: list[Shape], keys: list[Shape]) -> Shape:
    return Shape(
        units=units,
        chars=sum(part.chars for part in items) + sum(part.chars for part in keys),
        count=len(items),
        item=_joined(items),
        key=_joined(keys) if keys else None,
        value=value,
        known=True,
        whole=any(part.whole for part in items),
        double=any(part.double for part in items),
    )


def _joined(shapes: list[Shape]) -> Shape | None:
    """A bound on all of them."""
    if len(shapes) <= 1:
        return shapes[0] if shapes else None
    items = [shape.item for shape in shapes if shape.item is not None]
    keys = [shape.key for shape in shapes if shape.key is not None]
    total = max(map(_bytes_of, shapes)) if any(shape.total for shape in shapes) else 0
    return Shape(
        units=max(shape.units for shape in shapes),
        chars=max(shape.chars for shape in shapes),
        count=max(_count_of(total), *(shape.count for shape in shapes)),
        item=_joined(items),
        key=_joined(keys),
        total=total,
        whole=any(shape.whole for shape in shapes),
        double=any(shape.double for shape in shapes),
    )


def _bytes_of(shape: Shape) -> int:
    """The bytes that bound a value, where one that is known by its bytes alone may stand in its place: what is known of it counts
    as so many. (An item takes a unit for each of them at least, so that no value of so many bytes is cheaper.)"""
    return shape.total or shape.chars + shape.units


def _count_of(total: int) -> int:
    """How many items something of so many bytes may have."""
    return total // 2 + 1 if total else 0


Bound = Mapping[str, Shape]


class Cost(msgspec.Struct, frozen=True):
    """What evaluating an expression takes at most."""

    work: int
    memory: int


def cost_of(tree: Expr, scope: Bound) -> Cost:
    """An upper bound for an expression over values of these shapes; `Exceeded` where it is above the limits."""
    walk = _Walk()
    walk.spend(_BEGIN)
    for shape in scope.values():
        walk.spend(shape.weight * _CONVERT)
    result = walk.shape(tree, scope)
    walk.spend(result.weight * _CONVERT)
    return Cost(walk.work, walk.memory)


def _too_much(what: str) -> NoReturn:
    raise Exceeded(f"it may take too much {what}; look at less, or do it in a step")


class _Walk:
    """See the laws above."""

    def __init__(self) -> None:
        self.work = 0
        self.memory = 0

    def spend(self, units: int) -> None:
        self.work += units
        if self.work > EXPRESSION_WORK_MAX:
            _too_much("time")

    def shape(self, tree: Expr, scope: Bound) -> Shape:
        """The bound on what a tree is worth; what it takes is added up."""
        self.spend(_NODE)
        made = self._shape(tree, scope)
        if not isinstance(tree, Name | Literally):
            self.memory += made.memory
            if self.memory > EXPRESSION_MEMORY_BYTES_MAX:
                _too_much("memory")
        return made

    def _shape(self, tree: Expr, scope: Bound) -> Shape:
        match tree:
            case Literally():
                return _literal(tree)
            case Name(name=name):
                return scope.get(name, NOTHING)
            case Member(of=of, name=name):
                return self._copied(_part(self.shape(of, scope), name))
            case Index(of=of, by=by):
                inner = self.shape(of, scope)
                self.shape(by, scope)
                written = isinstance(by, Literally) and by.value is not None
                return self._copied(_part(inner, by.value if isinstance(by, Literally) and written else None))
            case Call():
                return self._called(tree, scope)
            case Listed(items=items):
                made = [self.shape(item, scope) for item in items]
                return self._copied(_list_of(made))
            case Mapped(entries=entries):
                keys = [self.shape(key, scope) for key, _ in entries]
                values = [self.shape(value, scope) for _, value in entries]
                return self._copied(_map_of(keys, values))
            case Choice(condition=condition, yes=yes, no=no):
                self.shape(condition, scope)
                found = _joined([self.shape(yes, scope), self.shape(no, scope)])
                assert found is not None
                return found
            case Operator(sign=sign, operands=operands):
                return self._operated(sign, [self.shape(part, scope) for part in operands])

    def _copied(self, shape: Shape) -> Shape:
        self.spend(2 * shape.weight)
        return shape

    def _operated(self, sign: str, parts: list[Shape]) -> Shape:
        if sign == "+":
            # Each sign copies what is before it and what follows it.
            made = parts[0]
            for part in parts[1:]:
                made = self._copied(_sum(made, part))
            return made
        if sign in ("-", "*", "/", "%"):
            return Shape(whole=any(part.whole for part in parts), double=any(part.double for part in parts))
        if sign in ("==", "!=", "<", "<=", ">", ">=", "in"):
            self.spend(sum(part.weight for part in parts) // 4)
            if any(part.whole for part in parts) and any(part.double for part in parts):
                raise Exceeded(
                    "it compares an integer beyond 2^53 with a number that has a fraction or exponent, which CEL rounds"
                )
        return _TRUTH

    def _called(self, call: Call, scope: Bound) -> Shape:
        if call.of is not None and call.name in COMPREHENSIONS:
            return self._comprehended(call, call.of, scope)
        given = [self.shape(part, scope) for part in ((call.of,) if call.of is not None else ())]
        given += [self.shape(part, scope) for part in call.arguments]
        size = sum(part.chars for part in given)
        self.spend(_CALL + sum(part.weight for part in given) + size // 4)
        match call.name:
            case "matches":
                self._matched(call, given)
                return _TRUTH
            case "string" | "bytes":
                return Shape(units=_TEXT, chars=max(3 * size, _DOUBLE_CHARS))
            case "dyn":
                return given[0] if given else NOTHING
            case "double":
                if any(part.whole for part in given):
                    raise Exceeded("double() of an integer beyond 2^53 would round it")
                return _DOUBLE
            case "int" | "uint":
                return Shape(whole=any(part.whole or part.chars > 0 or part.double for part in given))
            case "type" | "timestamp" | "duration":
                return Shape(units=_TEXT, chars=_TIME_CHARS)
            case "has" | "size" | "startsWith" | "endsWith" | "contains":
                return _INTEGER
            case name if name.startswith("get"):
                return _INTEGER
            case _:
                raise Exceeded(f"there is no function {call.name!r}")

    def _matched(self, call: Call, given: list[Shape]) -> None:
        pattern = call.arguments[-1] if call.arguments else None
        written = given[-1].value if given[-1].known else None
        if isinstance(pattern, Literally):
            written = pattern.unescaped
        if isinstance(written, str):
            compiled, states = pattern_cost(written)
        elif given[-1].total:
            compiled, states = _REGEX_WORST, _REGEX_WORST
        else:
            raise Exceeded("the pattern of matches() must be written out, or be a plain path")
        self.spend(min(compiled, _REGEX_WORST))
        self.spend(states * (1 + sum(part.chars for part in given[:-1])) * _REGEX_MATCH)

    # ---------------------------------------------------------------------------------------- comprehensions

    def _comprehended(self, call: Call, over: Expr, scope: Bound) -> Shape:
        variable = call.arguments[0] if call.arguments else None
        takes = (2, 3) if call.name == "map" else (2,)
        if not isinstance(variable, Name) or len(call.arguments) not in takes:
            raise Exceeded(f"{call.name}() takes the name of a variable and an expression")
        container = self.shape(over, scope)
        if not container.total:
            return self._rounds(call, variable.name, scope, container.count, _item(container))
        # Of many small items and one large one: what it takes is convex in their number, so one of both is the worst case.
        before, memory = self.work, self.memory
        few = self._rounds(call, variable.name, scope, 1, anything(container.total))
        after, self.work = self.work, before
        many = self._rounds(call, variable.name, scope, container.count, anything(2))
        self.work, self.memory = max(after, self.work), max(memory, self.memory)
        found = _joined([few, many])
        assert found is not None
        return found

    def _rounds(self, call: Call, variable: str, scope: Bound, count: int, item: Shape) -> Shape:
        within = {**scope, variable: item}
        before, self.work = self.work, 0
        made = [self.shape(part, within) for part in call.arguments[1:]]
        each, self.work = self.work + item.weight + _ROUND, before
        self.spend(count * each)
        if call.name not in ("map", "filter"):
            return _TRUTH
        result = made[-1] if call.name == "map" else item
        self.spend(count * (count + 1) // 2 * result.weight)
        listed = Shape(
            units=_LIST + count * result.units,
            chars=count * result.chars,
            count=count,
            item=result,
            whole=result.whole,
            double=result.double,
        )
        self.memory += listed.memory
        return listed


def _literal(literal: Literally) -> Shape:
    if literal.type in ("string", "bytes"):
        return Shape(units=_TEXT, chars=literal.size, value=literal.value, known=literal.value is not None)
    if literal.type != "number":
        return NOTHING
    if literal.value is None:
        return _DOUBLE
    return Shape(whole=literal.value > EXACT_MAX)


def _item(container: Shape) -> Shape:
    """What bounds each item that a comprehension sees: of a map its keys. What may be a list or a map has both."""
    if container.known and isinstance(container.value, Mapping):
        return container.key or NOTHING
    seen = [shape for shape in (container.key, container.item) if shape is not None]
    return _joined(seen) or NOTHING


def _part(shape: Shape, name: str | int | None) -> Shape:
    """What bounds a field or an item; `name` is None where it is not written out."""
    if shape.known and name is not None:
        try:
            return shape_of(shape.value[name])
        except (KeyError, IndexError, TypeError):
            return NOTHING  # there is none: the evaluation ends here
    if shape.total:
        return shape
    return shape.item or NOTHING


def _sum(one: Shape, other: Shape) -> Shape:
    parts = [shape.item for shape in (one, other) if shape.item is not None]
    total = _bytes_of(one) + _bytes_of(other) if one.total or other.total else 0
    return Shape(
        units=one.units + other.units,
        chars=one.chars + other.chars,
        count=max(_count_of(total), one.count + other.count),
        item=_joined(parts),
        total=total,
        whole=one.whole or other.whole,
        double=one.double or other.double,
    )


def _list_of(items: list[Shape]) -> Shape:
    return Shape(
        units=_LIST + sum(item.units for item in items),
        chars=sum(item.chars for item in items),
        count=len(items),
        item=_joined(items),
        whole=any(item.whole for item in items),
        double=any(item.double for item in items),
    )


def _map_of(keys: list[Shape], values: list[Shape]) -> Shape:
    return Shape(
        units=_MAP + sum(part.units + _ENTRY for part in keys) + sum(part.units for part in values),
        chars=sum(part.chars for part in (*keys, *values)),
        count=len(keys),
        item=_joined(values),
        key=_joined(keys),
        whole=any(part.whole for part in values),
        double=any(part.double for part in values),
    )


# --------------------------------------------------------------------------------------------------- patterns

_PIECE = re.compile(r"\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\.|\[\^?\]?|\{[0-9, ]*\}|.", re.DOTALL)
_WIDE = 3_000
"""States of a class of Unicode: letters, words."""
_MEDIUM = 300
_COUNT_MAX = 10**9


_VERBOSE = re.compile(r"\(\?[a-zA-Z-]*x[a-zA-Z-]*[:)]")
"""A pattern in verbose mode, or a part of it."""


def pattern_cost(pattern: str) -> tuple[int, int]:
    """Units to compile a regular expression, and how many of its states may be active while it matches, at most. Repetitions
    multiply what they repeat; nothing is compiled for it."""
    if _VERBOSE.search(pattern):  # blanks and comments would be read otherwise than here
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
            inner = stack.pop()
            stack[-1].append(_added(inner))
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
