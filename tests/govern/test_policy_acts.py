"""Policies and freezes as acts meet them: what holds is looked at again in the commit that intends a call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tenure
from tenure.artifacts import ArtifactStore
from tenure.errors import TenureError
from tenure.govern.policy import CompiledPolicy, load_policy
from tenure.govern.policy.explanations import explain_decisions
from tenure.govern.policy.shadow import ShadowEvaluation
from tenure.ids import run_int
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.sdk import Workflow
from tenure.shapes.policies import ShadowReport
from tenure.store.policies import PolicyRegistry
from tenure.testing import Lab
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import ALLOW, ASK, DENY, keyed, lab_of, order, posted, receipts, verdicts

BROKEN = ALLOW.replace("operation: post, allow", "operation: post, when: run.budget > 3, allow")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """Where a lab lies: its own SQLite file (None), or PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


def office(lab: Lab) -> PolicyRegistry:
    return PolicyRegistry(lab.engine.store, "default")


async def _large() -> None:
    await posted("n" * (PAYLOAD_BYTES_MAX + 1))


async def _unknown() -> None:
    await tenure.act("http.shout", fields={"token": "hunter2"})


large = Workflow(_large, name="large")
unknown = Workflow(_unknown, name="unknown")


async def ended(lab: Lab, key: str) -> str:
    """How a run with one act ends: a word for its code, or that it succeeded."""
    run = await lab.start(keyed, key)
    try:
        await run.result()
    except TenureError as fault:
        return fault.code
    return "done"


@pytest.mark.clause("GOV-16", "GOV-17")
async def test_each_intent_has_a_verdict_of_the_active_version(url: str | None) -> None:
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
            (told,) = await explain_decisions(lab.engine.store, run_int(run.id))
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


async def test_a_freeze_applies_from_the_next_commit(url: str | None) -> None:
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


async def test_a_freeze_applies_to_earlier_approvals() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, policy=ASK) as lab:
            run = await lab.start(order, 7)
            assert await run.reaches("waiting_approval") == "waiting_approval"
            await office(lab).freeze("*", "person:ada")
            (asked,) = await lab.engine.approvals.list(run.id)
            await lab.approve(run, by="ada", digest=asked.digest, revision=asked.revision)
            with pytest.raises(TenureError):
                await run.result()
            assert service.effects == []


async def _with_another_way(key: str) -> str:
    try:
        await (await tenure.start(keyed, key)).result()
    except tenure.ChildFailed:
        await tenure.approve("do it otherwise?")
        return "otherwise"
    return "done"


with_another_way = Workflow(_with_another_way, name="with_another_way")


async def test_a_person_who_freezes_is_involved_in_the_run_and_its_parent(url: str | None) -> None:
    """A freeze makes a child fail, and so its parent go another way: whoever froze does not approve that."""
    with ServiceDouble() as service:
        async with lab_of(service, keyed, with_another_way, url=url) as lab:
            await office(lab).freeze("*", "client:alarm", "client:alarm person:ada")
            run = await lab.start(with_another_way, "one")
            assert await run.reaches("waiting_approval") == "waiting_approval"
            [spec] = await lab.engine.store.read("get_spec", run_int(run.id))
            assert {"client:alarm", "person:ada"} <= set(spec.involved.split())
            with pytest.raises(TenureError, match="APPROVER_IS_REQUESTER"):
                await lab.approve(run, by="person:ada")
            await office(lab).thaw_alone("*")
            with pytest.raises(TenureError, match="APPROVER_IS_REQUESTER"):
                await lab.approve(run, by="person:ada")
            await lab.approve(run, by="uid:7")
            assert await run.result() == "otherwise"
            other = await lab.start(with_another_way, "two")
            assert await other.result() == "done"
            [spec] = await lab.engine.store.read("get_spec", run_int(other.id))
            assert "person:ada" not in spec.involved, "what denied nothing of a run changed nothing in it"


