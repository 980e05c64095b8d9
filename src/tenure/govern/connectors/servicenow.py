"""The ServiceNow connector: updates, assigns and annotates incidents by the Table API.

Laws:
1. An update sets a state: the named fields get these values. Journals (`work_notes`, `comments`) are excluded, because each write adds an
   entry.
2. A work note ends with a correlation id that stands for its key, and is found by it in the journal.
3. Journal entries cannot be removed: a note is undone by another note that retracts it.
4. Values are strings, as in ServiceNow's answers, and are compared as strings.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from tenure.expressions.json_schema import object_schema
from tenure.govern.connector import ConnectorCall, FoundEffect, Operation, Reversal
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import LOST, call_failed, raise_for_response
from tenure.govern.connectors.http_service import HttpService, build_path, marker_text, refuse_markers
from tenure.govern.display_text import display_lines, display_value
from tenure.outbound.responses import HttpResponse

SIGN = "Correlation id: tenure-"
_SYS_ID = {"type": "string", "pattern": "[0-9a-f]{32}"}
_INCIDENT = object_schema(sys_id=_SYS_ID)
_CHOICE = {"type": ["string", "integer"], "maxLength": 40}
_LINE = {"type": "string", "maxLength": 1_000}
_LONG = {"type": "string", "maxLength": 30_000}
_SOMEBODY = {"type": "string", "maxLength": 100, "description": "A sys_id; empty: nobody."}
_UPDATED = {
    "state_": _CHOICE,
    "impact_": _CHOICE,
    "urgency_": _CHOICE,
    "severity_": _CHOICE,
    "category_": _LINE,
    "subcategory_": _LINE,
    "short_description_": _LINE,
    "description_": _LONG,
    "close_code_": _LINE,
    "close_notes_": _LONG,
    "hold_reason_": _CHOICE,
    "cmdb_ci_": _SOMEBODY,
    "business_service_": _SOMEBODY,
    "service_offering_": _SOMEBODY,
    "problem_id_": _SOMEBODY,
    "parent_incident_": _SOMEBODY,
}
_OWN_PREFIXES = ("u_", "x_")

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            name="incident.update",
            summary="Set fields of an incident.",
            target=_INCIDENT,
            fields=object_schema(
                **_UPDATED,
                custom_={
                    "type": "object",
                    "additionalProperties": {"type": ["string", "integer", "boolean"], "maxLength": 4_000},
                    "maxProperties": 50,
                    "description": "Custom fields; their names begin with u_ or x_.",
                },
            ),
            repeats="sets_state",
            reverses_by="incident.update",
        ),
        Operation(
            name="incident.assign",
            summary="Assign an incident to a person, a group, or both.",
            target=_INCIDENT,
            fields=object_schema(assigned_to_=_SOMEBODY, assignment_group_=_SOMEBODY),
            repeats="sets_state",
            reverses_by="incident.assign",
        ),
        Operation(
            name="incident.note",
            summary="Add a work note to an incident.",
            target=_INCIDENT,
            fields=object_schema(text={**_LONG, "minLength": 1}),
            repeats="marker",
            reverses_by="incident.note.retract",
        ),
        Operation(
            name="incident.note.retract",
            summary="Add a work note that retracts an earlier one.",
            target=_INCIDENT,
            fields=object_schema(note={"type": "string", "pattern": "[0-9a-f]{32}"}),
            repeats="marker",
            undo_hint="Add the note again.",
        ),
    )
}


class ServiceNowConnector(ConnectorBase):
    def __init__(
        self,
        name: str = "servicenow",
        link: HttpService | None = None,
        *,
        auth: Literal["bearer", "basic"] = "bearer",
    ) -> None:
        """With `basic`, a token is `user:password`."""
        self.name = name
        self.operations = OPERATIONS
        self._link = link or HttpService()
        self._auth = auth

    async def _ask(
        self, call: ConnectorCall, method: str, where: str, json: Any = msgspec.UNSET, **query: str
    ) -> Any:
        """One request; returns the `result` of the response."""
        token = self._link.token(call.tenant)
        if self._auth == "basic":
            authorization = f"Basic {base64.b64encode(token.encode()).decode()}"
        else:
            authorization = f"Bearer {token}"
        asked = {"sysparm_display_value": "false", "sysparm_exclude_reference_link": "true", **query}
        answer = await self._link.request(
            call, method, f"{where}?{urlencode(asked)}", json=json, headers={"Authorization": authorization}
        )
        raise_for_response(answer, _said(answer))
        body = answer.json()
        if not isinstance(body, dict) or "result" not in body:
            raise call_failed("unknown", LOST, "answered without a result")
        return body["result"]

    async def call(self, call: ConnectorCall) -> Any:
        written = self._written(call)
        kept = ["sys_id", "number", *(name for name in written if name != "work_notes")]
        result = await self._ask(call, "PATCH", _incident(call), written, sysparm_fields=",".join(kept))
        found = {key: result[key] for key in kept if key in result} if isinstance(result, dict) else {}
        return {**found, **({"note": marker_text(call)} if "work_notes" in written else {})}

    def _written(self, call: ConnectorCall) -> dict[str, Any]:
        if call.operation == "incident.note":
            refuse_markers(call.fields["text"], SIGN)
            return {"work_notes": f"{call.fields['text']}\n\n{SIGN}{marker_text(call)}"}
        if call.operation == "incident.note.retract":
            said = f"The work note with the correlation id tenure-{call.fields['note']} is retracted."
            return {"work_notes": f"{said}\n\n{SIGN}{marker_text(call)}"}
        fields = _flat(call.fields)
        if not fields:
            raise call_failed("not_done", "INVALID_INPUT", "fields: at least one must be set")
        return fields

    async def state(self, call: ConnectorCall) -> dict[str, Any] | None:
        """For an update: the named fields. For a retraction: whether the note exists."""
        if call.operation == "incident.note":
            return None
        if call.operation == "incident.note.retract":
            return {"there": await self._note(call, call.fields["note"]) is not None}
        names = list(_flat(call.fields))
        result = await self._ask(call, "GET", _incident(call), sysparm_fields=",".join(names))
        return {name: _text(result.get(name, "")) for name in names} if isinstance(result, dict) else {}

    async def _note(self, call: ConnectorCall, sought: str) -> str | None:
        """The id of the journal entry that ends with a marker."""
        query = f"element_id={call.target['sys_id']}^element=work_notes^valueLIKE{SIGN}{sought}"
        rows = await self._ask(
            call,
            "GET",
            build_path("api", "now", "table", "sys_journal_field"),
            sysparm_query=query,
            sysparm_fields="sys_id,value",
            sysparm_limit="50",
        )
        for row in rows if isinstance(rows, list) else []:
            if str(row.get("value", "")).rstrip().endswith(f"{SIGN}{sought}"):
                return str(row.get("sys_id", ""))
        return None

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        """Finds the note by its correlation id."""
        if not call.operation.startswith("incident.note"):
            return None
        found = await self._note(call, marker_text(call))
        return (
            None
            if found is None
            else FoundEffect({"sys_id": call.target["sys_id"], "note": marker_text(call)})
        )

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        """Restores the previous values of fields; retracts a note."""
        if operation == "incident.note" and isinstance(result, dict) and "note" in result:
            return Reversal(
                operation="incident.note.retract",
                target=target,
                fields={"note": result["note"]},
                expects={"there": True},
            )
        if operation not in ("incident.update", "incident.assign") or not before:
            return None
        wrote = {name: _text(value) for name, value in _flat(fields).items()}
        if isinstance(result, dict):  # ServiceNow may convert values: a user's name becomes a sys_id
            wrote = {name: _text(result.get(name, value)) for name, value in wrote.items()}
        changed = {name: before[name] for name in wrote if name in before and before[name] != wrote[name]}
        if not changed:
            return None
        return Reversal(
            operation=operation,
            target=target,
            fields=_nested(changed),
            expects={name: wrote[name] for name in changed},
        )

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        where = f"the incident {display_value(target.get('sys_id', ''))}"
        if operation == "incident.note":
            said = (f"  {display_value(line, 1_000)}" for line in fields["text"].split("\n"))
            return display_lines(f"Add a work note to {where}:", *said)
        if operation == "incident.note.retract":
            return [
                f"Add a work note to {where}: the note with the id {display_value(fields['note'])} is retracted"
            ]
        verb = "Assign" if operation == "incident.assign" else "Set in"
        return display_lines(f"{verb} {where}:", *_pairs(fields))


def _incident(call: ConnectorCall) -> str:
    return build_path("api", "now", "table", "incident", call.target["sys_id"])


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields under their names in ServiceNow."""
    custom: dict[str, Any] = fields.get("custom", {})
    for name in custom:
        if not (name.startswith(_OWN_PREFIXES) and name.isidentifier() and name.isascii()):
            raise call_failed(
                "not_done",
                "INVALID_INPUT",
                f"fields.custom: {name!r} is not a custom field; its name must begin with u_ or x_",
            )
    return {**{name: value for name, value in fields.items() if name != "custom"}, **custom}


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Fields as the operation takes them."""
    own = {name: value for name, value in flat.items() if name.startswith(_OWN_PREFIXES)}
    rest = {name: value for name, value in flat.items() if name not in own}
    return {**rest, **({"custom": own} if own else {})}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("value", "")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pairs(fields: dict[str, Any]) -> Iterator[str]:
    return (
        f"  {display_value(name)} = {display_value(value, 1_000)}" for name, value in _flat(fields).items()
    )


def _said(answer: HttpResponse) -> str:
    body = answer.json()
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
