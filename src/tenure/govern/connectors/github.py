"""The GitHub connector: labels, comments, assignees, statuses and check runs of repositories. `github_repository` adds branches,
commits, pull requests and reviews.

Laws:
1. Labels, assignees and statuses set a state. Comments have a hidden marker and check runs an `external_id`, by which they are found.
2. An undo reverses only what the action changed: labels and people that were there before stay.
3. Removing something that is absent succeeds, unless its container is absent or not accessible (GitHub's answer is the same for both).
4. GitHub answers rate limits with 403 or 429: nothing was done, and the response contains the time to wait.
5. A GitHub App (`outbound.github_app`) sends each request as the tenant's installation. Without one, a token is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.expressions.json_schema import object_schema
from tenure.govern.connector import ConnectorCall, FoundEffect, Operation, Reversal
from tenure.govern.connectors.faults import (
    LOST,
    REJECTED,
    call_failed,
    raise_for_response,
    rate_limited,
    retry_after_seconds,
)
from tenure.govern.connectors.github_repository import (
    REPOSITORY_OPERATIONS,
    RepositoryActs,
    render_repository_act,
    reverse_repository_act,
)
from tenure.govern.connectors.http_service import (
    EVERY_TENANT,
    HIDDEN,
    HttpService,
    ServiceConnector,
    build_path,
    hidden_marker,
    marker_text,
    pick_fields,
    refuse_markers,
    text_digest,
)
from tenure.govern.display_text import display_lines, display_pairs, display_paragraph, display_value
from tenure.outbound.github_app import API_VERSION, BASE_URL, GitHubApp, GitHubRefused, rate_limit_seconds
from tenure.outbound.responses import HttpResponse

PAGES_MAX = 10
PAGE_ROWS = 100
_GONE = frozenset({404, 410})
_CHECK_KEYS = ("id", "html_url", "status", "conclusion")

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

_ISSUE_OPERATIONS: Mapping[str, Operation] = {
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

OPERATIONS: Mapping[str, Operation] = {**_ISSUE_OPERATIONS, **REPOSITORY_OPERATIONS}

_REQUESTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "label.add": ("POST", "issues/{number}/labels", ()),
    "label.set": ("PUT", "issues/{number}/labels", ()),
    "assignee.add": ("POST", "issues/{number}/assignees", ()),
    "assignee.remove": ("DELETE", "issues/{number}/assignees", ()),
    "comment.create": ("POST", "issues/{number}/comments", ("id", "html_url")),
    "status.set": ("POST", "statuses/{sha}", ("id", "state", "context")),
    "check.create": ("POST", "check-runs", _CHECK_KEYS),
    "check.update": ("PATCH", "check-runs/{check}", _CHECK_KEYS),
}
"""Operation -> the method and path of its request, and the keys of the response that are kept."""

_TITLES = {
    "label.add": "Add to {issue} the labels:",
    "label.remove": "Remove from {issue} the labels:",
    "label.set": "Set on {issue} the labels:",
    "assignee.add": "Assign on {issue}:",
    "assignee.remove": "Unassign on {issue}:",
    "comment.create": "Comment on {issue}:",
    "comment.delete": "Delete the comment {comment} in {repo}",
    "status.set": "Set the status of {commit}:",
    "check.create": "Set a check run of {commit}:",
    "check.update": "Change in {repo}, check run {check}:",
}
"""Operation -> the first line that approvers see."""


class GitHubConnector(ServiceConnector):
    name = "github"
    operations = OPERATIONS
    base_url = BASE_URL

    def __init__(
        self,
        name: str | None = None,
        link: HttpService | None = None,
        *,
        app: GitHubApp | None = None,
        installations: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`installations`: tenant -> the App's installation; `*` is for all other tenants."""
        super().__init__(name, link)
        self._app = app
        self._installations = installations
        self._repository = RepositoryActs(self._request, self._list_rows, self._link.base_url)

    async def _request(
        self, call: ConnectorCall, method: str, where: str, json: Any = msgspec.UNSET, *, gone: bool = False
    ) -> HttpResponse:
        """One request. With `gone`, a 404 or 410 is returned like a success."""
        answer = await self._send(call, method, where, json)
        if not (gone and answer.status in _GONE):
            _raise_for(answer)
        return answer

    async def _send(self, call: ConnectorCall, method: str, where: str, json: Any) -> HttpResponse:
        if self._app is None:
            headers = {
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self._link.token(call.tenant)}",
                "X-GitHub-Api-Version": API_VERSION,
            }
            return await self._link.request(call, method, where, json=json, headers=headers)
        installation = self._installations.get(call.tenant) or self._installations.get(EVERY_TENANT)
        if installation is None:
            raise TenureError(
                "SECRET_UNAVAILABLE", "no installation of the GitHub App is configured for this tenant"
            )
        try:
            return await self._app.request(installation, method, where, deadline=call.deadline, json=json)
        except GitHubRefused as refused:  # nothing was sent besides the request for a token
            _raise_for(refused.answer)
            raise call_failed("not_done", REJECTED, str(refused)) from refused

    async def _list_rows(self, call: ConnectorCall, where: str, within: str = "") -> list[dict[str, Any]]:
        """The rows of a list, up to a limit of pages."""
        rows: list[dict[str, Any]] = []
        sign = "&" if "?" in where else "?"
        for page in range(1, PAGES_MAX + 1):
            body = (await self._request(call, "GET", f"{where}{sign}per_page={PAGE_ROWS}&page={page}")).json()
            found = body.get(within, []) if within and isinstance(body, dict) else body
            if not isinstance(found, list):
                raise call_failed("unknown", LOST, "answered with something other than a list")
            rows += [row for row in found if isinstance(row, dict)]
            if len(found) < PAGE_ROWS:
                break
        return rows

    async def call(self, call: ConnectorCall) -> Any:
        if call.operation in REPOSITORY_OPERATIONS:
            return await self._repository.call(call)
        body = call.fields
        if call.operation == "label.remove":
            return await self._remove_labels(call)
        if call.operation == "comment.delete":
            await self._delete(call, _path(call, "issues/comments/{comment}"), _path(call))
            return {}
        if call.operation == "comment.create":
            refuse_markers(body["body"], HIDDEN)
            body = {"body": f"{body['body']}\n\n{hidden_marker(call)}"}
        if call.operation == "check.create":
            body = {**body, "head_sha": call.target["sha"], "external_id": marker_text(call)}
        method, where, kept = _REQUESTS[call.operation]
        reply = (await self._request(call, method, _path(call, where), body)).json()
        match call.operation.partition(".")[0]:
            case "label":
                return {"labels": _names(reply)}
            case "assignee":
                return {"assignees": _logins(reply)}
            case "comment":
                return {**pick_fields(reply, kept), "digest": text_digest(body["body"])}
            case _:
                return pick_fields(reply, kept)

    async def _delete(self, call: ConnectorCall, where: str, container: str) -> bool:
        """Delete something. False if it is absent, and its container is not (law 3)."""
        answer = await self._request(call, "DELETE", where, gone=True)
        if answer.status not in _GONE:
            return True
        await self._request(call, "GET", container)
        return False

    async def _remove_labels(self, call: ConnectorCall) -> dict[str, Any]:
        """Remove labels one by one, as GitHub requires. If some were removed before a failure, the outcome is unknown."""
        removed: list[str] = []
        for label in call.fields["labels"]:
            try:
                if await self._delete(
                    call, _path(call, "issues/{number}/labels", label), _path(call, "issues/{number}")
                ):
                    removed.append(label)
            except Exception as raised:
                if not removed:
                    raise
                message = f"{display_value(removed)} removed, then: {self.classify(raised).message}"
                raise call_failed("unknown", LOST, message) from raised
        return {"removed": removed}

    async def state(self, call: ConnectorCall) -> dict[str, Any] | None:
        """For labels and people: whether each named one is present. For a set of labels: all of them."""
        match call.operation:
            case "label.add" | "label.remove":
                return _presence(call.fields["labels"], await self._labels(call))
            case "label.set":
                return {"labels": sorted(await self._labels(call))}
            case "assignee.add" | "assignee.remove":
                issue = await self._request(call, "GET", _path(call, "issues/{number}"))
                return _presence(call.fields["assignees"], _logins(issue.json()))
            case "status.set":
                rows = await self._list_rows(call, _path(call, "commits/{sha}/statuses"))
                same = (row for row in rows if row.get("context") == call.fields["context"])
                return next((_status(row) for row in same), {"state": None})
            case "comment.delete":
                answer = await self._request(call, "GET", _path(call, "issues/comments/{comment}"), gone=True)
                body = answer.json()
                if answer.status in _GONE or not isinstance(body, dict):
                    return {"body": None}
                return {"body": text_digest(str(body.get("body", "")))}
            case _:
                return await self._repository.state(call)

    async def _labels(self, call: ConnectorCall) -> list[str]:
        return _names(await self._list_rows(call, _path(call, "issues/{number}/labels")))

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        if call.operation == "comment.create":
            for row in await self._list_rows(call, _path(call, "issues/{number}/comments")):
                body = str(row.get("body", ""))
                if body.rstrip().endswith(hidden_marker(call)):
                    return FoundEffect({**pick_fields(row, ("id", "html_url")), "digest": text_digest(body)})
        if call.operation == "check.create":
            where = f"{_path(call, 'commits/{sha}/check-runs')}?filter=all"
            for row in await self._list_rows(call, where, "check_runs"):
                if row.get("external_id") == marker_text(call):
                    return FoundEffect(pick_fields(row, _CHECK_KEYS))
        return await self._repository.lookup(call)

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        before = before or {}
        if operation in REPOSITORY_OPERATIONS:
            return reverse_repository_act(operation, target, fields, before, result)
        match operation.split("."):
            case [noun, "add" | "remove" as verb]:
                [(kind, names)] = fields.items()
                changed = [name for name in names if before.get(name) is (verb == "remove")]
                if not changed:
                    return None
                return Reversal(
                    operation=f"{noun}.{'remove' if verb == 'add' else 'add'}",
                    target=target,
                    fields={kind: changed},
                    expects=dict.fromkeys(changed, verb == "add"),
                )
            case ["label", "set"]:
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
            case ["status", "set"] if before.get("state"):
                return Reversal(
                    operation=operation,
                    target=target,
                    fields={
                        **{key: value for key, value in before.items() if value},
                        "context": fields["context"],
                    },
                    expects=_status(fields),
                )
            case ["comment", "create"] if isinstance(result, dict) and {"id", "digest"} <= result.keys():
                return Reversal(
                    operation="comment.delete",
                    target={"repo": target["repo"], "comment": result["id"]},
                    fields={},
                    expects={"body": result["digest"]},
                )
            case _:
                return None

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        if operation in REPOSITORY_OPERATIONS:
            return render_repository_act(operation, target, fields)
        repo = display_value(target.get("repo", ""))
        title = _TITLES[operation].format(
            repo=repo,
            issue=f"{repo}#{target.get('number', '')}",
            commit=f"{repo}@{display_value(target.get('sha', ''))[:12]}",
            comment=display_value(target.get("comment")),
            check=display_value(target.get("check")),
        )
        match operation.partition(".")[0]:
            case "label" | "assignee":
                lines = [f"  {display_value(name)}" for names in fields.values() for name in names]
            case "comment":
                lines = display_paragraph(fields["body"]) if "body" in fields else []
            case _:
                lines = display_pairs(fields)
        return display_lines(title, *lines)


