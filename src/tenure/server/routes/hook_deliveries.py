"""What others send to hooks: GitHub, Slack, ServiceNow, and senders of Standard Webhooks.

Laws:
1. Nothing is parsed or stored before `services.hooks.verification` has checked its signature.
2. Slack always gets a message as its answer. Only a wrong signature, and what cannot be parsed, is an error.
3. A click decides as the person who has linked that Slack account, with the same refusals as over HTTP.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath

from tenure.errors import TenureError
from tenure.kernel.identity_rows import PersonRow
from tenure.kernel.server_rows import HookRow
from tenure.server.idempotency import to_response
from tenure.server.request import ApiRequest
from tenure.services.approvals import DecisionRequest
from tenure.services.hooks import events
from tenure.services.hooks.responses import delivery_response
from tenure.services.hooks.verification import run_sized
from tenure.services.identity.principals import Principal
from tenure.shapes.hooks import DeliveryStatus, HookSettings

_ANSWERS = {
    200: ResponseSpec(
        DeliveryStatus, description="A repeat with its run, or no rule matched, or the delivery failed"
    ),
    202: ResponseSpec(DeliveryStatus, description="The delivery is stored, and its run is being created"),
}
_DECISIONS = {"tenure.approve": "approve", "tenure.reject": "reject"}


class SlackReply(msgspec.Struct, frozen=True, kw_only=True):
    """A message that Slack shows only to the person who typed or clicked."""

    response_type: str = "ephemeral"
    text: str
    replace_original: bool = False


async def _verify(request: ApiRequest, kind: str, hook_id: str) -> tuple[HookRow, dict[str, str], bytes]:
    """The hook, headers and bytes of a request, after its signature was checked (law 1)."""
    verifier = request.server.hook_verifier
    hook = await verifier.find_hook(kind, hook_id)
    body = await request.body()
    headers = {name.lower(): value for name, value in request.headers.items()}
    await verifier.verify(hook, headers, body)
    return hook, headers, body


@post(
    "/hooks/github/{hook_id:str}", summary="Receive an event of GitHub", status_code=201, responses=_ANSWERS
)
async def receive_github(request: ApiRequest, hook_id: FromPath[str]) -> Response[DeliveryStatus]:
    """201 with the run; 202 while it is being created; 200 for a ping, for a repeat, and if no rule matches."""
    hook, headers, body = await _verify(request, "github", hook_id)
    settings = msgspec.json.decode(hook.settings, type=HookSettings)
    read = await run_sized(body, events.parse_github, headers, body, by_letter=settings.same_pr_within_5s)
    if read.event == "ping":
        return to_response(delivery_response(DeliveryStatus(delivery=read.id, status="ignored", note="pong")))
    return to_response(delivery_response(await request.server.intake.receive(hook, read)))


@post(
    "/hooks/generic/{hook_id:str}",
    summary="Receive a Standard Webhook or a CloudEvent",
    status_code=201,
    responses=_ANSWERS,
)
async def receive_generic(request: ApiRequest, hook_id: FromPath[str]) -> Response[DeliveryStatus]:
    """Signed like a Standard Webhook. A CloudEvent is JSON or has `ce-` headers. The answers are those for GitHub."""
    hook, headers, body = await _verify(request, "generic", hook_id)
    read = await run_sized(body, events.parse_generic, hook.id, headers, body)
    await request.server.hook_verifier.check_one_event(hook, read)
    return to_response(delivery_response(await request.server.intake.receive(hook, read)))


@post(
    "/hooks/servicenow/{hook_id:str}",
    summary="Receive a call of ServiceNow",
    status_code=201,
    responses=_ANSWERS,
)
async def receive_servicenow(request: ApiRequest, hook_id: FromPath[str]) -> Response[DeliveryStatus]:
    """With a shared secret or basic credentials in a header. A call whose event id was received before is a repeat. The answers are those for
    GitHub."""
    hook, headers, body = await _verify(request, "servicenow", hook_id)
    settings = msgspec.json.decode(hook.settings, type=HookSettings)
    read = await run_sized(body, events.parse_servicenow, hook.id, settings, headers, body)
    return to_response(delivery_response(await request.server.intake.receive(hook, read)))


# --------------------------------------------------------------------------------------------------- Slack


@post("/hooks/slack/{hook_id:str}/commands", summary="Receive a command of Slack", status_code=200)
async def receive_slack_command(request: ApiRequest, hook_id: FromPath[str]) -> SlackReply:
    """`/command link` returns a code to link the account with a person. The hook's rules decide about every other command."""
    hook, headers, body = await _verify(request, "slack", hook_id)
    fields = await run_sized(body, events.decode_form, body)
    if "ssl_check" in fields:
        return SlackReply(text="fine")
    read = await run_sized(body, events.parse_slack_command, headers, body)
    team, user = fields.get("team_id", ""), fields.get("user_id", "")
    if fields.get("text", "").strip().lower() == "link":
        if not await request.server.hook_verifier.is_first(hook, read):
            return SlackReply(text="That was answered already; type it again.")
        try:
            await request.server.hook_verifier.check_slack_app(hook, headers, body, team)
        except TenureError as refused:
            return _refused(refused)
        if not team or not user:
            raise events.malformed_request("`team_id` or `user_id` is missing")
        code = await request.server.identity.slack_code(hook.tenant, team, user)
        return SlackReply(
            text=f"Your code is {code}. Sign in to Tenure as yourself and send it with `PUT /me/slack`;"
            " it can be used once, within ten minutes."
        )
    if msgspec.json.decode(hook.settings, type=HookSettings).linked_only:
        person = await request.server.identity.find_person_by_slack(hook.tenant, team, user)
        if person is None:
            return _not_linked(read.event)
    received = await request.server.intake.receive(hook, read)
    text, account = _describe_delivery(read.event, received), events.slack_account(fields)
    if received.run_id and not await request.server.identity.find_account_links(hook.tenant, account):
        text += f"\nNobody can approve this run: this Slack account is not linked. Link it (`{read.event} link`), then start a new run."
    return SlackReply(text=text)


