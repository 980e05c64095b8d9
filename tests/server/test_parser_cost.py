"""Every parser of untrusted bytes takes linear time: no header of 32 KB and no body can block a server."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from litestar.connection import ASGIConnection

import tenure.server
from tenure import durations, ids, secrets, suggestions
from tenure.expressions import cel_syntax, expression, templates, yaml_parser
from tenure.limits import EXPRESSION_BYTES_MAX
from tenure.outbound import urls
from tenure.reads.cursors import decode_cursor
from tenure.server import idempotency, run_status
from tenure.server.auth import authentication, roles
from tenure.server.http import path_segments
from tenure.server.http.middleware import check_depth
from tenure.server.observe.tracing import RequestSpan
from tenure.server.settings import Settings
from tenure.services.hooks import events, signatures
from tenure.services.identity.validation import is_id
from tenure.store.feed import FeedCursors
from tenure.worker.protocol_codec import parse_lease_id
from tests.server.cpu_cost import grows_too_fast

HEADER_BYTES = 32 * 1024
BODY_BYTES = 64 * 1024
NOW = 1_700_000_000_000_000
UNITS = [
    '\\"', '"', "\\", "[", "[]", '{"a":', '"",', " ", "\t", " ,", ",", ";", "=", "a=;", "&", "%", "%2F", "/", "-", ".", ":", "1",
    "a", "+", "'", "\\'", "\\123", "é", "1:", "a.", "${{ '", "\n", "W/",
    '"""', "'''", '\\"""', "r'", 'b"', 'r"""\\',
]  # fmt: skip
AROUND = [
    ("", "\x01"), ('"', ""), ('tenure_session="', '"'), ("Bearer ", "\x01"), ("v1,", ""), ("sha256=", "\x01"), ("${{ ", "\x01"),
    ("'", ""), ("1", "\x01"), (",", ":"), ("[]" * 70 + '"', ""),
]  # fmt: skip


class Text(NamedTuple):
    """A text of any size."""

    unit: str
    first: str
    last: str

    def make(self, size: int) -> str:
        return self.first + self.unit * (size // len(self.unit)) + self.last


def _texts() -> list[Text]:
    """Texts that are hard for parsers. Most lack their correct end."""
    return [Text(unit, first, last) for unit in UNITS for first, last in AROUND]


def _scope(name: bytes, value: str) -> Any:
    return {"type": "http", "headers": [(name, value.encode("latin-1", "replace"))], "query_string": b""}


def _tracing(name: bytes) -> Callable[[str], Any]:
    good = {b"traceparent": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"}

    def read(text: str) -> None:
        RequestSpan("GET", {**good, name: text.encode("latin-1", "replace")}, "req_1").end({}, 200)

    return read


HEADERS: dict[str, Callable[[str], Any]] = {
    "Authorization": lambda text: authentication._BEARER.fullmatch(text.encode()),
    "Cookie": lambda text: authentication.session_cookie(_scope(b"cookie", text)["headers"]),
    "Host": lambda text: authentication._names_this_machine({"host": text}),
    "Origin": lambda text: authentication.check_origin(
        {"origin": text, "host": text}, Settings(behind_proxy=True)
    ),
    "If-None-Match": lambda text: run_status.matches_etag(text, '"1"'),
    "Last-Event-ID": lambda text: FeedCursors(b"k" * 32).decode("acme", text),
    "traceparent": _tracing(b"traceparent"),
    "tracestate": _tracing(b"tracestate"),
    "Idempotency-Key": idempotency.check_key,
    "query": lambda text: (
        ASGIConnection(cast("Any", {**_scope(b"a", ""), "query_string": text.encode()})).query_params
    ),
    "path": lambda text: roles.methods_at("/" + text),
    "raw path": lambda text: path_segments.keep_slashes(
        cast("Any", {"raw_path": b"/%2f" + text.encode(), "path": ""})
    ),
    "segment": lambda text: path_segments.decode_segment({"raw_path": b"/" + text.encode()}, 0),
    "cursor": lambda text: decode_cursor(text, "acme", "runs", None),
    "run id": ids.run_int,
    "approval id": ids.question_ints,
    "receipt id": ids.receipt_ints,
    "lease id": parse_lease_id,
    "a name": is_id,
    "X-Hub-Signature-256": lambda text: signatures.verify_github(
        {"x-hub-signature-256": text}, b"x", [b"secret"]
    ),
    "X-Slack-Signature": lambda text: signatures.verify_slack(
        {"x-slack-signature": text, "x-slack-request-timestamp": text}, b"x", [b"secret"], NOW
    ),
    "webhook-signature": lambda text: signatures.verify_standard(
        {"webhook-signature": text, "webhook-id": text, "webhook-timestamp": text}, b"x", [b"secret"], NOW
    ),
}
"""Parsers of headers, paths and queries that run before authentication."""

BODIES: dict[str, Callable[[bytes], Any]] = {
    "depth": lambda body: check_depth(body, 64),
    "JSON": msgspec.json.decode,
    "a signed body": lambda body: signatures.verify_github(
        {"x-hub-signature-256": "sha256=" + "0" * 64}, body, [b"a", b"b"]
    ),
    "a form": events.decode_form,
    "GitHub's": lambda body: events.parse_github(
        {"x-github-delivery": "a", "x-github-event": "push"}, body, by_letter=False
    ),
    "GitHub's form": lambda body: events.parse_github(
        {"x-github-delivery": "a", "x-github-event": "push", "content-type": events._FORM},
        b"payload=" + body,
        by_letter=False,
    ),
    "a click": lambda body: events.parse_slack_action({}, b"payload=" + body),
    "an event": lambda body: events.parse_generic("hook", {"webhook-id": "a"}, body),
    "a template": lambda body: list(templates.split_template(body.decode())),
}
"""Parsers of bodies."""


def _reading(read: Callable[[Any], Any], make: Callable[[int], Any], size: int) -> Callable[[], Any]:
    return partial(read, make(size))


def _encoded(read: Callable[[bytes], Any]) -> Callable[[str], Any]:
    return lambda text: read(text.encode())


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_read_in_linear_time(name: str) -> None:
    for text in _texts():
        why = grows_too_fast(partial(_reading, HEADERS[name], text.make), HEADER_BYTES)
        assert not why, (name, text, why)


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_read_in_linear_time(name: str) -> None:
    for text in _texts():
        why = grows_too_fast(
            partial(_reading, _encoded(BODIES[name]), text.make),
            BODY_BYTES if name != "a template" else 4 * 1024,
        )
        assert not why, (name, text, why)


# ------------------------------------------------------------------------------------------------ every pattern

_SEARCHES = {"search", "finditer", "findall", "sub", "subn", "split"}
BESIDE = (durations, ids, secrets, suggestions, expression, yaml_parser, cel_syntax, templates, urls)
"""Modules outside of the server that parse untrusted input."""
SIZES = {"tenure.expressions.expression._PATH": EXPRESSION_BYTES_MAX}
"""The largest inputs of patterns that have a smaller limit than the others."""


def _modules() -> Iterator[Any]:
    yield from BESIDE
    for found in pkgutil.walk_packages(tenure.server.__path__, "tenure.server."):
        yield importlib.import_module(found.name)


def _patterns() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """Every regular expression of those modules: its place, the pattern, and whether `search` uses it."""
    for module in _modules():
        tree = ast.parse(inspect.getsource(module))
        searched = {
            call.func.value.id
            for call in ast.walk(tree)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in _SEARCHES
            and isinstance(call.func.value, ast.Name)
        }
        for name, value in vars(module).items():
            found = value.values() if isinstance(value, dict) else (value,)
            for pattern in found:
                if isinstance(pattern, re.Pattern):
                    yield f"{module.__name__}.{name}", pattern, name in searched
        for call in ast.walk(tree):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and isinstance(call.func.value, ast.Name)
                and call.func.value.id == "re"
                and call.func.attr in _SEARCHES | {"match", "fullmatch"}
                and isinstance(call.args[0], ast.Constant)
            ):
                yield (
                    f"{module.__name__}:{call.lineno}",
                    re.compile(call.args[0].value),
                    call.func.attr in _SEARCHES,
                )


def test_every_pattern_is_matched_in_linear_time() -> None:
    found = list(_patterns())
    assert len(found) > 25, "the search for patterns no longer finds them"
    for where, pattern, searched in found:
        for text in _texts():

            def work(
                size: int, text: Text = text, pattern: Any = pattern, searched: bool = searched
            ) -> Callable[[], Any]:
                given: Any = text.make(size)
                if isinstance(pattern.pattern, bytes):
                    given = given.encode()
                return lambda: (
                    pattern.fullmatch(given),
                    pattern.match(given),
                    sum(1 for _ in pattern.finditer(given)) if searched else None,
                )

            why = grows_too_fast(work, SIZES.get(where, HEADER_BYTES))
            assert not why, (where, pattern.pattern, text, why)
