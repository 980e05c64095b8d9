"""What others tell us: GitHub, Slack, and whoever speaks Standard Webhooks.

Laws:
1. A hook's id names the tenant; one that is unknown, disabled or of a closed tenant is the same 404.
2. The bytes are verified before they are parsed, and nothing is written down of those that fail (I34).
3. Slack is always answered with a message: only a signature that fails, and what cannot be read, is an error.
4. What Slack has signed counts once: a command by the key of its delivery, a link and a click by the same key.
5. A click decides as the person who has linked that Slack account, with the same refusals as over HTTP.
6. Whose account it is, is believed only of an app that the installation's operator has registered for that team: what links an
   account or decides is signed with that app's secret. Whoever makes a hook may know its secret, and nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import structlog
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath

from tenure.errors import TenureError
from tenure.kernel.identity_rows import PersonRow, SlackAppRow, TenantRow
from tenure.kernel.server_rows import HookRow
from tenure.server.idempotency import to_response
from tenure.server.request import ApiRequest
from tenure.server.routes.hooks import delivery_response
from tenure.services.approvals import DecisionRequest
from tenure.services.hooks import events, signatures
from tenure.services.hooks.intake import DeliveryStatus
from tenure.services.identity.principals import Principal
from tenure.shapes.hooks import HookSettings
from tenure.store.hook_deliveries import KEY_SOURCES, build_keyed_request
from tenure.store.idempotency import HeldRecord, KeyedRequest
from tenure.work_pool import LARGE_BYTES, run_in_thread

T = TypeVar("T")
log = structlog.get_logger(__name__)

_ANSWERS = {
    200: ResponseSpec(
        DeliveryStatus, description="A repeat, with its run; or nothing was to be done, or it failed"
    ),
    202: ResponseSpec(DeliveryStatus, description="It is taken down, and its run is being made"),
}
_DECISIONS = {"tenure.approve": "approve", "tenure.reject": "reject"}


class SlackReply(msgspec.Struct, frozen=True, kw_only=True):
    """What Slack shows, to the person who typed or clicked only."""

    response_type: str = "ephemeral"
    text: str
    replace_original: bool = False


async def _verified(request: ApiRequest, kind: str, hook_id: str) -> tuple[HookRow, dict[str, str], bytes]:
    """The hook, the headers and the bytes of a request whose signature fits (laws 1 and 2)."""
    hook = await request.service.intake.deliveries.hook(hook_id)
    if hook is None or hook.disabled or hook.kind != kind:
        raise TenureError("HOOK_NOT_FOUND")
    tenants: list[TenantRow] = await request.service.identity.read("tenant_named", hook.tenant)
    if not tenants or tenants[0].closed_at is not None:
        raise TenureError("HOOK_NOT_FOUND")
    body = await request.body()
    headers = {name.lower(): value for name, value in request.headers.items()}
    secrets = _secrets(request, hook)
    if kind == "github":
        await _aside(body, signatures.verify_github, headers, body, secrets)
    else:
        now: int = (await request.service.engine.store.read("now"))[0].now_us
        check = signatures.verify_slack if kind == "slack" else signatures.verify_standard
        await _aside(body, check, headers, body, secrets, now)
    return hook, headers, body


async def _aside(body: bytes, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What a function answers; of a large body in a thread."""
    if len(body) > LARGE_BYTES:
        return await run_in_thread(function, *args, **kwargs)
    return function(*args, **kwargs)


def _secrets(request: ApiRequest, hook: HookRow) -> list[bytes]:
    """The hook's secrets that can be read here; a sender is not told which cannot, the log is."""
    return _read(request, hook, hook.secrets)


def _read(request: ApiRequest, hook: HookRow, references: str) -> list[bytes]:
    found = []
    for reference in msgspec.json.decode(references, type=list[str]):
        try:
            found.append(request.service.secrets.resolve(reference, hook.tenant))
        except TenureError as lost:
            log.error("hook_secret_unavailable", hook=hook.id, tenant=hook.tenant, message=lost.message)
    if not found:
        raise TenureError("SECRET_UNAVAILABLE", "this hook's secret cannot be read here")
    return found


