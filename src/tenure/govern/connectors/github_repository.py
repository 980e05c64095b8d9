"""Branches, commits, pull requests and reviews for the GitHub connector.

Laws:
1. A branch moves only from the commit that the action expects. GitHub compares and moves in one step (`createCommitOnBranch`,
   `updateRefs`), so a repeated call cannot move it twice.
2. A pull request is opened, reviewed and merged at one head commit. What is opened or merged must have the diff digest of the action:
   the digest of the base commit and of every changed file (`diff_digest`). So an approval is for exactly that diff.
3. What GitHub has no key for is found by a marker: a trailer of a commit message, or a hidden comment at the end of a body.
4. A commit is undone only while its branch still ends with it: by moving the branch back, or on a protected or default branch by a
   commit that restores the files. A merge is undone by a pull request that reverts it, a review by its dismissal.
5. If GitHub refuses a call because its effect is already there, and it is the effect of this action, the call has succeeded.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from hashlib import sha1, sha256
from typing import Any, Protocol

import msgspec

from tenure.canonical import canonical
from tenure.expressions.json_schema import object_schema
from tenure.govern.connector import ConnectorCall, FoundEffect, Operation, Reversal
from tenure.govern.connectors.faults import LOST, REJECTED, CallFailed, call_failed, rate_limited
from tenure.govern.connectors.http_service import (
    HIDDEN,
    build_path,
    hidden_marker,
    marker_text,
    pick_fields,
    refuse_markers,
)
from tenure.govern.display_text import display_lines, display_pairs, display_paragraph, display_value
from tenure.outbound.responses import HttpResponse

FILES_MAX = 100
CONTENT_CHARS_MAX = 500_000
COMPARED_FILES_MAX = 300
"""GitHub lists no more files of a comparison."""
LIMIT_SECONDS = 60.0
TRAILER = "Tenure-Action: "
_NO_COMMIT = "0" * 40
_GONE = frozenset({404, 410})
_ODD_PARTS = frozenset({"", ".", "..", ".git"})
"""Parts that a path in a repository cannot have."""

_REPO = {
    "type": "string",
    "pattern": r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}",
    "description": "owner/name",
}
_NAME = {
    "type": "string",
    "pattern": r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}",
    "description": "Without refs/heads/.",
}
_SHA = {"type": "string", "pattern": "[0-9a-f]{40}"}
_DIFF = {
    "type": "string",
    "pattern": "[0-9a-f]{64}",
    "description": "The digest of the base commit and the changed files; commit.create returns it.",
}
_NUMBER = {"type": "integer", "minimum": 1, "description": "The number of the pull request."}
_TITLE = {"type": "string", "minLength": 1, "maxLength": 256}
_TEXT = {"type": "string", "maxLength": 60_000}
_FILE = object_schema(
    path={"type": "string", "minLength": 1, "maxLength": 1_000},
    content={
        "type": ["string", "null"],
        "maxLength": CONTENT_CHARS_MAX,
        "description": "The whole file; null deletes it.",
    },
    encoding_={
        "type": "string",
        "enum": ["utf-8", "base64"],
        "description": "Of the content; utf-8 by default.",
    },
)
_BRANCH = object_schema(repo=_REPO, branch=_NAME)
_PULL = object_schema(repo=_REPO, number=_NUMBER)
_AT = {**_SHA, "description": "The commit that the branch must end with."}

REPOSITORY_OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            name="branch.create",
            summary="Create a branch at a commit.",
            target=_BRANCH,
            fields=object_schema(sha=_SHA),
            repeats="sets_state",
            reverses_by="branch.delete",
        ),
        Operation(
            name="branch.delete",
            summary="Delete a branch that ends with a commit.",
            target=_BRANCH,
            fields=object_schema(sha=_AT),
            repeats="sets_state",
            reverses_by="branch.create",
            tier="med",
        ),
        Operation(
            name="branch.move",
            summary="Move a branch from one commit to another, even if commits are lost from it.",
            target=_BRANCH,
            fields=object_schema(expected=_AT, sha=_SHA),
            repeats="sets_state",
            reverses_by="branch.move",
            tier="high",
        ),
        Operation(
            name="commit.create",
            summary="Add a commit to a branch that ends with `base`.",
            target=_BRANCH,
            fields=object_schema(
                base=_AT,
                message={"type": "string", "minLength": 1, "maxLength": 10_000},
                files={"type": "array", "items": _FILE, "minItems": 1, "maxItems": FILES_MAX},
            ),
            repeats="sets_state",
            reverses_by="branch.move",
            undo_hint="Revert it with github.commit.revert.",
        ),
        Operation(
            name="commit.revert",
            summary="Restore the files that a commit changed to what they were at `base`, by another commit.",
            target=_BRANCH,
            fields=object_schema(commit=_AT, base=_SHA),
            repeats="sets_state",
            reverses_by="branch.move",
            undo_hint="Revert it with github.commit.revert.",
        ),
        Operation(
            name="pull.open",
            summary="Open a pull request for a branch that ends with `sha`.",
            target=object_schema(repo=_REPO),
            fields=object_schema(
                head=_NAME,
                base=_NAME,
                title=_TITLE,
                body=_TEXT,
                sha=_AT,
                diff=_DIFF,
                draft_={"type": "boolean"},
            ),
            repeats="sets_state",
            reverses_by="pull.close",
        ),
        Operation(
            name="pull.update",
            summary="Change the title, body or base branch of a pull request.",
            target=_PULL,
            fields=object_schema(title_=_TITLE, body_=_TEXT, base_=_NAME),
            repeats="sets_state",
            reverses_by="pull.update",
        ),
        Operation(
            name="pull.close",
            summary="Close a pull request without merging it.",
            target=_PULL,
            fields=object_schema(),
            repeats="sets_state",
            reverses_by="pull.reopen",
        ),
        Operation(
            name="pull.reopen",
            summary="Open a closed pull request again.",
            target=_PULL,
            fields=object_schema(),
            repeats="sets_state",
            reverses_by="pull.close",
        ),
        Operation(
            name="pull.merge",
            summary="Merge a pull request at its head commit `sha`.",
            target=_PULL,
            fields=object_schema(
                sha=_SHA,
                diff=_DIFF,
                method_={"type": "string", "enum": ["merge", "squash"]},
                title_=_TITLE,
                message_={"type": "string", "maxLength": 10_000},
            ),
            repeats="sets_state",
            reverses_by="pull.revert",
            tier="high",
        ),
        Operation(
            name="pull.revert",
            summary="Open a pull request that reverts a merged one.",
            target=_PULL,
            fields=object_schema(title_=_TITLE, body_=_TEXT),
            repeats="marker",
            reverses_by="pull.close",
        ),
        Operation(
            name="review.submit",
            summary="Review a pull request at its head commit `sha`.",
            target=_PULL,
            fields=object_schema(
                event={"type": "string", "enum": ["APPROVE", "REQUEST_CHANGES", "COMMENT"]},
                sha=_SHA,
                body={**_TEXT, "minLength": 1},
            ),
            repeats="marker",
            reverses_by="review.dismiss",
            undo_hint="GitHub cannot dismiss a review that only comments; answer it.",
            tier="med",
        ),
        Operation(
            name="review.dismiss",
            summary="Dismiss a review that approves or requests changes.",
            target=object_schema(repo=_REPO, number=_NUMBER, review={"type": "integer", "minimum": 1}),
            fields=object_schema(message={**_TEXT, "minLength": 1}),
            repeats="sets_state",
            undo_hint="GitHub cannot restore a dismissed review; ask for another one.",
            tier="med",
        ),
    )
}

_TITLES = {
    "branch.create": "Create the branch {branch}:",
    "branch.delete": "Delete the branch {branch}:",
    "branch.move": "Move the branch {branch}:",
    "commit.create": "Commit to {branch}:",
    "commit.revert": "Revert on {branch}:",
    "pull.open": "Open in {repo} a pull request:",
    "pull.update": "Change {pull}:",
    "pull.close": "Close {pull}",
    "pull.reopen": "Reopen {pull}",
    "pull.merge": "Merge {pull}:",
    "pull.revert": "Open a pull request that reverts {pull}:",
    "review.submit": "Review {pull}:",
    "review.dismiss": "Dismiss the review {review} of {pull}:",
}
"""Operation -> the first line that approvers see."""

_COMMIT = """mutation($input: CreateCommitOnBranchInput!) {
  createCommitOnBranch(input: $input) { commit { oid url } }
}"""
_UPDATE_REFS = """mutation($input: UpdateRefsInput!) {
  updateRefs(input: $input) { clientMutationId }
}"""
_REVERT = """mutation($input: RevertPullRequestInput!) {
  revertPullRequest(input: $input) { revertPullRequest { number url } }
}"""


def diff_digest(base: str, blobs: Mapping[str, str | None]) -> str:
    """The digest of a change: its base commit, and the git blob of each changed path (None: deleted)."""
    return sha256(canonical({"base": base, "files": dict(blobs)})).hexdigest()


def blob_sha(content: bytes) -> str:
    """The name that git gives to a file's content."""
    return sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def commit_digest(base: str, files: list[dict[str, Any]]) -> str:
    """The diff digest of the fields of `commit.create`."""
    contents = ((file["path"], _content(file)) for file in files)
    return diff_digest(base, {path: None if body is None else blob_sha(body) for path, body in contents})


