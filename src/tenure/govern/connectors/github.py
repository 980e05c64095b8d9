"""The GitHub connector: labels, comments, assignees, statuses and check runs of repositories.

Laws:
1. Labels, assignees and statuses set a state. Comments have a hidden marker and check runs an `external_id`, by which they are found.
2. An undo reverses only what the action changed: labels and people that were there before stay.
3. Removing something that is absent succeeds, unless its container is absent or not accessible (GitHub's answer is the same for both).
4. GitHub answers rate limits with 403 or 429: nothing was done, and the response contains the time to wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tenure.clock import SECOND_US, HostClock
from tenure.expressions.json_schema import object_schema
from tenure.govern.connector import ConnectorCall, FoundEffect, Operation, Reversal
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import (
    LIMITED,
    LOST,
    RETRY_AFTER_SECONDS_MAX,
    call_failed,
    raise_for_response,
    retry_after_seconds,
)
from tenure.govern.connectors.http_service import (
    HIDDEN,
    HttpService,
    build_path,
    hidden_marker,
    marker_text,
    pick_fields,
    refuse_markers,
    text_digest,
)
from tenure.govern.display_text import display_lines, display_value
from tenure.outbound.responses import HttpResponse

BASE_URL = "https://api.github.com"
API_VERSION = "2022-11-28"
PAGES_MAX = 10
PAGE_ROWS = 100
SECOND_LIMIT_SECONDS = 60.0
_GONE = frozenset({404, 410})

_REPO = {
    "type": "string",
    "pattern": r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}",
    "description": "owner/name",
}
_NUMBER = {"type": "integer", "minimum": 1, "description": "The number of the issue or pull request."}
_SHA = {"type": "string", "pattern": "[0-9a-f]{40}"}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 60_000}
_LABELS = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 100}, "maxItems": 100}
_LOGINS = {
    "type": "array",
    "items": {"type": "string", "pattern": r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})(?:\[bot\])?"},
    "minItems": 1,
    "maxItems": 10,
}


_ISSUE = object_schema(repo=_REPO, number=_NUMBER)
_COMMIT = object_schema(repo=_REPO, sha=_SHA)
_SOME_LABELS = object_schema(labels={**_LABELS, "minItems": 1})
_OUTPUT = object_schema(title={"type": "string", "maxLength": 255}, summary={**_TEXT, "minLength": 0})
_CHECK = {
    "status_": {"type": "string", "enum": ["queued", "in_progress", "completed"]},
    "conclusion_": {
        "type": "string",
        "enum": ["action_required", "cancelled", "failure", "neutral", "success", "skipped", "timed_out"],
    },
    "details_url_": {"type": "string", "maxLength": 2_000},
    "output_": _OUTPUT,
}

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            name="label.add",
            summary="Add labels to an issue or pull request.",
            target=_ISSUE,
            fields=_SOME_LABELS,
            repeats="sets_state",
            reverses_by="label.remove",
        ),
        Operation(
            name="label.remove",
            summary="Remove labels from an issue or pull request.",
            target=_ISSUE,
            fields=_SOME_LABELS,
            repeats="sets_state",
            reverses_by="label.add",
        ),
        Operation(
            name="label.set",
            summary="Set the labels of an issue or pull request, and remove all others.",
            target=_ISSUE,
            fields=object_schema(labels=_LABELS),
            repeats="sets_state",
            reverses_by="label.set",
        ),
        Operation(
            name="comment.create",
            summary="Comment on an issue or pull request.",
            target=_ISSUE,
            fields=object_schema(body=_TEXT),
            repeats="marker",
            reverses_by="comment.delete",
        ),
        Operation(
            name="comment.delete",
            summary="Delete a comment.",
            target=object_schema(repo=_REPO, comment={"type": "integer", "minimum": 1}),
            fields=object_schema(),
            repeats="sets_state",
            undo_hint="Write the comment again; its text is not kept.",
            tier="med",
        ),
        Operation(
            name="assignee.add",
            summary="Assign people to an issue or pull request.",
            target=_ISSUE,
            fields=object_schema(assignees=_LOGINS),
            repeats="sets_state",
            reverses_by="assignee.remove",
        ),
        Operation(
            name="assignee.remove",
            summary="Unassign people from an issue or pull request.",
            target=_ISSUE,
            fields=object_schema(assignees=_LOGINS),
            repeats="sets_state",
            reverses_by="assignee.add",
        ),
        Operation(
            name="status.set",
            summary="Set a status of a commit.",
            target=_COMMIT,
            fields=object_schema(
                state={"type": "string", "enum": ["error", "failure", "pending", "success"]},
                context={"type": "string", "minLength": 1, "maxLength": 200},
                description_={"type": "string", "maxLength": 140},
                target_url_={"type": "string", "maxLength": 2_000},
            ),
            repeats="sets_state",
            reverses_by="status.set",
            undo_hint="GitHub cannot delete a status; set it to the right value.",
        ),
        Operation(
            name="check.create",
            summary="Add a check run to a commit.",
            target=_COMMIT,
            fields=object_schema(name={"type": "string", "minLength": 1, "maxLength": 200}, **_CHECK),
            repeats="marker",
            undo_hint="GitHub cannot delete a check run; complete it as `cancelled` with github.check.update.",
        ),
        Operation(
            name="check.update",
            summary="Change a check run.",
            target=object_schema(repo=_REPO, check={"type": "integer", "minimum": 1}),
            fields=object_schema(**_CHECK),
            repeats="sets_state",
            undo_hint="A completed check run stays completed; add another one.",
        ),
    )
}


class GitHubConnector(ConnectorBase):
    def __init__(self, name: str = "github", link: HttpService | None = None) -> None:
        self.name = name
        self.operations = OPERATIONS
        self._link = link or HttpService(base_url=BASE_URL)

    # ------------------------------------------------------------------------------------------ asking

    async def _ask(
        self, call: ConnectorCall, method: str, where: str, json: Any = msgspec.UNSET, *, gone: bool = False
    ) -> HttpResponse:
        """One request. With `gone`, a 404 or 410 is returned like a success."""
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self._link.token(call.tenant)}",
            "X-GitHub-Api-Version": API_VERSION,
        }
        answer = await self._link.request(call, method, where, json=json, headers=headers)
        if not (gone and answer.status in _GONE):
            _raise_for(answer)
        return answer

    async def _pages(self, call: ConnectorCall, where: str, within: str = "") -> list[dict[str, Any]]:
        """The rows of a list, up to a limit of pages."""
        rows: list[dict[str, Any]] = []
        sign = "&" if "?" in where else "?"
        for page in range(1, PAGES_MAX + 1):
            body = (await self._ask(call, "GET", f"{where}{sign}per_page={PAGE_ROWS}&page={page}")).json()
            found = body.get(within, []) if within and isinstance(body, dict) else body
            if not isinstance(found, list):
                raise call_failed("unknown", LOST, "answered with something other than a list")
            rows += [row for row in found if isinstance(row, dict)]
            if len(found) < PAGE_ROWS:
                break
        return rows

    # ------------------------------------------------------------------------------------------- doing

    async def call(self, call: ConnectorCall) -> Any:
        match call.operation:
            case "label.add":
                answer = await self._ask(
                    call, "POST", _issue(call, "labels"), {"labels": call.fields["labels"]}
                )
                return {"labels": _names(answer.json())}
            case "label.set":
                answer = await self._ask(
                    call, "PUT", _issue(call, "labels"), {"labels": call.fields["labels"]}
                )
                return {"labels": _names(answer.json())}
            case "label.remove":
                return await self._remove_labels(call)
            case "comment.create":
                body: str = call.fields["body"]
                refuse_markers(body, HIDDEN)
                text = f"{body}\n\n{hidden_marker(call)}"
                answer = await self._ask(call, "POST", _issue(call, "comments"), {"body": text})
                return {**pick_fields(answer, "id", "html_url"), "digest": text_digest(text)}
            case "comment.delete":
                answer = await self._ask(call, "DELETE", _comment(call), gone=True)
                if answer.status in _GONE:
                    await self._ask(call, "GET", build_path("repos", *_repo(call)))
                return {}
            case "assignee.add" | "assignee.remove":
                method = "POST" if call.operation == "assignee.add" else "DELETE"
                asked = {"assignees": call.fields["assignees"]}
                answer = await self._ask(call, method, _issue(call, "assignees"), asked)
                return {"assignees": _logins(answer.json())}
            case "status.set":
                where = build_path("repos", *_repo(call), "statuses", call.target["sha"])
                return pick_fields(
                    await self._ask(call, "POST", where, call.fields), "id", "state", "context"
                )
            case "check.create":
                asked = {**call.fields, "head_sha": call.target["sha"], "external_id": marker_text(call)}
                where = build_path("repos", *_repo(call), "check-runs")
                return pick_fields(
                    await self._ask(call, "POST", where, asked), "id", "html_url", "status", "conclusion"
                )
            case _:
                where = build_path("repos", *_repo(call), "check-runs", call.target["check"])
                return pick_fields(
                    await self._ask(call, "PATCH", where, call.fields),
                    "id",
                    "html_url",
                    "status",
                    "conclusion",
                )

    async def _remove_labels(self, call: ConnectorCall) -> dict[str, Any]:
        """Remove labels one by one, as GitHub requires. If some were removed before a failure, the outcome is unknown."""
        removed: list[str] = []
        for label in call.fields["labels"]:
            try:
                answer = await self._ask(call, "DELETE", _issue(call, "labels", label), gone=True)
                if answer.status in _GONE:
                    await self._ask(call, "GET", _issue(call))
            except Exception as raised:
                if removed:
                    message = f"{display_value(removed)} removed, then: {self.classify(raised).message}"
                    raise call_failed("unknown", LOST, message) from raised
                raise
            if answer.status not in _GONE:
                removed.append(label)
        return {"removed": removed}

    # --------------------------------------------------------------------------------------- looking

    async def state(self, call: ConnectorCall) -> dict[str, Any] | None:
        """For labels and people: whether each named one is present. For a set of labels: all of them."""
        match call.operation:
            case "label.add" | "label.remove":
                there = {name.casefold() for name in await self._labels(call)}
                return {label: label.casefold() in there for label in call.fields["labels"]}
            case "label.set":
                return {"labels": sorted(await self._labels(call))}
            case "assignee.add" | "assignee.remove":
                issue = await self._ask(call, "GET", _issue(call))
                there = {login.casefold() for login in _logins(issue.json())}
                return {login: login.casefold() in there for login in call.fields["assignees"]}
            case "status.set":
                where = build_path("repos", *_repo(call), "commits", call.target["sha"], "statuses")
                for row in await self._pages(call, where):
                    if row.get("context") == call.fields["context"]:
                        return _status(row)
                return {"state": None}
            case "comment.delete":
                answer = await self._ask(call, "GET", _comment(call), gone=True)
                body = answer.json()
                if answer.status in _GONE or not isinstance(body, dict):
                    return {"body": None}
                return {"body": text_digest(str(body.get("body", "")))}
            case _:
                return None

    async def _labels(self, call: ConnectorCall) -> list[str]:
        return _names(await self._pages(call, _issue(call, "labels")))

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        if call.operation == "comment.create":
            for row in await self._pages(call, _issue(call, "comments")):
                body = str(row.get("body", ""))
                if body.rstrip().endswith(hidden_marker(call)):
                    kept = {key: row[key] for key in ("id", "html_url") if key in row}
                    return FoundEffect({**kept, "digest": text_digest(body)})
        if call.operation == "check.create":
            where = build_path("repos", *_repo(call), "commits", call.target["sha"], "check-runs")
            for row in await self._pages(call, f"{where}?filter=all", "check_runs"):
                if row.get("external_id") == marker_text(call):
                    return FoundEffect(
                        {key: row[key] for key in ("id", "html_url", "status", "conclusion") if key in row}
                    )
        return None

    # ------------------------------------------------------------------------------------ taking back

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        before = before or {}
        match operation:
            case "label.add" | "label.remove" | "assignee.add" | "assignee.remove":
                kind, adds = (
                    ("labels" if operation.startswith("label") else "assignees"),
                    operation.endswith(".add"),
                )
                changed = [name for name in fields[kind] if before.get(name) is (not adds)]
                if not changed:
                    return None
                back = f"{operation.partition('.')[0]}.{'remove' if adds else 'add'}"
                return Reversal(
                    operation=back,
                    target=target,
                    fields={kind: changed},
                    expects=dict.fromkeys(changed, adds),
                )
            case "label.set":
                now = sorted(
                    result.get("labels", fields["labels"]) if isinstance(result, dict) else fields["labels"]
                )
                if "labels" not in before or before["labels"] == now:
                    return None
                return Reversal(
                    operation=operation,
                    target=target,
                    fields={"labels": before["labels"]},
                    expects={"labels": now},
                )
            case "status.set" if before.get("state"):
                was = {key: value for key, value in before.items() if value}
                return Reversal(
                    operation=operation,
                    target=target,
                    fields={**was, "context": fields["context"]},
                    expects=_status(fields),
                )
            case "comment.create" if isinstance(result, dict) and {"id", "digest"} <= result.keys():
                return Reversal(
                    operation="comment.delete",
                    target={"repo": target["repo"], "comment": result["id"]},
                    fields={},
                    expects={"body": result["digest"]},
                )
            case _:
                return None

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        at = display_value(target.get("repo", ""))
        where = (
            f"{at}#{target['number']}"
            if "number" in target
            else f"{at}@{display_value(target.get('sha', ''))[:12]}"
        )
        match operation:
            case "label.add" | "label.remove" | "label.set":
                verb = {"add": "Add to", "remove": "Remove from", "set": "Set on"}[
                    operation.partition(".")[2]
                ]
                return display_lines(f"{verb} {where} the labels:", *_listed(fields["labels"]))
            case "assignee.add" | "assignee.remove":
                verb = "Assign" if operation.endswith("add") else "Unassign"
                return display_lines(f"{verb} on {where}:", *_listed(fields["assignees"]))
            case "comment.create":
                body = fields["body"].split("\n")
                return display_lines(
                    f"Comment on {where}:", *(f"  {display_value(line, 1_000)}" for line in body)
                )
            case "comment.delete":
                return [f"Delete the comment {display_value(target.get('comment'))} in {at}"]
            case "check.update":
                where = f"{at}, check run {display_value(target.get('check'))}"
                return display_lines(f"Change in {where}:", *_pairs(fields))
            case _:
                what = "the status" if operation == "status.set" else "a check run"
                return display_lines(f"Set {what} of {where}:", *_pairs(fields))


def _repo(call: ConnectorCall) -> tuple[str, str]:
    owner, _, name = call.target["repo"].partition("/")
    return owner, name


def _issue(call: ConnectorCall, *below: str) -> str:
    return build_path("repos", *_repo(call), "issues", call.target["number"], *below)


def _comment(call: ConnectorCall) -> str:
    return build_path("repos", *_repo(call), "issues", "comments", call.target["comment"])


def _names(rows: Any) -> list[str]:
    return (
        [str(row["name"]) for row in rows if isinstance(row, dict) and "name" in row]
        if isinstance(rows, list)
        else []
    )


def _logins(issue: Any) -> list[str]:
    rows = issue.get("assignees", []) if isinstance(issue, dict) else []
    return [str(row["login"]) for row in rows if isinstance(row, dict) and "login" in row]


def _status(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) or None for key in ("state", "description", "target_url")}


def _listed(names: list[Any]) -> Iterator[str]:
    return (f"  {display_value(name)}" for name in names)


def _pairs(fields: dict[str, Any]) -> Iterator[str]:
    return (f"  {display_value(name)} = {display_value(value)}" for name, value in fields.items())


def _raise_for(answer: HttpResponse) -> None:
    """Raise the meaning of a response, with GitHub's rate limits (law 4)."""
    body = answer.json()
    said = str(body.get("message", "")) if isinstance(body, dict) else ""
    if answer.status in (403, 429):
        after = retry_after_seconds(answer)
        if after is None and answer.headers.get("x-ratelimit-remaining") == "0":
            after = _until_reset(answer)
        if after is None and (answer.status == 429 or "rate limit" in said.lower()):
            after = SECOND_LIMIT_SECONDS
        if after is not None:
            raise call_failed(
                "not_done",
                LIMITED,
                f"answered {answer.status}: {said}",
                retryable=True,
                retry_after_seconds=after,
            )
    raise_for_response(answer, said)


def _until_reset(answer: HttpResponse) -> float | None:
    given = answer.headers.get("x-ratelimit-reset", "")
    if not (given.isascii() and given.isdigit()):
        return None
    left = int(given[:12]) - HostClock().now_us() / SECOND_US
    return min(max(left, 0.0), RETRY_AFTER_SECONDS_MAX)