def _path(call: ConnectorCall, template: str = "", *below: str) -> str:
    """A path below the call's repository. `{name}` in the template stands for a part of the target."""
    parts = [part.format_map(call.target) for part in template.split("/") if part]
    owner, _, name = call.target["repo"].partition("/")
    return build_path("repos", owner, name, *parts, *below)


def _names(rows: Any) -> list[str]:
    listed = rows if isinstance(rows, list) else []
    return [str(row["name"]) for row in listed if isinstance(row, dict) and "name" in row]


def _logins(issue: Any) -> list[str]:
    rows = issue.get("assignees", []) if isinstance(issue, dict) else []
    return [str(row["login"]) for row in rows if isinstance(row, dict) and "login" in row]


def _presence(asked: list[str], found: list[str]) -> dict[str, Any]:
    """Whether each asked name was found. GitHub ignores the case of names."""
    there = {name.casefold() for name in found}
    return {name: name.casefold() in there for name in asked}


def _status(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) or None for key in ("state", "description", "target_url")}


def _raise_for(answer: HttpResponse) -> None:
    """Raise the meaning of a response, with GitHub's rate limits (law 4)."""
    body = answer.json()
    message = str(body.get("message", "")) if isinstance(body, dict) else ""
    after = rate_limit_seconds(answer)
    if after is not None:
        raise rate_limited(f"answered {answer.status}: {message}", retry_after_seconds(answer) or after)
    raise_for_response(answer, message)
