"""`Site`: a real server on loopback in the test's own event loop, and callers of every kind.

    async with site(url) as s:
        answer = await s.as_("operator").post("/runs", json={...})
        assert answer.status_code == 201

Laws:
1. Tenant `acme` exists from the start. `s.as_("operator")` is a client of `acme` with only that role; `s.person(...)` is a
   person. `tenant=` selects another tenant and creates it if needed.
2. Only the server runs, unless a test starts more. `s.engine` is the server's engine, with its sweeper.
3. When a test succeeds, the doctor examines the whole database, including the audit chains, and must find no violation.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tenure.doctor.examination import examine_database
from tenure.engine import Engine
from tenure.govern.connector import Connector
from tenure.kernel.identity_rows import ApiKeyRow, ClientRow, PersonRow, TenantRow
from tenure.server.context import ServerContext
from tenure.server.http_server import serving
from tenure.server.settings import Settings
from tenure.services.identity.principals import new_id, new_key
from tenure.store.identity import AdminChange, Identity
from tenure.store.policies import PolicyRegistry

ACME = "acme"


class Site:
    """See the laws above."""

    def __init__(self, engine: Engine, service: ServerContext, address: str, stack: AsyncExitStack) -> None:
        self.engine = engine
        self.service = service
        self.address = address
        self.identity = Identity(engine.store)
        self._stack = stack
        self._callers: dict[tuple[str, ...], httpx.AsyncClient] = {}

    async def tenant(self, tenant: str) -> None:
        """Create a tenant if it does not exist."""
        if not await self.engine.store.read("tenant_named", tenant):
            await self.identity.put(TenantRow(tenant, tenant.title(), "{}", 1), _change(tenant))

    async def key(
        self, *roles: str, tenant: str = ACME, person: str | None = None, groups: Iterable[str] = ()
    ) -> str:
        """A key of a new client or of a person, with these roles."""
        await self.tenant(tenant)
        made, listed = new_key(), msgspec.json.encode(sorted(roles)).decode()
        owner: ClientRow | PersonRow
        if person is None:
            owner = ClientRow(tenant, new_id("cli_"), "a client", listed, None, 1)
        else:
            grouped = msgspec.json.encode(sorted(groups)).decode()
            owner = PersonRow(tenant, person, person.title(), listed, grouped, None, None, None, 1)
        key = ApiKeyRow(made.id, tenant, owner.table, owner.id, "test", made.hash, None, "test", 1, None)
        await self.identity.put_all([owner, key], _change(tenant))
        return made.text

    async def operator_key(self) -> str:
        """A key of the installation's operator."""
        made = new_key()
        key = ApiKeyRow(made.id, "", "operator", "operator", "test", made.hash, None, "test", 1, None)
        await self.identity.put(key, _change(""))
        return made.text

    async def caller(self, key: str | None = None) -> httpx.AsyncClient:
        """An HTTP client with this key, or without one."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        client = httpx.AsyncClient(base_url=self.address, headers=headers, timeout=30, verify=False)
        return await self._stack.enter_async_context(client)

    async def as_(self, *roles: str, tenant: str = ACME) -> httpx.AsyncClient:
        """An HTTP client with these roles. The same roles return the same client."""
        which = (tenant, *roles)
        if which not in self._callers:
            self._callers[which] = await self.caller(await self.key(*roles, tenant=tenant))
        return self._callers[which]

    async def person(
        self, name: str, *roles: str, tenant: str = ACME, groups: Iterable[str] = ()
    ) -> httpx.AsyncClient:
        """An HTTP client of a person with these roles (default: approver)."""
        key = await self.key(*(roles or ("approver",)), tenant=tenant, person=name, groups=groups)
        return await self.caller(key)


def _change(tenant: str) -> AdminChange:
    return AdminChange(tenant=tenant, kind="test", actor="test")


@asynccontextmanager
async def site(
    url: str,
    *,
    connectors: Iterable[Connector] = (),
    policy: str | None = None,
    publish: str | None = None,
    queue: str | None = None,
    ci: Path | None = None,
    **settings: Any,
) -> AsyncIterator[Site]:
    """A server on an empty database. With `connectors`, runs can act, under acme's `policy`. Answers to hooks wait for
    their run, even on a busy machine."""
    settings.setdefault("hook_answer_seconds", 60)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            Engine(url, connectors=connectors, publish=publish, queue=queue, ci=ci)
        )
        service, address = await stack.enter_async_context(serving(engine, Settings(port=0, **settings)))
        async with AsyncExitStack() as callers:
            made = Site(engine, service, address, callers)
            await made.tenant(ACME)
            if policy is not None:
                await PolicyRegistry(engine.store, ACME).install(policy)
            yield made
        report = await examine_database(engine.store)
        assert report.clean, report.violations


def problem(answer: httpx.Response) -> str:
    """The code of an error answer. Checks that the body has the standard error shape."""
    body = answer.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"type", "code", "message", "details", "request_id", "retryable"}, body
    assert answer.headers["x-request-id"] == body["error"]["request_id"]
    code: str = body["error"]["code"]
    assert body["error"]["type"] == f"/errors/{code}"
    return code