@post("/hooks/github/{hook_id:str}", summary="GitHub tells of an event", status_code=201, responses=_ANSWERS)
async def receive_github(request: ApiRequest, hook_id: FromPath[str]) -> Response[DeliveryStatus]:
    """201 with the run; 202 while it is being made; 200 for a ping, a repeat, and what no rule fits."""
    hook, headers, body = await _verified(request, "github", hook_id)
    settings = msgspec.json.decode(hook.settings, type=HookSettings)
    read = await _aside(body, events.parse_github, headers, body, by_letter=settings.same_pr_within_5s)
    if read.event == "ping":
        return to_response(delivery_response(DeliveryStatus(delivery=read.id, status="ignored", note="pong")))
    return to_response(delivery_response(await request.service.intake.receive(hook, read)))


@post(
    "/hooks/generic/{hook_id:str}",
    summary="A Standard Webhook or a CloudEvent",
    status_code=201,
    responses=_ANSWERS,
)
async def receive_generic(request: ApiRequest, hook_id: FromPath[str]) -> Response[DeliveryStatus]:
    """Signed as Standard Webhooks are; a CloudEvent may come as JSON or in `ce-` headers. Answers as for GitHub."""
    hook, headers, body = await _verified(request, "generic", hook_id)
    read = await _aside(body, events.parse_generic, hook.id, headers, body)
    if read.signed is not None:
        await _one_event(request, hook, read, read.signed)
    return to_response(delivery_response(await request.service.intake.receive(hook, read)))


async def _one_event(request: ApiRequest, hook: HookRow, read: events.HookEvent, signed: str) -> None:
    """Refuse a second event for one signed message: the headers that say which event it is are not signed, so whoever has
    seen a message could send it again as another (law 2)."""
    keys, which = request.service.keys, sha256(f"{read.key} {read.event}".encode()).digest()
    wanted = KeyedRequest(tenant=hook.tenant, source=KEY_SOURCES[hook.kind], name=signed, hash=which)
    held = await keys.begin(wanted)
    if isinstance(held, HeldRecord):
        await keys.complete(held, wanted, b"200\n{}", None)
    elif held.request_hash != which:
        raise TenureError("SIGNATURE_INVALID")


# --------------------------------------------------------------------------------------------------- Slack


@post("/hooks/slack/{hook_id:str}/commands", summary="A command typed in Slack", status_code=200)
async def receive_slack_command(request: ApiRequest, hook_id: FromPath[str]) -> SlackReply:
    """`/command link` hands out a code by which a person links this account; anything else goes by the hook's rules."""
    hook, headers, body = await _verified(request, "slack", hook_id)
    fields = await _aside(body, events.decode_form, body)
    if "ssl_check" in fields:
        return SlackReply(text="fine")
    read = await _aside(body, events.parse_slack_command, headers, body)
    team, user = fields.get("team_id", ""), fields.get("user_id", "")
    if fields.get("text", "").strip().lower() == "link":
        if not await _first_time(request, hook, read):
            return SlackReply(text="That was answered already; type it again.")
        try:
            await _check_app(request, hook, headers, body, team)
        except TenureError as refused:
            return _refused(refused)
        return await _link(request, hook, team, user)
    if msgspec.json.decode(hook.settings, type=HookSettings).linked_only:
        person = await request.service.identity.find_person_by_slack(hook.tenant, team, user)
        if person is None:
            return _not_linked(read.event)
    received = await request.service.intake.receive(hook, read)
    text, account = _told_of(read.event, received), events.slack_account(fields)
    if received.run_id and not await request.service.identity.find_account_links(hook.tenant, account):
        text += f"\nNobody can approve this run: this Slack account is not linked. Link it (`{read.event} link`), then start a new run."
    return SlackReply(text=text)


async def _first_time(request: ApiRequest, hook: HookRow, read: events.HookEvent) -> bool:
    """Whether this very request came for the first time; nothing of what it is answered is kept."""
    keys, wanted = request.service.keys, build_keyed_request("slack", read.delivery(hook.id, hook.tenant))
    held = await keys.begin(wanted)
    if isinstance(held, HeldRecord):
        await keys.complete(held, wanted, b"200\n{}", None)
    return isinstance(held, HeldRecord)


async def _link(request: ApiRequest, hook: HookRow, team: str, user: str) -> SlackReply:
    if not team or not user:
        raise events.malformed_request("`team_id` or `user_id` is missing")
    code = await request.service.identity.slack_code(hook.tenant, team, user)
    return SlackReply(
        text=f"Your code is {code}. Sign in to Tenure as yourself and send it with `PUT /me/slack`;"
        " it works once, and not for long."
    )


