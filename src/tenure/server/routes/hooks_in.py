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
from tenure.kernel.service import Hook, Person, SlackApp, Tenant
from tenure.server.call import Call
from tenure.server.hooks import signatures, told
from tenure.server.hooks.intake import HookSettings, Received
from tenure.server.identity.principals import Principal
from tenure.server.routes.hooks import answered
from tenure.server.runs.deciding import Decision, decide, question
from tenure.server.work import LARGE_BYTES, run_aside
from tenure.store.deliveries import SOURCES, request_of
from tenure.store.keys import Held, Request

T = TypeVar("T")
log = structlog.get_logger(__name__)

_ANSWERS = {
    200: ResponseSpec(
        Received, description="A repeat, with its run; or nothing was to be done, or it failed"
    ),
    202: ResponseSpec(Received, description="It is taken down, and its run is being made"),
}
_DECISIONS = {"tenure.approve": "approve", "tenure.reject": "reject"}


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What Slack shows, to the person who typed or clicked only."""

    response_type: str = "ephemeral"
    text: str
    replace_original: bool = False


async def _verified(request: Call, kind: str, hook_id: str) -> tuple[Hook, dict[str, str], bytes]:
    """The hook, the headers and the bytes of a request whose signature fits (laws 1 and 2)."""
    hook = await request.service.intake.deliveries.hook(hook_id)
    if hook is None or hook.disabled or hook.kind != kind:
        raise TenureError("HOOK_NOT_FOUND")
    tenants: list[Tenant] = await request.service.identity.read("tenant_named", hook.tenant)
    if not tenants or tenants[0].closed_at is not None:
        raise TenureError("HOOK_NOT_FOUND")
    body = await request.body()
    headers = {name.lower(): value for name, value in request.headers.items()}
    secrets = _secrets(request, hook)
    if kind == "github":
        await _aside(body, signatures.github, headers, body, secrets)
    else:
        now: int = (await request.service.engine.store.read("now"))[0].now_us
        check = signatures.slack if kind == "slack" else signatures.standard
        await _aside(body, check, headers, body, secrets, now)
    return hook, headers, body


async def _aside(body: bytes, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What a function answers; of a large body in a thread."""
    if len(body) > LARGE_BYTES:
        return await run_aside(function, *args, **kwargs)
    return function(*args, **kwargs)


def _secrets(request: Call, hook: Hook) -> list[bytes]:
    """The hook's secrets that can be read here; a sender is not told which cannot, the log is."""
    return _read(request, hook, hook.secrets)


def _read(request: Call, hook: Hook, references: str) -> list[bytes]:
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
async def from_github(request: Call, hook_id: FromPath[str]) -> Response[Received]:
    """201 with the run; 202 while it is being made; 200 for a ping, a repeat, and what no rule fits."""
    hook, headers, body = await _verified(request, "github", hook_id)
    settings = msgspec.json.decode(hook.settings, type=HookSettings)
    read = await _aside(body, told.github, headers, body, by_letter=settings.same_pr_within_5s)
    if read.event == "ping":
        return answered(Received(delivery=read.id, status="ignored", note="pong")).response()
    return answered(await request.service.intake.receive(hook, read)).response()


@post(
    "/hooks/generic/{hook_id:str}",
    summary="A Standard Webhook or a CloudEvent",
    status_code=201,
    responses=_ANSWERS,
)
async def from_anyone(request: Call, hook_id: FromPath[str]) -> Response[Received]:
    """Signed as Standard Webhooks are; a CloudEvent may come as JSON or in `ce-` headers. Answers as for GitHub."""
    hook, headers, body = await _verified(request, "generic", hook_id)
    read = await _aside(body, told.generic, hook.id, headers, body)
    if read.signed is not None:
        await _one_event(request, hook, read, read.signed)
    return answered(await request.service.intake.receive(hook, read)).response()


async def _one_event(request: Call, hook: Hook, read: told.Told, signed: str) -> None:
    """Refuse a second event for one signed message: the headers that say which event it is are not signed, so whoever has
    seen a message could send it again as another (law 2)."""
    keys, which = request.service.keys, sha256(f"{read.key} {read.event}".encode()).digest()
    wanted = Request(tenant=hook.tenant, source=SOURCES[hook.kind], name=signed, hash=which)
    held = await keys.begin(wanted)
    if isinstance(held, Held):
        await keys.complete(held, wanted, b"200\n{}", None)
    elif held.request_hash != which:
        raise TenureError("SIGNATURE_INVALID")


# --------------------------------------------------------------------------------------------------- Slack


