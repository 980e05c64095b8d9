"""What a run is given: the inputs of a workflow, their types, and whether values fit them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import isfinite
from typing import Any

import msgspec

from tenure.canonical import DuplicateName, decode_json, encode_json
from tenure.errors import Detail, TenureError
from tenure.limits import PROBLEMS_MAX
from tenure.secrets import FORM, is_reference
from tenure.suggestions import Suggestions

NO_DEFAULT = "\0none"
"""Where there is no default. (A text, so that a definition stays JSON; no YAML text can have it.)"""


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input."""

    type: str
    default: Any = NO_DEFAULT
    description: str = ""
    enum: tuple[Any, ...] | None = None
    items: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    secret: bool | msgspec.UnsetType = msgspec.UNSET
    """It is a reference to a secret (`tenure.secrets`), never the secret. Unset, it is no part of the definition's digest."""

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return bool(self.default == NO_DEFAULT)

    def problems(self, value: Any) -> Iterator[str]:
        """What keeps a value from being this input; nothing where it fits."""
        if value is None and self.default is None:
            return
        if self.secret is True:
            if not (isinstance(value, str) and is_reference(value)):
                yield FORM  # it may be the secret itself, and is not repeated
            return
        if not JSON_TYPES[self.type](value):
            yield f"must be {_named(self.type)}, not {shown_json(value)}"
            return
        if self.enum is not None and not any(same_json(value, choice) for choice in self.enum):
            yield f"must be one of {', '.join(map(shown_json, self.enum))}, not {shown_json(value)}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.minimum is not None and value < self.minimum:
                yield f"must be at least {self.minimum:g}, not {shown_json(value)}"
            if self.maximum is not None and value > self.maximum:
                yield f"must be at most {self.maximum:g}, not {shown_json(value)}"
        if isinstance(value, str | list | tuple):
            if self.min_length is not None and len(value) < self.min_length:
                yield f"must have at least {self.min_length} {_unit(value)}, not {len(value)}"
            if self.max_length is not None and len(value) > self.max_length:
                yield f"must have at most {self.max_length} {_unit(value)}, not {len(value)}"
        if self.items is not None and isinstance(value, list | tuple):
            for i, item in enumerate(value):
                if not JSON_TYPES[self.items](item):
                    yield f"item {i} must be {_named(self.items)}, not {shown_json(item)}"

    def own_problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the declaration itself: (key, problem)."""
        sized = self.type in ("string", "array")
        counted = self.type in ("integer", "number")
        for key, fits, kinds in (
            ("minimum", counted, "an integer or a number"),
            ("maximum", counted, "an integer or a number"),
            ("min_length", sized, "a string or an array"),
            ("max_length", sized, "a string or an array"),
            ("items", self.type == "array", "an array"),
            ("secret", self.type == "string", "a string"),
        ):
            given = getattr(self, key)
            if given is not None and given is not False and given is not msgspec.UNSET and not fits:
                yield key, f"belongs to {kinds}, not to {_named(self.type)}"
        for low, high in (("minimum", "maximum"), ("min_length", "max_length")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                yield low, f"is {least:g}, over the {high} of {most:g}"
        for i, choice in enumerate(self.enum or ()):
            if not JSON_TYPES[self.type](choice):
                yield "enum", f"choice {i} must be {_named(self.type)}, not {shown_json(choice)}"
        if not self.required:
            yield from (("default", problem) for problem in self.problems(self.default))


GUESSES_MAX = 3
"""Suggestions for the inputs of one run: they are made while its caller waits."""
JSON_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool) and isfinite(v),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list | tuple),
    "object": lambda v: isinstance(v, Mapping) and all(isinstance(key, str) for key in v),
}


def _named(kind: str) -> str:
    return f"{'an' if kind[0] in 'aio' else 'a'} {kind}"


def _unit(value: Any) -> str:
    return "characters" if isinstance(value, str) else "items"


def shown_json(value: Any) -> str:
    """A value in an error: as JSON, not too long."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


def same_json(value: Any, choice: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)


def bind(workflow: str, inputs: Mapping[str, Input], given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a run: checked, with defaults filled in, as JSON; INVALID_INPUT names what is wrong, the first
    `PROBLEMS_MAX` problems of it."""
    problems: list[Detail] = []
    guesses = Suggestions(GUESSES_MAX)
    for name in given:
        if len(problems) >= PROBLEMS_MAX:
            break
        if name not in inputs:
            guess = guesses.close_to(str(name), inputs, "it has") if inputs else "; it has none"
            problems.append(Detail(f"inputs.{name}", f"workflow {workflow} has no such input{guess}"))
    bound: dict[str, Any] = {}
    for name, declared in inputs.items():
        if name in given:
            found = islice(declared.problems(given[name]), PROBLEMS_MAX)
            problems += [Detail(f"inputs.{name}", problem) for problem in found]
            bound[name] = given[name]
        elif declared.required:
            problems.append(Detail(f"inputs.{name}", f"must be given: {_named(declared.type)}"))
        else:
            bound[name] = declared.default
    if not problems:
        try:
            plain: dict[str, Any] = msgspec.json.decode(encode_json(bound))
        except (TypeError, ValueError, OverflowError, RecursionError, DuplicateName) as fault:
            problems.append(Detail("inputs", f"must be JSON: {fault}"))
        else:
            return plain
    del problems[PROBLEMS_MAX:]
    text = "; ".join(f"{problem.path} {problem.problem}" for problem in problems)
    raise TenureError("INVALID_INPUT", text, tuple(problems))


def from_texts(inputs: Mapping[str, Input], texts: Mapping[str, str]) -> dict[str, Any]:
    """Values from a command line: a string is taken as it is, all else is read as JSON."""
    values: dict[str, Any] = {}
    problems: list[Detail] = []
    for name, text in texts.items():
        declared = inputs.get(name)
        if declared is None or declared.type == "string":
            values[name] = text
            continue
        try:
            values[name] = decode_json(text)
        except DuplicateName as twice:
            problems.append(Detail(f"inputs.{name}", str(twice)))
        except (msgspec.DecodeError, RecursionError):
            problems.append(
                Detail(f"inputs.{name}", f"must be {_named(declared.type)} in JSON, not {text[:60]!r}")
            )
    if problems:
        raise TenureError(
            "INVALID_INPUT", "; ".join(f"{p.path} {p.problem}" for p in problems), tuple(problems)
        )
    return values
