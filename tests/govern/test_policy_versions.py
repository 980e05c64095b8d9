"""Policy versions and freezes on both stores: immutable, activated by two people, and recorded in the admin chain."""

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
    """The URL of a database without policies, people and audit entries."""
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
    """Create people of acme, such as `ada="admin"`. A person without roles has left."""

    def make(now: int) -> Transaction[tuple[None, list[object]]]:
        for name, given in roles.items():
            listed = json.dumps(given.split())
            closed = None if given else now
            yield from save_rows(PersonRow("acme", name, name, listed, "[]", None, None, None, now, closed))
        return None, []

    await Identity(store).change("acme", make)  # type: ignore[arg-type]  # no audit entries


async def lines(store: Store) -> list[tuple[str, str, object]]:
    found = await store.read("admin_events_after", "acme", 0, 100)
    assert await find_broken_chain(store, "acme") == []
    return [
        (line.kind, line.actor, json.loads(line.body).get("scope") or json.loads(line.body)["version"])
        for line in found
    ]


async def refused(code: str, asked: object) -> None:
    with pytest.raises(TenureError) as fault:
        await asked  # type: ignore[misc]  # any awaitable
    assert fault.value.code == code


async def outcome(store: Store, known: PolicyCache | None = None) -> tuple[str, int, str | None]:
    verdict = await (known or PolicyCache(store)).ruling("acme", facts())
    return verdict.outcome, verdict.version, verdict.error


@pytest.mark.clause("GOV-17")
async def test_a_tenant_without_an_active_policy_is_denied_everything(url: str) -> None:
    async with opened(url) as store:
        assert await outcome(store) == ("deny", 0, "POLICY_MISSING")
        await PolicyRegistry(store, "acme").publish(ALLOWS, "person:ada")
        assert await outcome(store) == ("deny", 0, "POLICY_MISSING")


async def test_a_version_is_written_once_and_the_same_text_is_the_same_version(url: str) -> None:
    async with opened(url) as store:
        registry = PolicyRegistry(store, "acme")
        first, is_new = await registry.publish(ALLOWS, "person:ada")
        assert (first.version, first.text, is_new) == (1, ALLOWS, True)
        second, _ = await registry.publish(DENIES, "person:bob")
        again, is_new = await registry.publish(ALLOWS, "person:bob")
        assert (second.version, again, is_new) == (2, first, False)
        assert [line.version for line in await registry.versions(100, 10)] == [2, 1]
        other, _ = await PolicyRegistry(store, "other").publish(DENIES, "person:eve")
        assert other.version == 1
        await refused("POLICY_NOT_FOUND", registry.policy(3))
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
        registry, known = PolicyRegistry(store, "acme"), PolicyCache(store)
        await people(store, ada="admin", bob="admin", cyd="approver", dan="viewer")
        await registry.publish(ALLOWS, "person:ada")
        await refused("POLICY_NOT_FOUND", registry.activate(9, "ada", may_propose=True))
        await refused("FORBIDDEN", registry.activate(1, "cyd", may_propose=False))
        assert (await registry.activate(1, "ada", may_propose=True)).step == "proposed"
        assert await outcome(store, known) == ("deny", 0, "POLICY_MISSING")
        await refused("SECOND_PERSON_NEEDED", registry.activate(1, "ada", may_propose=True))
        await refused(
            "FORBIDDEN", registry.activate(1, "dan", may_propose=True)
        )  # although his credential had the role
        assert (await registry.activate(1, "cyd", may_propose=False)).step == "done"
        assert await outcome(store, known) == ("allow", 1, None)
        assert (await registry.activate(1, "ada", may_propose=True)).step == "done"
        assert (await lines(store))[1:] == [
            ("policy.proposed", "person:ada", 1),
            ("policy.activated", "person:cyd", 1),
        ]


async def test_a_proposal_ends_when_its_proposer_loses_the_role(url: str) -> None:
    async with opened(url) as store:
        registry = PolicyRegistry(store, "acme")
        await people(store, ada="admin", bob="admin", cyd="admin")
        await registry.publish(ALLOWS, "person:ada")
        await registry.activate(1, "ada", may_propose=True)
        await people(store, ada="")
        assert (await registry.activate(1, "bob", may_propose=True)).step == "proposed"
        await people(store, bob="viewer")
        assert (await registry.activate(1, "cyd", may_propose=True)).step == "proposed"
        assert (await registry.governance()).version == 0


async def test_a_new_proposal_replaces_the_first_and_can_be_withdrawn(url: str) -> None:
    async with opened(url) as store:
        registry = PolicyRegistry(store, "acme")
        await people(store, ada="admin", bob="admin")
        await registry.publish(ALLOWS, "person:ada")
        await registry.publish(DENIES, "person:ada")
        await registry.activate(1, "ada", may_propose=True)
        assert (await registry.activate(2, "bob", may_propose=True)).step == "proposed"
        await refused("POLICY_NOT_FOUND", registry.withdraw(1, "person:ada"))
        assert (await registry.withdraw(2, "person:ada")).proposed is None
        assert (await registry.activate(2, "ada", may_propose=True)).step == "proposed"


