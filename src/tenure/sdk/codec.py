"""Values of the user's as bytes and back, by the types their functions declare.

Laws:
1. Payloads are JSON. What a step returns to its workflow is what was stored, read back: a first run and a
   replay see the same value.
2. The digest of arguments is the same in every process and for equal values alone (`tenure.canonical`): sets and dictionaries
   are ordered, and an argument that has no value of its own (a client, a connection) counts as its type's name.
3. What cannot be encoded or does not fit its type is refused with the place and what was expected; so is what JSON would change:
   NaN and infinities, and two names of an object that are one text (1 and "1").
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
from tenure.suggestions import close_to

_SIMPLE = (str, int, bool, NoneType)
"""What JSON gives back exactly as it was, unless something else was declared."""
_DIGEST_BYTES = 8
INLINE_BYTES_MAX = PAYLOAD_BYTES_MAX
RESERVED = b'{"$tenure'
"""How a stored payload begins that is a reference of ours; a user's that begins so is put among the artifacts."""


def _nameless(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


_encoder = msgspec.json.Encoder()
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
            "INVALID_INPUT", f"{what}: {twice}; names that are not texts become texts"
        ) from twice
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise TenureError("INVALID_INPUT", f"{what} must be JSON or a msgspec type: {fault}") from fault


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """What a call was made with, for people to read; what has no value of its own is told by its type."""
    try:
        return msgspec.json.encode({"args": args, **kwargs} if args else kwargs, enc_hook=_nameless)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def digest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """What a call was made with, in a few bytes."""
    if not args and not kwargs:
        return NO_ARGUMENTS
    return blake2b(_digested(args, kwargs), digest_size=_DIGEST_BYTES).digest()


