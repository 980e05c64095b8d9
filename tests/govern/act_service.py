"""A service double with a log, a connector to it, and workflows that act on it."""

from __future__ import annotations

from typing import Any

import tenure
from tenure.govern.connectors.http import HttpConnector, RepeatMethod
from tenure.govern.connectors.http_service import HttpService
from tenure.ids import run_int
from tenure.kernel.act_commands import SettleReceipt
from tenure.kernel.act_rows import ReceiptRow, VerdictRow
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.urls import OutboundRoute
from tenure.sdk import Registry, StepFunction, Workflow
from tenure.testing import Lab
from tenure.testing.doubles import ServiceDouble
from tenure.testing.doubles.service import Mode
from tenure.testing.lab import LabRun

LOCAL = AllowedNetworks(networks=("127.0.0.0/8",))
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
    approval: {tier: high, within: 1d}
    why: posts are seen by everybody
"""
DENY = """
version: 1
rules:
  - {name: never, connector: http, operation: post, deny: not on a Monday}
"""
SILENT = """
version: 1
rules:
  - {name: puts, connector: http, operation: put, allow: true}
"""
REPEATS: dict[Mode, RepeatMethod] = {"honours": "native_key", "found": "marker", "neither": "none"}
EFFECTS = {"url": "/effects"}


def connector(url: str, mode: Mode = "honours") -> HttpConnector:
    """Return a connector to a service, with the settings for its mode."""
    repeats = REPEATS[mode]
    lookup = "/effects/{key}" if repeats == "marker" else ""
    return HttpConnector("http", local_service(url), repeats=repeats, lookup=lookup)


def local_service(url: str) -> HttpService:
    """Return the settings for a service on this machine."""
    return HttpService(base_url=url, way=OutboundRoute(hosts=(url.removeprefix("http://"),), reach=LOCAL))


def lab_of(
    service: ServiceDouble,
    *flows: Workflow[..., Any] | Registry,
    url: str | None = None,
    policy: str = ALLOW,
    **how: Any,
) -> Lab:
    """Return a lab whose workflows can act on the service."""
    return Lab(*flows, url=url, connectors=[connector(service.url, service.mode)], policy=policy, **how)


async def receipts(lab: Lab, run: LabRun[Any]) -> list[ReceiptRow]:
    """Return the receipts of a run."""
    return await lab.engine.store.read("receipts_of", run_int(run.id))


async def verdicts(lab: Lab, run: LabRun[Any]) -> list[VerdictRow]:
    """Return the verdicts of a run."""
    return await lab.engine.store.read("verdicts_of", run_int(run.id))


async def settle(
    lab: Lab, run: LabRun[Any], how: Any, *, by: str = "ada", result: bytes | None = None
) -> None:
    """Settle the unknown action of a run as a person."""
    (unknown,) = [row for row in await receipts(lab, run) if row.state == "unknown"]
    await lab.engine.orchestrator.send(
        SettleReceipt(
            run_id=run_int(run.id), tenant="default", no=unknown.no, how=how, person=by, result=result
        )
    )


async def _price(n: int) -> int:
    return n * 10


price: Any = StepFunction(_price, name="price")


def post_effect(n: Any, **how: Any) -> Any:
    """Make one effect."""
    return tenure.act("http.post", target=EFFECTS, fields={"json": {"n": n}}, **how)


async def _order(n: int) -> Any:
    """A step, an act, a step."""
    before = await price(n)
    done = await post_effect(before, why="the customer asked for it")
    return [done["json"]["no"], await price(before)]


async def _orders(numbers: list[int]) -> Any:
    """Several concurrent acts."""

    async def one(n: int) -> int:
        return int((await post_effect(n))["status"])

    return await tenure.gather(*(one(n) for n in numbers))


async def _keyed(key: str, n: int = 0) -> Any:
    """An act with an explicit key."""
    return (await post_effect(n, key=key))["json"]["no"]


async def _careful(n: int) -> str:
    """An act that may fail, followed by a step."""
    try:
        await post_effect(n, retry=2)
    except tenure.ActionFailed as failed:
        return f"not done: {failed.fault}, {await price(n)}"
    return f"done, {await price(n)}"


async def _greedy(n: int) -> str:
    """A workflow that catches every exception and tries to act again after a refusal."""
    try:
        await post_effect(n)
    except BaseException:
        await post_effect(n, key="another")
    return "done"


def _plain(n: int) -> Any:
    return post_effect(n)["json"]["no"]


def _acting_step() -> None:
    post_effect(1)


acting_step: Any = StepFunction(_acting_step, name="acting_step")


async def _mistaken() -> None:
    await acting_step()


order = Workflow(_order, name="order")
orders = Workflow(_orders, name="orders")
keyed = Workflow(_keyed, name="keyed")
careful = Workflow(_careful, name="careful")
greedy = Workflow(_greedy, name="greedy")
plain = Workflow(_plain, name="plain")
mistaken = Workflow(_mistaken, name="mistaken")
