"""The work of evaluating an expression for given values, in the units of `tenure.expressions.cost`. The cost bound may not be below it.

It covers the part of CEL whose cost grows: fields, lists, maps, `+`, `!=`, choices and comprehensions. LookupError means that there is no value.
"""

from __future__ import annotations

from typing import Any

from tenure.expressions import cost
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
)

STEPS_MAX = 10_000
"""More work raises LookupError, so that tests stay short."""


def metered_work(tree: Expr, values: dict[str, Any]) -> int:
    """The work of an expression."""
    meter = _Meter()
    meter.work = cost._BEGIN + sum(_weight(value) * cost._CONVERT for value in values.values())
    value = meter.value(tree, values)
    return meter.work + _weight(value) * cost._CONVERT


def _weight(value: Any) -> int:
    return cost.bound_value(value).weight


class _Meter:
    def __init__(self) -> None:
        self.work = self.steps = 0

    def value(self, tree: Expr, scope: dict[str, Any]) -> Any:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise LookupError
        self.work += cost._NODE
        match tree:
            case LiteralExpr():
                return tree.value
            case NameExpr(name=name):
                return scope[name]
            case MemberExpr(of=of, name=name):
                return self._part(self.value(of, scope), name, dict)
            case IndexExpr(of=of, by=by):
                return self._part(self.value(of, scope), self.value(by, scope), list)
            case ListExpr(items=items):
                return self._copied([self.value(item, scope) for item in items])
            case MapExpr(entries=entries):
                return self._copied({self.value(k, scope): self.value(v, scope) for k, v in entries})
            case ConditionalExpr(condition=condition, yes=yes, no=no):
                return self.value(yes if self.value(condition, scope) else no, scope)
            case OperatorExpr(sign=sign, operands=operands):
                return self._operated(sign, [self.value(part, scope) for part in operands])
            case CallExpr(name=name, of=over, arguments=(NameExpr(name=variable), body)) if over is not None:
                return self._comprehended(name, self.value(over, scope), variable, body, scope)
        raise LookupError

    def _copied(self, value: Any) -> Any:
        self.work += 2 * _weight(value)
        return value

    def _part(self, of: Any, name: Any, kind: type[Any]) -> Any:
        if not isinstance(of, kind):
            raise LookupError
        return self._copied(of[name])

    def _operated(self, sign: str, parts: list[Any]) -> Any:
        if sign != "+":
            self.work += sum(map(_weight, parts)) // 4
            return parts[0] != parts[1]
        made = parts[0]
        for part in parts[1:]:
            if type(made) is not type(part) or not isinstance(part, str | list):
                raise LookupError
            made = self._copied(made + part)
        return made

    def _comprehended(self, name: str, over: Any, variable: str, body: Expr, scope: dict[str, Any]) -> Any:
        if not isinstance(over, list | dict):
            raise LookupError
        made, held = [], 0
        for item in over:
            self.work += cost._ROUND + _weight(item)
            found = self.value(body, {**scope, variable: item})
            if name == "map" or (name == "filter" and found):
                made.append(found if name == "map" else item)
                held += _weight(made[-1])
            if name in ("map", "filter"):
                self.work += held  # the list is copied in each round
        return made if name in ("map", "filter") else True
