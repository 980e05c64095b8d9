"""Tenants: created, closed and limited by the installation's operator.

Law: changes of tenants are entries of the installation's own audit chain (tenant '').
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.doctor.tenant_checks import find_broken_chain
from tenure.errors import TenureError, field_error
from tenure.kernel.decide.validation import check_cap, is_name
from tenure.kernel.identity_rows import SlackAppRow, TenantRow
from tenure.kernel.run_rows import Cap
from tenure.limits import INTEGER_MAX, NAME_CHARS_MAX
from tenure.reads.identity import show_audit_entry, show_slack_app, show_tenant
from tenure.services.identity.changes import IdentityService
from tenure.services.identity.principals import OPERATOR_TENANT
from tenure.services.identity.validation import (
    already_exists,
    check_name,
    check_or_make_id,
    is_id,
)
from tenure.services.paging import ROWS_MAX, Number, Place, read_page
from tenure.shapes.identity import AuditEntry, CapLimits, SlackApp, Tenant, TenantAudit, TenantCaps
from tenure.shapes.pages import Page
from tenure.store.identity import AdminChange, ChangeResult, save_rows, tenant_not_found
from tenure.store.port import Query, Transaction

CAPS_MAX = 1_000
"""Workspaces and workflows of a tenant with caps of their own."""
SLACK_SECRETS_MAX = 2
_TEAM = re.compile(r"[TE][A-Z0-9]{1,30}")
_List = list  # `Tenants.list` hides the builtin in annotations of the class


class Tenants(IdentityService):
    """All tenants of the installation, whatever the scope's tenant is."""

    async def list(self) -> _List[Tenant]:
        """The tenants, newest first, including closed ones."""
        return (await self.page(ROWS_MAX)).items

    async def page(self, limit: int, cursor: str | None = None) -> Page[Tenant]:
        return await self._page("tenants_before", show_tenant, limit, cursor, first=())

    async def get(self, tenant: str) -> Tenant:
        found = await self._scope.store.read("tenant_named", tenant) if is_id(tenant) else []
        if not found:
            raise tenant_not_found(tenant[:64])
        return show_tenant(found[0])

    async def create(self, tenant: str, *, name: str) -> Tenant:
        chosen, label = check_or_make_id(tenant, ""), check_name(name)

        def make(now: int) -> Transaction[ChangeResult[TenantRow]]:
            if (yield Query("tenant_named", scalars=(chosen,))):
                raise already_exists("tenant", chosen)
            row = TenantRow(chosen, label, "{}", now)
            yield from save_rows(row)
            return row, [self._entry("tenant.created", tenant=chosen)]

        return show_tenant(await self._change(make))

    async def update(self, tenant: str, *, name: str | None = None, closed: bool | None = None) -> Tenant:
        """Rename a tenant, close it (its keys stop working) or open it again."""
        label = None if name is None else check_name(name)

        def make(now: int) -> Transaction[ChangeResult[TenantRow]]:
            before = yield from self._tenant(tenant)
            row = before if label is None else msgspec.structs.replace(before, name=label)
            entries = [] if row.name == before.name else [self._entry("tenant.renamed", tenant=tenant)]
            if closed is not None and closed != (before.closed_at is not None):
                row = msgspec.structs.replace(row, closed_at=now if closed else None)
                entries.append(self._entry("tenant.closed" if closed else "tenant.opened", tenant=tenant))
            if entries:
                yield from save_rows(row)
            return row, entries

        return show_tenant(await self._change(make))

    # ------------------------------------------------------------------------------------------------ caps

    async def caps(self, tenant: str) -> TenantCaps:
        """The caps that differ from the default: weight 1 and no limit."""
        await self.get(tenant)
        return _show_caps(await self._caps(tenant))

    async def set_caps(self, tenant: str, caps: TenantCaps) -> TenantCaps:
        """Replace all caps of a tenant. Every process applies them within two seconds."""
        await self.get(tenant)
        if len(caps.workspaces) + len(caps.workflows) > CAPS_MAX:
            raise field_error(
                "workspaces", f"at most {CAPS_MAX} workspaces and workflows have their own caps"
            )
        limits = {"": caps.tenant}
        for field, kind, given in (
            ("workspaces", "ws:", caps.workspaces),
            ("workflows", "wf:", caps.workflows),
        ):
            for name, each in given.items():
                if not is_name(name, most=NAME_CHARS_MAX - len(kind)):
                    raise field_error(field, f"{name[:64]!r} is not a name")
                limits[kind + name] = each
        wanted = [Cap(tenant, scope, **msgspec.structs.asdict(each)) for scope, each in limits.items()]
        for cap in wanted:
            check_cap(cap)
        cleared = [Cap(tenant, old.scope) for old in await self._caps(tenant) if old.scope not in limits]
        about = {scope: list(msgspec.structs.astuple(each)) for scope, each in limits.items()}

        def make(_now: int) -> Transaction[ChangeResult[None]]:
            yield from ()
            return None, [self._entry("tenant.caps_set", tenant=tenant, caps=about)]

        await self._change(make)  # first: no cap changes without an entry in the audit chain
        await self._scope.orchestrator.put_caps([*wanted, *cleared])
        return _show_caps(await self._caps(tenant))

    async def _caps(self, tenant: str) -> _List[Cap]:
        rows: _List[Cap] = await self._scope.store.read("all_caps")
        return [cap for cap in rows if cap.tenant == tenant]

    # ------------------------------------------------------------------------------------------ Slack apps

    async def slack_apps(self, tenant: str) -> _List[SlackApp]:
        """The Slack apps of a tenant, by team."""
        await self.get(tenant)
        return [show_slack_app(row) for row in await self._scope.store.read("slack_apps_of", tenant)]

    async def set_slack_app(self, tenant: str, team: str, secrets: Sequence[str]) -> SlackApp:
        """Register the Slack app of a team by the references of its signing secret. People of the tenant link accounts and decide
        through it. The caller has checked that the tenant may use these references."""
        if not _TEAM.fullmatch(team):
            raise field_error("team", "a Slack team id must look like T0123456789")
        if not 1 <= len(secrets) <= SLACK_SECRETS_MAX:
            raise field_error("secrets", f"give one secret, or {SLACK_SECRETS_MAX} during a rotation")

        def make(now: int) -> Transaction[ChangeResult[SlackAppRow]]:
            yield from self._tenant(tenant)
            references = msgspec.json.encode([*secrets]).decode()
            row = SlackAppRow(tenant, team, references, self._scope.admin_actor.actor, now)
            yield from save_rows(row)
            return row, self._entries_in_both("slack_app.registered", tenant, team)

        return show_slack_app(await self._change(make))

    async def remove_slack_app(self, tenant: str, team: str) -> None:
        def make(_now: int) -> Transaction[ChangeResult[None]]:
            yield from self._tenant(tenant)
            if not (yield Query("delete_slack_app", scalars=(tenant, team))):
                raise TenureError("SLACK_APP_NOT_FOUND", f"there is no Slack app of team {team[:64]!r}")
            return None, self._entries_in_both("slack_app.removed", tenant, team)

        await self._change(make)

    # ----------------------------------------------------------------------------------------------- audit

    async def audit(self, tenant: str = OPERATOR_TENANT) -> TenantAudit:
        """The newest entries of a tenant's audit chain ('': the installation's), and what is wrong with the chain."""
        entries = await self.audit_page(tenant, ROWS_MAX)
        broken = await find_broken_chain(self._scope.store, tenant)
        problems = [
            f"the audit chain of tenant {tenant!r} does not recompute at entry {seq}" for _, seq in broken
        ]
        return TenantAudit(entries=entries.items, problems=problems)

    async def audit_page(self, tenant: str, limit: int, cursor: str | None = None) -> Page[AuditEntry]:
        async def read(place: Place, count: int) -> _List[Any]:
            return await self._scope.store.read("admin_events_before", tenant, *place, count)

        return await read_page(
            (self._scope.tenant, "audit", tenant),
            tuple[Number],
            (INTEGER_MAX,),
            read,
            lambda row: [row.seq],
            show_audit_entry,
            limit=limit,
            cursor=cursor,
        )

    # ---------------------------------------------------------------------------------------------- inside

    async def _change(self, make: Any, tenant: str | None = OPERATOR_TENANT) -> Any:
        return await super()._change(make, tenant)

    def _entry(self, kind: str, **about: Any) -> AdminChange:
        return msgspec.structs.replace(super()._entry(kind, **about), tenant=OPERATOR_TENANT)

    def _entries_in_both(self, kind: str, tenant: str, team: str) -> _List[AdminChange]:
        """An entry of the installation's chain, and the same in the chain of the tenant whose people it concerns."""
        entry = self._entry(kind, tenant=tenant, team=team)
        return [entry, msgspec.structs.replace(entry, tenant=tenant)]

    def _tenant(self, tenant: str) -> Transaction[TenantRow]:
        found: _List[TenantRow] = (yield Query("tenant_named", scalars=(tenant,))) if is_id(tenant) else []
        if not found:
            raise tenant_not_found(tenant[:64])
        return found[0]


def _show_caps(rows: list[Cap]) -> TenantCaps:
    limits = {
        cap.scope: CapLimits(
            weight=cap.weight,
            max_concurrency=cap.max_concurrency,
            max_runs_per_min=cap.max_runs_per_min,
            max_writes_per_run=cap.max_writes_per_run,
        )
        for cap in rows
    }
    limits = {scope: each for scope, each in limits.items() if each != CapLimits()}
    return TenantCaps(
        tenant=limits.get("", CapLimits()),
        workspaces={scope[3:]: each for scope, each in limits.items() if scope.startswith("ws:")},
        workflows={scope[3:]: each for scope, each in limits.items() if scope.startswith("wf:")},
    )