async def test_another_policy_can_judge_past_verdicts(url: str | None) -> None:
    looks = f"{ALLOW}  - {{name: big, connector: http, operation: post, when: action.fields.json.n > 5, deny: too many}}\n"
    with ServiceDouble() as service:
        async with lab_of(service, order, keyed, url=url) as lab:
            run = await lab.start(order, 7)
            await run.result()
            assert await ended(lab, "small") == "done"
            await office(lab).install(DENY)
            assert await ended(lab, "denied") == "POLICY_DENIED"
            denied = await lab.start(order, 8)
            with pytest.raises(TenureError):
                await denied.result()
            shadowing = ShadowEvaluation(lab.engine.store, lab.engine.artifacts.get)
            found = await shadowing.evaluate("default", CompiledPolicy(load_policy(looks)), 0, 100)
            assert (found.looked_at, found.same, found.not_judged) == (4, 2, {})
            differs = {(one.was, one.would, one.why): one.run for one in found.differs}
            assert sorted(differs) == [("allow", "deny", "big: too many"), ("deny", "allow", "posts")]
            assert differs["allow", "deny", "big: too many"] == run.id
            (told,) = await explain_decisions(lab.engine.store, run_int(denied.id))
            assert told.request == {"target": {"url": "/effects"}, "fields": {"json": {"n": 80}}}
            assert (await shadowing.evaluate("default", CompiledPolicy(load_policy(ALLOW)), 0, 100)).same == 2
            assert (
                await shadowing.evaluate("default", CompiledPolicy(load_policy(ALLOW)), 0, 1)
            ).looked_at == 1
            assert (
                await shadowing.evaluate("other", CompiledPolicy(load_policy(ALLOW)), 0, 100)
            ).looked_at == 0


async def _judge(lab: Lab, condition: str) -> ShadowReport:
    """What a policy with a condition on posts says of all that was decided."""
    rule = {"name": "posts", "connector": "http", "operation": "post", "when": condition, "allow": True}
    policy = json.dumps({"version": 1, "rules": [rule]})
    shadowing = ShadowEvaluation(lab.engine.store, lab.engine.artifacts.get)
    return await shadowing.evaluate("default", CompiledPolicy(load_policy(policy)), 0, 100)


async def test_key_and_tier_of_denied_actions_are_judged_too(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, keyed, url=url, policy=DENY) as lab:
            assert await ended(lab, "mine") == "POLICY_DENIED"
            found = await _judge(lab, 'action.key == "mine" && action.tier == "med" && !action.reverses')
            assert [one.would for one in found.differs] == ["allow"]
            assert (await _judge(lab, 'action.key == "other"')).same == 1


async def test_proposed_and_frozen_actions_are_judged_like_completed_ones(
    url: str | None,
) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, order, url=url, policy=ASK) as lab:
            asked = await lab.start(order, 7)
            assert await asked.reaches("waiting_approval") == "waiting_approval"
            await office(lab).install(ALLOW)
            await office(lab).freeze("*", "person:ada")
            frozen = await lab.start(order, 8)
            with pytest.raises(TenureError):
                await frozen.result()
            found = await _judge(lab, "action.fields.json.n > 70")
            assert {one.run: (one.was, one.would) for one in found.differs} == {
                asked.id: ("needs_approval (high, 1 of any group)", "deny"),
                frozen.id: ("deny", "allow"),
            }
            found = await _judge(lab, 'action.tier == "med" && action.key.startsWith(run.id)')
            assert [one.would for one in found.differs] == ["allow", "allow"]


async def test_a_large_denied_action_is_stored_as_an_artifact(url: str | None, tmp_path: Path) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, large, url=url, policy=DENY) as lab:
            lab.engine.artifacts._place = str(tmp_path / "artifacts")
            run = await lab.start(large)
            with pytest.raises(TenureError) as fault:
                await run.result()
            assert fault.value.code == "POLICY_DENIED"
            found = await _judge(lab, "size(action.fields.json.n) > 1000")
            assert [one.would for one in found.differs] == ["allow"]
            (told,) = await explain_decisions(lab.engine.store, run_int(run.id))
            assert told.request["size"] > PAYLOAD_BYTES_MAX


async def test_an_action_that_cannot_be_stored_is_denied_anyway() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, large, policy=DENY) as lab:
            vars(lab.engine.artifacts).update(vars(ArtifactStore("no-such-kind-of-place://")))
            run = await lab.start(large)
            with pytest.raises(TenureError) as fault:
                await run.result()
            assert fault.value.code == "POLICY_DENIED"
            found = await _judge(lab, "size(action.fields.json.n) > 1000")
            assert found.not_judged == {"its target and fields were not stored": 1}


async def test_an_unknown_operation_is_not_stored() -> None:
    """It was held against no schema, so there may be a secret where a reference belongs."""
    with ServiceDouble() as service:
        async with lab_of(service, unknown) as lab:
            run = await lab.start(unknown)
            with pytest.raises(TenureError):
                await run.result()
            (verdict,) = await verdicts(lab, run)
            assert (verdict.error, verdict.request_ref) == ("UNKNOWN_OPERATION", None)
