"""Type inference for conditions: whether the fields that a condition uses exist, from the schemas of its inputs.

Laws:
1. A type is a JSON Schema. A field exists if `properties` names it or `additionalProperties` allows it. An object with properties and
   without `additionalProperties` has no other fields; an object without both may have any.
2. Types are followed through comprehensions, conditionals, lists and indexes. A field of a value whose type is not known is refused, so
   nothing escapes the check.
3. Of alternatives (`anyOf`, `oneOf`, `allOf`, several types) one with the field is enough. Whether the field is present is then a question
   for `has()`; a missing field is a denial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tenure.expressions import cel_syntax
from tenure.expressions.cost import COMPREHENSIONS
from tenure.suggestions import Suggestions

Schema = Mapping[str, Any]

ANYTHING: Schema = {}
_BOOLEAN: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "number"}
_TEXT: Schema = {"type": "string"}
_TIME: Schema = {"type": "timestamp"}
_RESULTS: dict[str, Schema] = {
    "size": _NUMBER,
    "startsWith": _BOOLEAN,
    "endsWith": _BOOLEAN,
    "contains": _BOOLEAN,
    "matches": _BOOLEAN,
    "has": _BOOLEAN,
    "int": _NUMBER,
    "uint": _NUMBER,
    "double": _NUMBER,
    "string": _TEXT,
    "bytes": {"type": "bytes"},
    "type": {"type": "type"},
    "duration": {"type": "duration"},
    "timestamp": _TIME,
}
"""The result types of functions. Parts of a time (`getHours`) are numbers."""
_TRUTH = frozenset({"||", "&&", "<=", ">=", "==", "!=", "<", ">", "in", "!"})
_SCALARS = frozenset(
    {"string", "integer", "number", "boolean", "null", "bytes", "timestamp", "duration", "type"}
)

Tell = Callable[[str], None]


def check_condition(
    tree: cel_syntax.Expr, roots: Mapping[str, Schema], tell: Tell, guesses: Suggestions | None = None
) -> None:
    """Report everything that is wrong with a condition over `roots`."""
    result = _Inference(tell, guesses or Suggestions()).type_of(tree, roots)
    types = {part.get("type") for part in alternatives(result)}
    if types and None not in types and "boolean" not in types:
        tell(f"it is {_shown(result)}, but a condition must be true or false")


def alternatives(schema: Schema) -> Iterator[Schema]:
    """The simple schemas that a schema consists of."""
    parts = [part for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, ())]
    if parts:
        for part in parts:
            yield from alternatives(part)
        if "properties" not in schema:
            return
    types = schema.get("type")
    if isinstance(types, list):
        for one in types:
            yield {**schema, "type": one}
    else:
        yield schema


class _Inference:
    """Infers the types of a tree. ANYTHING stands for a value whose problem was reported."""

    def __init__(self, tell: Tell, guesses: Suggestions) -> None:
        self._tell = tell
        self._guesses = guesses

    def type_of(self, tree: cel_syntax.Expr, scope: Mapping[str, Schema]) -> Schema:
        match tree:
            case cel_syntax.LiteralExpr(type=type_, value=value):
                return {"type": type_, "const": value}
            case cel_syntax.NameExpr(name=name):
                if name not in scope:
                    self._tell(f"there is no {name!r}")
                return scope.get(name, ANYTHING)
            case cel_syntax.MemberExpr(of=of, name=name):
                return self._field(self.type_of(of, scope), name, _written(tree))
            case cel_syntax.IndexExpr(of=of, by=by):
                return self._item(self.type_of(of, scope), by, scope, _written(tree))
            case cel_syntax.CallExpr():
                return self._called(tree, scope)
            case cel_syntax.ListExpr(items=items):
                made = [self.type_of(item, scope) for item in items]
                return {"type": "array", "items": {"anyOf": made} if made else ANYTHING}
            case cel_syntax.MapExpr(entries=entries):
                return self._mapped(entries, scope)
            case cel_syntax.ConditionalExpr(condition=condition, yes=yes, no=no):
                self.type_of(condition, scope)
                return {"anyOf": [self.type_of(yes, scope), self.type_of(no, scope)]}
            case cel_syntax.OperatorExpr(sign=sign, operands=operands):
                return self._operated(sign, operands, scope)

    def _field(self, schema: Schema, name: str, written: str) -> Schema:
        found: list[Schema] = []
        known: list[str] = []
        for part in alternatives(schema):
            if part.get("type") in _SCALARS or part.get("type") == "array":
                continue
            properties: Mapping[str, Any] = part.get("properties", {})
            others = part.get("additionalProperties", "properties" not in part)
            known += properties
            if name in properties:
                found.append(properties[name])
            elif others is not False:
                found.append(ANYTHING if others is True else others)
        if found:
            return found[0] if len(found) == 1 else {"anyOf": found}
        if known:
            self._tell(f"there is no {written}{self._guesses.close_to(name, known, 'there are')}")
        else:
            self._tell(f"there is no {written}: the value before it is {_shown(schema)}")
        return ANYTHING

    def _item(self, schema: Schema, by: cel_syntax.Expr, scope: Mapping[str, Schema], written: str) -> Schema:
        if isinstance(by, cel_syntax.LiteralExpr) and by.type == "string":
            if by.value is None:
                raise cel_syntax.UnsupportedSyntax(f"{written}: a name with escapes is not supported")
            return self._field(schema, by.value, written)
        self.type_of(by, scope)
        found: list[Schema] = []
        for part in alternatives(schema):
            if part.get("type") == "array":
                found.append(part.get("items", ANYTHING))
            elif part.get("type") not in _SCALARS:
                others = part.get("additionalProperties", "properties" not in part)
                if others is False or part.get("properties"):
                    self._tell(f"{written} is not supported: write the name of the field as a literal")
                    return ANYTHING
                found.append(ANYTHING if others is True else others)
        if not found:
            self._tell(f"{written} has no items: the value before it is {_shown(schema)}")
            return ANYTHING
        return {"anyOf": found}

    def _called(self, call: cel_syntax.CallExpr, scope: Mapping[str, Schema]) -> Schema:
        if call.name in COMPREHENSIONS and call.of is not None:
            return self._comprehended(call, call.of, scope)
        parts = call.arguments if call.of is None else (call.of, *call.arguments)
        given = [self.type_of(part, scope) for part in parts]
        if call.name == "dyn" and given:
            return given[0]
        return _RESULTS.get(call.name, _NUMBER)

    def _comprehended(
        self, call: cel_syntax.CallExpr, of: cel_syntax.Expr, scope: Mapping[str, Schema]
    ) -> Schema:
        over = self.type_of(of, scope)
        if not call.arguments or not isinstance(call.arguments[0], cel_syntax.NameExpr):
            raise cel_syntax.UnsupportedSyntax(
                f"{call.name}() is not supported here: its first argument must be a name"
            )
        items: list[Schema] = []
        for part in alternatives(over):
            if part.get("type") == "array":
                items.append(part.get("items", ANYTHING))
            elif part.get("type") == "object" or "properties" in part:
                items.append(_TEXT)
            elif part.get("type") is None:
                items.append(ANYTHING)
        if not items:
            self._tell(f"{_written(of)} is {_shown(over)}, but {call.name}() needs a list or a map")
        item: Schema = {"anyOf": items} if items else ANYTHING
        inner = [self.type_of(part, {**scope, call.arguments[0].name: item}) for part in call.arguments[1:]]
        if call.name == "map":
            return {"type": "array", "items": inner[-1] if inner else ANYTHING}
        return {"type": "array", "items": item} if call.name == "filter" else _BOOLEAN

    def _mapped(
        self, entries: tuple[tuple[cel_syntax.Expr, cel_syntax.Expr], ...], scope: Mapping[str, Schema]
    ) -> Schema:
        properties: dict[str, Any] = {}
        values: list[Schema] = []
        for key, value in entries:
            self.type_of(key, scope)
            made = self.type_of(value, scope)
            values.append(made)
            if isinstance(key, cel_syntax.LiteralExpr) and isinstance(key.value, str):
                properties[key.value] = made
        if len(properties) == len(entries):
            return {"type": "object", "properties": properties, "additionalProperties": False}
        return {"type": "object", "additionalProperties": {"anyOf": values}}

    def _operated(
        self, sign: str, operands: tuple[cel_syntax.Expr, ...], scope: Mapping[str, Schema]
    ) -> Schema:
        types = [self.type_of(part, scope) for part in operands]
        if (
            sign == "in"
            and isinstance(operands[0], cel_syntax.LiteralExpr)
            and isinstance(operands[0].value, str)
        ):
            self._check_key(types[1], operands[0].value, _written(operands[1]))
        if sign in _TRUTH:
            return _BOOLEAN
        if sign == "+":
            return {"anyOf": types}
        return {"anyOf": [_NUMBER, _TIME, {"type": "duration"}]} if sign == "-" else _NUMBER

    def _check_key(self, schema: Schema, name: str, written: str) -> None:
        """Check `"name" in map`: the map must be able to have a field of that name."""
        parts = list(alternatives(schema))
        if parts and all(part.get("type") == "object" for part in parts):
            self._field(schema, name, f"{written}.{name}")


def _shown(schema: Schema) -> str:
    kinds = {"integer": "a number", "number": "a number", "string": "a string", "array": "a list", "object": "a map",
             "null": "null"}  # fmt: skip
    types = [str(part.get("type") or "anything") for part in alternatives(schema)]
    return " or ".join(dict.fromkeys(kinds.get(type_, f"a {type_}") for type_ in types)) or "nothing"


def _written(tree: cel_syntax.Expr) -> str:
    """A path as it is written, as far as it is one."""
    match tree:
        case cel_syntax.NameExpr(name=name):
            return name
        case cel_syntax.MemberExpr(of=of, name=name):
            return f"{_written(of)}.{name}"
        case cel_syntax.IndexExpr(of=of, by=cel_syntax.LiteralExpr(type="string", value=str(value))):
            return f"{_written(of)}.{value}"
        case cel_syntax.IndexExpr(of=of, by=cel_syntax.LiteralExpr(value=int(value))):
            return f"{_written(of)}[{value}]"
        case cel_syntax.IndexExpr(of=of):
            return f"{_written(of)}[...]"
        case cel_syntax.CallExpr(name=name, of=None):
            return f"{name}(...)"
        case cel_syntax.CallExpr(name=name, of=of) if of is not None:
            return f"{_written(of)}.{name}(...)"
    return "(...)"
