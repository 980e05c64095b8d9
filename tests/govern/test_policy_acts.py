"""Policies and freezes as acts meet them: what holds is looked at again in the commit that intends a call."""

from __future__ import annotations

import json

import pytest

from tenure.errors import TenureError
from tenure.govern.policy import Compiled, load
from tenure.govern.policy.explaining import decisions_of
from tenure.govern.policy.shadow import Shadowing
from tenure.ids import run_int
from tenure.store.policies import Governing
from tenure.testing import Lab
from tenure.testing.doubles import ServiceDouble
from tests.govern.acting import ALLOW, ASK, DENY, keyed, lab_of, order, receipts, verdicts

BROKEN = ALLOW.replace("operation: post, allow", "operation: post, when: run.budget > 3, allow")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """Where a lab lies: its own SQLite file (None), or PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))


def office(lab: Lab) -> Governing:
    return Governing(lab.engine.store, "default")


async def ended(lab: Lab, key: str) -> str:
    """How a run with one act ends: a word for its code, or that it succeeded."""
    run = await lab.start(keyed, key)
    try:
        await run.result()
    except TenureError as fault:
        return fault.code
    return "done"


@pytest.mark.clause("GOV-16", "GOV-17")
async def test_each_intent_has_an_allowance_of_the_version_that_is_active(url: str | None) -> None:
    """I40: another version that becomes active between two acts counts for the second, though the first was remembered. I41: a
    condition that breaks is a denial on record, with version and rules."""
    with ServiceDouble() as service:
        async with lab_of(service, keyed, url=url) as lab:
            assert await ended(lab, "one") == "done"
            await office(lab).install(DENY)
            run = await lab.start(keyed, "two")
            with pytest.raises(TenureError) as fault:
                await run.result()
            assert fault.value.code == "POLICY_DENIED"
            (told,) = await decisions_of(lab.engine.store, run_int(run.id))
            assert (told.version, told.rules, told.reasons) == (
                2,
                [("never", "deny")],
                {"never": "not on a Monday"},
            )
            await office(lab).install(BROKEN)
            run = await lab.start(keyed, "three")
            with pytest.raises(TenureError) as fault:
                await run.result()
            assert fault.value.code == "POLICY_DENIED"
            (verdict,) = await verdicts(lab, run)
            assert (verdict.outcome, verdict.version, verdict.error) == ("deny", 3, "POLICY_ERROR")
            assert json.loads(verdict.rules) == [["posts", "error"]]
            assert await receipts(lab, run) == []
            await office(lab).install(ALLOW)
            assert await ended(lab, "four") == "done"
            assert len(service.effects) == 2


async def test_what_is_frozen_is_denied_from_the_next_commit_on(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, keyed, url=url) as lab:
            assert await ended(lab, "before") == "done"
            for scope in ("*", "wf:keyed", "cn:http"):
                await office(lab).freeze(scope, "person:ada")
                assert await ended(lab, scope) != "done"
                assert len(service.effects) == 1
                await office(lab).thaw_alone(scope)
            for scope in ("wf:other", "cn:github"):
                await office(lab).freeze(scope, "person:ada")
            assert await ended(lab, "after") == "done"


async def test_a_freeze_also_holds_for_what_was_approved_before_it() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, policy=ASK) as lab:
            run = await lab.start(order, 7)
            assert await run.reaches("waiting_approval") == "waiting_approval"
            await office(lab).freeze("*", "person:ada")
            (asked,) = await lab.engine.approvals(run.id)
            await lab.approve(run, by="ada", digest=asked.digest, revision=asked.revision)
            with pytest.raises(TenureError):
                await run.result()
            assert service.effects == []


async def test_another_policy_is_tried_on_what_was_decided() -> None:
    looks = f"{ALLOW}  - {{name: big, connector: http, operation: post, when: action.fields.json.n > 5, deny: too many}}\n"
    with ServiceDouble() as service:
        async with lab_of(service, order, keyed) as lab:
            run = await lab.start(order, 7)
            await run.result()
            assert await ended(lab, "small") == "done"
            await office(lab).install(DENY)
            assert await ended(lab, "denied") == "POLICY_DENIED"
            shadowing = Shadowing(lab.engine.store, lab.engine.artifacts.get)
            found = await shadowing.judged("default", Compiled(load(looks)), 0, 100)
            assert (found.looked_at, found.same, found.not_judged) == (
                3,
                1,
                {"its target and fields were not kept": 1},
            )
            assert [(one.was, one.would, one.why) for one in found.differs] == [
                ("allow", "deny", "big: too many")
            ]
            assert found.differs[0].run == run.id
            assert (await shadowing.judged("default", Compiled(load(ALLOW)), 0, 100)).same == 2
            assert (await shadowing.judged("default", Compiled(load(ALLOW)), 0, 1)).looked_at == 1
            assert (await shadowing.judged("other", Compiled(load(ALLOW)), 0, 100)).looked_at == 0
