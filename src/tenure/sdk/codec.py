"""User values as payloads and back, by the types that their functions declare.

Laws:
1. Payloads are JSON. A step returns its stored payload, decoded: the first execution and a replay see the same value.
2. Equal arguments have the same digest in every process (`tenure.canonical`): sets and dictionaries are ordered, and an argument that
   cannot be encoded (a client, a connection) counts as the name of its type.
3. A value that cannot be encoded or does not match its type is refused, with the place and what was expected. So is a value that JSON
   would change: NaN, infinities, and two keys of an object that become the same text (1 and "1").
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from copy import copy
from hashlib import blake2b
from types import NoneType
from typing import Any, get_type_hints

import msgspec

from tenure.canonical import canonical, encode_json
from tenure.errors import Detail, TenureError
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.suggestions import did_you_mean

_SIMPLE = (str, int, bool, NoneType)
"""Types whose values survive JSON unchanged, unless another type was declared."""
_DIGEST_BYTES = 8
INLINE_BYTES_MAX = PAYLOAD_BYTES_MAX
RESERVED = b'{"$tenure'
"""The beginning of a stored reference. A user's payload that begins like this is stored as an artifact."""


def _type_name(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


_sorter = msgspec.json.Encoder(order="sorted")
NO_ARGUMENTS = blake2b(b"[[],{}]", digest_size=_DIGEST_BYTES).digest()
_PLAIN = frozenset({str, bool, NoneType})
_EXACT_MAX = 2**53


def encode(value: Any, what: str) -> bytes | None:
    """A value as a payload; None is no payload."""
    if value is None:
        return None
    try:
        return encode_json(value)
    except msgspec.DecodeError as twice:
        raise TenureError(
            "INVALID_INPUT", f"{what}: {twice}; keys that are not strings become strings"
        ) from twice
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise TenureError("INVALID_INPUT", f"{what} must be JSON or a msgspec type: {fault}") from fault


def describe_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """The arguments of a call, for people to read; one that cannot be encoded is shown as the name of its type."""
    try:
        return msgspec.json.encode({"args": args, **kwargs} if args else kwargs, enc_hook=_type_name)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def digest_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A digest of the arguments of a call; see law 2."""
    if not args and not kwargs:
        return NO_ARGUMENTS
    return blake2b(_canonical_arguments(args, kwargs), digest_size=_DIGEST_BYTES).digest()


def _canonical_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    if all(map(_is_short, args)) and all(map(_is_short, kwargs.values())):
        return _sorter.encode((args, kwargs))  # this is canonical already
    try:
        plain = msgspec.to_builtins([args, kwargs], enc_hook=_type_name, order="deterministic", str_keys=True)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr([_type_name(a) for a in (*args, *kwargs.values())]).encode()
    try:
        return canonical(plain)
    except TenureError:  # NaN and the like: not a payload, but a step may be called with it
        return repr(plain).encode("utf-8", "surrogatepass")


def _is_short(value: Any) -> bool:
    kind = type(value)
    return kind in _PLAIN or (kind is int and -_EXACT_MAX <= value <= _EXACT_MAX)


class Codec:
    __slots__ = ("_declared", "_decode", "_exact", "_what")

    def __init__(self, declared: Any, what: str) -> None:
        self._what = what
        self._declared = declared
        self._decode: Callable[[bytes], Any] = msgspec.json.decode
        self._exact: tuple[Any, ...] = _SIMPLE
        """Types whose values need no check, because decoding returns them unchanged."""
        if declared not in (Any, None, NoneType, inspect.Signature.empty):
            try:
                self._decode = msgspec.json.Decoder(declared).decode
                self._exact = (declared,) if declared in _SIMPLE else ()
            except TypeError as fault:
                raise TypeError(f"{what} has a type that cannot be stored: {fault}") from fault

    def encode(self, value: Any) -> bytes | None:
        return encode(value, self._what)

    def decode(self, body: bytes | None) -> Any:
        if body is None:
            return None
        try:
            return self._decode(body)
        except msgspec.DecodeError as fault:
            problem, _, where = str(fault).partition(" - at ")
            place = where.strip("`").removeprefix("$").lstrip(".")
            text = f"{self._what}: {problem}" + (f" at {place}" if place else "")
            raise TenureError("INVALID_INPUT", text, (Detail(place or self._what, problem),)) from fault

    def echo(self, value: Any, body: bytes | None) -> Any:
        """The value as it is decoded from its payload; see laws 1 and 3."""
        if type(value) in self._exact:
            return value
        try:
            return self.decode(body)
        except TenureError as mismatch:
            who = self._what.removeprefix("the result of ")
            declared = self._declared.__name__ if type(self._declared) is type else str(self._declared)
            text = f"{who} returned {type(value).__name__} where its annotation says {declared}"
            place = mismatch.details[0].path if mismatch.details else self._what
            if place != self._what:
                text += f": {mismatch.details[0].problem} at {place}"
            raise TenureError(mismatch.code, text, mismatch.details) from mismatch


class Parameters:
    """The input of a workflow or tool: a JSON object with a field per parameter, checked and converted."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._signature = inspect.signature(function)
        self._name = name
        hints = _hints(function)
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        parameters = self._signature.parameters.values()
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"{name}: inputs are named, so {parameter} is not supported")
            kind = hints.get(parameter.name, Any)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                fields.append((parameter.name, kind, _default(parameter.default)))
        self.names = tuple(self._signature.parameters)
        self._positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY)
        self._by_place = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
        self._by_name = frozenset(p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY)
        self._required = frozenset(p.name for p in parameters if p.default is p.empty)
        self._struct: type[msgspec.Struct] = msgspec.defstruct(
            "Input", fields, kw_only=True, forbid_unknown_fields=True
        )
        self._codec = Codec(self._struct, f"input of {name}")

    @property
    def schema(self) -> dict[str, Any]:
        try:
            return msgspec.json.schema(self._struct)
        except TypeError:
            return {"type": "object", "properties": {name: {} for name in self.names}}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of a call as an input. Defaults are left out, so that a later version may change them."""
        body = encode(self._by_parameter(args, kwargs), f"input of {self._name}") or b"{}"
        self._codec.decode(body)  # refuse here what the worker would refuse
        return body

    def _by_parameter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name. The common case avoids `inspect`, which takes ten times as long."""
        if len(args) <= self._by_place and kwargs.keys() <= self._by_name:
            given = dict(zip(self.names, args, strict=False))
            if given.keys().isdisjoint(kwargs):
                given.update(kwargs)
                if given.keys() >= self._required:
                    return given
        for unknown in kwargs.keys() - self._by_name:
            raise TenureError(
                "INVALID_INPUT",
                f"{self._name}: unexpected keyword argument {unknown!r}{self.suggest(unknown)}",
            )
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as fault:
            raise TenureError("INVALID_INPUT", f"{self._name}: {fault}; {self._inputs()}") from fault

    def suggest(self, name: str) -> str:
        """The end of an error about a name that no input has."""
        return f"{did_you_mean(name, self.names)}; {self._inputs()}"

    def _inputs(self) -> str:
        if not self.names:
            return "it has no inputs"
        shown = (name if name in self._required else f"{name} (optional)" for name in self.names)
        return f"its inputs are {', '.join(shown)}"

    def check(self, body: bytes | None) -> None:
        try:
            self._codec.decode(body or b"{}")
        except TenureError as refused:
            unknown = _UNKNOWN.fullmatch(refused.details[0].problem) if refused.details else None
            if unknown is None or refused.details[0].path != f"input of {self._name}":
                raise
            raise TenureError(
                refused.code, f"{refused.message}{self.suggest(unknown[1])}", refused.details
            ) from refused

    def call(self, function: Callable[..., Any], body: bytes | None) -> Any:
        given = self._codec.decode(body or b"{}")
        values = {name: getattr(given, name) for name in self.names}
        positional = [values.pop(name) for name in self._positional]
        return function(*positional, **values)


_UNKNOWN = re.compile("Object contains unknown field `(.*)`")


def _default(value: Any) -> Any:
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=lambda: copy(value))
    return value


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:  # a name that only type checkers see: its parameter accepts anything
        return {}


def return_type(function: Callable[..., Any]) -> Any:
    return _hints(function).get("return", Any)


RESTARTED = "$tenure.restarted"


def encode_restart(run_id: str) -> bytes:
    """The output of a run that was continued by another run."""
    return msgspec.json.encode({RESTARTED: run_id})


def decode_restart(body: bytes) -> str:
    """The run that continued a restarted one."""
    return str(msgspec.json.decode(body)[RESTARTED])
