"""Receipts with an unknown outcome are in the inbox, and a person who is not involved in the run settles them (I38, I43)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tenure import ids
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import ALLOW, connector, order
from tests.server.stage import Site, problem, site


@pytest.fixture
def service() -> Iterator[ServiceDouble]:
    with ServiceDouble("neither") as double:
        yield double


def stage(url: str, service: ServiceDouble, policy: str = ALLOW) -> Any:
    return site(url, connectors=[connector(service.url, service.mode)], policy=policy)


async def run_with_unknown_receipt(s: Site, service: ServiceDouble) -> tuple[str, dict[str, Any]]:
    """Start a run of Olga's whose only act gets no answer. Returns its id and the receipt in the inbox."""
    service.trouble(drop="after")
    run = await s.engine.scoped(tenant="acme", actor="person:olga").start(order, 7)
    viewer = await s.as_("viewer")
    for _ in range(500):
        found = (await viewer.get("/receipts", params={"state": "unknown"})).json()["items"]
        if found:
            return run.id, found[0]
        await asyncio.sleep(0.01)
    raise AssertionError("no unknown receipt appears")


async def test_an_unknown_action_is_in_the_inbox_with_its_details(url: str, service: ServiceDouble) -> None:
    async with stage(url, service) as s, s.engine.worker(order):
        run, receipt = await run_with_unknown_receipt(s, service)
        viewer = await s.as_("viewer")
        assert receipt["run_id"] == run
        assert (receipt["action"], receipt["state"], receipt["repeats"]) == ("http.post", "unknown", "none")
        assert receipt["key"] == service.effects[0].key
        assert receipt["request"]["fields"] == {"json": {"n": 70}}
        assert receipt["known"]["rationale"]
        assert receipt["expires_at"] is not None
        assert (await viewer.get(f"/receipts/{receipt['id']}")).json() == receipt
        assert (await viewer.get(f"/runs/{run}/receipts")).json()["items"] == [receipt]
        stats = (await viewer.get("/inbox/stats")).json()
        assert (stats["unknown_receipts"], stats["oldest_receipt_at"]) == (1, receipt["intended_at"])
        theirs = await s.as_("viewer", tenant="globex")
        for path in (f"/receipts/{receipt['id']}", "/receipts/rcp_2026-01-01_aaaaaaaaaa1", "/receipts/x"):
            answer = await theirs.get(path)
            assert (answer.status_code, problem(answer)) == (404, "RECEIPT_NOT_FOUND")
        assert (await theirs.get("/receipts")).json()["items"] == []
        assert len(service.effects) == 1, "the call is not repeated"


async def test_only_an_approver_who_is_not_involved_settles_a_receipt(
    url: str, service: ServiceDouble
) -> None:
    async with stage(url, service) as s, s.engine.worker(order):
        run, receipt = await run_with_unknown_receipt(s, service)
        path, done = f"/receipts/{receipt['id']}/settle", {"outcome": "done", "result": {"json": {"no": 9}}}
        for who, code in (
            (await s.as_("approver"), "APPROVER_NOT_ELIGIBLE"),
            (await s.person("vera", "viewer", "operator", "admin"), "FORBIDDEN"),
            (await s.person("olga"), "APPROVER_IS_REQUESTER"),
        ):
            assert problem(await who.post(path, json=done)) == code
        patching = await s.person("pat", "operator", "approver")
        assert (await patching.patch(f"/runs/{run}", json={"labels": {"a": "b"}})).status_code == 200
        assert problem(await patching.post(path, json=done)) == "APPROVER_IS_REQUESTER"
        ada = await s.person("ada")
        assert problem(await ada.post(path, json={"outcome": "retry", "result": 1})) == "INVALID_INPUT"
        settled = (await ada.post(path, json={**done, "reason": "I looked"})).json()
        assert (settled["state"], settled["again"]) == ("succeeded", False)
        assert (await ada.post(path, json=done)).json()["again"] is True
        assert problem(await ada.post(path, json={"outcome": "not_done"})) == "RECEIPT_SETTLED"
        result = await s.engine.scoped(tenant="acme").result(run, wait=20)
        assert result == [9, 700]
        assert len(service.effects) == 1
        events = await s.engine.store.read("events_of", ids.run_int(run))
        [line] = [event for event in events if event.kind == "settle_receipt"]
        assert (line.actor, line.initiator) == ("person:ada", "approval")


@pytest.mark.parametrize(("outcome", "effects"), [("not_done", 1), ("retry", 2)])
async def test_a_receipt_is_settled_as_not_done_or_called_again(
    url: str, service: ServiceDouble, outcome: str, effects: int
) -> None:
    async with stage(url, service) as s, s.engine.worker(order):
        run, receipt = await run_with_unknown_receipt(s, service)
        ada = await s.person("ada")
        answer = await ada.post(f"/receipts/{receipt['id']}/settle", json={"outcome": outcome})
        assert answer.status_code == 200, answer.text
        engine = s.engine.scoped(tenant="acme")
        status = await engine.run(run).reaches("succeeded", "failed", wait=20)
        assert (status, len(service.effects)) == ("succeeded" if outcome == "retry" else "failed", effects)
