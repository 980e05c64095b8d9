"""A double of ServiceNow: incidents and their work notes, as far as the connector uses them."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any

from tenure.testing.doubles.base import Double, DoubleReply, DoubleRequest

_JOURNALS = frozenset({"work_notes", "comments"})


class ServiceNowDouble(Double):
    """`url` is the address of the instance. `token` is a bearer token or, with `user`, a password."""

    def __init__(self, *, token: str = "", user: str = "", **how: Any) -> None:
        super().__init__(token=token, **how)
        self.user = user
        self.incidents: dict[str, dict[str, str]] = {}
        self.journal: list[dict[str, str]] = []

    def incident(self, number: str, **fields: str) -> str:
        """Add an incident, and return its sys_id."""
        sys_id = sha256(number.encode()).hexdigest()[:32]
        self.incidents[sys_id] = {"sys_id": sys_id, "number": number, "state": "1", **fields}
        return sys_id

    def notes(self, sys_id: str) -> list[str]:
        """The work notes of an incident, oldest first."""
        return [
            row["value"]
            for row in self.journal
            if (row["element_id"], row["element"]) == (sys_id, "work_notes")
        ]

    def handle(self, request: DoubleRequest) -> DoubleReply:
        if self.token and request.headers.get("authorization") != self._expected():
            return _error(401, "User Not Authenticated")
        match request.method, request.parts:
            case (("GET" | "PATCH"), ("api", "now", "table", "incident", sys_id)):
                incident = self.incidents.get(sys_id)
                if incident is None:
                    return _error(404, "No Record found")
                if request.method == "PATCH":
                    self._write(incident, request.json())
                return DoubleReply(200, {"result": _named(request, incident)})
            case "GET", ("api", "now", "table", "incident"):
                return DoubleReply(200, {"result": [_named(request, row) for row in self.incidents.values()]})
            case "GET", ("api", "now", "table", "sys_journal_field"):
                rows = [row for row in self.journal if _matches(row, request.first("sysparm_query"))]
                limit = int(request.first("sysparm_limit", "10000"))
                return DoubleReply(200, {"result": [_named(request, row) for row in rows[:limit]]})
            case _:
                return _error(404, "Requested URI does not represent any resource")

    def _expected(self) -> str:
        if not self.user:
            return f"Bearer {self.token}"
        return f"Basic {base64.b64encode(f'{self.user}:{self.token}'.encode()).decode()}"

    def _write(self, incident: dict[str, str], fields: dict[str, Any]) -> None:
        for name, value in fields.items():
            if name in _JOURNALS:
                row = {"sys_id": f"{len(self.journal) + 1:032x}", "element_id": incident["sys_id"]}
                self.journal.append({**row, "element": name, "value": str(value)})
            else:
                incident[name] = str(value).lower() if isinstance(value, bool) else str(value)


def _named(request: DoubleRequest, row: dict[str, str]) -> dict[str, str]:
    asked = request.first("sysparm_fields")
    return {name: row.get(name, "") for name in asked.split(",")} if asked else dict(row)


def _matches(row: dict[str, str], query: str) -> bool:
    for part in query.split("^"):
        name, like, sought = part.partition("LIKE")
        if like and "=" not in name:
            if sought not in row.get(name, ""):
                return False
        else:
            name, _, sought = part.partition("=")
            if row.get(name) != sought:
                return False
    return True


def _error(status: int, message: str) -> DoubleReply:
    return DoubleReply(status, {"error": {"message": message, "detail": ""}, "status": "failure"})