def _digested(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    if all(map(_is_short, args)) and all(map(_is_short, kwargs.values())):
        return _sorter.encode((args, kwargs))  # which is canonical already
    try:
        plain = msgspec.to_builtins([args, kwargs], enc_hook=_nameless, order="deterministic", str_keys=True)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr([_nameless(a) for a in (*args, *kwargs.values())]).encode()
    try:
        return canonical(plain)
    except TenureError:  # NaN and the like: no payload, but a step may be called with it
        return repr(plain).encode("utf-8", "surrogatepass")


def _is_short(value: Any) -> bool:
    kind = type(value)
    return kind in _PLAIN or (kind is int and -_EXACT_MAX <= value <= _EXACT_MAX)


class Codec:
    """Encodes and decodes the values of one declared type."""

    __slots__ = ("_declared", "_decode", "_exact", "_what")

    def __init__(self, declared: Any, what: str) -> None:
        self._what = what
        self._declared = declared
        self._decode: Callable[[bytes], Any] = msgspec.json.decode
        self._exact: tuple[Any, ...] = _SIMPLE
        """Types whose values come back as they were, so that nobody has to look."""
        if declared not in (Any, None, NoneType, inspect.Signature.empty):
            try:
                self._decode = msgspec.json.Decoder(declared).decode
                self._exact = (declared,) if declared in _SIMPLE else ()
            except TypeError as fault:
                raise TypeError(f"{what} has a type that cannot be stored: {fault}") from fault

    def encode(self, value: Any) -> bytes | None:
        """A value as a payload."""
        return encode(value, self._what)

    def decode(self, body: bytes | None) -> Any:
        """A payload as a value."""
        if body is None:
            return None
        try:
            return self._decode(body)
        except msgspec.DecodeError as fault:
            problem, _, where = str(fault).partition(" - at ")
            place = where.strip("`").removeprefix("$").lstrip(".")
            said = f"{self._what}: {problem}" + (f" at {place}" if place else "")
            raise TenureError("INVALID_INPUT", said, (Detail(place or self._what, problem),)) from fault

    def echo(self, value: Any, body: bytes | None) -> Any:
        """The value as it would be read back, from its payload; see law 1. Refused where it does not fit its type."""
        if type(value) in self._exact:
            return value
        try:
            return self.decode(body)
        except TenureError as misfit:
            who = self._what.removeprefix("the result of ")
            declared = self._declared.__name__ if type(self._declared) is type else str(self._declared)
            said = f"{who} returned {type(value).__name__} where its annotation says {declared}"
            place = misfit.details[0].path if misfit.details else self._what
            if place != self._what:
                said += f": {misfit.details[0].problem} at {place}"
            raise TenureError(misfit.code, said, misfit.details) from misfit


class Parameters:
    """The inputs of a workflow or tool: a JSON object with a field per parameter, checked and converted."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._signature = inspect.signature(function)
        self._name = name
        hints = _hints(function)
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"{name}: inputs are named, so {parameter} cannot be one")
            kind = hints.get(parameter.name, Any)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                fields.append((parameter.name, kind, _default(parameter.default)))
        self.names = tuple(self._signature.parameters)
        self._positional = tuple(
            p.name for p in self._signature.parameters.values() if p.kind is p.POSITIONAL_ONLY
        )
        parameters = self._signature.parameters.values()
        self._by_place = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
        self._by_name = frozenset(p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY)
        self._required = frozenset(p.name for p in parameters if p.default is p.empty)
        self._struct: type[msgspec.Struct] = msgspec.defstruct(
            "Input", fields, kw_only=True, forbid_unknown_fields=True
        )
        self._codec = Codec(self._struct, f"input of {name}")

    @property
    def schema(self) -> dict[str, Any]:
        """The inputs as a JSON Schema."""
        try:
            return msgspec.json.schema(self._struct)
        except TypeError:
            return {"type": "object", "properties": {name: {} for name in self.names}}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """A call's arguments as an input; defaults stay out, so that a later version may change them."""
        given = self._bound(args, kwargs)
        body = encode(given, f"input of {self._name}") or b"{}"
        self._codec.decode(body)  # what the worker could not take is refused here
        return body

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name. (What is plainly right is not given to `inspect`, which takes ten times as long.)"""
        if len(args) <= self._by_place and kwargs.keys() <= self._by_name:
            given = dict(zip(self.names, args, strict=False))
            if given.keys().isdisjoint(kwargs):
                given.update(kwargs)
                if given.keys() >= self._required:
                    return given
        for unknown in kwargs.keys() - self._by_name:
            said = f"{self._name}: unexpected keyword argument {unknown!r}{self.meant(unknown)}"
            raise TenureError("INVALID_INPUT", said)
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as fault:
            raise TenureError("INVALID_INPUT", f"{self._name}: {fault}; {self._inputs()}") from fault

    def meant(self, name: str) -> str:
        """What may have been meant by a name that no input has, as the end of a sentence."""
        return f"{close_to(name, self.names)}; {self._inputs()}"

    def _inputs(self) -> str:
        if not self.names:
            return "it has no inputs"
        shown = (name if name in self._required else f"{name} (optional)" for name in self.names)
        return f"its inputs are {', '.join(shown)}"

    def _decoded(self, body: bytes | None) -> Any:
        try:
            return self._codec.decode(body or b"{}")
        except TenureError as refused:
            unknown = _UNKNOWN.fullmatch(refused.details[0].problem) if refused.details else None
            if unknown is None or refused.details[0].path != f"input of {self._name}":
                raise
            said = f"{refused.message}{self.meant(unknown[1])}"
            raise TenureError(refused.code, said, refused.details) from refused

    def check(self, body: bytes | None) -> None:
        """Refuse an input that does not fit."""
        self._decoded(body)

    def call(self, function: Callable[..., Any], body: bytes | None) -> Any:
        """Call the function with an input."""
        given = self._codec.decode(body or b"{}")
        values = {name: getattr(given, name) for name in self.names}
        positional = [values.pop(name) for name in self._positional]
        return function(*positional, **values)


_UNKNOWN = re.compile("Object contains unknown field `(.*)`")


def _default(value: Any) -> Any:
    """A default that is safe to share: mutable ones are made anew each time."""
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=lambda: copy(value))
    return value


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:  # a name only a type checker sees: that parameter takes anything
        return {}


def returns(function: Callable[..., Any]) -> Any:
    """What a function says it returns."""
    return _hints(function).get("return", Any)


RESTARTED = "$tenure.restarted"


def restarted(run_id: str) -> bytes:
    """The output of a run that went on as another one."""
    return _encoder.encode({RESTARTED: run_id})


def restarted_as(body: bytes) -> str:
    """Which run a restarted one went on as."""
    return str(msgspec.json.decode(body)[RESTARTED])
