"""Parsing of deliveries: id, key, event, and the values that rules use; and hooks and deliveries as shapes.

Laws:
1. Only bodies with a valid signature are parsed. A malformed body is REQUEST_MALFORMED, and nothing is stored.
2. A stored delivery can be parsed later by another process, with the same result (`rule_scope`).
3. No credential is stored: only the headers that rules need, and Slack's form without its token and response URL.
4. A delivery's id can be part of a URL path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec

from tenure.canonical import decode_json
from tenure.clock import to_datetime
from tenure.errors import TenureError
from tenure.ids import run_text
from tenure.kernel.server_rows import DeliveryRow, HookRow
from tenure.limits import KEY_CHARS_MAX, NAME_CHARS_MAX
from tenure.shapes.hooks import Delivery, DeliveryListItem, Hook, HookRule, HookSettings
from tenure.shapes.reports import VcsTarget
from tenure.store.hook_deliveries import DeliveryHeader

_ID = re.compile(r"[A-Za-z0-9._~:@+=-]{1,150}")
_EVENT = re.compile(r"[\x20-\x7e]{1,200}")
_STORED_HEADERS = {
    "github": re.compile(r"x-github-.*|content-type|user-agent"),
    "slack": re.compile(r"content-type|user-agent|x-slack-request-timestamp|x-slack-retry-.*"),
    "generic": re.compile(r"webhook-id|webhook-timestamp|ce-.*|content-type|user-agent"),
    "servicenow": re.compile(r"content-type|user-agent"),
}
_SECRET_FIELDS = frozenset({"token", "response_url"})
_FORM = "application/x-www-form-urlencoded"
CLOUDEVENTS = "application/cloudevents+json"
FIELDS_MAX = 100
CHECK_EVENT = "check_run"
SUITE_EVENT = "check_suite"
"""*Re-run all checks* of a commit."""
_NO_COMMIT = "0" * 40
"""`after` of a push that deletes its branch."""


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    key: str
    event: str
    headers: dict[str, str]
    body: bytes
    """The stored body: the raw bytes, or Slack's fields without secrets."""
    digest: bytes
    """SHA-256 of the raw bytes."""
    fingerprint: str | None = None
    alike: bool = False
    """Whether the same bytes with another id are the same delivery."""
    signed: str | None = None
    """If the signature does not cover the id: the key of the signed message."""

    def delivery(self, hook_id: str, tenant: str) -> DeliveryRow:
        headers = msgspec.json.encode(self.headers, order="sorted").decode()
        return DeliveryRow(
            hook_id,
            self.id,
            tenant,
            self.key,
            self.event,
            self.digest,
            self.fingerprint,
            headers,
            self.body,
            0,
        )


def malformed_request(why: str) -> TenureError:
    return TenureError("REQUEST_MALFORMED", why)


