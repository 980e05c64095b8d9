"""ServiceNow: incidents that are updated, assigned and annotated, through the Table API.

Laws:
1. An update sets a state: the fields that it names have those values. Journals (`work_notes`, `comments`) are not among them, because what
   is written there is added each time.
2. A work note ends with a correlation id, which stands for its key, and is found again by it in the journal.
3. A journal forgets nothing: a note is taken back by a note that says so.
4. Values are texts, as ServiceNow has them: what is compared is what it would answer.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from tenure.govern.answers import Answer
from tenure.govern.connector import Call, Found, Operation, Reversal
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import LOST, failed, raise_for
from tenure.govern.connectors.link import Link, path
from tenure.govern.connectors.marks import mark, refuse_marks
from tenure.govern.connectors.schemas import object_of
from tenure.govern.wording import lines, shown

SIGN = "Correlation id: tenure-"
_SYS_ID = {"type": "string", "pattern": "[0-9a-f]{32}"}
_INCIDENT = object_of(sys_id=_SYS_ID)
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
            fields=object_of(
                **_UPDATED,
                custom_={
                    "type": "object",
                    "additionalProperties": {"type": ["string", "integer", "boolean"], "maxLength": 4_000},
                    "maxProperties": 50,
                    "description": "Fields of your own, whose names begin with u_ or x_.",
                },
            ),
            repeats="sets_state",
            reverses_by="incident.update",
        ),
        Operation(
            name="incident.assign",
            summary="Assign an incident to a person, a group, or both.",
            target=_INCIDENT,
            fields=object_of(assigned_to_=_SOMEBODY, assignment_group_=_SOMEBODY),
            repeats="sets_state",
            reverses_by="incident.assign",
        ),
        Operation(
            name="incident.note",
            summary="Add a work note to an incident.",
            target=_INCIDENT,
            fields=object_of(text={**_LONG, "minLength": 1}),
            repeats="marker",
            reverses_by="incident.note.retract",
        ),
        Operation(
            name="incident.note.retract",
            summary="Add a work note that takes an earlier one back.",
            target=_INCIDENT,
            fields=object_of(note={"type": "string", "pattern": "[0-9a-f]{32}"}),
            repeats="marker",
            undo_hint="Add the note again.",
        ),
    )
}


class ServiceNowConnector(ConnectorBase):
    """See the laws above."""

    def __init__(
        self,
        name: str = "servicenow",
        link: Link | None = None,
        *,
        auth: Literal["bearer", "basic"] = "bearer",
    ) -> None:
        """With `basic`, a token is `user:password`."""
        self.name = name
        self.operations = OPERATIONS
        self._link = link or Link()
        self._auth = auth

    async def _ask(self, call: Call, method: str, where: str, json: Any = msgspec.UNSET, **query: str) -> Any:
        """One request; the `result` of its answer."""
        token = self._link.token(call.tenant)
        if self._auth == "basic":
            authorization = f"Basic {base64.b64encode(token.encode()).decode()}"
        else:
            authorization = f"Bearer {token}"
        asked = {"sysparm_display_value": "false", "sysparm_exclude_reference_link": "true", **query}
        answer = await self._link.request(
            call, method, f"{where}?{urlencode(asked)}", json=json, headers={"Authorization": authorization}
        )
        raise_for(answer, _said(answer))
        body = answer.json()
        if not isinstance(body, dict) or "result" not in body:
            raise failed("unknown", LOST, "answered without a result")
        return body["result"]

    async def call(self, call: Call) -> Any:
        """Do it."""
        written = self._written(call)
        kept = ["sys_id", "number", *(name for name in written if name != "work_notes")]
        result = await self._ask(call, "PATCH", _incident(call), written, sysparm_fields=",".join(kept))
        found = {key: result[key] for key in kept if key in result} if isinstance(result, dict) else {}
        return {**found, **({"note": mark(call)} if "work_notes" in written else {})}

    def _written(self, call: Call) -> dict[str, Any]:
        if call.operation == "incident.note":
            refuse_marks(call.fields["text"], SIGN)
            return {"work_notes": f"{call.fields['text']}\n\n{SIGN}{mark(call)}"}
        if call.operation == "incident.note.retract":
            said = f"The work note with the correlation id tenure-{call.fields['note']} is taken back."
            return {"work_notes": f"{said}\n\n{SIGN}{mark(call)}"}
        fields = _flat(call.fields)
        if not fields:
            raise failed("not_done", "INVALID_INPUT", "fields: at least one is set")
        return fields

    async def state(self, call: Call) -> dict[str, Any] | None:
        """Of an update: the fields that it names. Of taking a note back: whether it is there."""
        if call.operation == "incident.note":
            return None
        if call.operation == "incident.note.retract":
            return {"there": await self._note(call, call.fields["note"]) is not None}
        names = list(_flat(call.fields))
        result = await self._ask(call, "GET", _incident(call), sysparm_fields=",".join(names))
        return {name: _text(result.get(name, "")) for name in names} if isinstance(result, dict) else {}

    async def _note(self, call: Call, sought: str) -> str | None:
        """The journal's name of the note that ends with a mark."""
        query = f"element_id={call.target['sys_id']}^element=work_notes^valueLIKE{SIGN}{sought}"
        rows = await self._ask(
            call,
            "GET",
            path("api", "now", "table", "sys_journal_field"),
            sysparm_query=query,
            sysparm_fields="sys_id,value",
            sysparm_limit="50",
        )
        for row in rows if isinstance(rows, list) else []:
            if str(row.get("value", "")).rstrip().endswith(f"{SIGN}{sought}"):
                return str(row.get("sys_id", ""))
        return None

    async def lookup(self, call: Call) -> Found | None:
        """By the correlation id in the journal."""
        if not call.operation.startswith("incident.note"):
            return None
        found = await self._note(call, mark(call))
        return None if found is None else Found({"sys_id": call.target["sys_id"], "note": mark(call)})

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        """Give fields back the values that they had; say of a note that it is taken back."""
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
        if isinstance(result, dict):  # what it made of our values: a user's name becomes their sys_id
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
        """In words."""
        where = f"the incident {shown(target.get('sys_id', ''))}"
        if operation == "incident.note":
            said = (f"  {shown(line, 1_000)}" for line in fields["text"].split("\n"))
            return lines(f"Add a work note to {where}:", *said)
        if operation == "incident.note.retract":
            return [f"Add a work note to {where}: the one with the id {shown(fields['note'])} is taken back"]
        verb = "Assign" if operation == "incident.assign" else "Set in"
        return lines(f"{verb} {where}:", *_pairs(fields))


def _incident(call: Call) -> str:
    return path("api", "now", "table", "incident", call.target["sys_id"])


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields by their names there."""
    custom: dict[str, Any] = fields.get("custom", {})
    for name in custom:
        if not (name.startswith(_OWN_PREFIXES) and name.isidentifier() and name.isascii()):
            raise failed("not_done", "INVALID_INPUT", f"fields.custom: {name!r} is no field of your own")
    return {**{name: value for name, value in fields.items() if name != "custom"}, **custom}


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Fields as an operation takes them."""
    own = {name: value for name, value in flat.items() if name.startswith(_OWN_PREFIXES)}
    rest = {name: value for name, value in flat.items() if name not in own}
    return {**rest, **({"custom": own} if own else {})}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("value", "")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pairs(fields: dict[str, Any]) -> Iterator[str]:
    return (f"  {shown(name)} = {shown(value, 1_000)}" for name, value in _flat(fields).items())


def _said(answer: Answer) -> str:
    body = answer.json()
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
