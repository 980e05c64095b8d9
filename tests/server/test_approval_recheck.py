"""An approval is checked again before its act is done. If it no longer suffices, people are asked again (I42, I43)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenure.clock import us
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import connector, order
from tests.server.stage import Site, problem, site

RELEASE = """
version: 1
rules:
  - {name: posts, connector: http, operation: post, approval: {people: 2, group: release, within: 1h}}
"""
THREE = RELEASE.replace("people: 2", "people: 3")
NEVER = "version: 1\nrules:\n  - {name: never, connector: http, operation: post, deny: not today}\n"
pytestmark = [pytest.mark.clause("GOV-16"), pytest.mark.clause("GOV-23")]


@pytest.fixture
def service() -> Iterator[ServiceDouble]:
    with ServiceDouble() as double:
        yield double


class Scenario:
    """A run of Olga's that waits for two approvals of the group. No worker runs while people decide."""

    def __init__(self, s: Site, service: ServiceDouble, no: int) -> None:
        self.s, self.service, self.no = s, service, no
        self.engine = s.engine.scoped(tenant="acme", actor="person:olga")
        self.run = ""

    async def begin(self) -> None:
        self.people = {
            name: await self.s.person(f"{name}{self.no}", "approver", "operator", groups=["release"])
            for name in ("ada", "bob", "cyn", "dan")
        }
        self.admin = await self.s.as_("admin")
        self.heads = [await self.s.person(f"{name}{self.no}", "admin", "approver") for name in ("eve", "fay")]
        async with self.s.engine.worker(order):
            self.run = (await self.engine.start(order, 7)).id
            await self.engine.run(self.run).reaches("waiting_approval", wait=20)

    async def open_approval(self) -> dict[str, Any]:
        found = (
            await self.people["dan"].get("/approvals", params={"run": self.run, "status": "requested"})
        ).json()
        [approval] = found["items"]
        return dict(approval)

    async def approve(self, *names: str) -> dict[str, Any]:
        approval = await self.open_approval()
        decision = {"decision": "approve", "digest": approval["digest"], "revision": approval["revision"]}
        for name in names:
            answer = await self.people[name].post(f"/approvals/{approval['id']}/decision", json=decision)
            assert answer.status_code == 200, answer.text
        return approval

    async def work_until(self, *statuses: str) -> str:
        """Run a worker until the run has one of these statuses."""
        async with self.s.engine.worker(order):
            return await self.engine.run(self.run).reaches(*statuses, wait=20)


@asynccontextmanager
async def stage(url: str, service: ServiceDouble) -> AsyncIterator[Site]:
    async with site(url, connectors=[connector(service.url)], policy=RELEASE) as s:
        yield s


async def make_scenario(s: Site, service: ServiceDouble, no: int = 0) -> Scenario:
    scenario = Scenario(s, service, no)
    await scenario.begin()
    return scenario


async def _voter_leaves_the_group(scenario: Scenario, _approval: dict[str, Any]) -> None:
    left = {"name": "Ada", "roles": ["approver"], "groups": ["docs"]}
    assert (await scenario.admin.put(f"/people/ada{scenario.no}", json=left)).status_code == 200


async def _voter_is_closed(scenario: Scenario, _approval: dict[str, Any]) -> None:
    assert (await scenario.admin.delete(f"/people/ada{scenario.no}")).status_code == 204


async def _voter_loses_the_role(scenario: Scenario, _approval: dict[str, Any]) -> None:
    left = {"name": "Ada", "roles": ["viewer"], "groups": ["release"]}
    assert (await scenario.admin.put(f"/people/ada{scenario.no}", json=left)).status_code == 200


async def _voter_changes_the_run(scenario: Scenario, _approval: dict[str, Any]) -> None:
    assert (
        await scenario.people["ada"].patch(f"/runs/{scenario.run}", json={"labels": {"a": "b"}})
    ).is_success


async def _voter_withdraws(scenario: Scenario, approval: dict[str, Any]) -> None:
    path = f"/approvals/{approval['id']}/withdraw"
    assert (await scenario.people["ada"].post(path)).json()["votes"] == 1
    assert problem(await scenario.people["ada"].post(path)) == "APPROVAL_NOT_GIVEN"


async def _approval_expires(scenario: Scenario, _approval: dict[str, Any]) -> None:
    scenario.s.engine.store.shift_clock(us(3_601))


CHANGES: tuple[Callable[[Scenario, dict[str, Any]], Awaitable[None]], ...] = (
    _voter_leaves_the_group,
    _voter_is_closed,
    _voter_loses_the_role,
    _voter_changes_the_run,
    _voter_withdraws,
    _approval_expires,
)


async def test_people_are_asked_again_if_an_approval_no_longer_suffices(
    url: str, service: ServiceDouble
) -> None:
    async with stage(url, service) as s:
        for no, change in enumerate(CHANGES):
            scenario = await make_scenario(s, service, no)
            first = await scenario.approve("ada", "bob")
            await change(scenario, first)
            what = change.__name__
            assert await scenario.work_until("waiting_approval", "succeeded") == "waiting_approval", what
            assert len(service.effects) == no, f"{what}: nothing is done with the old approval"
            again = await scenario.open_approval()
            assert (again["id"] != first["id"], again["digest"]) == (True, first["digest"]), what
            await scenario.approve("cyn", "dan")
            assert await scenario.work_until("succeeded") == "succeeded", what
            assert len(service.effects) == no + 1, what


async def test_a_valid_approval_is_used_once_and_cannot_be_withdrawn_afterwards(
    url: str, service: ServiceDouble
) -> None:
    async with stage(url, service) as s:
        scenario = await make_scenario(s, service)
        approval = await scenario.approve("ada", "bob")
        assert await scenario.work_until("succeeded") == "succeeded"
        assert len(service.effects) == 1
        answer = await scenario.people["ada"].post(f"/approvals/{approval['id']}/withdraw")
        assert (answer.status_code, problem(answer)) == (409, "APPROVAL_DECIDED")


async def _activate(scenario: Scenario, text: str) -> None:
    """Publish a policy; two people activate it."""
    version = (await scenario.heads[0].post("/policies", json={"text": text})).json()["version"]
    for who in scenario.heads:
        answer = await who.post(f"/policies/{version}/activate")
        assert answer.is_success, answer.text


async def test_a_stricter_policy_asks_again_and_a_denial_ends_the_run(
    url: str, service: ServiceDouble
) -> None:
    async with stage(url, service) as s:
        scenario = await make_scenario(s, service)
        await scenario.approve("ada", "bob")
        await _activate(scenario, THREE)
        assert await scenario.work_until("waiting_approval") == "waiting_approval"
        assert (await scenario.open_approval())["people"] == 3
        await scenario.approve("ada", "bob", "cyn")
        await _activate(scenario, NEVER)
        assert await scenario.work_until("failed") == "failed"
        assert (await scenario.engine.get(scenario.run)).reason == "POLICY_DENIED"
        assert service.effects == []


async def test_a_vote_can_be_withdrawn_while_more_votes_are_needed(url: str, service: ServiceDouble) -> None:
    async with stage(url, service) as s:
        scenario = await make_scenario(s, service)
        approval = await scenario.approve("ada")
        path = f"/approvals/{approval['id']}/withdraw"
        assert problem(await scenario.people["bob"].post(path)) == "APPROVAL_NOT_GIVEN"
        withdrawn = (await scenario.people["ada"].post(path)).json()
        assert (withdrawn["status"], withdrawn["votes"]) == ("requested", 0)
        await scenario.approve("bob")
        assert (await scenario.open_approval())["votes"] == ["person:bob0"]
