"""Incoming hooks: created and changed by admins, with the deliveries they have received."""

from __future__ import annotations

import re
import secrets as chance
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from tenure.errors import Detail, TenureError
from tenure.kernel.separation_of_duties import join_people
from tenure.kernel.server_rows import HookRow
from tenure.limits import NAME_CHARS_MAX
from tenure.secrets import Secrets
from tenure.services.hooks.events import (
    EVENT_ID,
    EVENT_ID_PARTS_MAX,
    show_delivery,
    show_hook,
    summarize_delivery,
)
from tenure.services.hooks.intake import HookIntake
from tenure.services.hooks.rules import find_problems
from tenure.services.identity.ownership import resolve_owner
from tenure.services.paging import NEWEST_CREATED, ROWS_MAX, CreationPlace, Place, created_place, read_page
from tenure.services.scope import Service
from tenure.shapes.hooks import (
    Delivery,
    DeliveryListItem,
    DeliveryStatus,
    Hook,
    HookKind,
    HookRule,
    HookSettings,
)
from tenure.shapes.pages import Page
from tenure.store.hook_deliveries import HookDeliveries
from tenure.store.identity import AdminChange, Identity
from tenure.work_pool import run_in_pool

V = TypeVar("V")
SECRETS_MAX = 2
REPLAY_SECONDS = 300.0
"""How long a replay without a server waits for its outcome. The delivery is locked for about as long."""
_HEADER = re.compile(r"[a-z0-9-]{1,100}")
_CHANNEL = re.compile(r"[CGD][A-Z0-9]{2,30}")
_List = list  # `Hooks.list` hides the builtin in annotations of the class
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class HookFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a hook."""

    name: Name
    secrets: list[str]
    """References to one secret, or during a rotation to two, the newest first: `env:NAME` or `file:/PATH`."""
    rules: list[HookRule] = []
    """The first rule that matches decides what a delivery does."""
    workspace: Name = "default"
    owner: Name | None = None
    """The id of the person who requests its runs; by default the creator of the hook."""
    settings: HookSettings = HookSettings()
    disabled: bool = False


class Hooks(Service):
    """The hooks of a scope's tenant. Only the callers of a server create and change hooks."""

    @property
    def _deliveries(self) -> HookDeliveries:
        return HookDeliveries(self._scope.store)

    def _entry(self, what: str, hook_id: str, **about: Any) -> AdminChange:
        scope, about = self._scope, {"hook": hook_id, **about}
        actor = scope.admin_actor.actor
        return AdminChange(tenant=scope.tenant, kind=f"hook.{what}", actor=actor, about=about)

    async def list(self) -> _List[Hook]:
        """The hooks, newest first."""
        return (await self.page(ROWS_MAX)).items

    async def page(self, limit: int, cursor: str | None = None) -> Page[Hook]:
        tenant = self._scope.tenant
        return await self._page("hooks", "hooks_of", tenant, created_place, show_hook, limit, cursor)

    async def _page(
        self,
        listed: str,
        query: str,
        of: str,
        place: Callable[[Any], _List[Any]],
        show: Callable[[Any], V],
        limit: int,
        cursor: str | None,
    ) -> Page[V]:
        async def read(before: Place, count: int) -> _List[Any]:
            return await self._scope.store.read(query, of, *before, count)

        bound_to = (self._scope.tenant, listed, None)
        return await read_page(
            bound_to, CreationPlace, NEWEST_CREATED, read, place, show, limit=limit, cursor=cursor
        )

    async def _find(self, hook_id: str) -> HookRow:
        hook, scope = await self._deliveries.hook(hook_id), self._scope
        if hook is None or hook.tenant != scope.tenant:
            if scope.caller is None:
                raise TenureError(
                    "HOOK_NOT_FOUND", f"there is no hook {hook_id!r} of tenant {scope.tenant!r}"
                )
            raise TenureError("HOOK_NOT_FOUND")
        return hook

    async def get(self, hook_id: str) -> Hook:
        return show_hook(await self._find(hook_id))

    async def create(self, kind: HookKind, fields: HookFields, secrets: Secrets) -> Hook:
        """`secrets` are those of the server, which the fields refer to."""
        hook = HookRow(
            id=f"hk_{chance.token_hex(20)}",
            tenant=self._scope.tenant,
            kind=kind,
            created_at=0,
            updated_at=0,
            unconfirmed=self._scope.admin_actor.people,
            **await self._check(kind, fields, secrets),
        )
        entry = self._entry("created", hook.id, kind=hook.kind, owner=hook.owner)
        return show_hook(await self._deliveries.put_hook(hook, entry))

    async def update(self, hook_id: str, revision: int, fields: HookFields, secrets: Secrets) -> Hook:
        """Replace the fields of a hook, if it still has this revision."""
        old = await self._find(hook_id)
        if revision != old.revision:
            raise TenureError("CHANGED_MEANWHILE", f"the hook now has revision {old.revision}")
        columns = await self._check(old.kind, fields, secrets)
        if fields.owner is None:  # the editor does not become the owner
            columns["owner"] = old.owner
        editors = join_people(old.unconfirmed, self._scope.admin_actor.people)
        hook = msgspec.structs.replace(old, revision=old.revision + 1, unconfirmed=editors, **columns)
        changed = sorted(name for name in columns if getattr(old, name) != getattr(hook, name))
        entry = self._entry("changed", hook_id, changed=changed, owner=hook.owner)
        return show_hook(await self._deliveries.put_hook(hook, entry))

    async def delete(self, hook_id: str) -> None:
        """Delete a hook with its deliveries. Its runs stay."""
        hook = await self._find(hook_id)
        await self._deliveries.drop_hook(hook.tenant, hook.id, self._entry("deleted", hook.id))

    # -------------------------------------------------------------------------------------- deliveries

    async def deliveries(
        self, hook_id: str, *, set_aside: bool = False, limit: int = 50
    ) -> _List[DeliveryListItem]:
        """The newest deliveries of a hook. `set_aside`: only those that failed too often."""
        status: Literal["set_aside"] | None = "set_aside" if set_aside else None
        return (await self.page_of_deliveries(hook_id, status, limit)).items

    async def page_of_deliveries(
        self, hook_id: str, status: Literal["set_aside"] | None, limit: int, cursor: str | None = None
    ) -> Page[DeliveryListItem]:
        """A page of the deliveries of a hook, newest first."""
        hook = await self._find(hook_id)
        return await self._page(
            f"deliveries/{hook_id}/{status or ''}",
            "deliveries_of" if status is None else "deliveries_set_aside",
            hook.id,
            lambda row: [row.received_at, row.id],
            summarize_delivery,
            limit,
            cursor,
        )

    async def delivery(self, hook_id: str, delivery_id: str) -> Delivery:
        """A delivery with its headers and body."""
        hook = await self._find(hook_id)
        row = await self._deliveries.get(hook.id, delivery_id)
        if row is None:
            if self._scope.caller is None:
                raise TenureError("DELIVERY_NOT_FOUND", f"hook {hook_id} has no delivery {delivery_id!r}")
            raise TenureError("DELIVERY_NOT_FOUND")
        return show_delivery(hook, row)

    async def replay(self, hook_id: str, delivery_id: str) -> DeliveryStatus:
        """Carry out a delivery again, by the current rules of its hook. Whoever asks for it is involved in its run: the caller of a
        server, else the account that owns the database."""
        hook, runtime = await self._find(hook_id), self._scope.runtime
        intake = runtime.hook_intake or HookIntake(
            runtime, Identity(runtime.store), None, answer_seconds=REPLAY_SECONDS
        )
        entry = self._entry("replayed", hook.id)
        return await intake.replay(hook, delivery_id, entry, by=self._scope.admin_actor.people)

    # ------------------------------------------------------------------------------------------ checks

    async def _check(self, kind: str, fields: HookFields, secrets: Secrets) -> dict[str, Any]:
        """The columns of a hook, or all that is wrong with it. A text that is not a reference may be the secret itself, so messages do
        not repeat it."""
        found = await run_in_pool(find_problems, kind, fields.rules)
        if not 1 <= len(fields.secrets) <= SECRETS_MAX:
            found.append(Detail("secrets", f"must have one reference, or {SECRETS_MAX} during a rotation"))
        references = {f"secrets[{at}]": one for at, one in enumerate(fields.secrets)}
        found += self._reference_problems(references, secrets)
        found += self._card_problems(fields.settings, secrets)
        found += _call_problems(kind, fields.settings)
        found += [
            Detail(name, "must consist of printable characters")
            for name in ("name", "workspace")
            if not getattr(fields, name).isprintable()
        ]
        if found:
            raise TenureError("INVALID_INPUT", f"{found[0].path}: {found[0].problem}", tuple(found[:50]))
        return {
            "name": fields.name,
            "secrets": msgspec.json.encode(fields.secrets).decode(),
            "rules": msgspec.json.encode(fields.rules).decode(),
            "workspace": fields.workspace,
            "owner": await resolve_owner(self._scope, fields.owner),
            "settings": msgspec.json.encode(fields.settings).decode(),
            "disabled": fields.disabled,
        }

    def _reference_problems(self, references: dict[str, str], secrets: Secrets) -> _List[Detail]:
        return [
            Detail(path, problem)
            for path, reference in references.items()
            if (problem := secrets.problem(reference, self._scope.tenant))
        ]

    def _card_problems(self, settings: HookSettings, secrets: Secrets) -> _List[Detail]:
        found = []
        if (settings.channel is None) != (settings.token is None):
            found.append(Detail("settings.channel", "must be set together with settings.token"))
        if settings.channel is not None and _CHANNEL.fullmatch(settings.channel) is None:
            found.append(Detail("settings.channel", "must be the id of a channel, such as C0123456789"))
        if settings.token is not None:
            found += self._reference_problems({"settings.token": settings.token}, secrets)
        return found


