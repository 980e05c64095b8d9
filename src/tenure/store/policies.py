"""Policies and freezes, read and written.

Laws:
1. A version of a policy is written once and never changes; the same text again is the same version.
2. What holds for a tenant is one row, changed by compare-and-set on its revision, in one transaction with its line in the
   tenant's admin chain. An INTENT is committed under a shared lock of that row, so a change waits for those under way and
   is seen by all that follow.
3. A version becomes active, and what is frozen thaws, when two different people have said so: the first proposes, the
   second says the same. Whoever proposed must then still be there, as an admin. Two who count as one (`kernel.behind`, law 5)
   are not two.
4. Where a tenant has no people there is no second one: there the installation does both, and its lines say so. The first
   person who is made ends that, for good.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal

import msgspec

from tenure.errors import TenureError
from tenure.kernel.behind import Ties, joined
from tenure.kernel.governance import Governance, Policy
from tenure.kernel.governed import Verdict
from tenure.kernel.service import Person
from tenure.store.identity import Change, Identity, Told
from tenure.store.port import Answer, Query, Store, Transaction

INSTALLATION = "installation"
"""The actor where the installation does it by itself."""


class PolicyLine(msgspec.Struct, gc=False):
    """A version, without its text."""

    version: int
    digest: bytes
    author: str
    created_at: int


READS: dict[str, Answer] = {
    "governance_of": Governance,  # () ; tenant
    "policy_at": Policy,  # () ; tenant, version
    "policies_before": PolicyLine,  # () ; tenant, before_version, limit -> newest first
    "policy_of_digest": Policy,  # () ; tenant, digest
    "verdicts_since": Verdict,  # () ; tenant, at, after_at, after_run, after_no, limit -> in order of time
    "anybody": Person,  # () ; tenant -> one person, open or closed, if there is any
}
"""Queries used on their own; `policies.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "save_policy": Policy,  # a whole row; the version after the newest
    "lock_governance": Governance,  # tenant -> PG: for update
    "save_governance": Governance,  # a whole row; nothing where the revision is not the one before
}
"""Statements of small transactions of their own."""

Step = Literal["proposed", "done"]


class Stands(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of something that takes two people."""

    step: Step
    governance: Governance


class Governing:
    """See the laws above. `tenant` is whose policy it is."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._rows = Identity(store)

    # ------------------------------------------------------------------------------------------- looking

    async def governance(self) -> Governance:
        """What holds now."""
        rows: list[Governance] = await self._store.read("governance_of", self._tenant)
        return rows[0] if rows else _nothing(self._tenant)

    async def policy(self, version: int) -> Policy:
        """A version, or POLICY_NOT_FOUND."""
        rows: list[Policy] = await self._store.read("policy_at", self._tenant, version)
        if not rows:
            raise _no_version(version)
        return rows[0]

    async def versions(self, before: int, limit: int) -> list[PolicyLine]:
        """Versions below one, newest first."""
        return await self._store.read("policies_before", self._tenant, before, limit)

    # ---------------------------------------------------------------------------------------- publishing

    async def publish(self, text: str, actor: str) -> tuple[Policy, bool]:
        """Write a text down as the next version; also whether it is new. Whoever calls has checked it."""
        digest = sha256(text.encode()).digest()

        def make(now: int) -> Transaction[Told[tuple[Policy, bool]]]:
            row, is_new = yield from _published(self._tenant, text, digest, actor, now)
            return (row, is_new), [self._published_line(row, actor)] if is_new else []

        return await self._rows.change(self._tenant, make)

    def _published_line(self, row: Policy, actor: str) -> Change:
        return self._line("policy.published", actor, version=row.version, sha256=row.digest.hex())

    # ---------------------------------------------------------------------------------------- activating

    async def activate(self, version: int, person: str, *, may_propose: bool) -> Stands:
        """A person wants a version to be active: the first proposes it, another one makes it so."""

        def make(now: int) -> Transaction[Told[Stands]]:
            before = yield from _locked(self._tenant)
            yield from _known(self._tenant, version)
            if before.version == version:
                return Stands(step="done", governance=before), []
            stands = before.proposed == version and before.proposed_by is not None
            mine = yield from _roles(self._tenant, person)
            if stands and (yield from _is_admin(self._tenant, before.proposed_by)):
                _check_second(mine)
                yield from _check_apart(
                    self._tenant, before.proposed_by, person, f"version {version} of the policy"
                )
                row = msgspec.structs.replace(before, version=version, proposed=None, proposed_by=None)
                kind, about = (
                    "policy.activated",
                    {"proposed_by": before.proposed_by, "instead_of": before.version},
                )
            else:
                _check_proposer(may_propose and "admin" in mine)
                row = msgspec.structs.replace(before, proposed=version, proposed_by=person)
                kind, about = "policy.proposed", {}
            row = yield from _changed(row, now)
            line = self._line(kind, f"person:{person}", version=version, **about)
            return Stands(step="done" if row.version == version else "proposed", governance=row), [line]

        return await self._rows.change(self._tenant, make)

    async def withdraw(self, version: int, actor: str) -> Governance:
        """Take back that a version was proposed; anybody who may propose may do so."""

        def make(now: int) -> Transaction[Told[Governance]]:
            before = yield from _locked(self._tenant)
            if before.proposed != version:
                raise TenureError("POLICY_NOT_FOUND", f"version {version} of the policy is not proposed")
            row = yield from _changed(msgspec.structs.replace(before, proposed=None, proposed_by=None), now)
            return row, [self._line("policy.withdrawn", actor, version=version)]

        return await self._rows.change(self._tenant, make)

    async def install(self, text: str, actor: str = INSTALLATION) -> Governance:
        """Publish a text and make it active, where the tenant has no people (law 4). The same text again changes nothing."""
        digest = sha256(text.encode()).digest()

        def make(now: int) -> Transaction[Told[Governance]]:
            before = yield from _locked(self._tenant)
            yield from _check_alone(self._tenant, "activating a policy")
            policy, is_new = yield from _published(self._tenant, text, digest, actor, now)
            lines = [self._published_line(policy, actor)] if is_new else []
            return (yield from self._installed(before, policy.version, actor, lines, now))

        return await self._rows.change(self._tenant, make)

    async def activate_alone(self, version: int, actor: str = INSTALLATION) -> Governance:
        """Make a version active that is published, where the tenant has no people (law 4)."""

        def make(now: int) -> Transaction[Told[Governance]]:
            before = yield from _locked(self._tenant)
            yield from _check_alone(self._tenant, "activating a policy")
            yield from _known(self._tenant, version)
            return (yield from self._installed(before, version, actor, [], now))

        return await self._rows.change(self._tenant, make)

    def _installed(
        self, before: Governance, version: int, actor: str, lines: list[Change], now: int
    ) -> Transaction[Told[Governance]]:
        if before.version == version:
            return before, lines
        row = msgspec.structs.replace(before, version=version, proposed=None, proposed_by=None)
        line = self._line("policy.activated", actor, version=version, alone=True, instead_of=before.version)
        return (yield from _changed(row, now)), [*lines, line]

    # ------------------------------------------------------------------------------------------ freezing

    async def freeze(self, scope: str, actor: str, people: str = "") -> Governance:
        """Deny every act of a scope (`*`, `wf:NAME`, `cn:NAME`) from the next commit on; what was to thaw it is forgotten. `people`:
        everybody who stands behind that, as `id id`; else the actor."""

        def make(now: int) -> Transaction[Told[Governance]]:
            before = yield from _locked(self._tenant)
            frozen, thaw = scopes(before), thaws(before)
            if scope in frozen and scope not in thaw:
                return before, []
            thaw.pop(scope, None)
            everybody = joined(frozen.get(scope), people or actor)
            row = yield from _changed(_held(before, {**frozen, scope: everybody}, thaw), now)
            return row, [self._line("freeze.begun", actor, scope=scope)]

        return await self._rows.change(self._tenant, make)

    async def thaw(self, scope: str, person: str, *, may_propose: bool) -> Stands:
        """A person wants a scope to thaw: the first proposes it, another one makes it so."""

        def make(now: int) -> Transaction[Told[Stands]]:
            before = yield from _locked(self._tenant)
            frozen, thaw = scopes(before), thaws(before)
            if scope not in frozen:
                return Stands(step="done", governance=before), []
            first, mine = thaw.get(scope), (yield from _roles(self._tenant, person))
            if first is not None and (yield from _is_admin(self._tenant, first)):
                _check_second(mine)
                yield from _check_apart(self._tenant, first, person, "this thaw")
                del thaw[scope], frozen[scope]
                row = _held(before, frozen, thaw)
                step: Step = "done"
                line = self._line("freeze.ended", f"person:{person}", scope=scope, proposed_by=first)
            else:
                _check_proposer(may_propose and "admin" in mine)
                row, step = _held(before, frozen, {**thaw, scope: person}), "proposed"
                line = self._line("thaw.proposed", f"person:{person}", scope=scope)
            return Stands(step=step, governance=(yield from _changed(row, now))), [line]

        return await self._rows.change(self._tenant, make)

    async def thaw_alone(self, scope: str, actor: str = INSTALLATION) -> Governance:
        """Thaw a scope where the tenant has no people (law 4)."""

        def make(now: int) -> Transaction[Told[Governance]]:
            before = yield from _locked(self._tenant)
            yield from _check_alone(self._tenant, "a thaw")
            frozen, thaw = scopes(before), thaws(before)
            if scope not in frozen:
                return before, []
            thaw.pop(scope, None)
            del frozen[scope]
            row = yield from _changed(_held(before, frozen, thaw), now)
            return row, [self._line("freeze.ended", actor, scope=scope, alone=True)]

        return await self._rows.change(self._tenant, make)

    def _line(self, kind: str, actor: str, **about: Any) -> Change:
        return Change(tenant=self._tenant, kind=kind, actor=actor, about=about)


def scopes(row: Governance) -> dict[str, str]:
    """What is frozen, and who froze it."""
    return msgspec.json.decode(row.frozen, type=dict[str, str])


def thaws(row: Governance) -> dict[str, str]:
    """Who wants what to thaw."""
    return msgspec.json.decode(row.thaw, type=dict[str, str])


def _nothing(tenant: str) -> Governance:
    return Governance(
        tenant=tenant,
        version=0,
        proposed=None,
        proposed_by=None,
        frozen="{}",
        thaw="{}",
        revision=0,
        updated_at=0,
    )


def _held(before: Governance, frozen: dict[str, str], thaw: dict[str, str]) -> Governance:
    return msgspec.structs.replace(
        before,
        frozen=msgspec.json.encode(frozen, order="sorted").decode(),
        thaw=msgspec.json.encode(thaw, order="sorted").decode(),
    )


def _locked(tenant: str) -> Transaction[Governance]:
    rows: list[Governance] = yield Query("lock_governance", scalars=(tenant,))
    return rows[0] if rows else _nothing(tenant)


def _changed(row: Governance, now: int) -> Transaction[Governance]:
    """Write the row down as the next revision (law 2)."""
    row = msgspec.structs.replace(row, revision=row.revision + 1, updated_at=now)
    if not (yield Query("save_governance", scalars=msgspec.structs.astuple(row))):
        raise TenureError("CHANGED_MEANWHILE", "somebody else has changed what holds for this tenant")
    return row


def _published(
    tenant: str, text: str, digest: bytes, author: str, now: int
) -> Transaction[tuple[Policy, bool]]:
    """The version with this text, written where there is none; the caller holds the tenant's lock."""
    same: list[Policy] = yield Query("policy_of_digest", scalars=(tenant, digest))
    if same:
        return same[0], False
    newest: list[PolicyLine] = yield Query("policies_before", scalars=(tenant, 2**31 - 1, 1))
    version = 1 + (newest[0].version if newest else 0)
    row = Policy(tenant, version, text, digest, author, now)
    yield Query("save_policy", scalars=msgspec.structs.astuple(row))
    return row, True


def _known(tenant: str, version: int) -> Transaction[None]:
    if not (yield Query("policy_at", scalars=(tenant, version))):
        raise _no_version(version)


def _roles(tenant: str, person: str | None) -> Transaction[set[str]]:
    """What somebody may do now: a credential was looked up a moment ago, a proposal was made days ago."""
    rows: list[Person] = yield Query("person_named", scalars=(tenant, person or ""))
    known = rows and rows[0].closed_at is None
    return set(msgspec.json.decode(rows[0].roles, type=list[str])) if known else set()


def _is_admin(tenant: str, person: str | None) -> Transaction[bool]:
    """Whether somebody who proposed may still do so."""
    return "admin" in (yield from _roles(tenant, person))


def _check_apart(tenant: str, first: str | None, second: str, what: str) -> Transaction[None]:
    """Refuse a second person who is the first, or counts as one with them."""
    ties = Ties((yield Query("people_unconfirmed", scalars=(tenant,))))
    if ties.among(f"person:{second}", (f"person:{first}",)) is not None:
        raise _second(what)


def _check_alone(tenant: str, what: str) -> Transaction[None]:
    if (yield Query("anybody", scalars=(tenant,))):
        raise TenureError(
            "SECOND_PERSON_NEEDED",
            f"the tenant {tenant!r} has people, so {what} takes two of them, each with a key of their own, at a server",
        )


def _check_proposer(may_propose: bool) -> None:
    if not may_propose:
        raise TenureError("FORBIDDEN", "an admin proposes this; an approver can only be the second to say it")


def _check_second(roles: set[str]) -> None:
    if not roles & {"admin", "approver"}:
        raise TenureError("FORBIDDEN", "an admin or an approver is the second to say this")


def _no_version(version: int) -> TenureError:
    return TenureError("POLICY_NOT_FOUND", f"there is no version {version} of the policy")


def _second(what: str) -> TenureError:
    return TenureError("SECOND_PERSON_NEEDED", f"{what}: another person has to say it too")
