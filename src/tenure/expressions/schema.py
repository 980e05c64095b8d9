"""Types of values in a YAML file, as data.

Law: one description serves two purposes. `read` checks a node and returns plain data (durations in seconds); `schema` describes the same
type in JSON Schema for editors. Rules that span several places are elsewhere (`tenure.declared.validation`).
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from tenure import durations
from tenure.errors import TenureError
from tenure.expressions.templates import OPEN
from tenure.expressions.yaml_document import FileProblems, YamlNode, YamlPath
from tenure.limits import NAME_CHARS_MAX, RUN_TIMEOUT_SECONDS_MAX

MISSING = object()
"""An invalid value that was reported."""


class SchemaType(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all types. `doc` describes the value for authors. (A Struct cannot be an ABC.)"""

    doc: str = ""

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        """The node's value, or MISSING after its problem was added to `problems`."""
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        raise NotImplementedError

    def described(self) -> dict[str, Any]:
        """The JSON Schema with its description."""
        return {**({"description": self.doc} if self.doc else {}), **self.schema()}


def _found(node: YamlNode) -> str:
    if node.kind != "scalar":
        return f"a {node.kind}"
    if node.value is None:
        return "nothing"
    return node.text if len(node.text) <= 40 else f"{node.text[:37]}..."


def _wrong(node: YamlNode, path: YamlPath, problems: FileProblems, wanted: str) -> object:
    problems.add(path, f"{wanted}, not {_found(node)}", node.mark)
    return MISSING


class Text(SchemaType, frozen=True, kw_only=True):
    """A string on one line, of a bounded length."""

    what: str = "a string"
    least: int = 1
    most: int = NAME_CHARS_MAX
    pattern: str = ""
    says: str = ""
    """The pattern in words."""
    choices: tuple[str, ...] = ()
    loose: bool = False
    """A number or boolean is taken as it is written: `version: 1.10`."""
    template: bool = False
    """It may contain `${{ }}`. Its length is then checked after the evaluation."""
    lines: bool = False
    """It may have several lines."""

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        value = node.value
        if node.kind == "scalar" and not isinstance(value, str) and value is not None:
            if not self.loose:
                return _wrong(node, path, problems, f"must be {self.what} (put it in quotes)")
            value = node.text
        if not isinstance(value, str):
            return _wrong(node, path, problems, f"must be {self.what}")
        if self.template and OPEN in value:
            return value
        if self.choices:
            if value not in self.choices:
                problem = f"must be one of {', '.join(self.choices)}, not {_found(node)}"
                problems.add(path, problem + problems.close_to(value, self.choices), node.mark)
                return MISSING
            return value
        printable = value.isprintable() or (self.lines and "\0" not in value)
        if not self.least <= len(value) <= self.most or not printable:
            return _wrong(
                node,
                path,
                problems,
                f"must be {self.what} of {self.least} to {self.most} printable characters",
            )
        if self.pattern and not re.fullmatch(self.pattern, value):
            return _wrong(node, path, problems, f"must be {self.what}: {self.says}")
        return value

    def schema(self) -> dict[str, Any]:
        if self.choices:
            return {"type": "string", "enum": [*self.choices]}
        made: dict[str, Any] = {"type": ["string", "number", "boolean"] if self.loose else "string"}
        if self.least:
            made["minLength"] = self.least
        if not self.template:
            made["maxLength"] = self.most
            if self.pattern:
                made["pattern"] = f"^(?:{self.pattern})$"
        return made


