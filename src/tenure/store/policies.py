"""Policies and freezes.

Laws:
1. A version of a policy is written once and never changes; the same text again is the same version.
2. What is in force for a tenant is one row, changed by compare-and-set on its revision, in one transaction with its line in the
   tenant's admin chain. An INTENT is committed under a shared lock of that row, so a change waits for those under way and
   is seen by all that follow.
3. Activating a version, and thawing a scope, takes two different people: the first proposes, the second agrees. The
   proposer must then still be an admin. Two people who count as one (`kernel.separation_of_duties`, law 5) do not suffice.
4. A tenant without people has no second person: there the installation does both, and its lines say so. The first person
   who is created ends that for good.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal

import msgspec

from tenure.errors import TenureError
from tenure.kernel.act_rows import VerdictRow
from tenure.kernel.governance_rows import GovernanceRow, PolicyRow
from tenure.kernel.identity_rows import PersonRow
from tenure.kernel.separation_of_duties import LinkedPeople, join_people
from tenure.store.identity import AdminChange, ChangeResult, Identity
from tenure.store.port import Query, RowType, Store, Transaction

INSTALLATION = "installation"
"""The actor when the installation acts by itself."""


class PolicyVersionSummary(msgspec.Struct, gc=False):
    """A version, without its text."""

    version: int
    digest: bytes
    author: str
    created_at: int


READS: dict[str, RowType] = {
    "governance_of": GovernanceRow,  # () ; tenant
    "policy_at": PolicyRow,  # () ; tenant, version
    "policies_before": PolicyVersionSummary,  # () ; tenant, before_version, limit -> newest first
    "policy_of_digest": PolicyRow,  # () ; tenant, digest
    "verdicts_since": VerdictRow,  # () ; tenant, at, after_at, after_run, after_no, limit -> in order of time
    "anybody": PersonRow,  # () ; tenant -> one person, open or closed, if there is any
}

WRITES: dict[str, RowType] = {
    "save_policy": PolicyRow,  # a whole row; the version after the newest
    "lock_governance": GovernanceRow,  # tenant -> PG: for update
    "save_governance": GovernanceRow,  # a whole row; nothing where the revision is not the one before
}

TwoPersonStep = Literal["proposed", "done"]


class TwoPersonChange(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a change that takes two people."""

    step: TwoPersonStep
    governance: GovernanceRow