def _call_problems(kind: str, settings: HookSettings) -> list[Detail]:
    """What is wrong with the settings of ServiceNow's calls."""
    if kind != "servicenow":
        given = [name for name in ("secret_header", "event_id") if getattr(settings, name)]
        return [Detail(f"settings.{name}", "is only for hooks of the kind servicenow") for name in given]
    found = []
    header = settings.secret_header
    if header is not None and (_HEADER.fullmatch(header) is None or header in ("authorization", "cookie")):
        found.append(
            Detail(
                "settings.secret_header",
                "must be the name of a header in lower case, such as x-tenure-secret",
            )
        )
    if not 1 <= len(settings.event_id) <= EVENT_ID_PARTS_MAX:
        found.append(
            Detail(
                "settings.event_id", f"must have 1 to {EVENT_ID_PARTS_MAX} places: header:NAME or body:FIELD"
            )
        )
    for at, place in enumerate(settings.event_id[:EVENT_ID_PARTS_MAX]):
        path = f"settings.event_id[{at}]"
        if EVENT_ID.fullmatch(place) is None:
            found.append(
                Detail(path, "must be header:NAME in lower case, or body:FIELD such as body:record.sys_id")
            )
        elif place in (f"header:{header}", "header:authorization", "header:cookie"):
            found.append(
                Detail(path, "must not be a header that holds a secret, because event ids are stored")
            )
    return found