class Integer(SchemaType, frozen=True, kw_only=True):
    least: int
    most: int

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        value = node.value
        if not isinstance(value, int) or isinstance(value, bool) or not self.least <= value <= self.most:
            return _wrong(node, path, problems, f"must be an integer from {self.least} to {self.most}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


class Number(SchemaType, frozen=True, kw_only=True):
    least: float | None = None
    most: float | None = None

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        value = node.value
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if fits and self.least is not None and self.most is not None:
            fits = self.least <= value <= self.most
        if not fits:
            bounds = (
                "" if self.least is None or self.most is None else f" from {self.least:g} to {self.most:g}"
            )
            return _wrong(node, path, problems, f"must be a number{bounds}")
        return value

    def schema(self) -> dict[str, Any]:
        bounds = {"minimum": self.least, "maximum": self.most}
        return {"type": "number", **{key: bound for key, bound in bounds.items() if bound is not None}}


class Boolean(SchemaType, frozen=True, kw_only=True):
    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        if not isinstance(node.value, bool):
            return _wrong(node, path, problems, "must be true or false")
        return node.value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class Duration(SchemaType, frozen=True, kw_only=True):
    zero: bool = False

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        if (
            node.kind == "scalar"
            and isinstance(node.value, str | int | float)
            and not isinstance(node.value, bool)
        ):
            try:
                length = durations.parse_duration(node.value)
            except TenureError as fault:
                problems.add(path, fault.message, node.mark)
                return MISSING
            if length > 0 or self.zero:
                return length
            return _wrong(node, path, problems, "must be longer than 0")
        return _wrong(node, path, problems, "must be a duration such as 90s, 5m, 2h or 1d")

    def schema(self) -> dict[str, Any]:
        bound = {"minimum": 0} if self.zero else {"exclusiveMinimum": 0}
        return {
            "anyOf": [
                {
                    "type": "string",
                    "pattern": f"^(?:{durations.PATTERN})$",
                    "examples": ["90s", "5m", "2h", "1d"],
                },
                {"type": "number", **bound, "maximum": RUN_TIMEOUT_SECONDS_MAX},
            ]
        }


SIZE_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SIZE_PATTERN = r"([0-9]{1,15})(KiB|MiB|GiB|TiB)?"


class ByteSize(SchemaType, frozen=True, kw_only=True):
    """A number of bytes: `512MiB`, `4GiB`, or plain bytes."""

    least: int = 1
    most: int = 1 << 50

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        written = re.fullmatch(SIZE_PATTERN, node.text) if node.kind == "scalar" else None
        size = -1 if written is None else int(written[1]) * SIZE_UNITS[written[2] or ""]
        if not self.least <= size <= self.most:
            return _wrong(
                node, path, problems, f"must be a size such as 512MiB or 4GiB, at most {self.most} bytes"
            )
        return size

    def schema(self) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "string", "pattern": f"^(?:{SIZE_PATTERN})$", "examples": ["512MiB", "4GiB"]},
                {"type": "integer", "minimum": self.least, "maximum": self.most},
            ]
        }


class ListOf(SchemaType, frozen=True, kw_only=True):
    item: SchemaType
    least: int = 0
    most: int = 1_000
    what: str = "a list"

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        """The valid items."""
        if node.kind != "list":
            return _wrong(node, path, problems, f"must be {self.what}")
        if not self.least <= len(node.items) <= self.most:
            problems.add(
                path,
                f"must be {self.what} of {self.least} to {self.most} items, not {len(node.items)}",
                node.mark,
            )
        made = [self.item.read(item, (*path, i), problems) for i, item in enumerate(node.items)]
        return [item for item in made if item is not MISSING]

    def schema(self) -> dict[str, Any]:
        least = {"minItems": self.least} if self.least else {}
        return {"type": "array", "items": self.item.described(), **least, "maxItems": self.most}


class MapOf(SchemaType, frozen=True, kw_only=True):
    """A map with any keys and values of one type."""

    value: SchemaType
    key: str
    says: str
    """A key in words."""
    most: int = 1_000

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        """The valid entries."""
        if node.kind != "map":
            return _wrong(node, path, problems, "must be a map")
        if len(node.entries) > self.most:
            problems.add(path, f"must have at most {self.most} entries, not {len(node.entries)}", node.mark)
        made = {}
        for key, (mark, below) in node.entries.items():
            if not re.fullmatch(self.key, key):
                problems.add((*path, key), f"a name here must have {self.says}", mark)
                continue
            value = self.value.read(below, (*path, key), problems)
            if value is not MISSING:
                made[key] = value
        return made

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^(?:{self.key})$"},
            "additionalProperties": self.value.described(),
            "maxProperties": self.most,
        }


