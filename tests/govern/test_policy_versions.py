"""Versions of a policy and freezes, on every store: written once, active by two people, each change a line of the chain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenure.doctor.tenant_checks import find_broken_chain
from tenure.errors import TenureError
from tenure.govern.policy import PolicyCache
from tenure.kernel.identity_rows import PersonRow
from tenure.store.factory import open_store
from tenure.store.identity import Identity, save_rows
from tenure.store.policies import PolicyRegistry, frozen_scopes, proposed_thaws
from tenure.store.port import Store, Transaction
from tests.govern.policy_samples import facts, policy

ALLOWS, DENIES = policy("allow: true"), policy("deny: not today")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without policies, people and lines."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'site.db'}"
    return str(request.getfixturevalue("migrated_dsn"))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = open_store(url)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def people(store: Store, **roles: str) -> None:
    """People of acme: `ada="admin"`; no roles: somebody who has left."""

    def make(now: int) -> Transaction[tuple[None, list[object]]]:
        for name, given in roles.items():
            listed = json.dumps(given.split())
            closed = None if given else now
            yield from save_rows(PersonRow("acme", name, name, listed, "[]", None, None, None, now, closed))
        return None, []

    await Identity(store).change("acme", make)  # type: ignore[arg-type]  # lines of the chain: there are none


async def lines(store: Store) -> list[tuple[str, str, object]]:
    found = await store.read("admin_events_after", "acme", 0, 100)
    assert await find_broken_chain(store, "acme") == []
    return [
        (line.kind, line.actor, json.loads(line.body).get("scope") or json.loads(line.body)["version"])
        for line in found
    ]


async def refused(code: str, asked: object) -> None:
    with pytest.raises(TenureError) as fault:
        await asked  # type: ignore[misc]  # whatever is to be refused
    assert fault.value.code == code


async def outcome(store: Store, known: PolicyCache | None = None) -> tuple[str, int, str | None]:
    said = await (known or PolicyCache(store)).ruling("acme", facts())
    return said.outcome, said.version, said.error


@pytest.mark.clause("GOV-17")
async def test_a_tenant_without_an_active_policy_is_denied_everything(url: str) -> None:
    async with opened(url) as store:
        assert await outcome(store) == ("deny", 0, "POLICY_MISSING")
        await PolicyRegistry(store, "acme").publish(ALLOWS, "person:ada")
        assert await outcome(store) == ("deny", 0, "POLICY_MISSING")


async def test_a_version_is_written_once_and_the_same_text_is_the_same_version(url: str) -> None:
    async with opened(url) as store:
        office = PolicyRegistry(store, "acme")
        first, is_new = await office.publish(ALLOWS, "person:ada")
        assert (first.version, first.text, is_new) == (1, ALLOWS, True)
        second, _ = await office.publish(DENIES, "person:bob")
        again, is_new = await office.publish(ALLOWS, "person:bob")
        assert (second.version, again, is_new) == (2, first, False)
        assert [line.version for line in await office.versions(100, 10)] == [2, 1]
        other, _ = await PolicyRegistry(store, "other").publish(DENIES, "person:eve")
        assert other.version == 1
        await refused("POLICY_NOT_FOUND", office.policy(3))
        assert await lines(store) == [
            ("policy.published", "person:ada", 1),
            ("policy.published", "person:bob", 2),
        ]


async def test_concurrent_publications_get_different_versions(url: str) -> None:
    async with opened(url) as store:
        texts = [policy(f"deny: day {i}") for i in range(6)]
        made = await asyncio.gather(
            *(PolicyRegistry(store, "acme").publish(text, "person:ada") for text in texts)
        )
        assert sorted(row.version for row, _ in made) == [1, 2, 3, 4, 5, 6]


async def test_a_second_person_activates_a_version(url: str) -> None:
    async with opened(url) as store:
        office, known = PolicyRegistry(store, "acme"), PolicyCache(store)
        await people(store, ada="admin", bob="admin", cyd="approver", dan="viewer")
        await office.publish(ALLOWS, "person:ada")
        await refused("POLICY_NOT_FOUND", office.activate(9, "ada", may_propose=True))
        await refused("FORBIDDEN", office.activate(1, "cyd", may_propose=False))
        assert (await office.activate(1, "ada", may_propose=True)).step == "proposed"
        assert await outcome(store, known) == ("deny", 0, "POLICY_MISSING")
        await refused("SECOND_PERSON_NEEDED", office.activate(1, "ada", may_propose=True))
        await refused(
            "FORBIDDEN", office.activate(1, "dan", may_propose=True)
        )  # whatever his credential said before
        assert (await office.activate(1, "cyd", may_propose=False)).step == "done"
        assert await outcome(store, known) == ("allow", 1, None)
        assert (await office.activate(1, "ada", may_propose=True)).step == "done"
        assert (await lines(store))[1:] == [
            ("policy.proposed", "person:ada", 1),
            ("policy.activated", "person:cyd", 1),
        ]


async def test_a_proposal_ends_when_its_proposer_loses_the_role(url: str) -> None:
    async with opened(url) as store:
        office = PolicyRegistry(store, "acme")
        await people(store, ada="admin", bob="admin", cyd="admin")
        await office.publish(ALLOWS, "person:ada")
        await office.activate(1, "ada", may_propose=True)
        await people(store, ada="")
        assert (await office.activate(1, "bob", may_propose=True)).step == "proposed"
        await people(store, bob="viewer")
        assert (await office.activate(1, "cyd", may_propose=True)).step == "proposed"
        assert (await office.governance()).version == 0


async def test_a_new_proposal_replaces_the_first_and_can_be_withdrawn(url: str) -> None:
    async with opened(url) as store:
        office = PolicyRegistry(store, "acme")
        await people(store, ada="admin", bob="admin")
        await office.publish(ALLOWS, "person:ada")
        await office.publish(DENIES, "person:ada")
        await office.activate(1, "ada", may_propose=True)
        assert (await office.activate(2, "bob", may_propose=True)).step == "proposed"
        await refused("POLICY_NOT_FOUND", office.withdraw(1, "person:ada"))
        assert (await office.withdraw(2, "person:ada")).proposed is None
        assert (await office.activate(2, "ada", may_propose=True)).step == "proposed"


async def test_of_concurrent_proposals_the_first_proposes_and_the_second_activates(url: str) -> None:
    async with opened(url) as store:
        names = [f"p{i}" for i in range(6)]
        await people(store, **dict.fromkeys(names, "admin"))
        office = PolicyRegistry(store, "acme")
        await office.publish(ALLOWS, "person:p0")
        await asyncio.gather(*(office.activate(1, name, may_propose=True) for name in names))
        row = await office.governance()
        assert (row.version, row.proposed, row.revision) == (1, None, 2)


async def test_a_cached_version_is_not_used_after_another_one_became_active(url: str) -> None:
    async with opened(url) as store:
        office, known = PolicyRegistry(store, "acme"), PolicyCache(store)
        await office.install(DENIES)
        assert await outcome(store, known) == ("deny", 1, None)
        await office.install(ALLOWS)
        assert await outcome(store, known) == ("allow", 2, None)
        await office.install(DENIES)
        assert await outcome(store, known) == ("allow", 2, None), "which the commit of the INTENT refuses"
        said = await known.ruling("acme", facts(), fresh=True)
        assert (said.outcome, said.version) == ("deny", 1)


@pytest.mark.clause("GOV-17")
async def test_an_unreadable_version_denies(url: str) -> None:
    async with opened(url) as store:
        await PolicyRegistry(store, "acme").install("version: 1\nrules: 7\n")
        assert await outcome(store) == ("deny", 1, "POLICY_ERROR")


async def test_the_installation_activates_a_policy_only_if_there_are_no_people(url: str) -> None:
    async with opened(url) as store:
        office = PolicyRegistry(store, "acme")
        assert (await office.install(ALLOWS)).version == 1
        assert (await office.install(ALLOWS)).revision == 1
        await office.publish(DENIES, "person:x")
        assert (await office.activate_alone(2)).version == 2
        await people(store, ada="")
        await refused("SECOND_PERSON_NEEDED", office.install(ALLOWS))
        await refused("SECOND_PERSON_NEEDED", office.activate_alone(1))
        assert (await office.governance()).version == 2
        assert [line for line in await lines(store) if line[0] == "policy.activated"] == [
            ("policy.activated", "installation", 1),
            ("policy.activated", "installation", 2),
        ]


async def test_freezing_needs_one_person_and_thawing_two(url: str) -> None:
    async with opened(url) as store:
        office = PolicyRegistry(store, "acme")
        await people(store, ada="admin", bob="admin", cyd="approver")
        await office.freeze("cn:forge", "person:bob")
        await office.freeze("*", "client:alarm")
        again = await office.freeze("*", "person:bob")
        assert (frozen_scopes(again), again.revision) == ({"*": "client:alarm", "cn:forge": "person:bob"}, 2)
        await refused("FORBIDDEN", office.thaw("*", "cyd", may_propose=False))
        assert (await office.thaw("*", "ada", may_propose=True)).step == "proposed"
        await refused("SECOND_PERSON_NEEDED", office.thaw("*", "ada", may_propose=True))
        assert proposed_thaws(await office.governance()) == {"*": "ada"}
        assert (await office.thaw("*", "cyd", may_propose=False)).step == "done"
        assert (await office.thaw("wf:none", "cyd", may_propose=False)).step == "done"
        row = await office.governance()
        assert (frozen_scopes(row), proposed_thaws(row)) == ({"cn:forge": "person:bob"}, {})
        await refused("SECOND_PERSON_NEEDED", office.thaw_alone("cn:forge"))
        assert await lines(store) == [
            ("freeze.begun", "person:bob", "cn:forge"),
            ("freeze.begun", "client:alarm", "*"),
            ("thaw.proposed", "person:ada", "*"),
            ("freeze.ended", "person:cyd", "*"),
        ]


async def test_freezing_again_discards_the_first_vote_to_thaw(url: str) -> None:
    async with opened(url) as store:
        office = PolicyRegistry(store, "acme")
        await people(store, ada="admin", bob="admin")
        await office.freeze("wf:triage", "person:bob")
        await office.thaw("wf:triage", "ada", may_propose=True)
        await office.freeze("wf:triage", "person:bob")
        assert (await office.thaw("wf:triage", "bob", may_propose=True)).step == "proposed"


async def test_the_installation_thaws_if_there_are_no_people(url: str) -> None:
    async with opened(url) as store:
        office = PolicyRegistry(store, "acme")
        await office.freeze("*", "installation")
        assert frozen_scopes(await office.thaw_alone("*")) == {}
        assert (await lines(store))[-1] == ("freeze.ended", "installation", "*")