async def test_of_concurrent_proposals_the_first_proposes_and_the_second_activates(url: str) -> None:
    async with opened(url) as store:
        names = [f"p{i}" for i in range(6)]
        await people(store, **dict.fromkeys(names, "admin"))
        registry = PolicyRegistry(store, "acme")
        await registry.publish(ALLOWS, "person:p0")
        await asyncio.gather(*(registry.activate(1, name, may_propose=True) for name in names))
        row = await registry.governance()
        assert (row.version, row.proposed, row.revision) == (1, None, 2)


async def test_a_cached_version_is_not_used_after_another_one_became_active(url: str) -> None:
    async with opened(url) as store:
        registry, known = PolicyRegistry(store, "acme"), PolicyCache(store)
        await registry.install(DENIES)
        assert await outcome(store, known) == ("deny", 1, None)
        await registry.install(ALLOWS)
        assert await outcome(store, known) == ("allow", 2, None)
        await registry.install(DENIES)
        assert await outcome(store, known) == ("allow", 2, None), (
            "the cached version stays until the commit of the INTENT refuses it"
        )
        verdict = await known.ruling("acme", facts(), fresh=True)
        assert (verdict.outcome, verdict.version) == ("deny", 1)


@pytest.mark.clause("GOV-17")
async def test_an_unreadable_version_denies(url: str) -> None:
    async with opened(url) as store:
        await PolicyRegistry(store, "acme").install("version: 1\nrules: 7\n")
        assert await outcome(store) == ("deny", 1, "POLICY_ERROR")


async def test_the_installation_activates_a_policy_only_if_there_are_no_people(url: str) -> None:
    async with opened(url) as store:
        registry = PolicyRegistry(store, "acme")
        assert (await registry.install(ALLOWS)).version == 1
        assert (await registry.install(ALLOWS)).revision == 1
        await registry.publish(DENIES, "person:x")
        assert (await registry.activate_alone(2)).version == 2
        await people(store, ada="")
        await refused("SECOND_PERSON_NEEDED", registry.install(ALLOWS))
        await refused("SECOND_PERSON_NEEDED", registry.activate_alone(1))
        assert (await registry.governance()).version == 2
        assert [line for line in await lines(store) if line[0] == "policy.activated"] == [
            ("policy.activated", "installation", 1),
            ("policy.activated", "installation", 2),
        ]


async def test_freezing_needs_one_person_and_thawing_two(url: str) -> None:
    async with opened(url) as store:
        registry = PolicyRegistry(store, "acme")
        await people(store, ada="admin", bob="admin", cyd="approver")
        await registry.freeze("cn:forge", "person:bob")
        await registry.freeze("*", "client:alarm")
        again = await registry.freeze("*", "person:bob")
        assert (frozen_scopes(again), again.revision) == ({"*": "client:alarm", "cn:forge": "person:bob"}, 2)
        await refused("FORBIDDEN", registry.thaw("*", "cyd", may_propose=False))
        assert (await registry.thaw("*", "ada", may_propose=True)).step == "proposed"
        await refused("SECOND_PERSON_NEEDED", registry.thaw("*", "ada", may_propose=True))
        assert proposed_thaws(await registry.governance()) == {"*": "ada"}
        assert (await registry.thaw("*", "cyd", may_propose=False)).step == "done"
        assert (await registry.thaw("wf:none", "cyd", may_propose=False)).step == "done"
        row = await registry.governance()
        assert (frozen_scopes(row), proposed_thaws(row)) == ({"cn:forge": "person:bob"}, {})
        await refused("SECOND_PERSON_NEEDED", registry.thaw_alone("cn:forge"))
        assert await lines(store) == [
            ("freeze.begun", "person:bob", "cn:forge"),
            ("freeze.begun", "client:alarm", "*"),
            ("thaw.proposed", "person:ada", "*"),
            ("freeze.ended", "person:cyd", "*"),
        ]


async def test_freezing_again_discards_the_first_vote_to_thaw(url: str) -> None:
    async with opened(url) as store:
        registry = PolicyRegistry(store, "acme")
        await people(store, ada="admin", bob="admin")
        await registry.freeze("wf:triage", "person:bob")
        await registry.thaw("wf:triage", "ada", may_propose=True)
        await registry.freeze("wf:triage", "person:bob")
        assert (await registry.thaw("wf:triage", "bob", may_propose=True)).step == "proposed"


async def test_the_installation_thaws_if_there_are_no_people(url: str) -> None:
    async with opened(url) as store:
        registry = PolicyRegistry(store, "acme")
        await registry.freeze("*", "installation")
        assert frozen_scopes(await registry.thaw_alone("*")) == {}
        assert (await lines(store))[-1] == ("freeze.ended", "installation", "*")