class GitHubRequests(Protocol):
    """How requests are sent to GitHub."""

    async def __call__(
        self, call: ConnectorCall, method: str, where: str, json: Any = msgspec.UNSET, *, gone: bool = False
    ) -> HttpResponse: ...


class ListRows(Protocol):
    async def __call__(self, call: ConnectorCall, where: str, within: str = "") -> list[dict[str, Any]]: ...


class RepositoryActs:
    """The operations above; see the laws."""

    def __init__(self, request: GitHubRequests, list_rows: ListRows, base_url: str) -> None:
        self._request = request
        self._list_rows = list_rows
        # GitHub Enterprise serves REST below /api/v3 and GraphQL at /api/graphql.
        enterprise = base_url.endswith("/api/v3")
        self._graphql_url = f"{base_url.removesuffix('/v3')}/graphql" if enterprise else "/graphql"

    # ------------------------------------------------------------------------------------------------ calls

    async def call(self, call: ConnectorCall) -> Any:
        match call.operation:
            case "branch.create":
                return await self._create_branch(call)
            case "branch.delete" | "branch.move":
                return await self._move_branch(call)
            case "commit.create":
                return await self._commit(call)
            case "commit.revert":
                return await self._revert_commit(call)
            case "pull.open":
                return await self._open_pull(call)
            case "pull.merge":
                return await self._merge(call)
            case "pull.revert":
                return await self._revert_pull(call)
            case "review.submit":
                return await self._review(call)
            case "review.dismiss":
                body = {"message": call.fields["message"], "event": "DISMISS"}
                where = _path(
                    call, "pulls", call.target["number"], "reviews", call.target["review"], "dismissals"
                )
                return pick_fields((await self._request(call, "PUT", where, body)).json(), ("id", "state"))
            case _:  # pull.update, pull.close, pull.reopen
                body = dict(call.fields)
                if call.operation != "pull.update":
                    body = {"state": "closed" if call.operation == "pull.close" else "open"}
                answer = await self._request(call, "PATCH", _path(call, "pulls", call.target["number"]), body)
                return _pull(answer.json())

    async def _create_branch(self, call: ConnectorCall) -> dict[str, Any]:
        branch, sha = call.target["branch"], call.fields["sha"]
        try:
            await self._request(
                call, "POST", _path(call, "git", "refs"), {"ref": f"refs/heads/{branch}", "sha": sha}
            )
        except CallFailed as refused:
            if not _is_refusal(refused) or await self._head(call, branch) != sha:
                raise  # law 5
        return {"branch": branch, "sha": sha}

    async def _move_branch(self, call: ConnectorCall) -> dict[str, Any]:
        """Move or delete a branch (law 1)."""
        delete = call.operation == "branch.delete"
        expected = call.fields["sha" if delete else "expected"]
        wanted = None if delete else call.fields["sha"]
        repository = (await self._request(call, "GET", _path(call))).json()
        branch = call.target["branch"]
        update = {
            "name": f"refs/heads/{branch}",
            "beforeOid": expected,
            "afterOid": wanted or _NO_COMMIT,
            "force": True,
        }
        try:
            await self._graphql(
                call, _UPDATE_REFS, {"repositoryId": repository["node_id"], "refUpdates": [update]}
            )
        except CallFailed as refused:
            if not _is_refusal(refused) or await self._head(call, branch) != wanted:
                raise
        return {"branch": branch, "sha": wanted}

    async def _commit(self, call: ConnectorCall) -> dict[str, Any]:
        fields = call.fields
        contents = {file["path"]: _content(file) for file in fields["files"]}
        if odd := [path for path in contents if _ODD_PARTS & set(path.lower().split("/"))]:
            raise call_failed("not_done", "INVALID_INPUT", f"{odd[0]!r} is no path in a repository")
        if len(contents) < len(fields["files"]):
            raise call_failed("not_done", "INVALID_INPUT", "a commit must name each path once")
        made = await self._add_commit(call, fields["base"], fields["message"], contents)
        return {**made, "base": fields["base"], "diff": commit_digest(fields["base"], fields["files"])}

    async def _revert_commit(self, call: ConnectorCall) -> dict[str, Any]:
        commit, base = call.fields["commit"], call.fields["base"]
        _, blobs = await self._compare(call, base, commit)
        contents = {path: await self._read_file(call, path, base) for path in blobs}
        message = f"Revert {commit[:12]}"
        return {**await self._add_commit(call, commit, message, contents), "base": commit}

    async def _add_commit(
        self, call: ConnectorCall, expected: str, message: str, contents: Mapping[str, bytes | None]
    ) -> dict[str, Any]:
        """Add a commit to a branch that ends with `expected` (law 1)."""
        if TRAILER in message:
            raise call_failed("not_done", "INVALID_INPUT", f"a message must not contain {TRAILER!r}")
        headline, _, body = message.partition("\n")
        asked = {
            "branch": {
                "repositoryNameWithOwner": call.target["repo"],
                "branchName": call.target["branch"],
            },
            "expectedHeadOid": expected,
            "message": {"headline": headline, "body": f"{body.strip()}\n\n{_trailer(call)}".strip()},
            "fileChanges": {
                "additions": [
                    {"path": path, "contents": base64.b64encode(content).decode()}
                    for path, content in contents.items()
                    if content is not None
                ],
                "deletions": [{"path": path} for path, content in contents.items() if content is None],
            },
        }
        try:
            reply = await self._graphql(call, _COMMIT, asked)
            made = reply["createCommitOnBranch"]["commit"]
            return {"sha": made["oid"], "url": made["url"]}
        except CallFailed as refused:
            if not _is_refusal(refused) or (found := await self._find_commit(call)) is None:
                raise
            return found
        except (KeyError, TypeError):
            raise call_failed("unknown", LOST, "answered without the commit") from None

    async def _open_pull(self, call: ConnectorCall) -> dict[str, Any]:
        fields = call.fields
        refuse_markers(fields["body"], HIDDEN)
        if (head := await self._head(call, fields["head"])) != fields["sha"]:
            raise _changed(f"{fields['head']} ends with {head}, not with {fields['sha']}")
        await self._check_diff(call, fields["base"])
        body = {
            **pick_fields(fields, ("title", "head", "base", "draft")),
            "body": f"{fields['body']}\n\n{hidden_marker(call)}".strip(),
        }
        try:
            return _pull((await self._request(call, "POST", _path(call, "pulls"), body)).json())
        except CallFailed as refused:
            if not _is_refusal(refused) or (found := await self._find_pull(call)) is None:
                raise
            return found

    async def _merge(self, call: ConnectorCall) -> dict[str, Any]:
        fields, where = call.fields, _path(call, "pulls", call.target["number"])
        found = await self._find_merge(call)
        if found is not None:
            return found
        pull = await self._get(call, where)
        if pull.get("merged"):
            raise call_failed("not_done", REJECTED, "somebody else has merged the pull request")
        await self._check_diff(call, _ref(pull, "base"))
        message = fields.get("message", "")
        body: dict[str, Any] = {
            "sha": fields["sha"],
            "merge_method": fields.get("method", "merge"),
            "commit_message": f"{message}\n\n{_trailer(call)}".strip(),
        }
        if "title" in fields:
            body["commit_title"] = fields["title"]
        try:
            reply = (await self._request(call, "PUT", f"{where}/merge", body)).json()
        except CallFailed as refused:
            if not _is_refusal(refused) or (found := await self._find_merge(call)) is None:
                raise
            return found
        return {"merged": True, "merge_commit": str(reply["sha"]), "sha": fields["sha"]}

    async def _revert_pull(self, call: ConnectorCall) -> dict[str, Any]:
        refuse_markers(call.fields.get("body", ""), HIDDEN)
        pull = await self._get(call, _path(call, "pulls", call.target["number"]))
        asked = {
            "pullRequestId": pull["node_id"],
            "title": call.fields.get("title", f"Revert #{call.target['number']}"),
            "body": f"{call.fields.get('body', '')}\n\n{hidden_marker(call)}".strip(),
        }
        reply = await self._graphql(call, _REVERT, asked)
        try:
            made = reply["revertPullRequest"]["revertPullRequest"]
            return {"number": int(made["number"]), "html_url": str(made["url"])}
        except (KeyError, TypeError):
            raise call_failed("unknown", LOST, "answered without the pull request") from None

    async def _review(self, call: ConnectorCall) -> dict[str, Any]:
        fields = call.fields
        refuse_markers(fields["body"], HIDDEN)
        where = _path(call, "pulls", call.target["number"])
        # GitHub accepts a review of an older commit: the check makes the review one of what people see now.
        if (head := _sha(await self._get(call, where), "head")) != fields["sha"]:
            raise _changed(f"the pull request ends with {head}, not with {fields['sha']}")
        body = {
            "commit_id": fields["sha"],
            "event": fields["event"],
            "body": f"{fields['body']}\n\n{hidden_marker(call)}",
        }
        return pick_fields(
            (await self._request(call, "POST", f"{where}/reviews", body)).json(), ("id", "state", "html_url")
        )

    # ------------------------------------------------------------------------------------------------ reads

    async def state(self, call: ConnectorCall) -> dict[str, Any] | None:
        """What an undo needs or compares: where a branch ends, how a pull request is."""
        match call.operation:
            case "branch.create" | "branch.delete" | "branch.move":
                return {"head": await self._head(call, call.target["branch"])}
            case "commit.create" | "commit.revert":
                name = call.target["branch"]
                branch = await self._get(call, _path(call, "branches", *name.split("/")))
                # Nobody expects the history of the default branch to change, protected or not.
                kept = branch.get("protected") or name == (await self._get(call, _path(call))).get(
                    "default_branch"
                )
                return {"head": _sha(branch, "commit"), "protected": bool(kept)}
            case "pull.update":
                pull = await self._get(call, _path(call, "pulls", call.target["number"]))
                return {name: _pull_field(pull, name) for name in call.fields}
            case "pull.close" | "pull.reopen" | "pull.merge" | "pull.revert":
                pull = await self._get(call, _path(call, "pulls", call.target["number"]))
                merged = str(pull.get("merge_commit_sha")) if pull.get("merged") else None
                return {"state": pull.get("state"), "merged": merged}
            case "review.dismiss":
                where = _path(call, "pulls", call.target["number"], "reviews", call.target["review"])
                return {"state": (await self._get(call, where)).get("state")}
            case _:
                return None

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        match call.operation:
            case "commit.create" | "commit.revert":
                found = await self._find_commit(call)
            case "pull.open" | "pull.revert":
                found = await self._find_pull(call)
            case "pull.merge":
                found = await self._find_merge(call)
            case "review.submit":
                rows = await self._list_rows(call, _path(call, "pulls", call.target["number"], "reviews"))
                mine = (row for row in rows if _ends_with(row.get("body"), hidden_marker(call)))
                found = next((pick_fields(row, ("id", "state", "html_url")) for row in mine), None)
            case _:
                return None
        return None if found is None else FoundEffect(found)

    async def _find_commit(self, call: ConnectorCall) -> dict[str, Any] | None:
        """The commit of this action, if its branch has it."""
        where = f"{_path(call, 'commits')}?sha={call.target['branch']}"
        for row in await self._list_rows(call, where):
            commit = row.get("commit")
            if isinstance(commit, dict) and _ends_with(commit.get("message"), _trailer(call)):
                made = {"sha": str(row["sha"]), "url": str(row.get("html_url", ""))}
                if call.operation == "commit.revert":
                    return {**made, "base": call.fields["commit"]}
                base = call.fields["base"]
                return {**made, "base": base, "diff": commit_digest(base, call.fields["files"])}
        return None

    async def _find_pull(self, call: ConnectorCall) -> dict[str, Any] | None:
        for row in await self._list_rows(
            call, f"{_path(call, 'pulls')}?state=all&sort=created&direction=desc"
        ):
            if _ends_with(row.get("body"), hidden_marker(call)):
                return _pull(row)
        return None

    async def _find_merge(self, call: ConnectorCall) -> dict[str, Any] | None:
        """The merge by this action. A merge by somebody else is none."""
        pull = await self._get(call, _path(call, "pulls", call.target["number"]))
        merge = pull.get("merge_commit_sha")
        if not pull.get("merged") or not merge or _sha(pull, "head") != call.fields["sha"]:
            return None
        commit = (await self._get(call, _path(call, "commits", str(merge)))).get("commit")
        if not isinstance(commit, dict) or not _ends_with(commit.get("message"), _trailer(call)):
            return None
        return {"merged": True, "merge_commit": str(merge), "sha": call.fields["sha"]}

    async def _head(self, call: ConnectorCall, branch: str) -> str | None:
        """The commit that a branch ends with; None if there is no such branch, but there is the repository."""
        answer = await self._request(
            call, "GET", _path(call, "git", "ref", "heads", *branch.split("/")), gone=True
        )
        if answer.status in _GONE:
            await self._request(call, "GET", _path(call))
            return None
        body = answer.json()
        return _sha(body if isinstance(body, dict) else {}, "object")

    async def _get(self, call: ConnectorCall, where: str) -> dict[str, Any]:
        body = (await self._request(call, "GET", where)).json()
        if not isinstance(body, dict):
            raise call_failed("unknown", LOST, "answered with something other than an object")
        return body

    async def _check_diff(self, call: ConnectorCall, base: str) -> None:
        """Refuse a pull request whose diff is not that of the action (law 2)."""
        merge_base, blobs = await self._compare(call, base, call.fields["sha"])
        if (found := diff_digest(merge_base, blobs)) != call.fields["diff"]:
            raise _changed(f"the diff from {merge_base} has the digest {found}, not {call.fields['diff']}")

    async def _compare(self, call: ConnectorCall, base: str, head: str) -> tuple[str, dict[str, str | None]]:
        """The merge base of two commits, and the changed paths with their blobs."""
        body = await self._get(call, _path(call, "compare", f"{base}...{head}"))
        files = body.get("files")
        if not isinstance(files, list) or len(files) >= COMPARED_FILES_MAX:
            raise call_failed(
                "not_done",
                REJECTED,
                f"the comparison has {COMPARED_FILES_MAX} files or more: GitHub lists no others",
            )
        blobs: dict[str, str | None] = {}
        for file in files:
            if file.get("status") == "renamed":
                blobs[str(file["previous_filename"])] = None
            blobs[str(file["filename"])] = None if file.get("status") == "removed" else str(file["sha"])
        return _sha(body, "merge_base_commit") or "", blobs

    async def _read_file(self, call: ConnectorCall, path: str, ref: str) -> bytes | None:
        where = f"{_path(call, 'contents', *path.split('/'))}?ref={ref}"
        answer = await self._request(call, "GET", where, gone=True)
        if answer.status in _GONE:
            return None
        body = answer.json()
        try:
            return base64.b64decode(body["content"])
        except (KeyError, TypeError, ValueError):
            raise call_failed("not_done", REJECTED, f"the content of {path} cannot be read") from None

    async def _graphql(self, call: ConnectorCall, query: str, given: dict[str, Any]) -> dict[str, Any]:
        """Send a mutation. GraphQL answers 200 even to what it refuses; an error with a type was refused before anything was done."""
        answer = await self._request(
            call, "POST", self._graphql_url, {"query": query, "variables": {"input": given}}
        )
        body = answer.json()
        errors = body.get("errors") if isinstance(body, dict) else None
        if errors:
            first = errors[0] if isinstance(errors, list) and isinstance(errors[0], dict) else {}
            kind, message = str(first.get("type", "")), str(first.get("message", ""))
            if kind == "RATE_LIMITED":
                raise rate_limited(message, LIMIT_SECONDS)
            raise call_failed(*(("not_done", REJECTED) if kind else ("unknown", LOST)), f"{kind}: {message}")
        data = body.get("data") if isinstance(body, dict) else None
        if not isinstance(data, dict):
            raise call_failed("unknown", LOST, "answered without data")
        return data