class PolicyRegistry:
    """The policies and freezes of one tenant; see the laws above."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._rows = Identity(store)

    # ------------------------------------------------------------------------------------------- looking

    async def governance(self) -> GovernanceRow:
        """What is in force now."""
        rows: list[GovernanceRow] = await self._store.read("governance_of", self._tenant)
        return rows[0] if rows else _nothing(self._tenant)

    async def policy(self, version: int) -> PolicyRow:
        """A version, or POLICY_NOT_FOUND."""
        rows: list[PolicyRow] = await self._store.read("policy_at", self._tenant, version)
        if not rows:
            raise _no_version(version)
        return rows[0]

    async def versions(self, before: int, limit: int) -> list[PolicyVersionSummary]:
        """Versions below `before`, newest first."""
        return await self._store.read("policies_before", self._tenant, before, limit)

    # ---------------------------------------------------------------------------------------- publishing

    async def publish(self, text: str, actor: str) -> tuple[PolicyRow, bool]:
        """Store a text, which the caller has checked, as the next version; also whether it is new."""
        digest = sha256(text.encode()).digest()

        def make(now: int) -> Transaction[ChangeResult[tuple[PolicyRow, bool]]]:
            row, is_new = yield from _published(self._tenant, text, digest, actor, now)
            return (row, is_new), [self._published_line(row, actor)] if is_new else []

        return await self._rows.change(self._tenant, make)

    def _published_line(self, row: PolicyRow, actor: str) -> AdminChange:
        return self._line("policy.published", actor, version=row.version, sha256=row.digest.hex())

    # ---------------------------------------------------------------------------------------- activating

    async def activate(self, version: int, person: str, *, may_propose: bool) -> TwoPersonChange:
        """Activate a version for a person: the first person proposes it, a second one activates it."""

        def make(now: int) -> Transaction[ChangeResult[TwoPersonChange]]:
            before = yield from _locked(self._tenant)
            yield from _known(self._tenant, version)
            if before.version == version:
                return TwoPersonChange(step="done", governance=before), []
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
            return TwoPersonChange(step="done" if row.version == version else "proposed", governance=row), [
                line
            ]

        return await self._rows.change(self._tenant, make)

    async def withdraw(self, version: int, actor: str) -> GovernanceRow:
        """Withdraw the proposal of a version; anybody who may propose may do so."""

        def make(now: int) -> Transaction[ChangeResult[GovernanceRow]]:
            before = yield from _locked(self._tenant)
            if before.proposed != version:
                raise TenureError("POLICY_NOT_FOUND", f"version {version} of the policy is not proposed")
            row = yield from _changed(msgspec.structs.replace(before, proposed=None, proposed_by=None), now)
            return row, [self._line("policy.withdrawn", actor, version=version)]

        return await self._rows.change(self._tenant, make)

    async def install(self, text: str, actor: str = INSTALLATION) -> GovernanceRow:
        """Publish a text and activate it, for a tenant without people (law 4). The same text again changes nothing."""
        digest = sha256(text.encode()).digest()

        def make(now: int) -> Transaction[ChangeResult[GovernanceRow]]:
            before = yield from _locked(self._tenant)
            yield from _check_alone(self._tenant, "activating a policy")
            policy, is_new = yield from _published(self._tenant, text, digest, actor, now)
            lines = [self._published_line(policy, actor)] if is_new else []
            return (yield from self._installed(before, policy.version, actor, lines, now))

        return await self._rows.change(self._tenant, make)

    async def activate_alone(self, version: int, actor: str = INSTALLATION) -> GovernanceRow:
        """Activate a published version, for a tenant without people (law 4)."""

        def make(now: int) -> Transaction[ChangeResult[GovernanceRow]]:
            before = yield from _locked(self._tenant)
            yield from _check_alone(self._tenant, "activating a policy")
            yield from _known(self._tenant, version)
            return (yield from self._installed(before, version, actor, [], now))

        return await self._rows.change(self._tenant, make)

    def _installed(
        self, before: GovernanceRow, version: int, actor: str, lines: list[AdminChange], now: int
    ) -> Transaction[ChangeResult[GovernanceRow]]:
        if before.version == version:
            return before, lines
        row = msgspec.structs.replace(before, version=version, proposed=None, proposed_by=None)
        line = self._line("policy.activated", actor, version=version, alone=True, instead_of=before.version)
        return (yield from _changed(row, now)), [*lines, line]

    # ------------------------------------------------------------------------------------------ freezing

    async def freeze(self, scope: str, actor: str, people: str = "") -> GovernanceRow:
        """Deny every act of a scope (`*`, `wf:NAME`, `cn:NAME`) from the next commit on, and drop a proposed thaw. `people`:
        everybody who stands behind the freeze, as `id id`; else the actor."""

        def make(now: int) -> Transaction[ChangeResult[GovernanceRow]]:
            before = yield from _locked(self._tenant)
            frozen, thaw = frozen_scopes(before), proposed_thaws(before)
            if scope in frozen and scope not in thaw:
                return before, []
            thaw.pop(scope, None)
            everybody = join_people(frozen.get(scope), people or actor)
            row = yield from _changed(_held(before, {**frozen, scope: everybody}, thaw), now)
            return row, [self._line("freeze.begun", actor, scope=scope)]

        return await self._rows.change(self._tenant, make)

    async def thaw(self, scope: str, person: str, *, may_propose: bool) -> TwoPersonChange:
        """Thaw a scope for a person: the first person proposes it, a second one thaws it."""

        def make(now: int) -> Transaction[ChangeResult[TwoPersonChange]]:
            before = yield from _locked(self._tenant)
            frozen, thaw = frozen_scopes(before), proposed_thaws(before)
            if scope not in frozen:
                return TwoPersonChange(step="done", governance=before), []
            first, mine = thaw.get(scope), (yield from _roles(self._tenant, person))
            if first is not None and (yield from _is_admin(self._tenant, first)):
                _check_second(mine)
                yield from _check_apart(self._tenant, first, person, "this thaw")
                del thaw[scope], frozen[scope]
                row = _held(before, frozen, thaw)
                step: TwoPersonStep = "done"
                line = self._line("freeze.ended", f"person:{person}", scope=scope, proposed_by=first)
            else:
                _check_proposer(may_propose and "admin" in mine)
                row, step = _held(before, frozen, {**thaw, scope: person}), "proposed"
                line = self._line("thaw.proposed", f"person:{person}", scope=scope)
            return TwoPersonChange(step=step, governance=(yield from _changed(row, now))), [line]

        return await self._rows.change(self._tenant, make)

    async def thaw_alone(self, scope: str, actor: str = INSTALLATION) -> GovernanceRow:
        """Thaw a scope of a tenant without people (law 4)."""

        def make(now: int) -> Transaction[ChangeResult[GovernanceRow]]:
            before = yield from _locked(self._tenant)
            yield from _check_alone(self._tenant, "a thaw")
            frozen, thaw = frozen_scopes(before), proposed_thaws(before)
            if scope not in frozen:
                return before, []
            thaw.pop(scope, None)
            del frozen[scope]
            row = yield from _changed(_held(before, frozen, thaw), now)
            return row, [self._line("freeze.ended", actor, scope=scope, alone=True)]

        return await self._rows.change(self._tenant, make)

    def _line(self, kind: str, actor: str, **about: Any) -> AdminChange:
        return AdminChange(tenant=self._tenant, kind=kind, actor=actor, about=about)


def frozen_scopes(row: GovernanceRow) -> dict[str, str]:
    """Frozen scope -> who froze it."""
    return msgspec.json.decode(row.frozen, type=dict[str, str])


def proposed_thaws(row: GovernanceRow) -> dict[str, str]:
    """Frozen scope -> who proposes to thaw it."""
    return msgspec.json.decode(row.thaw, type=dict[str, str])


def _nothing(tenant: str) -> GovernanceRow:
    return GovernanceRow(
        tenant=tenant,
        version=0,
        proposed=None,
        proposed_by=None,
        frozen="{}",
        thaw="{}",
        revision=0,
        updated_at=0,
    )


def _held(before: GovernanceRow, frozen: dict[str, str], thaw: dict[str, str]) -> GovernanceRow:
    return msgspec.structs.replace(
        before,
        frozen=msgspec.json.encode(frozen, order="sorted").decode(),
        thaw=msgspec.json.encode(thaw, order="sorted").decode(),
    )


def _locked(tenant: str) -> Transaction[GovernanceRow]:
    rows: list[GovernanceRow] = yield Query("lock_governance", scalars=(tenant,))
    return rows[0] if rows else _nothing(tenant)


def _changed(row: GovernanceRow, now: int) -> Transaction[GovernanceRow]:
    """Write the row as the next revision (law 2)."""
    row = msgspec.structs.replace(row, revision=row.revision + 1, updated_at=now)
    if not (yield Query("save_governance", scalars=msgspec.structs.astuple(row))):
        raise TenureError(
            "CHANGED_MEANWHILE",
            f"somebody else has changed the policy or the freezes of tenant {row.tenant!r}: read them again",
        )
    return row


def _published(
    tenant: str, text: str, digest: bytes, author: str, now: int
) -> Transaction[tuple[PolicyRow, bool]]:
    """The version with this text, stored if it is new; the caller holds the tenant's lock."""
    same: list[PolicyRow] = yield Query("policy_of_digest", scalars=(tenant, digest))
    if same:
        return same[0], False
    newest: list[PolicyVersionSummary] = yield Query("policies_before", scalars=(tenant, 2**31 - 1, 1))
    version = 1 + (newest[0].version if newest else 0)
    row = PolicyRow(tenant, version, text, digest, author, now)
    yield Query("save_policy", scalars=msgspec.structs.astuple(row))
    return row, True


def _known(tenant: str, version: int) -> Transaction[None]:
    if not (yield Query("policy_at", scalars=(tenant, version))):
        raise _no_version(version)


def _roles(tenant: str, person: str | None) -> Transaction[set[str]]:
    """A person's roles now: the proposal may have been made days ago."""
    rows: list[PersonRow] = yield Query("person_named", scalars=(tenant, person or ""))
    known = rows and rows[0].closed_at is None
    return set(msgspec.json.decode(rows[0].roles, type=list[str])) if known else set()


def _is_admin(tenant: str, person: str | None) -> Transaction[bool]:
    """Whether somebody who proposed may still do so."""
    return "admin" in (yield from _roles(tenant, person))


def _check_apart(tenant: str, first: str | None, second: str, what: str) -> Transaction[None]:
    """Refuse a second person who is the first, or counts as one with them."""
    ties = LinkedPeople((yield Query("people_unconfirmed", scalars=(tenant,))))
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
