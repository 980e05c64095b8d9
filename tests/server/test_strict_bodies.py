"""Bodies are decoded strictly on every route: `"5"` is not 5, and `"false"` is not false. A parameter with a single value cannot be
repeated."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute
from msgspec import inspect

from tenure.server.app import handlers
from tenure.server.http.openapi import openapi_document
from tenure.server.request import ApiRequest
from tenure.services.identity.principals import ROLES
from tenure.shapes.runs import StartRun
from tests.server.stage import problem, site

Place = tuple[str, ...]
PLAIN = (inspect.IntType, inspect.FloatType, inspect.BoolType)
PATHS = {"run_id": "run_2026-02-14_080000_abc123", "lease_id": "run_2026-02-14_080000_abc123.0.1"}


def bodies() -> Iterator[tuple[str, str, Any]]:
    """Method, path and type of every route with a JSON body."""
    yield "POST", "/runs", StartRun  # this route decodes its body itself
    app = Litestar(handlers(), request_class=ApiRequest, openapi_config=None, logging_config=None)
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for method, (handler, _) in route.route_handler_map.items():
                if handler.parsed_data_field is not None and str(method) not in ("OPTIONS", "HEAD"):
                    yield str(method), route.path_format, handler.parsed_data_field.annotation


def sample(kind: Any, to: Place = ()) -> Any:
    """The smallest value of a type that contains the place `to`."""
    if isinstance(kind, inspect.UnionType):
        inner = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        structs = [one for one in inner if isinstance(one, inspect.StructType)]
        chosen = structs[0] if structs else inner[0]
        if to and structs:
            chosen = next(one for one in structs if any(f.encode_name == to[0] for f in one.fields))
        return sample(chosen, to)
    if isinstance(kind, inspect.StructType):
        made = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
        for field in kind.fields:
            on_the_way = bool(to) and field.encode_name == to[0]
            if field.required or on_the_way:
                made[field.encode_name] = sample(field.type, to[1:] if on_the_way else ())
        return made
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return [sample(kind.item_type, to[1:])] if to else []
    if isinstance(kind, inspect.DictType):
        return {}
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.DateTimeType):
        return "2026-02-14T08:00:00Z"
    plain: dict[type, Any] = {
        inspect.IntType: 1,
        inspect.FloatType: 1.0,
        inspect.BoolType: True,
        inspect.StrType: "x",
    }
    return plain.get(type(kind))


def places(kind: Any, seen: tuple[type, ...] = ()) -> Iterator[tuple[Place, Any]]:
    """Every number and boolean of a type."""
    if isinstance(kind, inspect.UnionType):
        if not any(isinstance(one, inspect.StrType) for one in kind.types):
            for one in kind.types:
                yield from places(one, seen)
    elif isinstance(kind, inspect.StructType) and kind.cls not in seen:
        for field in kind.fields:
            for below, found in places(field.type, (*seen, kind.cls)):
                yield (field.encode_name, *below), found
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        for below, found in places(kind.item_type, seen):
            yield ("[0]", *below), found
    elif isinstance(kind, PLAIN):
        yield (), kind


def put(body: Any, place: Place, value: Any) -> None:
    *way, last = place
    for part in way:
        body = body[0] if part == "[0]" else body[part]
    body[0 if last == "[0]" else last] = value


def cases() -> Iterator[tuple[str, str, Any, Place, str]]:
    for method, path, annotation in bodies():
        kind = inspect.type_info(annotation)
        for place, found in places(kind):
            body = sample(kind, place)
            put(body, place, "true" if isinstance(found, inspect.BoolType) else "5")
            yield method, path, body, place, "bool" if isinstance(found, inspect.BoolType) else "number"


def test_the_route_walk_finds_routes() -> None:
    found = list(cases())
    assert {path for _, path, *_ in found} >= {
        "/runs/batch",
        "/runner/claim",
        "/runner/messages",
        "/runner/register",
    }
    assert len(found) > 60


async def test_no_route_converts_text_to_a_number_or_boolean(url: str) -> None:
    async with site(url) as s:
        everybody = await s.as_(*sorted(ROLES))
        wrong, refused = [], 0
        for method, path, body, place, _ in cases():
            where = path
            for name in ("run_id", "lease_id"):
                where = where.replace(f"{{{name}}}", PATHS[name])
            where = "/".join("x" if part.startswith("{") else part for part in where.split("/"))
            answer = await everybody.request(method, where, json=body)
            if answer.status_code in (401, 403):
                continue  # needs the installation's operator; the same `Call` decodes its body
            refused += 1
            if (
                answer.status_code != 422
                or problem(answer) != "INVALID_INPUT"
                or place[-1].strip("[0]") not in answer.text
            ):
                wrong.append((method, path, place, answer.status_code, answer.text[:150]))
        assert wrong == []
        assert refused > 60


@pytest.mark.parametrize(
    "query",
    [
        "status=failed&status=succeeded",
        "workflow=a&workflow=a",
        "limit=1&limit=2",
        "parked=true&parked=false",
    ],
)
async def test_a_single_valued_parameter_cannot_be_repeated(url: str, query: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("operator")
        answer = await viewer.get(f"/runs?{query}")
        assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED")
        assert "more than once" in answer.text
        assert (await viewer.get("/runs?label=a=1&label=b=2")).status_code == 200


@pytest.mark.parametrize(
    "capability",
    ["default", "", "|run", "default|", "default|tool:", "default|fool:x", "default|flow:x", "default|flow:@1",
     "default|run|run", "default|tool:a\nb", "default|tool:" + "x" * 300],
)  # fmt: skip
async def test_an_invalid_capability_is_refused(url: str, capability: str) -> None:
    async with site(url) as s:
        runner = await s.as_("runner")
        asked = {"claim_id": "c", "capabilities": ["default|run", capability]}
        registered = {"worker": "w", "capabilities": [capability], "slots": 1}
        for answer in (
            await runner.post("/runner/claim", json=asked),
            await runner.post("/runner/messages", json={"messages": [], "claim": asked}),
            await runner.post("/runner/register", json=registered),
        ):
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), answer.text
            assert "QUEUE|tool:NAME" in answer.text or "characters" in answer.text


def test_a_handler_gets_the_body_that_was_read() -> None:
    """The framework converts a body again, leniently. A value that already has the right type stays unchanged."""

    class Body(msgspec.Struct):
        n: int

    class Signature(msgspec.Struct):
        data: Body

    read = msgspec.convert({"n": 5}, Body)
    assert msgspec.convert({"data": read}, Signature, strict=False).data is read


# ------------------------------------------------------------------------------------------- numbers in URLs

NO_INTEGERS = (
    "1e1", "%2B10", "%D9%A1%D9%A0", "10.0", " 10", "10 ", "%2010", "+10", "1_0", "0x10", "\u0661\u0660", "", "true", "1" * 5000,
)  # fmt: skip

NO_NUMBERS = ("nan", "inf", "Infinity", " 1", "%2B1", "1_0", "%D9%A1%D9%A0", "0x1", "", "1" * 5000)


def number_parameters() -> Iterator[tuple[str, str, str, str, str]]:
    """Method, path, place, name and type of every parameter that is a number."""
    for path, item in openapi_document()["paths"].items():
        for method, operation in item.items():
            for given in operation.get("parameters", ()) if isinstance(operation, dict) else ():
                for kind in ("integer", "number"):
                    if f"'{kind}'" in str(given["schema"]):
                        yield method.upper(), path, given["in"], given["name"], kind


async def test_a_number_in_a_path_has_decimal_digits_only(tmp_path: Path) -> None:
    asked = list(number_parameters())
    assert {place for _, _, place, _, _ in asked} == {"query", "path"}
    assert len(asked) > 40
    async with site(f"sqlite:{tmp_path}/site.db") as s:
        caller, operator = await s.as_(*ROLES), await s.caller(await s.operator_key())
        taken, seen = [], set()
        for method, path, place, name, kind in asked:
            who = operator if path.startswith("/admin/") else caller
            where = path.replace("{run_id}", PATHS["run_id"]).replace("{lease_id}", PATHS["lease_id"])
            texts: tuple[str, ...] = NO_INTEGERS if kind == "integer" else NO_NUMBERS
            if (place, kind) in seen:  # one parameter of each kind is enough
                texts = texts[:3]
            seen.add((place, kind))
            for text in texts:
                if place == "path":
                    address = where.replace(f"{{{name}}}", text or "-")
                else:
                    numbered = where.replace("{seq}", "1")
                    address = re.sub(r"\{\w+\}", "x", numbered) + f"?{name}={text}"
                answer = await who.request(method, address)
                refused = (404, "NOT_FOUND") if place == "path" else (422, "INVALID_INPUT")
                if (answer.status_code, problem(answer)) != refused:
                    taken.append((method, path, name, text[:20], answer.status_code, answer.text[:100]))
        assert taken == []
        assert (await caller.get("/runs?limit=10")).status_code == 200
        assert (await caller.get("/runs?limit=-1")).status_code == 422
