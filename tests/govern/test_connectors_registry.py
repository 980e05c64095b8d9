"""The registry and the connectors file: lookup, validation, and errors with their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenure.clock import boot_seconds
from tenure.errors import Detail, TenureError
from tenure.govern.connector import CallFault, ConnectorCall, FoundEffect, Operation
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import CallFailed
from tenure.govern.connectors.registry import Connectors, choose_connectors
from tenure.govern.connectors.settings import builtin_connectors, load_connectors, parse_connectors
from tools import connectors_page

OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


class Own(ConnectorBase):
    """A custom connector."""

    def __init__(self, name: str = "own", fields: dict[str, Any] | None = None, **how: Any) -> None:
        self.name = name
        operation = Operation(
            name="do", summary="", target=OBJECT, fields=fields or OBJECT, **{"repeats": "none", **how}
        )
        self.operations = {"do": operation}

    async def call(self, call: ConnectorCall) -> Any:
        return {"did": call.key}


def test_an_operation_is_found_by_its_full_name() -> None:
    connector, operation = builtin_connectors().find("github.label.add")
    assert (connector.name, operation.name, operation.repeats) == ("github", "label.add", "sets_state")


@pytest.mark.parametrize(
    ("action", "hint"),
    [
        ("githab.label.add", "did you mean 'github'"),
        ("github.label.ad", "did you mean 'label.add'"),
        ("github", "it has label.add"),
        ("nothing.at.all", "there are github, slack, servicenow, http, command"),
        ("", "there is no connector ''"),
    ],
)
def test_an_unknown_operation_is_refused_with_a_suggestion(action: str, hint: str) -> None:
    with pytest.raises(TenureError) as raised:
        builtin_connectors().find(action)
    assert raised.value.code == "UNKNOWN_OPERATION"
    assert hint in raised.value.message


@pytest.mark.parametrize(
    ("target", "fields", "place"),
    [
        ({"repo": "acme/app"}, {"labels": ["x"]}, "target.number"),
        ({"repo": "acme/app/x", "number": 1}, {"labels": ["x"]}, "target.repo"),
        ({"repo": "acme/app", "number": 0}, {"labels": ["x"]}, "target.number"),
        ({"repo": "acme/app", "number": True}, {"labels": ["x"]}, "target.number"),
        ({"repo": "acme/app", "number": 1, "x": 1}, {"labels": ["x"]}, "target.x"),
        ({"repo": "acme/app", "number": 1}, {"labels": []}, "fields.labels"),
        ({"repo": "acme/app", "number": 1}, {"labels": ["x", 7]}, "fields.labels[1]"),
        ({"repo": "acme/app", "number": 1}, {"label": ["x"]}, "fields.label"),
        ([], {"labels": ["x"]}, "target"),
    ],
)
def test_invalid_targets_and_fields_are_refused_with_their_place(
    target: Any, fields: Any, place: str
) -> None:
    with pytest.raises(TenureError) as raised:
        builtin_connectors().check("github.label.add", target, fields)
    assert raised.value.code == "INVALID_INPUT"
    assert place in [detail.path for detail in raised.value.details]


def test_a_secret_field_must_be_a_reference_and_errors_do_not_repeat_it() -> None:
    """I53."""
    target = {"url": "https://example.com/"}
    builtin_connectors().check("http.post", target, {"secret_headers": {"X": "env:TENURE_SECRET_acme_X"}})
    with pytest.raises(TenureError) as raised:
        builtin_connectors().check("http.post", target, {"secret_headers": {"X": "hunter2-hunter2"}})
    assert raised.value.code == "SECRET_NOT_A_REFERENCE"
    assert "hunter2" not in f"{raised.value} {raised.value.details}"
    listed = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string", "secret": True}}},
    }
    with pytest.raises(TenureError) as raised:
        Connectors([Own(fields=listed)]).check("own.do", {}, {"a": ["env:OK", "hunter2"]})
    assert [detail.path for detail in raised.value.details] == ["fields.a[1]"]
    with pytest.raises(TenureError) as raised:
        Connectors([Own(fields=listed)]).check("own.do", {}, {"a": [{"hunter2": 1}]})
    assert "hunter2" not in f"{raised.value} {raised.value.details}"


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "string"},
        {"type": "object", "patternProperties": {}},
        {"type": "object", "properties": {"a": {"type": "string", "format": "email"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/x"}}},
        {"type": "object", "properties": {"a": {"type": "text"}}},
        {"type": "object", "properties": {}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string", "minimum": 1}}},
    ],
)
def test_a_schema_with_unsupported_keywords_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"own\.do"):
        Connectors([Own(fields=fields)])


def test_a_contradictory_connector_is_refused() -> None:
    for made in (
        [Own("Own")],
        [Own("a.b")],
        [Own(), Own()],
        [Own(repeats="maybe")],
        [Own(reverses_by="undo")],
    ):
        with pytest.raises(ValueError, match=r"own|Own|a\.b"):
            Connectors(made)


GOOD = """
connectors:
  github:
    tokens: {acme: "env:ACME_GITHUB", globex: "file:/run/secrets/globex"}
  chat:
    kind: slack
    token: env:SLACK
  servicenow:
    base_url: https://acme.service-now.com/
    auth: basic
    token: env:NOW
  billing:
    kind: http
    base_url: https://billing.example.com/v1
    hosts: ["*.example.org", "other.example.com:8443"]
    repeats: marker
    lookup: /requests/{key}
  command:
    programs:
      deploy: {path: /usr/local/bin/deploy, args: [--quiet], env: [REGION], timeout: 2m, repeats: native_key}