def _not_linked(command: str) -> SlackReply:
    return SlackReply(
        text=f"This Slack account is not linked to a person in Tenure. Type `{command} link` to get a code, then"
        " send it with `PUT /me/slack` while signed in."
    )


def _told_of(command: str, received: DeliveryStatus) -> str:
    if received.run_id is not None:
        return f"{'Already started' if received.duplicate else 'Started'}: {received.run_id}"
    return {
        "received": f"{command} was received; its run starts in a moment.",
        "ignored": f"Nothing here answers to that {command}.",
    }.get(received.status, f"{command} could not be carried out: {received.note}")


@post("/hooks/slack/{hook_id:str}/actions", summary="A click in Slack", status_code=200)
async def receive_slack_action(request: ApiRequest, hook_id: FromPath[str]) -> SlackReply:
    """The buttons `tenure.approve` and `tenure.reject`, with the value `{approval id}:{revision}:{digest}`."""
    hook, headers, body = await _verified(request, "slack", hook_id)
    read, said = await _aside(body, events.parse_slack_action, headers, body)
    if not await _first_time(request, hook, read):
        return SlackReply(text="That click was answered already.")
    actions = said.get("actions")
    clicked = actions[0] if isinstance(actions, list) and actions else None
    name = clicked.get("action_id") if isinstance(clicked, dict) else None
    if not isinstance(clicked, dict) or name not in _DECISIONS:
        return SlackReply(text="Nothing here answers to that.")
    try:
        await _check_app(request, hook, headers, body, _id(said, "team"))
        person = await request.service.identity.find_person_by_slack(
            hook.tenant, _id(said, "team"), _id(said, "user")
        )
        if person is None:
            return _not_linked("/tenure")
        return SlackReply(text=await _decided(request, person, _DECISIONS[name], clicked.get("value")))
    except TenureError as refused:
        return _refused(refused)


def _refused(refused: TenureError) -> SlackReply:
    """Law 3."""
    if refused.spec.status >= 500:
        raise refused
    return SlackReply(text=f"{refused.code}: {refused.message.rstrip('.')}. {refused.spec.remedy}")


async def _check_app(
    request: ApiRequest, hook: HookRow, headers: dict[str, str], body: bytes, team: str
) -> None:
    """Refuse what no registered app of this team has signed (law 6)."""
    apps: list[SlackAppRow] = await request.service.identity.read("slack_app_of", hook.tenant, team)
    if apps:
        now: int = (await request.service.engine.store.read("now"))[0].now_us
        try:
            signatures.verify_slack(headers, body, _read(request, hook, apps[0].secrets), now)
        except TenureError as refused:
            if refused.code != "SIGNATURE_INVALID":
                raise
        else:
            return
    raise TenureError("SLACK_APP_NOT_REGISTERED", f"no registered app of team {team[:64]!r} has signed this")


def _id(said: dict[str, Any], word: str) -> str:
    value = said.get(word)
    return str(value.get("id", "")) if isinstance(value, dict) else ""


async def _decided(request: ApiRequest, person: PersonRow, decision: str, value: Any) -> str:
    """Decide as a person (law 5). The approval's revision and digest are those of the message that was clicked."""
    parts = value.rsplit(":", 2) if isinstance(value, str) else []
    if len(parts) != 3 or not parts[1].isdecimal() or len(parts[1]) > 9:
        raise events.malformed_request("the button's value is not {approval id}:{revision}:{digest}")
    roles = frozenset(msgspec.json.decode(person.roles, type=list[str]))
    if "approver" not in roles:
        raise TenureError("FORBIDDEN", "deciding is for: approver")
    request.scope["user"] = Principal(
        kind="person",
        tenant=person.tenant,
        id=person.id,
        roles=roles,
        groups=frozenset(msgspec.json.decode(person.groups, type=list[str])),
        key_id=f"slack:{person.id}",
        unconfirmed=person.unconfirmed,
    )
    row = await request.engine.approvals.find(parts[0])
    answer = msgspec.convert(
        {"decision": decision, "revision": int(parts[1]), "digest": parts[2] or None}, DecisionRequest
    )
    decided = await request.engine.approvals.decide(request.who, row, answer)
    again = " You had said so before." if decided.again else ""
    return f"{parts[0]} is {decided.status}.{again}"


HANDLERS = [receive_github, receive_generic, receive_slack_command, receive_slack_action]
