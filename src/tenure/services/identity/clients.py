"""Clients: the programs that make requests to a server."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tenure.errors import field_error
from tenure.kernel.identity_rows import ClientRow
from tenure.kernel.separation_of_duties import join_people
from tenure.reads.identity import show_client, split_list
from tenure.services.identity.changes import IdentityService, client_not_found
from tenure.services.identity.validation import (
    check_name,
    check_or_make_id,
    check_roles,
    is_id,
)
from tenure.services.paging import ROWS_MAX
from tenure.shapes.identity import ApiClient
from tenure.shapes.pages import Page
from tenure.store.identity import ChangeResult, save_rows
from tenure.store.port import Query, Transaction

_List = list  # `Clients.list` hides the builtin in annotations of the class


class Clients(IdentityService):
    """The clients of a scope's tenant; `services.identity.changes` has the laws."""

    async def list(self) -> _List[ApiClient]:
        """The clients, newest first, including closed ones."""
        return (await self.page(ROWS_MAX)).items

    async def page(self, limit: int, cursor: str | None = None) -> Page[ApiClient]:
        return await self._page("clients_before", show_client, limit, cursor)

    async def get(self, client: str) -> ApiClient:
        return show_client(await self._find("client_named", client, client_not_found(client)))

    async def create(
        self, *, name: str, roles: Collection[str], owner: str | None = None, client: str | None = None
    ) -> ApiClient:
        """Create a client. `owner` is the person who is responsible for it; by default the person who creates it."""
        chosen = check_or_make_id(client, "cli_")
        values = (check_name(name), check_roles(roles))

        def make(now: int) -> Transaction[ChangeResult[ClientRow]]:
            scope = self._scope
            yield from self._check_tenant_open()
            yield from self._check_id_free(chosen)
            answers = yield from self._owner(owner)
            row = ClientRow(scope.tenant, chosen, *values, answers, now, unconfirmed=scope.admin_actor.people)
            yield from save_rows(row)
            return row, [
                self._entry("client.created", client=chosen, roles=split_list(row.roles), owner=answers)
            ]

        return show_client(await self._change(make))

    async def update(
        self, client: str, *, name: str, roles: Collection[str], owner: str | None = None
    ) -> ApiClient:
        """Replace a client's name, roles and owner."""
        values = (check_name(name), check_roles(roles))

        def make(_now: int) -> Transaction[ChangeResult[ClientRow]]:
            before = yield from self._client(client, is_open=True)
            if before.roles != values[1]:
                yield from self._check_other(f"client:{client}")
            answers = owner
            if owner is None or owner != before.owner:
                answers = yield from self._owner(owner)
            row = msgspec.structs.replace(
                before, name=values[0], roles=values[1], owner=answers, revision=before.revision + 1
            )
            if (row.roles, row.owner) != (before.roles, before.owner):
                involved = join_people(before.unconfirmed, self._scope.admin_actor.people)
                row = msgspec.structs.replace(row, unconfirmed=involved)
            yield from save_rows(row)
            return row, [
                self._entry("client.changed", client=client, roles=split_list(row.roles), owner=answers)
            ]

        return show_client(await self._change(make))

    async def close(self, client: str) -> ApiClient:
        """Close a client permanently: its keys stop working."""

        def make(now: int) -> Transaction[ChangeResult[ClientRow]]:
            row = yield from self._client(client)
            if row.closed_at is not None:
                return row, []
            row = msgspec.structs.replace(row, closed_at=now)
            yield from save_rows(row)
            return row, [self._entry("client.closed", client=client)]

        return show_client(await self._change(make))

    def _owner(self, owner: str | None) -> Transaction[str | None]:
        """The owner of a client. By default it is the person who makes the request, so that nobody approves what their own client
        requested."""
        tenant = self._scope.tenant
        if owner is None:
            kind, _, caller = self._scope.admin_actor.actor.partition(":")
            if kind == "client":
                makers = yield Query("client_named", scalars=(tenant, caller))
                return makers[0].owner if makers else None
            return caller if kind == "person" else None
        found = (yield Query("person_named", scalars=(tenant, owner))) if is_id(owner) else []
        if not found or found[0].closed_at is not None:
            raise field_error("owner", f"there is no person {owner[:64]!r}")
        return owner