def decode_body(body: bytes) -> Any:
    """The value of a JSON body; REQUEST_MALFORMED if an object has a name twice."""
    try:
        return decode_json(body)
    except RecursionError:
        raise malformed_request("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise malformed_request(f"the body is not JSON: {fault}") from None


def decode_form(body: bytes) -> dict[str, str]:
    try:
        return dict(
            parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
        )
    except (ValueError, UnicodeDecodeError):
        raise malformed_request("the body is not a form in UTF-8") from None


def _stored_headers(kind: str, headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if _STORED_HEADERS[kind].fullmatch(name)}


def _content_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


# -------------------------------------------------------------------------------------------------- GitHub


def parse_github(headers: Mapping[str, str], body: bytes, *, by_letter: bool) -> HookEvent:
    """A delivery from GitHub. Its key is `github:{delivery id}` (GWI-07)."""
    delivery, event = headers.get("x-github-delivery", ""), headers.get("x-github-event", "")
    if not _ID.fullmatch(delivery):
        raise malformed_request("X-GitHub-Delivery is missing or not an id")
    if not _EVENT.fullmatch(event):
        raise malformed_request("X-GitHub-Event is missing or not the name of an event")
    payload = _github_body(headers, body)
    return HookEvent(
        id=delivery,
        key=f"github:{delivery}",
        event=event,
        headers=_stored_headers("github", headers),
        body=body,
        digest=sha256(body).digest(),
        fingerprint=_fingerprint(event, payload, by_letter=by_letter),
        alike=True,
    )


def _github_body(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    if _content_type(headers) == _FORM:
        body = decode_form(body).get("payload", "").encode()
    payload = decode_body(body)
    if not isinstance(payload, dict):
        raise malformed_request("a GitHub event must be a JSON object")
    return payload


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _fingerprint(event: str, payload: dict[str, Any], *, by_letter: bool) -> str | None:
    """Two deliveries with the same fingerprint within seconds are duplicates (GWI-13, rule 9). It covers the pull request and the type of
    the event, and unless `by_letter` its action and head commit; for a push the ref and the commit."""
    repo = _at(payload, "repository", "full_name")
    number = _at(payload, "pull_request", "number")
    if by_letter and number is None and _at(payload, "issue", "pull_request") is not None:
        number = _at(payload, "issue", "number")
    if number is not None:
        parts = [event, repo, number]
        if not by_letter:
            parts += [_at(payload, "action"), _at(payload, "pull_request", "head", "sha")]
    elif event == "push":
        parts = [event, repo, _at(payload, "ref"), _at(payload, "after")]
    else:
        return None
    return sha256(msgspec.json.encode(parts)).hexdigest()


def github_trigger(payload: Any) -> dict[str, str]:
    found = {
        "repo": _at(payload, "repository", "full_name"),
        "pr_id": _at(payload, "pull_request", "number") or _at(payload, "issue", "number"),
        "pr_url": _at(payload, "pull_request", "html_url"),
        "commit": _at(payload, "pull_request", "head", "sha") or _at(payload, "after"),
    }
    return {name: str(value) for name, value in found.items() if isinstance(value, str | int)}


def github_target(payload: Any) -> VcsTarget | None:
    """The commit that a push or a pull request is about; None if the event names none."""
    found = {
        "repository": _at(payload, "repository", "full_name"),
        "head_sha": _at(payload, "pull_request", "head", "sha") or _at(payload, "after"),
        "pull_request": _at(payload, "pull_request", "number"),
    }
    try:
        target = msgspec.convert(found, VcsTarget)
    except msgspec.ValidationError:
        return None
    return None if target.head_sha == _NO_COMMIT else target


class CheckAction(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asked for with a button of a check run, or of all checks of a commit."""

    verb: Literal["rerun", "cancel"]
    external_id: str
    """Of the check run. Empty: all checks of the commit."""
    repository: str
    head_sha: str


def github_check_action(payload: Any) -> CheckAction | None:
    """The button of a check run that was pressed; None if the event is about something else."""
    asked = (_at(payload, "action"), _at(payload, "requested_action", "identifier"))
    verb = (
        "rerun" if asked[0] == "rerequested" else "cancel" if asked == ("requested_action", "cancel") else ""
    )
    found = {
        "verb": verb,
        "external_id": _at(payload, "check_run", "external_id"),
        "repository": _at(payload, "repository", "full_name"),
        "head_sha": _at(payload, "check_run", "head_sha"),
    }
    try:
        return msgspec.convert(found, CheckAction)
    except msgspec.ValidationError:
        return None


def github_suite_action(payload: Any) -> CheckAction | None:
    """*Re-run all checks* of a commit; None if the event is about something else."""
    if _at(payload, "action") != "rerequested":
        return None
    found = {
        "verb": "rerun",
        "external_id": "",
        "repository": _at(payload, "repository", "full_name"),
        "head_sha": _at(payload, "check_suite", "head_sha"),
    }
    try:
        return msgspec.convert(found, CheckAction)
    except msgspec.ValidationError:
        return None


def github_people(payload: Any) -> list[str]:
    """The logins behind a GitHub event: the authors of the pull request and of commits, the pusher and the sender."""
    found = [
        _at(payload, "pull_request", "user", "login"),
        _at(payload, "issue", "user", "login"),
        _at(payload, "pusher", "name"),
        _at(payload, "sender", "login"),
        _at(payload, "head_commit", "author", "username"),
        _at(payload, "head_commit", "committer", "username"),
    ]
    commits = _at(payload, "commits")
    for commit in commits if isinstance(commits, list) else ():
        found += [_at(commit, who, "username") for who in ("author", "committer")]
    people = dict.fromkeys(login for login in found if isinstance(login, str))
    return [login for login in people if 0 < len(login) <= 100 and login.isprintable()]


# --------------------------------------------------------------------------------------------------- Slack


def parse_slack_command(headers: Mapping[str, str], body: bytes) -> HookEvent:
    """A command in Slack. Its key is `slack:{team_id}:{trigger_id}` (GWI-09)."""
    fields = decode_form(body)
    command = fields.get("command", "")
    if not _EVENT.fullmatch(command):
        raise malformed_request("`command` is missing")
    return _slack(headers, body, fields.get("team_id"), fields.get("trigger_id"), command, fields)


def slack_account(fields: Mapping[str, Any]) -> str:
    """The account that sent a command, as `slack:TEAM/USER`, with `?` for an invalid id."""
    parts = [str(fields.get(name, "")) for name in ("team_id", "user_id")]
    return "slack:" + "/".join(part if _ID.fullmatch(part) else "?" for part in parts)


def parse_slack_action(headers: Mapping[str, str], body: bytes) -> tuple[HookEvent, dict[str, Any]]:
    """A click in Slack, and its payload."""
    payload = decode_body(decode_form(body).get("payload", "").encode())
    if not isinstance(payload, dict):
        raise malformed_request("`payload` is not a JSON object")
    event = _slack(
        headers,
        body,
        _at(payload, "team", "id"),
        payload.get("trigger_id"),
        str(payload.get("type"))[:100],
        payload,
    )
    return event, payload


def _slack(
    headers: Mapping[str, str], body: bytes, team: Any, trigger: Any, event: str, payload: dict[str, Any]
) -> HookEvent:
    for name, value in (("team", team), ("trigger_id", trigger)):
        if not isinstance(value, str) or not _ID.fullmatch(value):
            raise malformed_request(f"`{name}` is missing or not an id")
    return HookEvent(
        id=str(trigger),
        key=f"slack:{team}:{trigger}",
        event=event if _EVENT.fullmatch(event) else "action",
        headers=_stored_headers("slack", headers),
        body=msgspec.json.encode(
            {name: value for name, value in payload.items() if name not in _SECRET_FIELDS}
        ),
        digest=sha256(body).digest(),
    )


# ------------------------------------------------------------------------------------------------- generic


def parse_generic(hook_id: str, headers: Mapping[str, str], body: bytes) -> HookEvent:
    """A Standard Webhook. The key of a CloudEvent is its source and id, that of any other event its webhook-id. (Senders choose these ids,
    so the hook is part of the key.)"""
    given, signed = headers.get("webhook-id", ""), None
    key = _key("webhook", hook_id, given)
    event = _cloud_event(headers, body)
    if event is not None:
        source, name = _attribute(event, "source"), _attribute(event, "id")
        if " " in source:  # otherwise two events could have the same key
            raise malformed_request("the 'source' of a CloudEvent must be a URI without spaces")
        given, signed = f"{source} {name}", key
        delivery = f"ce_{sha256(given.encode()).hexdigest()[:40]}"
        key = _key("cloudevents", hook_id, given)
        kind = _attribute(event, "type")
    else:
        delivery = given if _ID.fullmatch(given) else f"id_{sha256(given.encode()).hexdigest()[:40]}"
        kind = _at(decode_body(body), "type")
        if not (isinstance(kind, str) and 0 < len(kind) <= NAME_CHARS_MAX and kind.isprintable()):
            kind = "webhook"
    return HookEvent(
        id=delivery,
        key=key,
        event=kind,
        headers=_stored_headers("generic", headers),
        body=body,
        digest=sha256(body).digest(),
        signed=signed,
    )


# ---------------------------------------------------------------------------------------------- ServiceNow

EVENT_ID = re.compile(r"header:[a-z0-9-]{1,100}|body:[A-Za-z0-9_-]{1,100}(?:\.[A-Za-z0-9_-]{1,100}){0,9}")
"""Where a part of an event's id is (`HookSettings.event_id`)."""
EVENT_ID_PARTS_MAX = 5


def parse_servicenow(
    hook_id: str, settings: HookSettings, headers: Mapping[str, str], body: bytes
) -> HookEvent:
    """A call of ServiceNow. Its key holds the id that the settings name (GOV-25), so that a repeated call is recognised. The headers that have
    the id are stored, too."""
    payload = decode_body(body)
    if not isinstance(payload, dict):
        raise malformed_request("the body must be a JSON object")
    given = ":".join(_event_id_part(place, headers, payload) for place in settings.event_id)
    delivery = given if _ID.fullmatch(given) else f"id_{sha256(given.encode()).hexdigest()[:40]}"
    named = {place.removeprefix("header:") for place in settings.event_id if place.startswith("header:")}
    event = next((found for name in ("event", "type") if _is_event(found := payload.get(name))), "servicenow")
    return HookEvent(
        id=delivery,
        key=_key("servicenow", hook_id, given),
        event=str(event),
        headers=_stored_headers("servicenow", headers) | {name: headers[name] for name in sorted(named)},
        body=body,
        digest=sha256(body).digest(),
    )


def _event_id_part(place: str, headers: Mapping[str, str], payload: dict[str, Any]) -> str:
    source, _, name = place.partition(":")
    value = headers.get(name) if source == "header" else _at(payload, *name.split("."))
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or len(value) > 1_000 or not value.isprintable():
        raise malformed_request(f"the event's id at {place!r} must be a short, printable text or an integer")
    return value.replace("%", "%25").replace(":", "%3A")  # otherwise two events could have the same id


def _is_event(value: Any) -> bool:
    return isinstance(value, str) and _EVENT.fullmatch(value) is not None


def _key(kind: str, hook_id: str, given: str) -> str:
    """A printable key with a limited length."""
    key = f"{kind}:{hook_id}:{given}"
    if len(key) <= KEY_CHARS_MAX - 20 and key.isprintable():
        return key
    return f"{kind}:{hook_id}:sha256:{sha256(given.encode()).hexdigest()}"


def _attribute(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    if not isinstance(value, str) or not value or len(value) > 1_000 or not value.isprintable():
        raise malformed_request(f"the {name!r} of a CloudEvent must be a short, printable text")
    return value


def _cloud_event(headers: Mapping[str, str], body: bytes) -> dict[str, Any] | None:
    """A CloudEvent in its JSON form, in either mode; None if the request is not a CloudEvent."""
    if _content_type(headers) == CLOUDEVENTS:
        event = decode_body(body)
        if not isinstance(event, dict):
            raise malformed_request("a CloudEvent must be a JSON object")
        return event
    if "ce-specversion" not in headers:
        return None
    event = {name[3:]: value for name, value in headers.items() if name.startswith("ce-")}
    return event if not body else {**event, "data": decode_body(body)}


# ------------------------------------------------------------------------------------------------- reading


def rule_scope(kind: str, delivery: DeliveryRow) -> dict[str, Any]:
    """The values that rules use (law 2)."""
    headers = msgspec.json.decode(delivery.headers, type=dict[str, str])
    body: Any = None
    if kind == "github":
        body = _github_body(headers, delivery.body)
    elif kind == "generic":
        body = _cloud_event(headers, delivery.body)
    body = decode_body(delivery.body) if body is None else body
    action = _at(body, "action")
    if kind == "slack":
        action = next(iter(str(_at(body, "text") or "").split()), "")
    return {
        "event": delivery.event,
        "action": action if isinstance(action, str) else "",
        "body": body,
        "headers": headers,
    }


# -------------------------------------------------------------------------------------------------- shapes

_ADDRESS = {
    "github": "/hooks/github/{}",
    "slack": "/hooks/slack/{}/commands",
    "generic": "/hooks/generic/{}",
    "servicenow": "/hooks/servicenow/{}",
}


def show_hook(hook: HookRow) -> Hook:
    return Hook(
        id=hook.id,
        kind=hook.kind,
        name=hook.name,
        address=_ADDRESS[hook.kind].format(hook.id),
        workspace=hook.workspace,
        secrets=msgspec.json.decode(hook.secrets),
        rules=msgspec.json.decode(hook.rules, type=list[HookRule]),
        owner=hook.owner,
        settings=msgspec.json.decode(hook.settings, type=HookSettings),
        disabled=hook.disabled,
        revision=hook.revision,
        unconfirmed=hook.unconfirmed.split(),
        created_at=to_datetime(hook.created_at),
        updated_at=to_datetime(hook.updated_at),
    )


def _item(row: DeliveryHeader | DeliveryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "key": row.name,
        "event": row.event,
        "received_at": to_datetime(row.received_at),
        "status": row.status,
        "run_id": None if row.run_id is None else run_text(row.run_id),
        "note": row.note,
        "replays": row.replays,
        "tries": row.tries,
    }


def summarize_delivery(row: DeliveryHeader) -> DeliveryListItem:
    return DeliveryListItem(**_item(row))


def show_delivery(hook: HookRow, row: DeliveryRow) -> Delivery:
    scope = rule_scope(hook.kind, row)
    return Delivery(**_item(row), headers=scope["headers"], body=scope["body"])