# --------------------------------------------------------------------------------------- undo and rendering


def reverse_repository_act(
    operation: str, target: dict[str, Any], fields: dict[str, Any], before: dict[str, Any], result: Any
) -> Reversal | None:
    """How to undo an operation (law 4)."""
    done = result if isinstance(result, dict) else {}
    repo = {"repo": target["repo"]}
    match operation:
        case "branch.create" if before.get("head") is None:
            return _reversal("branch.delete", target, {"sha": fields["sha"]}, head=fields["sha"])
        case "branch.delete" if before.get("head"):
            return _reversal("branch.create", target, {"sha": before["head"]}, head=None)
        case "branch.move" if before.get("head") == fields["expected"]:
            back = {"expected": fields["sha"], "sha": fields["expected"]}
            return _reversal("branch.move", target, back, head=fields["sha"])
        case "commit.create" | "commit.revert" if {"sha", "base"} <= done.keys():
            if before.get("protected"):
                return _reversal(
                    "commit.revert", target, {"commit": done["sha"], "base": done["base"]}, head=done["sha"]
                )
            back = {"expected": done["sha"], "sha": done["base"]}
            return _reversal("branch.move", target, back, head=done["sha"])
        case "pull.open" | "pull.revert" if "number" in done:
            return _reversal("pull.close", {**repo, "number": done["number"]}, {}, state="open", merged=None)
        case "pull.close" if before.get("state") == "open":
            return _reversal("pull.reopen", target, {}, state="closed", merged=None)
        case "pull.reopen" if before.get("state") == "closed":
            return _reversal("pull.close", target, {}, state="open", merged=None)
        case "pull.update":
            changed = {name: value for name, value in before.items() if fields.get(name) != value}
            if changed:
                return Reversal(
                    operation=operation,
                    target=target,
                    fields=changed,
                    expects={name: fields[name] for name in changed},
                )
        case "pull.merge" if "merge_commit" in done:
            return _reversal("pull.revert", target, {}, merged=done["merge_commit"])
        case "review.submit" if done.get("state") in ("APPROVED", "CHANGES_REQUESTED"):
            return _reversal(
                "review.dismiss",
                {**target, "review": done["id"]},
                {"message": "The run that submitted this review was undone."},
                state=done["state"],
            )
    return None