def _not_linked(command: str) -> SlackReply:
    return SlackReply(
        text=f"This Slack account is not linked to a person in Tenure. Type `{command} link` to get a code, then"
        " send it with `PUT /me/slack` while signed in."
    )


def _describe_delivery(command: str, received: DeliveryStatus) -> str:
    if received.run_id is not None:
        return f"{'Already started' if received.duplicate else 'Started'}: {received.run_id}"
    return {
        "received": f"{command} was received; its run starts in a moment.",
        "ignored": f"No rule of this hook matches {command}.",
    }.get(received.status, f"{command} could not be carried out: {received.note}")


@post("/hooks/slack/{hook_id:str}/actions", summary="Receive a click in Slack", status_code=200)
async def receive_slack_action(request: ApiRequest, hook_id: FromPath[str]) -> SlackReply:
    """The buttons `tenure.approve` and `tenure.reject`, with the value `{approval id}:{revision}:{digest}`."""
    hook, headers, body = await _verify(request, "slack", hook_id)
    read, payload = await run_sized(body, events.parse_slack_action, headers, body)
    if not await request.server.hook_verifier.is_first(hook, read):
        return SlackReply(text="That click was answered already.")
    actions = payload.get("actions")
    clicked = actions[0] if isinstance(actions, list) and actions else None
    name = clicked.get("action_id") if isinstance(clicked, dict) else None
    if not isinstance(clicked, dict) or name not in _DECISIONS:
        return SlackReply(text="Tenure does not know this button.")
    try:
        await request.server.hook_verifier.check_slack_app(hook, headers, body, _id(payload, "team"))
        person = await request.server.identity.find_person_by_slack(
            hook.tenant, _id(payload, "team"), _id(payload, "user")
        )
        if person is None:
            return _not_linked("/tenure")
        return SlackReply(text=await _decide(request, person, _DECISIONS[name], clicked.get("value")))
    except TenureError as refused:
        return _refused(refused)


def _refused(refused: TenureError) -> SlackReply:
    """The reply to a user whose request was refused. A failure of the server is raised (law 2)."""
    if refused.spec.status >= 500:
        raise refused
    return SlackReply(text=f"{refused.code}: {refused.message.rstrip('.')}. {refused.spec.remedy}")


def _id(payload: dict[str, Any], word: str) -> str:
    value = payload.get(word)
    return str(value.get("id", "")) if isinstance(value, dict) else ""


async def _decide(request: ApiRequest, person: PersonRow, decision: str, value: Any) -> str:
    """Decide as a person (law 3). The approval's revision and digest are those of the message that was clicked."""
    parts = value.rsplit(":", 2) if isinstance(value, str) else []
    if len(parts) != 3 or not parts[1].isdecimal() or len(parts[1]) > 9:
        raise events.malformed_request("the button's value is not {approval id}:{revision}:{digest}")
    roles = frozenset(msgspec.json.decode(person.roles, type=list[str]))
    if "approver" not in roles:
        raise TenureError("FORBIDDEN", "only people with the role approver can decide")
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
    again = " You had already decided this." if decided.again else ""
    return f"{parts[0]} is {decided.status}.{again}"


HANDLERS = [
    receive_github,
    receive_generic,
    receive_servicenow,
    receive_slack_command,
    receive_slack_action,
]
