"""Checks what others send to hooks, before anything of it is carried out.

Laws:
1. A hook's id names the tenant. A hook that is unknown, disabled or of a closed tenant is the same HOOK_NOT_FOUND.
2. A signature is verified over the bytes that were sent, before they are parsed (I34).
3. A signed message of Slack counts once: a command by the key of its delivery, a click by the same key.
4. The person of a Slack account is accepted only from an app that the installation's operator has registered for that team.
   Whoever creates a hook may know the hook's secret, but not the app's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import structlog

from tenure.errors import TenureError
from tenure.kernel.identity_rows import SlackAppRow, TenantRow
from tenure.kernel.server_rows import HookRow
from tenure.secrets import Secrets
from tenure.services.hooks import signatures
from tenure.services.hooks.events import HookEvent
from tenure.services.repositories import Repositories
from tenure.shapes.hooks import HookSettings
from tenure.store.hook_deliveries import KEY_SOURCES, HookDeliveries, build_keyed_request
from tenure.store.idempotency import HeldRecord, KeyedRequest
from tenure.work_pool import LARGE_BYTES, run_in_pool

T = TypeVar("T")
log = structlog.get_logger(__name__)


async def run_sized(body: bytes, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function that reads a body: in a thread if the body is large."""
    if len(body) > LARGE_BYTES:
        return await run_in_pool(function, *args, **kwargs)
    return function(*args, **kwargs)


class HookVerifier:
    def __init__(self, repositories: Repositories, deliveries: HookDeliveries, secrets: Secrets) -> None:
        self._identity, self._keys = repositories.identity, repositories.keys
        self._deliveries = deliveries
        self._secrets = secrets

    async def find_hook(self, kind: str, hook_id: str) -> HookRow:
        """The hook that a request names (law 1)."""
        hook = await self._deliveries.hook(hook_id)
        if hook is None or hook.disabled or hook.kind != kind:
            raise TenureError("HOOK_NOT_FOUND")
        tenants: list[TenantRow] = await self._identity.read("tenant_named", hook.tenant)
        if not tenants or tenants[0].closed_at is not None:
            raise TenureError("HOOK_NOT_FOUND")
        return hook

    async def verify(self, hook: HookRow, headers: Mapping[str, str], body: bytes) -> None:
        """Refuse bytes whose signature is wrong (law 2), and a wrong credential where the sender signs nothing."""
        secrets = self._resolve(hook, hook.secrets)
        if hook.kind == "github":
            await run_sized(body, signatures.verify_github, headers, body, secrets)
        elif hook.kind == "servicenow":
            settings = msgspec.json.decode(hook.settings, type=HookSettings)
            signatures.verify_credential(headers, settings.secret_header, secrets)
        else:
            verify = signatures.verify_slack if hook.kind == "slack" else signatures.verify_standard
            await run_sized(body, verify, headers, body, secrets, await self._now_us())

    async def check_slack_app(
        self, hook: HookRow, headers: Mapping[str, str], body: bytes, team: str
    ) -> None:
        """Refuse what no registered app of this team has signed (law 4)."""
        apps: list[SlackAppRow] = await self._identity.read("slack_app_of", hook.tenant, team)
        if apps:
            now = await self._now_us()
            try:
                signatures.verify_slack(headers, body, self._resolve(hook, apps[0].secrets), now)
            except TenureError as refused:
                if refused.code != "SIGNATURE_INVALID":
                    raise
            else:
                return
        raise TenureError(
            "SLACK_APP_NOT_REGISTERED", f"no registered app of team {team[:64]!r} has signed this"
        )

    async def check_one_event(self, hook: HookRow, event: HookEvent) -> None:
        """Refuse a second event for one signed message. The headers that say which event it is are not signed, so anybody who has seen a
        message could send it again as another event."""
        if event.signed is None:
            return
        digest = sha256(f"{event.key} {event.event}".encode()).digest()
        request = KeyedRequest(
            tenant=hook.tenant, source=KEY_SOURCES[hook.kind], name=event.signed, hash=digest
        )
        found = await self._keys.begin(request)
        if isinstance(found, HeldRecord):
            await self._keys.complete(found, request, b"200\n{}", None)
        elif found.request_hash != digest:
            raise TenureError("SIGNATURE_INVALID")

    async def is_first(self, hook: HookRow, event: HookEvent) -> bool:
        """Whether this Slack request came for the first time (law 3). Its answer is not stored."""
        request = build_keyed_request("slack", event.delivery(hook.id, hook.tenant))
        found = await self._keys.begin(request)
        if isinstance(found, HeldRecord):
            await self._keys.complete(found, request, b"200\n{}", None)
        return isinstance(found, HeldRecord)

    async def _now_us(self) -> int:
        now: int = (await self._identity.read("now"))[0].now_us
        return now

    def _resolve(self, hook: HookRow, references: str) -> list[bytes]:
        """The secrets that can be read here. The log says which cannot; the sender is not told."""
        found = []
        for reference in msgspec.json.decode(references, type=list[str]):
            try:
                found.append(self._secrets.resolve(reference, hook.tenant))
            except TenureError as lost:
                log.error("hook_secret_unavailable", hook=hook.id, tenant=hook.tenant, message=lost.message)
        if not found:
            raise TenureError("SECRET_UNAVAILABLE", "this hook's secret cannot be read here")
        return found
