"""What the services for clients, people, keys and tenants share.

Laws:
1. A change is checked, written and added to the tenant's audit chain in one transaction (`Identity.change`). A refused change writes
   nothing.
2. Nobody can change their own roles, groups or GitHub login: not with their own key, not through a client of theirs, and not through a
   person who is linked with them.
3. A closed client, person or tenant can make no further requests. Its history stays readable, and its id is never used again.
4. An administrator who creates, enrols or promotes a person is linked with that person. An administrator who creates or changes a client
   or a key is involved in what is requested with it. Both end when a second administrator confirms the change
   (`store.confirmations`). Changes of people by the installation's operator or the owner of the database need no confirmation, and their
   entry in the audit chain is marked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tenure.errors import TenureError, field_error
from tenure.kernel.identity_rows import ClientRow, PersonRow
from tenure.services.identity.validation import already_exists, is_id
from tenure.services.paging import NEWEST_CREATED, CreationPlace, Place, created_place, read_page
from tenure.services.scope import Service
from tenure.shapes.pages import Page
from tenure.store.confirmations import load_ties
from tenure.store.identity import AdminChange, ChangeResult, Identity, tenant_not_found
from tenure.store.port import Query, Transaction

T = TypeVar("T")
V = TypeVar("V")


class IdentityService(Service):
    """The base of the identity services; see the laws above."""

    @property
    def _identity(self) -> Identity:
        return Identity(self._scope.store)

    async def _change(
        self, make: Callable[[int], Transaction[ChangeResult[T]]], tenant: str | None = None
    ) -> T:
        self._scope.orchestrator  # noqa: B018 - refuses if the engine was opened for reading only
        return await self._identity.change(self._scope.tenant if tenant is None else tenant, make)

    async def _find(self, query: str, name: str, missing: TenureError) -> Any:
        found = await self._scope.store.read(query, self._scope.tenant, name) if is_id(name) else []
        if not found:
            raise missing
        return found[0]

    async def _page(
        self,
        query: str,
        show: Callable[[Any], V],
        limit: int,
        cursor: str | None,
        *,
        first: tuple[str, ...] | None = None,
        last: tuple[str, ...] = (),
    ) -> Page[V]:
        """A page of a `_before` query. `first` and `last` are its arguments before and after the place and the limit."""
        scope = self._scope
        before = (scope.tenant,) if first is None else first

        async def read(place: Place, count: int) -> list[Any]:
            return await scope.store.read(query, *before, *place, count, *last)

        return await read_page(
            (scope.tenant, query, last),
            CreationPlace,
            NEWEST_CREATED,
            read,
            created_place,
            show,
            limit=limit,
            cursor=cursor,
        )

    # ----------------------------------------------------------------------------- entries of the audit chain

    def _entry(self, kind: str, **about: Any) -> AdminChange:
        actor = self._scope.admin_actor.actor
        return AdminChange(tenant=self._scope.tenant, kind=kind, actor=actor, about=about)

    def _break_glass(self) -> dict[str, Any]:
        return {"break_glass": True} if self._scope.admin_actor.breaks_glass else {}

    def _vouchers(self) -> str:
        """Who becomes linked with a person that this scope changes (law 4)."""
        by = self._scope.admin_actor
        return "" if by.breaks_glass else by.people

    # ------------------------------------------------------------------------------ checks within a transaction

    def _check_other(self, whose: str) -> Transaction[None]:
        """Refuse callers who change themselves (law 2)."""
        by, ties = self._scope.admin_actor, (yield from load_ties(self._scope.tenant))
        if whose in ties.linked_with(by.actor, *by.people.split()):
            raise TenureError(
                "FORBIDDEN", "nobody can change their own roles, groups or GitHub login: ask another admin"
            )

    def _check_tenant_open(self) -> Transaction[None]:
        tenant = self._scope.tenant
        found = yield Query("tenant_named", scalars=(tenant,))
        if not found:
            raise tenant_not_found(tenant)
        if found[0].closed_at is not None:
            raise field_error("tenant", "the tenant is closed")

    def _check_id_free(self, chosen: str) -> Transaction[None]:
        """Refuse an id that is in use. Clients and people share their ids."""
        for kind in ("client", "person"):
            if (yield Query(f"{kind}_named", scalars=(self._scope.tenant, chosen))):
                raise already_exists(kind, chosen)

    def _client(
        self, client: str, *, is_open: bool = False, field: str | None = None
    ) -> Transaction[ClientRow]:
        """The client. If a `field` of the body names it, a missing client is INVALID_INPUT."""
        missing = client_not_found(client)
        found: ClientRow = yield from self._named(
            "client", client, missing if field is None else field_error(field, missing.message)
        )
        if is_open and found.closed_at is not None:
            raise field_error(field or "client_id", "the client is closed")
        return found

    def _person(self, person: str, *, is_open: bool = False) -> Transaction[PersonRow]:
        found: PersonRow = yield from self._named("person", person, person_not_found(person))
        if is_open and found.closed_at is not None:
            raise field_error("person_id", "the person is closed")
        return found

    def _named(self, kind: str, name: str, missing: TenureError) -> Transaction[Any]:
        known = (yield Query(f"{kind}_named", scalars=(self._scope.tenant, name))) if is_id(name) else []
        if not known:
            raise missing
        return known[0]


def client_not_found(client: str) -> TenureError:
    return TenureError("CLIENT_NOT_FOUND", f"there is no client {client[:64]!r}")


def person_not_found(person: str) -> TenureError:
    return TenureError("PERSON_NOT_FOUND", f"there is no person {person[:64]!r}")
