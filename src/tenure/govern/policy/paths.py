"""Whether what a condition looks at exists: the types of its parts, from the schemas of what it is given.

Laws:
1. A type is a JSON Schema. A field exists where `properties` name it, or `additionalProperties` say that others may; a map with
   properties and no word about others has no others, and one that says nothing at all may have anything.
2. What was looked at is followed through comprehensions, choices, lists and brackets. A field of something that cannot be
   followed is refused: nothing passes unseen.
3. Of alternatives (`anyOf`, `oneOf`, `allOf`, several types) one that has the field is enough: whether it is there is then a
   question for `has()`, and where it is not asked, a denial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tenure.declared import syntax
from tenure.declared.expression_cost import COMPREHENSIONS
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
"""What functions give; the parts of a time (`getHours`) are numbers."""
_TRUTH = frozenset({"||", "&&", "<=", ">=", "==", "!=", "<", ">", "in", "!"})
_SCALARS = frozenset(
    {"string", "integer", "number", "boolean", "null", "bytes", "timestamp", "duration", "type"}
)

Tell = Callable[[str], None]


def check_paths(
    tree: syntax.Expr, roots: Mapping[str, Schema], tell: Tell, guesses: Suggestions | None = None
) -> None:
    """Tell everything that is wrong with a condition over `roots`."""
    walk = _Walk(tell, guesses or Suggestions())
    result = walk.type_of(tree, roots)
    types = {part.get("type") for part in alternatives(result)}
    if types and None not in types and "boolean" not in types:
        tell(f"it is {_shown(result)}, and a condition is true or false")


def alternatives(schema: Schema) -> Iterator[Schema]:
    """The plain schemas that a schema is made of."""
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


class _Walk:
    """See the laws above. A type of None is that of something wrong which has been told."""

    def __init__(self, tell: Tell, guesses: Suggestions) -> None:
        self._tell = tell
        self._guesses = guesses

    def type_of(self, tree: syntax.Expr, scope: Mapping[str, Schema]) -> Schema:
        match tree:
            case syntax.Literally(type=type_, value=value):
                return {"type": type_, "const": value}
            case syntax.Name(name=name):
                return self._named(name, scope)
            case syntax.Member(of=of, name=name):
                return self._field(self.type_of(of, scope), name, _written(tree))
            case syntax.Index(of=of, by=by):
                return self._item(self.type_of(of, scope), by, scope, _written(tree))
            case syntax.Call():
                return self._called(tree, scope)
            case syntax.Listed(items=items):
                made = [self.type_of(item, scope) for item in items]
                return {"type": "array", "items": {"anyOf": made} if made else ANYTHING}
            case syntax.Mapped(entries=entries):
                return self._mapped(entries, scope)
            case syntax.Choice(condition=condition, yes=yes, no=no):
                self.type_of(condition, scope)
                return {"anyOf": [self.type_of(yes, scope), self.type_of(no, scope)]}
            case syntax.Operator(sign=sign, operands=operands):
                return self._operated(sign, operands, scope)

    def _named(self, name: str, scope: Mapping[str, Schema]) -> Schema:
        if name in scope:
            return scope[name]
        self._tell(f"there is no {name!r}")
        return ANYTHING

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
            guess = self._guesses.close_to(name, known, "there are")
            self._tell(f"there is no {written}{guess}")
        else:
            self._tell(f"there is no {written}: what is before it is {_shown(schema)}")
        return ANYTHING

    def _item(self, schema: Schema, by: syntax.Expr, scope: Mapping[str, Schema], written: str) -> Schema:
        if isinstance(by, syntax.Literally) and by.type == "string":
            if by.value is None:
                raise syntax.Unfollowed(f"{written}: a name with escapes cannot be followed")
            return self._field(schema, by.value, written)
        self.type_of(by, scope)
        found: list[Schema] = []
        for part in alternatives(schema):
            if part.get("type") == "array":
                found.append(part.get("items", ANYTHING))
            elif part.get("type") not in _SCALARS:
                others = part.get("additionalProperties", "properties" not in part)
                if others is False or part.get("properties"):
                    self._tell(f"{written} cannot be followed: write the name of the field out")
                    return ANYTHING
                found.append(ANYTHING if others is True else others)
        if not found:
            self._tell(f"{written} has no items: what is before it is {_shown(schema)}")
            return ANYTHING
        return {"anyOf": found}

    def _called(self, call: syntax.Call, scope: Mapping[str, Schema]) -> Schema:
        if call.name in COMPREHENSIONS and call.of is not None:
            return self._comprehended(call, call.of, scope)
        given = [self.type_of(part, scope) for part in ((call.of,) if call.of is not None else ())]
        given += [self.type_of(part, scope) for part in call.arguments]
        if call.name == "dyn" and given:
            return given[0]
        return _RESULTS.get(call.name, _NUMBER)

    def _comprehended(self, call: syntax.Call, of: syntax.Expr, scope: Mapping[str, Schema]) -> Schema:
        over = self.type_of(of, scope)
        if not call.arguments or not isinstance(call.arguments[0], syntax.Name):
            raise syntax.Unfollowed(f"{call.name}() cannot be followed: its first argument is a name")
        items: list[Schema] = []
        for part in alternatives(over):
            if part.get("type") == "array":
                items.append(part.get("items", ANYTHING))
            elif part.get("type") == "object" or "properties" in part:
                items.append(_TEXT)
            elif part.get("type") is None:
                items.append(ANYTHING)
        if not items:
            self._tell(f"{_written(of)} is {_shown(over)}, and {call.name}() looks through a list or a map")
        within = {**scope, call.arguments[0].name: {"anyOf": items} if items else ANYTHING}
        inner = [self.type_of(part, within) for part in call.arguments[1:]]
        if call.name == "map":
            return {"type": "array", "items": inner[-1] if inner else ANYTHING}
        return (
            {"type": "array", "items": within[call.arguments[0].name]} if call.name == "filter" else _BOOLEAN
        )

    def _mapped(
        self, entries: tuple[tuple[syntax.Expr, syntax.Expr], ...], scope: Mapping[str, Schema]
    ) -> Schema:
        properties: dict[str, Any] = {}
        values: list[Schema] = []
        for key, value in entries:
            self.type_of(key, scope)
            made = self.type_of(value, scope)
            values.append(made)
            if isinstance(key, syntax.Literally) and isinstance(key.value, str):
                properties[key.value] = made
        if len(properties) == len(entries):
            return {"type": "object", "properties": properties, "additionalProperties": False}
        return {"type": "object", "additionalProperties": {"anyOf": values}}

    def _operated(self, sign: str, operands: tuple[syntax.Expr, ...], scope: Mapping[str, Schema]) -> Schema:
        types = [self.type_of(part, scope) for part in operands]
        if sign == "in" and isinstance(operands[0], syntax.Literally) and isinstance(operands[0].value, str):
            self._check_key(types[1], operands[0].value, _written(operands[1]))
        if sign in _TRUTH:
            return _BOOLEAN
        if sign == "+":
            return {"anyOf": types}
        return {"anyOf": [_NUMBER, _TIME, {"type": "duration"}]} if sign == "-" else _NUMBER

    def _check_key(self, schema: Schema, name: str, written: str) -> None:
        """`"name" in map`: a field of that name must be possible."""
        parts = list(alternatives(schema))
        if parts and all(part.get("type") == "object" for part in parts):
            self._field(schema, name, f"{written}.{name}")


def _shown(schema: Schema) -> str:
    kinds = {"integer": "a number", "number": "a number", "string": "a text", "array": "a list", "object": "a map",
             "null": "null"}  # fmt: skip
    types = [str(part.get("type") or "anything") for part in alternatives(schema)]
    return " or ".join(dict.fromkeys(kinds.get(type_, f"a {type_}") for type_ in types)) or "nothing"


def _written(tree: syntax.Expr) -> str:
    """A path as it is written, as far as it is one."""
    match tree:
        case syntax.Name(name=name):
            return name
        case syntax.Member(of=of, name=name):
            return f"{_written(of)}.{name}"
        case syntax.Index(of=of, by=syntax.Literally(type="string", value=str(value))):
            return f"{_written(of)}.{value}"
        case syntax.Index(of=of, by=syntax.Literally(value=int(value))):
            return f"{_written(of)}[{value}]"
        case syntax.Index(of=of):
            return f"{_written(of)}[...]"
        case syntax.Call(name=name, of=None):
            return f"{name}(...)"
        case syntax.Call(name=name, of=of) if of is not None:
            return f"{_written(of)}.{name}(...)"
    return "(...)"