"""


def test_connectors_are_configured_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "connectors.yaml"
    file.write_text(GOOD)
    made = load_connectors(file)
    assert list(made) == ["github", "chat", "servicenow", "billing", "command"]
    assert made.find("billing.post")[1].repeats == "marker"
    assert made.find("command.deploy")[1].repeats == "native_key"
    assert made.find("chat.message.post")[1].repeats == "marker"
    assert list(choose_connectors(str(file))) == list(made)
    assert list(choose_connectors()) == []
    monkeypatch.setenv("TENURE_CONNECTORS", str(file))
    assert list(choose_connectors()) == list(made)
    assert list(choose_connectors([Own()])) == ["own"]


def test_a_custom_connector_is_named_by_its_module() -> None:
    made = parse_connectors(f"connectors: {{mine: {{kind: '{__name__}:Own'}}}}")
    assert made.find("mine.do")[0].name == "mine"


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("connectors:\n  github:\n    token: ghp_hunter2\n", ":3:12", "reference"),
        ("connectors:\n  github:\n    tokn: env:X\n", ":3:5", "did you mean 'token'"),
        ("connectors:\n  githab: {}\n", ":2:3", "did you mean 'github'"),
        ("connectors:\n  slack:\n    repeats: none\n", ":3:14", "is not a key of the kind slack"),
        ("connectors:\n  http: {}\n", ":2:3", "needs 'base_url' or 'hosts'"),
        ("connectors:\n  servicenow: {}\n", ":2:3", "needs 'base_url'"),
        ("connectors:\n  http:\n    base_url: http://x.example\n", ":3:15", "https"),
        ("connectors:\n  http:\n    base_url: https://a@x.example\n", ":3:15", "https"),
        (
            "connectors:\n  http:\n    hosts: [x]\n    allow_private: [169.254.169.254]\n",
            ":4:21",
            "can never be allowed",
        ),
        (
            "connectors:\n  http:\n    hosts: [x]\n    allow_private: [everything]\n",
            ":4:21",
            "not an address",
        ),
        ("connectors:\n  http:\n    hosts: [x]\n    repeats: marker\n", ":2:3", "needs 'lookup'"),
        ("connectors:\n  http:\n    hosts: [x]\n    ca_file: /nowhere/ca.pem\n", ":4:14", "does not exist"),
        ("connectors:\n  command:\n    programs: {sh: {path: sh}}\n", ":3:27", "must begin with /"),
        ("connectors:\n  x:\n    kind: nowhere.at_all:Thing\n", ":3:11", "returned no connector"),
        ("", ":1:1", "empty"),
        ("[]", ":1:1", "must be a map"),
    ],
)
def test_a_file_with_mistakes_is_refused_with_line_numbers(text: str, at: str, message: str) -> None:
    with pytest.raises(TenureError) as raised:
        parse_connectors(text, "c.yaml")
    assert raised.value.code == "CONNECTORS_INVALID"
    assert f"c.yaml{at}" in raised.value.message
    assert message in raised.value.message


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TenureError, match="cannot be read"):
        load_connectors(tmp_path / "none.yaml")


class Odd(Own):
    """A connector that returns or raises the given value."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.given = given

    async def call(self, call: ConnectorCall) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        return FoundEffect(await self.call(call))

    def classify(self, fault: BaseException) -> CallFault:
        raise ValueError("cannot say")


async def test_the_result_of_a_connector_must_be_storable() -> None:
    order = ConnectorCall(
        tenant="acme", operation="do", target={}, fields={}, key="k", deadline=boot_seconds() + 5
    )
    for given, kept in (
        (Detail("a", "b"), {"path": "a", "problem": "b"}),
        ({"x": (1, 2)}, {"x": [1, 2]}),
        (object(), {"omitted": "it is not JSON"}),
        ("x" * 100_000, {"omitted": "it has 100002 bytes"}),
    ):
        covered = Connectors([Odd(given)])["own"]
        assert await covered.call(order) == kept
        looked = await covered.lookup(order)
        assert looked is not None
        assert looked.result == (kept if given.__class__ is not object else None)


async def test_a_connector_that_cannot_classify_a_fault_leaves_an_unknown_receipt() -> None:
    order = ConnectorCall(
        tenant="acme", operation="do", target={}, fields={}, key="k", deadline=boot_seconds() + 5
    )
    covered = Connectors([Odd(RuntimeError("boom"))])["own"]
    for asked in (covered.call, covered.lookup):
        with pytest.raises(CallFailed) as raised:
            await asked(order)
        assert (raised.value.fault.outcome, raised.value.fault.message) == ("unknown", "RuntimeError")


def test_the_page_shows_how_each_operation_is_repeated_and_undone() -> None:
    assert connectors_page.page() == connectors_page.PAGE.read_text(), "run `make docs`"
    for action, operation in builtin_connectors().actions():
        assert operation.reverses_by or operation.undo_hint, f"{action}: the page lacks advice for people"