def _reversal(operation: str, target: dict[str, Any], fields: dict[str, Any], **expects: Any) -> Reversal:
    return Reversal(operation=operation, target=target, fields=fields, expects=expects)


def render_repository_act(operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
    repo = display_value(target.get("repo", ""))
    title = _TITLES[operation].format(
        repo=repo,
        branch=f"{repo}:{display_value(target.get('branch', ''))}",
        pull=f"{repo}#{target.get('number', '')}",
        review=display_value(target.get("review", "")),
    )
    if operation != "commit.create":
        return display_lines(title, *display_pairs(fields))
    lines = [f"  base = {fields['base']}", f"  diff = {commit_digest(fields['base'], fields['files'])}"]
    lines += ["  message:", *display_paragraph(fields["message"])]
    for file in fields["files"]:
        content = file["content"]
        if content is None:
            lines.append(f"  delete {display_value(file['path'])}")
        else:
            lines += [f"  write {display_value(file['path'])}:", *display_paragraph(content)]
    return display_lines(title, *lines)


def _content(file: dict[str, Any]) -> bytes | None:
    content = file["content"]
    if content is None:
        return None
    if file.get("encoding") != "base64":
        return str(content).encode()
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise call_failed(
            "not_done", "INVALID_INPUT", f"the content of {file['path']!r} is not base64"
        ) from None


def _path(call: ConnectorCall, *below: str | int) -> str:
    owner, _, name = call.target["repo"].partition("/")
    return build_path("repos", owner, name, *below)


def _trailer(call: ConnectorCall) -> str:
    return f"{TRAILER}{marker_text(call)}"


def _ends_with(text: Any, mark: str) -> bool:
    return isinstance(text, str) and text.rstrip().endswith(mark)


def _sha(body: Mapping[str, Any], name: str) -> str | None:
    part = body.get(name)
    return str(part["sha"]) if isinstance(part, dict) and "sha" in part else None


def _ref(body: Mapping[str, Any], name: str) -> str:
    part = body.get(name)
    return str(part.get("ref", "")) if isinstance(part, dict) else ""


def _pull(body: Any) -> dict[str, Any]:
    found = pick_fields(body, ("number", "html_url", "state"))
    return {**found, "sha": _sha(body, "head")} if isinstance(body, dict) and "head" in body else found


def _pull_field(pull: Mapping[str, Any], name: str) -> Any:
    return _ref(pull, "base") if name == "base" else pull.get(name) or ""


def _is_refusal(failed: CallFailed) -> bool:
    return failed.fault.outcome == "not_done" and failed.fault.code == REJECTED


def _changed(message: str) -> CallFailed:
    return call_failed("not_done", REJECTED, f"{message}: what was approved is no longer there")
