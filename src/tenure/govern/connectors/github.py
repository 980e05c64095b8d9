"""GitHub: labels, comments, assignees, statuses and check runs of repositories.

Laws:
1. Labels, assignees and statuses set a state. Comments have a hidden mark, check runs an `external_id`: both are found again by it.
2. What is taken back is what we changed: labels and people who were there before stay.
3. What is to be removed and is not there is removed; unless what it was in is not there either, or not for us (GitHub says the same of both).
4. Limits on requests, first and second, are answered 403 or 429: nothing was done, and the time to wait is what GitHub says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tenure.clock import SECOND_US, HostClock
from tenure.govern.answers import Answer
from tenure.govern.connector import Call, Found, Operation, Reversal
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import (
    LIMITED,
    LOST,
    RETRY_AFTER_SECONDS_MAX,
    failed,
    raise_for,
    retry_after_seconds,
)
from tenure.govern.connectors.link import Link, path, taken
from tenure.govern.connectors.marks import HIDDEN, hidden, mark, refuse_marks, text_digest
from tenure.govern.connectors.schemas import object_of
from tenure.govern.wording import lines, shown

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
_NUMBER = {"type": "integer", "minimum": 1, "description": "Of the issue or pull request."}
_SHA = {"type": "string", "pattern": "[0-9a-f]{40}"}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 60_000}
_LABELS = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 100}, "maxItems": 100}
_LOGINS = {
    "type": "array",
    "items": {"type": "string", "pattern": r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})(?:\[bot\])?"},
    "minItems": 1,
    "maxItems": 10,
}


_ISSUE = object_of(repo=_REPO, number=_NUMBER)
_COMMIT = object_of(repo=_REPO, sha=_SHA)
_SOME_LABELS = object_of(labels={**_LABELS, "minItems": 1})
_OUTPUT = object_of(title={"type": "string", "maxLength": 255}, summary={**_TEXT, "minLength": 0})
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
            summary="Give an issue or pull request these labels and no others.",
            target=_ISSUE,
            fields=object_of(labels=_LABELS),
            repeats="sets_state",
            reverses_by="label.set",
        ),
        Operation(
            name="comment.create",
            summary="Comment on an issue or pull request.",
            target=_ISSUE,
            fields=object_of(body=_TEXT),
            repeats="marker",
            reverses_by="comment.delete",
        ),
        Operation(
            name="comment.delete",
            summary="Delete a comment.",
            target=object_of(repo=_REPO, comment={"type": "integer", "minimum": 1}),
            fields=object_of(),
            repeats="sets_state",
            undo_hint="Write the comment again; its text is no longer there.",
            tier="med",
        ),
        Operation(
            name="assignee.add",
            summary="Assign people to an issue or pull request.",
            target=_ISSUE,
            fields=object_of(assignees=_LOGINS),
            repeats="sets_state",
            reverses_by="assignee.remove",
        ),
        Operation(
            name="assignee.remove",
            summary="Unassign people from an issue or pull request.",
            target=_ISSUE,
            fields=object_of(assignees=_LOGINS),
            repeats="sets_state",
            reverses_by="assignee.add",
        ),
        Operation(
            name="status.set",
            summary="Set a status of a commit.",
            target=_COMMIT,
            fields=object_of(
                state={"type": "string", "enum": ["error", "failure", "pending", "success"]},
                context={"type": "string", "minLength": 1, "maxLength": 200},
                description_={"type": "string", "maxLength": 140},
                target_url_={"type": "string", "maxLength": 2_000},
            ),
            repeats="sets_state",
            reverses_by="status.set",
            undo_hint="GitHub deletes no status; set it to what it should be.",
        ),
        Operation(
            name="check.create",
            summary="Add a check run to a commit.",
            target=_COMMIT,
            fields=object_of(name={"type": "string", "minLength": 1, "maxLength": 200}, **_CHECK),
            repeats="marker",
            undo_hint="GitHub deletes no check run; complete it as `cancelled` with github.check.update.",
        ),
        Operation(
            name="check.update",
            summary="Change a check run.",
            target=object_of(repo=_REPO, check={"type": "integer", "minimum": 1}),
            fields=object_of(**_CHECK),
            repeats="sets_state",
            undo_hint="A check run that is completed stays so; add another one.",
        ),
    )
}


class GitHubConnector(ConnectorBase):
    """See the laws above."""

    def __init__(self, name: str = "github", link: Link | None = None) -> None:
        self.name = name
        self.operations = OPERATIONS
        self._link = link or Link(base_url=BASE_URL)

    # ------------------------------------------------------------------------------------------ asking

    async def _ask(
        self, call: Call, method: str, where: str, json: Any = msgspec.UNSET, *, gone: bool = False
    ) -> Answer:
        """One request; with `gone`, what is not there is an answer like others."""
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self._link.token(call.tenant)}",
            "X-GitHub-Api-Version": API_VERSION,
        }
        answer = await self._link.request(call, method, where, json=json, headers=headers)
        if not (gone and answer.status in _GONE):
            _raise_for(answer)
        return answer

    async def _pages(self, call: Call, where: str, within: str = "") -> list[dict[str, Any]]:
        """The rows of a list, as many as are looked at."""
        rows: list[dict[str, Any]] = []
        sign = "&" if "?" in where else "?"
        for page in range(1, PAGES_MAX + 1):
            body = (await self._ask(call, "GET", f"{where}{sign}per_page={PAGE_ROWS}&page={page}")).json()
            found = body.get(within, []) if within and isinstance(body, dict) else body
            if not isinstance(found, list):
                raise failed("unknown", LOST, "answered with something else than a list")
            rows += [row for row in found if isinstance(row, dict)]
            if len(found) < PAGE_ROWS:
                break
        return rows

    # ------------------------------------------------------------------------------------------- doing

    async def call(self, call: Call) -> Any:
        """Do it."""
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
                refuse_marks(body, HIDDEN)
                text = f"{body}\n\n{hidden(call)}"
                answer = await self._ask(call, "POST", _issue(call, "comments"), {"body": text})
                return {**taken(answer, "id", "html_url"), "digest": text_digest(text)}
            case "comment.delete":
                answer = await self._ask(call, "DELETE", _comment(call), gone=True)
                if answer.status in _GONE:
                    await self._ask(call, "GET", path("repos", *_repo(call)))
                return {}
            case "assignee.add" | "assignee.remove":
                method = "POST" if call.operation == "assignee.add" else "DELETE"
                asked = {"assignees": call.fields["assignees"]}
                answer = await self._ask(call, method, _issue(call, "assignees"), asked)
                return {"assignees": _logins(answer.json())}
            case "status.set":
                where = path("repos", *_repo(call), "statuses", call.target["sha"])
                return taken(await self._ask(call, "POST", where, call.fields), "id", "state", "context")
            case "check.create":
                asked = {**call.fields, "head_sha": call.target["sha"], "external_id": mark(call)}
                where = path("repos", *_repo(call), "check-runs")
                return taken(
                    await self._ask(call, "POST", where, asked), "id", "html_url", "status", "conclusion"
                )
            case _:
                where = path("repos", *_repo(call), "check-runs", call.target["check"])
                return taken(
                    await self._ask(call, "PATCH", where, call.fields),
                    "id",
                    "html_url",
                    "status",
                    "conclusion",
                )

    async def _remove_labels(self, call: Call) -> dict[str, Any]:
        """One after the other, as GitHub has it: when some are gone and the rest is refused, that is not nothing."""
        removed: list[str] = []
        for label in call.fields["labels"]:
            try:
                answer = await self._ask(call, "DELETE", _issue(call, "labels", label), gone=True)
                if answer.status in _GONE:
                    await self._ask(call, "GET", _issue(call))
            except Exception as raised:
                if removed:
                    message = f"{shown(removed)} removed, then: {self.classify(raised).message}"
                    raise failed("unknown", LOST, message) from raised
                raise
            if answer.status not in _GONE:
                removed.append(label)
        return {"removed": removed}

    # --------------------------------------------------------------------------------------- looking

    async def state(self, call: Call) -> dict[str, Any] | None:
        """Of labels and people: each that is named, and whether it is there. Of a set: all of it."""
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
                where = path("repos", *_repo(call), "commits", call.target["sha"], "statuses")
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

    async def _labels(self, call: Call) -> list[str]:
        return _names(await self._pages(call, _issue(call, "labels")))

    async def lookup(self, call: Call) -> Found | None:
        """By the mark of the key."""
        if call.operation == "comment.create":
            for row in await self._pages(call, _issue(call, "comments")):
                body = str(row.get("body", ""))
                if body.rstrip().endswith(hidden(call)):
                    kept = {key: row[key] for key in ("id", "html_url") if key in row}
                    return Found({**kept, "digest": text_digest(body)})
        if call.operation == "check.create":
            where = path("repos", *_repo(call), "commits", call.target["sha"], "check-runs")
            for row in await self._pages(call, f"{where}?filter=all", "check_runs"):
                if row.get("external_id") == mark(call):
                    return Found(
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
        """What we changed, and nothing else."""
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
        """In words."""
        at = shown(target.get("repo", ""))
        where = (
            f"{at}#{target['number']}" if "number" in target else f"{at}@{shown(target.get('sha', ''))[:12]}"
        )
        match operation:
            case "label.add" | "label.remove" | "label.set":
                verb = {"add": "Add to", "remove": "Remove from", "set": "Set on"}[
                    operation.partition(".")[2]
                ]
                return lines(f"{verb} {where} the labels:", *_listed(fields["labels"]))
            case "assignee.add" | "assignee.remove":
                verb = "Assign" if operation.endswith("add") else "Unassign"
                return lines(f"{verb} on {where}:", *_listed(fields["assignees"]))
            case "comment.create":
                body = fields["body"].split("\n")
                return lines(f"Comment on {where}:", *(f"  {shown(line, 1_000)}" for line in body))
            case "comment.delete":
                return [f"Delete the comment {shown(target.get('comment'))} in {at}"]
            case "check.update":
                where = f"{at}, check run {shown(target.get('check'))}"
                return lines(f"Change in {where}:", *_pairs(fields))
            case _:
                what = "the status" if operation == "status.set" else "a check run"
                return lines(f"Set {what} of {where}:", *_pairs(fields))


def _repo(call: Call) -> tuple[str, str]:
    owner, _, name = call.target["repo"].partition("/")
    return owner, name


def _issue(call: Call, *below: str) -> str:
    return path("repos", *_repo(call), "issues", call.target["number"], *below)


def _comment(call: Call) -> str:
    return path("repos", *_repo(call), "issues", "comments", call.target["comment"])


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
    return (f"  {shown(name)}" for name in names)


def _pairs(fields: dict[str, Any]) -> Iterator[str]:
    return (f"  {shown(name)} = {shown(value)}" for name, value in fields.items())


def _raise_for(answer: Answer) -> None:
    """What an answer means, with GitHub's limits (law 4)."""
    body = answer.json()
    said = str(body.get("message", "")) if isinstance(body, dict) else ""
    if answer.status in (403, 429):
        after = retry_after_seconds(answer)
        if after is None and answer.headers.get("x-ratelimit-remaining") == "0":
            after = _until_reset(answer)
        if after is None and (answer.status == 429 or "rate limit" in said.lower()):
            after = SECOND_LIMIT_SECONDS
        if after is not None:
            raise failed(
                "not_done",
                LIMITED,
                f"answered {answer.status}: {said}",
                retryable=True,
                retry_after_seconds=after,
            )
    raise_for(answer, said)


def _until_reset(answer: Answer) -> float | None:
    given = answer.headers.get("x-ratelimit-reset", "")
    if not (given.isascii() and given.isdigit()):
        return None
    left = int(given[:12]) - HostClock().now_us() / SECOND_US
    return min(max(left, 0.0), RETRY_AFTER_SECONDS_MAX)
