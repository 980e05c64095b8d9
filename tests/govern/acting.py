"""A service that keeps a log, a connector to it, and workflows that act on it: for the stories of acts."""

from __future__ import annotations

from typing import Any

import tenure
from tenure.govern.addresses import Reach
from tenure.govern.connectors.http import HowRepeated, HttpConnector
from tenure.govern.connectors.link import Link
from tenure.govern.outgoing import Way
from tenure.testing.doubles.service import Mode

LOCAL = Reach(networks=("127.0.0.0/8",))
ALLOW = """
version: 1
rules:
  - {name: posts, connector: http, operation: post, allow: true}
  - {name: puts, connector: http, operation: put, allow: true}
"""
ASK = """
version: 1
rules:
  - name: posts
    connector: http
    operation: post
    needs_approval: {tier: high, within: 1d}
    why: posts are seen by everybody
"""
REPEATS: dict[Mode, HowRepeated] = {"honours": "native_key", "found": "marker", "neither": "none"}


def connector(url: str, mode: Mode) -> HttpConnector:
    """The connector to a service of this mode, set up as that mode asks for."""
    way = Way(hosts=(url.removeprefix("http://"),), reach=LOCAL)
    repeats = REPEATS[mode]
    lookup = "/effects/{key}" if repeats == "marker" else ""
    return HttpConnector("http", Link(base_url=url, way=way), repeats=repeats, lookup=lookup)


@tenure.step
async def price(n: int) -> int:
    """Something before and behind an act."""
    return n * 10


@tenure.workflow
async def order(n: int) -> Any:
    """A step, an act, a step."""
    before = await price(n)
    done = await tenure.act(
        "http.post",
        target={"url": "/effects"},
        fields={"json": {"n": before}},
        why="the customer asked for it",
    )
    return [done["json"]["no"], await price(before)]


@tenure.workflow
async def orders(numbers: list[int]) -> Any:
    """Several acts at once."""
    return await tenure.gather(*(_one(n) for n in numbers))


async def _one(n: int) -> Any:
    return (await tenure.act("http.post", target={"url": "/effects"}, fields={"json": {"n": n}}))["status"]


@tenure.workflow
async def keyed(key: str) -> Any:
    """An act under a key of its own."""
    done = await tenure.act("http.post", target={"url": "/effects"}, fields={"json": {}}, key=key)
    return done["json"]["no"]


@tenure.workflow
async def careful(n: int) -> str:
    """An act that may fail."""
    try:
        await tenure.act("http.post", target={"url": "/effects"}, fields={"json": {"n": n}}, retry=2)
    except tenure.ActionFailed as failed:
        return f"not done: {failed.fault}"
    return "done"


@tenure.workflow
def plain(n: int) -> Any:
    """Without async."""
    done: Any = tenure.act("http.post", target={"url": "/effects"}, fields={"json": {"n": n}})
    return done["json"]["no"]