class JsonValue(SchemaType, frozen=True, kw_only=True):
    kind: Literal["any", "map", "list"] = "any"

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        if self.kind not in ("any", node.kind):
            return _wrong(node, path, problems, f"must be a {self.kind}")
        self._check_keys(node, path, problems)
        return node.plain()

    def _check_keys(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> None:
        for i, item in enumerate(node.items):
            self._check_keys(item, (*path, i), problems)
        for key, (mark, below) in node.entries.items():
            if OPEN in key:
                problems.add((*path, key), "a key cannot be an expression; only values can", mark)
            self._check_keys(below, (*path, key), problems)

    def schema(self) -> dict[str, Any]:
        types = {"map": "object", "list": "array"}
        return {} if self.kind == "any" else {"type": types[self.kind]}


class SchemaField(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    shape: SchemaType
    required: bool = False


class Record(SchemaType, frozen=True, kw_only=True):
    what: str
    fields: tuple[SchemaField, ...]

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        if node.kind != "map":
            return _wrong(node, path, problems, f"must be a map: {self.what}")
        return read_fields(self.what, self.fields, node, path, problems)

    def schema(self) -> dict[str, Any]:
        return fields_schema(self.fields)


def read_fields(
    what: str, fields: tuple[SchemaField, ...], node: YamlNode, path: YamlPath, problems: FileProblems
) -> dict[str, Any]:
    """The values of known keys. An unknown key is reported with a suggestion."""
    known = {field.name: field for field in fields}
    made = {}
    for key, (mark, below) in node.entries.items():
        if key not in known:
            guess = problems.close_to(key, known, "there are")
            problems.add((*path, key), f"{what} has no {key!r}{guess}", mark)
            continue
        value = known[key].shape.read(below, (*path, key), problems)
        if value is not MISSING:
            made[key] = value
    for field in fields:
        if field.required and field.name not in node.entries:
            problems.add(path, f"{what} needs {field.name!r}", node.mark)
    return made


def fields_schema(fields: tuple[SchemaField, ...]) -> dict[str, Any]:
    """The JSON Schema of an object with these keys and no others."""
    required = [field.name for field in fields if field.required]
    return {
        "type": "object",
        "properties": {field.name: field.shape.described() for field in fields},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


class Either(SchemaType, frozen=True, kw_only=True):
    """A list of values or a single value."""

    listed: ListOf
    single: SchemaType

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        return (self.listed if node.kind == "list" else self.single).read(node, path, problems)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.listed.described(), self.single.described()]}


class VariantValue(msgspec.Struct, frozen=True):
    kind: str
    path: YamlPath
    values: dict[str, Any]


class Variants(SchemaType, frozen=True, kw_only=True):
    """A map that has exactly one of several keys. That key determines which others are allowed."""

    what: str
    common: tuple[SchemaField, ...]
    kinds: dict[str, tuple[SchemaField, ...]]
    """Kind -> its fields. The key of the kind is the first."""

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        if node.kind != "map":
            return _wrong(node, path, problems, f"must be a map: {self.what}")
        kinds = [key for key in node.entries if key in self.kinds]
        every = ", ".join(self.kinds)
        if len(kinds) > 1:
            text = f"{self.what} has {' and '.join(kinds)}; it needs exactly one of {every}"
            problems.add(path, text, node.mark)
            return MISSING
        if not kinds:
            names = {field.name for fields in (self.common, *self.kinds.values()) for field in fields}
            unknown = (key for key in node.entries if key not in names)
            guess = next(filter(None, (problems.close_to(key, self.kinds) for key in unknown)), "")
            problems.add(path, f"{self.what} needs one of {every}{guess}", node.mark)
            return MISSING
        fields = (*self.common, *self.kinds[kinds[0]])
        made = read_fields(f"{self.what} with {kinds[0]!r}", fields, node, path, problems)
        return VariantValue(kinds[0], path, made)

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [fields_schema((*self.common, *fields)) for fields in self.kinds.values()]}
