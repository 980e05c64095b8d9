"""The encoding of values: a replay sees the same values as the first run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

import tenure
from tenure.sdk.definitions import StepFunction
from tenure.testing import Lab
from tests.sdk.flows import flow


class Color(Enum):
    RED = "red"


class Image(msgspec.Struct):
    name: str
    layers: list[bytes] = []


@dataclass
class Point:
    x: int
    y: float


class Pair(NamedTuple):
    left: str
    right: int


def a_struct() -> Image:
    return Image("app", [b"\x00\xff"])


def a_dataclass() -> Point:
    return Point(1, 2.0)


def a_moment() -> datetime:
    return datetime(2026, 1, 5, 10, 0, 0, 123456, tzinfo=UTC)


def a_day() -> date:
    return date(2026, 1, 5)


def a_length() -> timedelta:
    return timedelta(days=2, microseconds=5)


def an_enum() -> Color:
    return Color.RED


def a_tuple() -> tuple[int, str]:
    return 1, "a"


def a_named_tuple() -> Pair:
    return Pair("a", 1)


def some_bytes() -> bytes:
    return bytes(range(256))


def a_set() -> set[str]:
    return {"b", "a"}


def a_decimal() -> Decimal:
    return Decimal("1.10")


def a_uuid() -> UUID:
    return UUID(int=7)


def a_union() -> Image | None:
    return Image("x")


def nothing() -> None:
    return None


def a_big_number() -> int:
    return 2**60


def a_float_that_is_whole() -> float:
    return 3  # an int, as people often write


def structs_by_name() -> dict[str, list[Image]]:
    return {"all": [Image("x")]}


def undeclared() -> Any:
    return (1, {"at": a_moment(), "image": Image("y")})


MADE = [
    a_struct, a_dataclass, a_moment, a_day, a_length, an_enum, a_tuple, a_named_tuple, some_bytes, a_set, a_decimal,
    a_uuid, a_union, nothing, a_big_number, a_float_that_is_whole, structs_by_name, undeclared,
]  # fmt: skip


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
async def test_a_replay_reads_what_the_first_run_saw(make: Callable[[], Any]) -> None:
    seen: list[Any] = []
    step = StepFunction(make)

    @flow
    async def whole() -> None:
        seen.append(await step())
        await tenure.sleep("1h")

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await run.result()
    first, again = seen
    assert first == again
    assert type(first) is type(again)
    if make is not undeclared:
        assert first == make()


async def test_typed_inputs_reach_the_workflow_and_its_steps_with_their_types(url: str | None) -> None:
    @tenure.step
    async def shown(image: Image, at: datetime, color: Color, spot: Point) -> tuple[str, str]:
        return f"{image.name} {at:%H:%M} {color.name} {spot.x + spot.y}", type(image).__name__

    @flow
    async def whole(
        image: Image, at: datetime, color: Color = Color.RED, spots: tuple[Point, ...] = ()
    ) -> Image:
        said, kind = await shown(image, at, color, spots[0])
        return Image(f"{said} {kind}", image.layers)

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole, a_struct(), a_moment(), spots=(Point(1, 2.5),))
        result = await run.result()
        assert result == Image("app 10:00 RED 3.5 Image", [b"\x00\xff"])
        by_names = await lab.submit(
            whole,
            {
                "image": {"name": "b"},
                "at": "2026-01-05T11:00:00Z",
                "color": "red",
                "spots": [{"x": 0, "y": 1}],
            },
        )
        assert (await by_names.result()).name == "b 11:00 RED 1.0 Image"


async def test_an_event_is_converted_to_the_type_that_is_waited_for() -> None:
    @flow
    async def whole() -> str:
        spot = await tenure.wait("spot", type=Point)
        return f"{type(spot).__name__} {spot.x}"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.deliver(run, "spot", {"x": 1, "y": 2})
        assert await run.result() == "Point 1"


async def test_arguments_that_cannot_be_encoded_do_not_prevent_a_replay() -> None:
    class Connection:
        """Has no encoding, and is a different object in each process."""

    done: list[str] = []

    @tenure.step
    async def use(connection: Connection, names: set[str]) -> int:
        done.append("use")
        return len(names)

    @flow
    async def whole() -> int:
        count = await use(Connection(), {"c", "a", "b"})
        await tenure.sleep("1h")
        return count

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == 3
    assert done == ["use"]