@post("/hooks/slack/{hook_id:str}/commands", summary="A command typed in Slack", status_code=200)
async def slack_command(request: Call, hook_id: FromPath[str]) -> Message:
    """`/command link` hands out a code by which a person links this account; anything else goes by the hook's rules."""
    hook, headers, body = await _verified(request, "slack", hook_id)
    fields = await _aside(body, told.form, body)
    if "ssl_check" in fields:
        return Message(text="fine")
    read = await _aside(body, told.slack_command, headers, body)
    team, user = fields.get("team_id", ""), fields.get("user_id", "")
    if fields.get("text", "").strip().lower() == "link":
        if not await _first_time(request, hook, read):
            return Message(text="That was answered already; type it again.")
        try:
            await _check_app(request, hook, headers, body, team)
        except TenureError as refused:
            return _refused(refused)
        return await _link(request, hook, team, user)
    if msgspec.json.decode(hook.settings, type=HookSettings).linked_only:
        person = await request.service.identity.by_slack(hook.tenant, team, user)
        if person is None:
            return _not_linked(read.event)
    received = await request.service.intake.receive(hook, read)
    text, account = _told_of(read.event, received), told.slack_account(fields)
    if received.run_id and not await request.service.identity.links_of(hook.tenant, account):
        text += f"\nNobody can approve this run: this Slack account is not linked. Link it (`{read.event} link`), then start a new run."
    return Message(text=text)


async def _first_time(request: Call, hook: Hook, read: told.Told) -> bool:
    """Whether this very request came for the first time; nothing of what it is answered is kept."""
    keys, wanted = request.service.keys, request_of("slack", read.delivery(hook.id, hook.tenant))
    held = await keys.begin(wanted)
    if isinstance(held, Held):
        await keys.complete(held, wanted, b"200\n{}", None)
    return isinstance(held, Held)


async def _link(request: Call, hook: Hook, team: str, user: str) -> Message:
    if not team or not user:
        raise told.malformed("`team_id` or `user_id` is missing")
    code = await request.service.identity.slack_code(hook.tenant, team, user)
    return Message(
        text=f"Your code is {code}. Sign in to Tenure as yourself and send it with `PUT /me/slack`;"
        " it works once, and not for long."
    )


def _not_linked(command: str) -> Message:
    return Message(
        text=f"This Slack account is not linked to a person in Tenure. Type `{command} link` to get a code, then"
        " send it with `PUT /me/slack` while signed in."
    )


def _told_of(command: str, received: Received) -> str:
    if received.run_id is not None:
        return f"{'Already started' if received.duplicate else 'Started'}: {received.run_id}"
    return {
        "received": f"{command} was received; its run starts in a moment.",
        "ignored": f"Nothing here answers to that {command}.",
    }.get(received.status, f"{command} could not be carried out: {received.note}")


@post("/hooks/slack/{hook_id:str}/actions", summary="A click in Slack", status_code=200)
async def slack_action(request: Call, hook_id: FromPath[str]) -> Message:
    """The buttons `tenure.approve` and `tenure.reject`, with the value `{approval id}:{revision}:{digest}`."""
    hook, headers, body = await _verified(request, "slack", hook_id)
    read, said = await _aside(body, told.slack_action, headers, body)
    if not await _first_time(request, hook, read):
        return Message(text="That click was answered already.")
    actions = said.get("actions")
    clicked = actions[0] if isinstance(actions, list) and actions else None
    name = clicked.get("action_id") if isinstance(clicked, dict) else None
    if not isinstance(clicked, dict) or name not in _DECISIONS:
        return Message(text="Nothing here answers to that.")
    try:
        await _check_app(request, hook, headers, body, _id(said, "team"))
        person = await request.service.identity.by_slack(hook.tenant, _id(said, "team"), _id(said, "user"))
        if person is None:
            return _not_linked("/tenure")
        return Message(text=await _decided(request, person, _DECISIONS[name], clicked.get("value")))
    except TenureError as refused:
        return _refused(refused)


def _refused(refused: TenureError) -> Message:
    """Law 3."""
    if refused.spec.status >= 500:
        raise refused
    return Message(text=f"{refused.code}: {refused.message.rstrip('.')}. {refused.spec.remedy}")


async def _check_app(request: Call, hook: Hook, headers: dict[str, str], body: bytes, team: str) -> None:
    """Refuse what no registered app of this team has signed (law 6)."""
    apps: list[SlackApp] = await request.service.identity.read("slack_app_of", hook.tenant, team)
    if apps:
        now: int = (await request.service.engine.store.read("now"))[0].now_us
        try:
            signatures.slack(headers, body, _read(request, hook, apps[0].secrets), now)
        except TenureError as refused:
            if refused.code != "SIGNATURE_INVALID":
                raise
        else:
            return
    raise TenureError("SLACK_APP_NOT_REGISTERED", f"no registered app of team {team[:64]!r} has signed this")


def _id(said: dict[str, Any], word: str) -> str:
    value = said.get(word)
    return str(value.get("id", "")) if isinstance(value, dict) else ""


async def _decided(request: Call, person: Person, decision: str, value: Any) -> str:
    """Decide as a person (law 5). The approval's revision and digest are those of the message that was clicked."""
    parts = value.rsplit(":", 2) if isinstance(value, str) else []
    if len(parts) != 3 or not parts[1].isdecimal() or len(parts[1]) > 9:
        raise told.malformed("the button's value is not {approval id}:{revision}:{digest}")
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
    row = await question(request, parts[0])
    answer = msgspec.convert(
        {"decision": decision, "revision": int(parts[1]), "digest": parts[2] or None}, Decision
    )
    decided = await decide(request, row, answer)
    again = " You had said so before." if decided.again else ""
    return f"{parts[0]} is {decided.status}.{again}"


HANDLERS = [from_github, from_anyone, slack_command, slack_action]
