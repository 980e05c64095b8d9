"""Policies and freezes.

Laws:
1. A version of a policy is written once and never changes; the same text again is the same version.
2. What is in force for a tenant is one row, changed by compare-and-set on its revision, in one transaction with its line in the
   tenant's admin chain. An INTENT is committed under a shared lock of that row, so a change waits for the INTENTs under way,
   and every later one sees it.
3. Activating a version, and thawing a scope, takes two different people: the first proposes, the second agrees. The
   proposer must then still be an admin. Two people who count as one (`kernel.separation_of_duties`, law 5) do not suffice.
4. A tenant without people has no second person: the installation does both, and its lines say so. This ends permanently when
   the first person is created.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from hashlib import sha256
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import msgspec
from msgspec.structs import astuple, replace

from tenure.errors import TenureError
from tenure.kernel.act_rows import VerdictRow
from tenure.kernel.governance_rows import GovernanceRow, PolicyRow
from tenure.kernel.identity_rows import PersonRow
from tenure.kernel.separation_of_duties import LinkedPeople, join_people
from tenure.store.identity import AdminChange, ChangeResult, Identity
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.transactions import read_first

P = ParamSpec("P")
T = TypeVar("T")

INSTALLATION = "installation"
"""The actor when the installation acts by itself."""


class PolicyVersionSummary(msgspec.Struct, gc=False):
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
    "save_governance": GovernanceRow,  # a whole row; nothing unless the stored revision is the one before
}

TwoPersonStep = Literal["proposed", "done"]


class TwoPersonChange(msgspec.Struct, frozen=True, kw_only=True):
    step: TwoPersonStep
    governance: GovernanceRow


def _tenant_change(
    make: Callable[Concatenate[PolicyRegistry, int, P], Transaction[ChangeResult[T]]],
) -> Callable[Concatenate[PolicyRegistry, P], Coroutine[Any, Any, T]]:
    """Make a method a change of the tenant (`Identity.change`). The method gets the store's time before its arguments."""

    @wraps(make)
    async def change(self: PolicyRegistry, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._identity.change(self._tenant, lambda now: make(self, now, *args, **kwargs))

    return change


class PolicyRegistry:
    """The policies and freezes of one tenant; see the laws above."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._identity = Identity(store)

    # ------------------------------------------------------------------------------------------- looking

    async def governance(self) -> GovernanceRow:
        """What is in force now."""
        found = await read_first(self._store, GovernanceRow, "governance_of", self._tenant)
        return found or _nothing(self._tenant)

    async def policy(self, version: int) -> PolicyRow:
        """A version, or POLICY_NOT_FOUND."""
        found = await read_first(self._store, PolicyRow, "policy_at", self._tenant, version)
        if found is None:
            raise _no_version(version)
        return found

    async def versions(self, before: int, limit: int) -> list[PolicyVersionSummary]:
        """Versions below `before`, newest first."""
        return await self._store.read("policies_before", self._tenant, before, limit)

    # ---------------------------------------------------------------------------------------- publishing

    @_tenant_change
    def publish(self, now: int, text: str, actor: str) -> Transaction[ChangeResult[tuple[PolicyRow, bool]]]:
        """Store a text, which the caller has checked, as the next version; also whether it is new."""
        row, lines = yield from self._publish(now, text, actor)
        return (row, bool(lines)), lines

    def _publish(self, now: int, text: str, author: str) -> Transaction[ChangeResult[PolicyRow]]:
        digest = sha256(text.encode()).digest()
        same: list[PolicyRow] = yield Query("policy_of_digest", scalars=(self._tenant, digest))
        if same:
            return same[0], []
        newest: list[PolicyVersionSummary] = yield Query(
            "policies_before", scalars=(self._tenant, 2**31 - 1, 1)
        )
        row = PolicyRow(self._tenant, 1 + (newest[0].version if newest else 0), text, digest, author, now)
        yield Query("save_policy", scalars=astuple(row))
        return row, [self._line("policy.published", author, version=row.version, sha256=digest.hex())]

    # ---------------------------------------------------------------------------------------- activating

    @_tenant_change
    def activate(
        self, now: int, version: int, person: str, *, may_propose: bool
    ) -> Transaction[ChangeResult[TwoPersonChange]]:
        """Activate a version for a person: the first person proposes it, a second one activates it."""
        before = yield from _lock_governance(self._tenant)
        yield from _check_version(self._tenant, version)
        if before.version == version:
            return TwoPersonChange(step="done", governance=before), []
        first = before.proposed_by if before.proposed == version else None
        what = f"version {version} of the policy"
        if (yield from _is_second(self._tenant, first, person, what, may_propose=may_propose)):
            row = replace(before, version=version, proposed=None, proposed_by=None)
            line = self._line(
                "policy.activated",
                f"person:{person}",
                version=version,
                proposed_by=first,
                instead_of=before.version,
            )
        else:
            row = replace(before, proposed=version, proposed_by=person)
            line = self._line("policy.proposed", f"person:{person}", version=version)
        row = yield from _save_governance(row, now)
        return TwoPersonChange(step="done" if row.version == version else "proposed", governance=row), [line]

    @_tenant_change
    def withdraw(self, now: int, version: int, actor: str) -> Transaction[ChangeResult[GovernanceRow]]:
        """Withdraw the proposal of a version; everybody who may propose may withdraw."""
        before = yield from _lock_governance(self._tenant)
        if before.proposed != version:
            raise TenureError("POLICY_NOT_FOUND", f"version {version} of the policy is not proposed")
        row = replace(before, proposed=None, proposed_by=None)
        line = self._line("policy.withdrawn", actor, version=version)
        return (yield from _save_governance(row, now)), [line]

    @_tenant_change
    def install(
        self, now: int, text: str, actor: str = INSTALLATION
    ) -> Transaction[ChangeResult[GovernanceRow]]:
        """Publish a text and activate it, for a tenant without people (law 4). The same text again changes nothing."""
        before = yield from _lock_governance(self._tenant)
        yield from _check_alone(self._tenant, "activating a policy")
        policy, lines = yield from self._publish(now, text, actor)
        return (yield from self._install(before, policy.version, actor, lines, now))

    @_tenant_change
    def activate_alone(
        self, now: int, version: int, actor: str = INSTALLATION
    ) -> Transaction[ChangeResult[GovernanceRow]]:
        """Activate a published version, for a tenant without people (law 4)."""
        before = yield from _lock_governance(self._tenant)
        yield from _check_alone(self._tenant, "activating a policy")
        yield from _check_version(self._tenant, version)
        return (yield from self._install(before, version, actor, [], now))

    def _install(
        self, before: GovernanceRow, version: int, actor: str, lines: list[AdminChange], now: int
    ) -> Transaction[ChangeResult[GovernanceRow]]:
        if before.version == version:
            return before, lines
        row = replace(before, version=version, proposed=None, proposed_by=None)
        line = self._line("policy.activated", actor, version=version, alone=True, instead_of=before.version)
        return (yield from _save_governance(row, now)), [*lines, line]

    # ------------------------------------------------------------------------------------------ freezing

    @_tenant_change
    def freeze(
        self, now: int, scope: str, actor: str, people: str = ""
    ) -> Transaction[ChangeResult[GovernanceRow]]:
        """Deny every act of a scope (`*`, `wf:NAME`, `cn:NAME`) from the next commit on, and drop a proposed thaw. `people`:
        everybody who answers for the freeze, as `id id`; else the actor."""
        before = yield from _lock_governance(self._tenant)
        frozen, thaw = frozen_scopes(before), proposed_thaws(before)
        if scope in frozen and scope not in thaw:
            return before, []
        thaw.pop(scope, None)
        frozen[scope] = join_people(frozen.get(scope), people or actor)
        row = yield from _save_governance(_with_freezes(before, frozen, thaw), now)
        return row, [self._line("freeze.begun", actor, scope=scope)]

    @_tenant_change
    def thaw(
        self, now: int, scope: str, person: str, *, may_propose: bool
    ) -> Transaction[ChangeResult[TwoPersonChange]]:
        """Thaw a scope for a person: the first person proposes it, a second one thaws it."""
        before = yield from _lock_governance(self._tenant)
        frozen, thaw = frozen_scopes(before), proposed_thaws(before)
        if scope not in frozen:
            return TwoPersonChange(step="done", governance=before), []
        first = thaw.get(scope)
        if (yield from _is_second(self._tenant, first, person, "this thaw", may_propose=may_propose)):
            del thaw[scope], frozen[scope]
            line = self._line("freeze.ended", f"person:{person}", scope=scope, proposed_by=first)
        else:
            thaw[scope] = person
            line = self._line("thaw.proposed", f"person:{person}", scope=scope)
        row = yield from _save_governance(_with_freezes(before, frozen, thaw), now)
        return TwoPersonChange(step="proposed" if scope in frozen else "done", governance=row), [line]

    @_tenant_change
    def thaw_alone(
        self, now: int, scope: str, actor: str = INSTALLATION
    ) -> Transaction[ChangeResult[GovernanceRow]]:
        """Thaw a scope of a tenant without people (law 4)."""
        before = yield from _lock_governance(self._tenant)
        yield from _check_alone(self._tenant, "a thaw")
        frozen, thaw = frozen_scopes(before), proposed_thaws(before)
        if scope not in frozen:
            return before, []
        thaw.pop(scope, None)
        del frozen[scope]
        row = yield from _save_governance(_with_freezes(before, frozen, thaw), now)
        return row, [self._line("freeze.ended", actor, scope=scope, alone=True)]

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


def _with_freezes(before: GovernanceRow, frozen: dict[str, str], thaw: dict[str, str]) -> GovernanceRow:
    return replace(
        before,
        frozen=msgspec.json.encode(frozen, order="sorted").decode(),
        thaw=msgspec.json.encode(thaw, order="sorted").decode(),
    )


def _lock_governance(tenant: str) -> Transaction[GovernanceRow]:
    rows: list[GovernanceRow] = yield Query("lock_governance", scalars=(tenant,))
    return rows[0] if rows else _nothing(tenant)


def _save_governance(row: GovernanceRow, now: int) -> Transaction[GovernanceRow]:
    """Write the row as the next revision (law 2)."""
    row = replace(row, revision=row.revision + 1, updated_at=now)
    if not (yield Query("save_governance", scalars=astuple(row))):
        raise TenureError(
            "CHANGED_MEANWHILE",
            f"the policy or the freezes of tenant {row.tenant!r} have changed meanwhile: read them again",
        )
    return row


def _check_version(tenant: str, version: int) -> Transaction[None]:
    if not (yield Query("policy_at", scalars=(tenant, version))):
        raise _no_version(version)


def _roles(tenant: str, person: str) -> Transaction[set[str]]:
    """A person's roles now: the proposal may have been made days ago."""
    rows: list[PersonRow] = yield Query("person_named", scalars=(tenant, person))
    known = rows and rows[0].closed_at is None
    return set(msgspec.json.decode(rows[0].roles, type=list[str])) if known else set()


def _is_second(
    tenant: str, first: str | None, person: str, what: str, *, may_propose: bool
) -> Transaction[bool]:
    """Whether a person is the second to agree (law 3): the first one is still an admin. Else the person proposes. Refuses who
    may not do that, and a second person who is the first, or is treated as the same person."""
    roles = yield from _roles(tenant, person)
    if first is None or "admin" not in (yield from _roles(tenant, first)):
        if not may_propose or "admin" not in roles:
            raise TenureError(
                "FORBIDDEN", "an admin has to propose this; an approver can only agree to a proposal"
            )
        return False
    if not roles & {"admin", "approver"}:
        raise TenureError("FORBIDDEN", "the second person has to be an admin or an approver")
    ties = LinkedPeople((yield Query("people_unconfirmed", scalars=(tenant,))))
    if ties.among(f"person:{person}", (f"person:{first}",)) is not None:
        raise TenureError("SECOND_PERSON_NEEDED", f"{what}: another person has to agree to it")
    return True


def _check_alone(tenant: str, what: str) -> Transaction[None]:
    if (yield Query("anybody", scalars=(tenant,))):
        raise TenureError(
            "SECOND_PERSON_NEEDED",
            f"the tenant {tenant!r} has people, so {what} takes two of them, each with a key of their own, at a server",
        )


def _no_version(version: int) -> TenureError:
    return TenureError("POLICY_NOT_FOUND", f"there is no version {version} of the policy")
