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
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from tenure.expressions.json_schema import object_schema
from tenure.govern.connector import ConnectorCall, FoundEffect, Operation, Reversal
from tenure.govern.connectors.faults import LOST, call_failed, raise_for_response
from tenure.govern.connectors.http_service import (
    HttpService,
    ServiceConnector,
    build_path,
    marker_text,
    pick_fields,
    refuse_markers,
)
from tenure.govern.display_text import (
    PARAGRAPH_CHARS_MAX,
    display_lines,
    display_pairs,
    display_paragraph,
    display_value,
)

SIGN = "Correlation id: tenure-"
_SYS_ID = {"type": "string", "pattern": "[0-9a-f]{32}"}
_INCIDENT = object_schema(sys_id=_SYS_ID)
_CHOICE = {"type": ["string", "integer"], "maxLength": 40}
_LINE = {"type": "string", "maxLength": 1_000}
_LONG = {"type": "string", "maxLength": 30_000}
_REFERENCE = {"type": "string", "maxLength": 100, "description": "A sys_id; empty: nobody."}
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
    "cmdb_ci_": _REFERENCE,
    "business_service_": _REFERENCE,
    "service_offering_": _REFERENCE,
    "problem_id_": _REFERENCE,
    "parent_incident_": _REFERENCE,
}
_OWN_PREFIXES = ("u_", "x_")

OPERATIONS: Mapping[str, Operation] = {
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
            fields=object_schema(assigned_to_=_REFERENCE, assignment_group_=_REFERENCE),
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


class ServiceNowConnector(ServiceConnector):
    name = "servicenow"
    operations = OPERATIONS

    def __init__(
        self,
        name: str | None = None,
        link: HttpService | None = None,
        *,
        auth: Literal["bearer", "basic"] = "bearer",
    ) -> None:
        """With `basic`, a token is `user:password`."""
        super().__init__(name, link)
        self._auth = auth

    async def _request(
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
        body = answer.json()
        error = body.get("error") if isinstance(body, dict) else None
        raise_for_response(answer, str(error.get("message", "")) if isinstance(error, dict) else "")
        if not isinstance(body, dict) or "result" not in body:
            raise call_failed("unknown", LOST, "answered without a result")
        return body["result"]

    async def call(self, call: ConnectorCall) -> Any:
        note = self._note_text(call)
        written = (
            _flat(call.fields) if note is None else {"work_notes": f"{note}\n\n{SIGN}{marker_text(call)}"}
        )
        if not written:
            raise call_failed("not_done", "INVALID_INPUT", "fields: at least one must be set")
        kept = ["sys_id", "number", *(name for name in written if name != "work_notes")]
        result = await self._request(call, "PATCH", _incident(call), written, sysparm_fields=",".join(kept))
        return {**pick_fields(result, kept), **({} if note is None else {"note": marker_text(call)})}

    @staticmethod
    def _note_text(call: ConnectorCall) -> str | None:
        """The work note that an operation adds, or None if it adds none."""
        if call.operation == "incident.note":
            refuse_markers(call.fields["text"], SIGN)
            return str(call.fields["text"])
        if call.operation == "incident.note.retract":
            return f"The work note with the correlation id tenure-{call.fields['note']} is retracted."
        return None

    async def state(self, call: ConnectorCall) -> dict[str, Any] | None:
        """For an update: the named fields. For a retraction: whether the note exists."""
        if call.operation == "incident.note":
            return None
        if call.operation == "incident.note.retract":
            return {"there": await self._has_note(call, call.fields["note"])}
        names = list(_flat(call.fields))
        result = await self._request(call, "GET", _incident(call), sysparm_fields=",".join(names))
        return {name: _text(result.get(name, "")) for name in names} if isinstance(result, dict) else {}

    async def _has_note(self, call: ConnectorCall, marker: str) -> bool:
        """Whether a journal entry of the incident ends with a marker."""
        rows = await self._request(
            call,
            "GET",
            build_path("api", "now", "table", "sys_journal_field"),
            sysparm_query=f"element_id={call.target['sys_id']}^element=work_notes^valueLIKE{SIGN}{marker}",
            sysparm_fields="sys_id,value",
            sysparm_limit="50",
        )
        return isinstance(rows, list) and any(
            str(row.get("value", "")).rstrip().endswith(f"{SIGN}{marker}") for row in rows
        )

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        marker = marker_text(call)
        if call.operation.startswith("incident.note") and await self._has_note(call, marker):
            return FoundEffect({"sys_id": call.target["sys_id"], "note": marker})
        return None

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
            return display_lines(f"Add a work note to {where}:", *display_paragraph(fields["text"]))
        if operation == "incident.note.retract":
            note = display_value(fields["note"])
            return [f"Add a work note to {where}: the note with the id {note} is retracted"]
        verb = "Assign" if operation == "incident.assign" else "Set in"
        return display_lines(f"{verb} {where}:", *display_pairs(_flat(fields), PARAGRAPH_CHARS_MAX))


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
    return {name: value for name, value in flat.items() if name not in own} | ({"custom": own} if own else {})


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("value", "")
    return str(value).lower() if isinstance(value, bool) else str(value)
