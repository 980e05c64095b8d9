"""Repositories of the GitHub double: branches, commits, pull requests, merges and reviews, with GitHub's own refusals.

    github.git.repository("acme/app", {"README.md": "hello"})
    github.git.head("acme/app", "main")

Laws:
1. A commit is immutable and named by its content. A branch moves only forwards, or by force.
2. Refusals are GitHub's: a stale expected head is STALE_DATA, a merge at another head 409, a second merge 405, a branch or pull
   request that exists 422, a review that only comments cannot be dismissed (422).
3. Hooks are signed as GitHub signs them.
"""

from __future__ import annotations

import base64
import hmac
import http.client
import json
import uuid
from collections.abc import Iterator, Mapping
from hashlib import sha1, sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from tenure.testing.doubles.base import DoubleReply, DoubleRequest

if TYPE_CHECKING:
    from tenure.testing.doubles.github import GitHubDouble

HOOK_SECONDS_MAX = 60.0
_ZERO = "0" * 40
_NOT_FOUND = DoubleReply(404, {"message": "Not Found"})
_STATES = {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}


class GitCommit(msgspec.Struct, frozen=True):
    sha: str
    message: str
    files: dict[str, bytes]
    parents: tuple[str, ...]


class GitPull(msgspec.Struct, kw_only=True):
    number: int
    title: str
    body: str
    head: str
    base: str
    draft: bool = False
    state: str = "open"
    head_sha: str = ""
    """The head commit when it was closed or merged."""
    merge_commit: str | None = None
    reviews: dict[int, dict[str, Any]] = msgspec.field(default_factory=dict)


class GitRepository(msgspec.Struct, kw_only=True):
    name: str
    default: str
    commits: dict[str, GitCommit]
    branches: dict[str, str]
    protected: set[str]
    pulls: dict[int, GitPull]


class GitHubRepositories:
    def __init__(self, double: GitHubDouble) -> None:
        self._double = double
        self.repositories: dict[str, GitRepository] = {}

    # -------------------------------------------------------------------------------------- for the test

    def repository(
        self,
        name: str,
        files: Mapping[str, str],
        *,
        default: str = "main",
        protected: tuple[str, ...] = ("main",),
    ) -> str:
        """Create a repository with one commit. Returns the commit."""
        made = GitRepository(
            name=name, default=default, commits={}, branches={}, protected=set(protected), pulls={}
        )
        self.repositories[name] = made
        first = _add(made, "first", {path: text.encode() for path, text in files.items()}, ())
        made.branches[default] = first.sha
        return first.sha

    def head(self, name: str, branch: str) -> str | None:
        return self.repositories[name].branches.get(branch)

    def push(self, name: str, branch: str, files: Mapping[str, str], message: str = "by hand") -> str:
        """Add a commit to a branch as somebody else does."""
        repository = self.repositories[name]
        tip = repository.commits[repository.branches[branch]]
        contents = {**tip.files, **{path: text.encode() for path, text in files.items()}}
        made = _add(repository, message, contents, (tip.sha,))
        repository.branches[branch] = made.sha
        return made.sha

    def log(self, name: str, branch: str) -> list[str]:
        """The messages of a branch's commits along first parents, newest first."""
        repository = self.repositories[name]
        return [commit.message for commit in _first_parents(repository, repository.branches[branch])]

    def files(self, name: str, branch: str) -> dict[str, str]:
        repository = self.repositories[name]
        tip = repository.commits[repository.branches[branch]]
        return {path: content.decode() for path, content in tip.files.items()}

    def pulls(self, name: str) -> list[GitPull]:
        return list(self.repositories[name].pulls.values())

    def open_pull(self, name: str, head: str, base: str = "main", title: str = "a change") -> GitPull:
        """Open a pull request as somebody else does."""
        return self._open(self.repositories[name], head, base, title, "", draft=False)

    def pull_event(self, name: str, number: int, action: str = "opened") -> dict[str, Any]:
        """The payload of a `pull_request` hook."""
        repository = self.repositories[name]
        pull = self._show(repository, repository.pulls[number])
        return {
            "action": action,
            "number": number,
            "pull_request": pull,
            "repository": {"full_name": name, "default_branch": repository.default},
            "sender": {"login": "octocat"},
        }

    def send_hook(
        self, url: str, secret: str, event: str, payload: Mapping[str, Any], delivery: str | None = None
    ) -> tuple[int, Any]:
        """Deliver a hook. Returns the status and the body of the response."""
        body = json.dumps(payload).encode()
        parts = urlsplit(url)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/double",
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": delivery or str(uuid.uuid4()),
            "X-Hub-Signature-256": f"sha256={hmac.new(secret.encode(), body, sha256).hexdigest()}",
        }
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port or 80, timeout=HOOK_SECONDS_MAX
        )
        try:
            connection.request("POST", parts.path, body, headers)
            answer = connection.getresponse()
            return answer.status, msgspec.json.decode(answer.read())
        finally:
            connection.close()

    # ------------------------------------------------------------------------------------------ requests

    def handle(self, request: DoubleRequest) -> DoubleReply | None:
        """The reply, or None if the request is about something else."""
        match request.parts:
            case ("graphql",):
                return self._graphql(request.json())
            case ("repos", owner, name, *below) if f"{owner}/{name}" in self.repositories:
                return self._below(request, self.repositories[f"{owner}/{name}"], below)
            case _:
                return None

    def _below(
        self, request: DoubleRequest, repository: GitRepository, below: list[str]
    ) -> DoubleReply | None:
        match request.method, below:
            case "GET", []:
                return DoubleReply(
                    200,
                    {
                        "full_name": repository.name,
                        "node_id": f"R_{repository.name}",
                        "default_branch": repository.default,
                    },
                )
            case "POST", ["git", "refs"]:
                return _create_ref(repository, request.json())
            case "GET", ["git", "ref", "heads", *name]:
                return _show_ref(repository, "/".join(name))
            case "GET", ["branches", *name]:
                return _show_branch(repository, "/".join(name))
            case "GET", ["commits"]:
                return _list_commits(repository, request)
            case "GET", ["commits", sha] if sha in repository.commits:
                return DoubleReply(200, _show_commit(repository.commits[sha]))
            case "GET", ["compare", spec]:
                return _compare(repository, spec)
            case "GET", ["contents", *path]:
                return _show_content(repository, "/".join(path), request.first("ref", repository.default))
            case method, ["pulls", *rest]:
                return self._pulls(request, method, repository, rest)
            case _:
                return None

    def _pulls(
        self, request: DoubleRequest, method: str, repository: GitRepository, below: list[str]
    ) -> DoubleReply:
        if not below:
            if method == "POST":
                return self._open_asked(repository, request.json())
            state = request.first("state", "open")
            rows = [
                self._show(repository, pull)
                for pull in reversed(repository.pulls.values())
                if state in ("all", pull.state)
            ]
            return DoubleReply(200, _page(request, rows))
        pull = repository.pulls.get(int(below[0]))
        if pull is None:
            return _NOT_FOUND
        match method, below[1:]:
            case "GET", []:
                return DoubleReply(200, self._show(repository, pull))
            case "PATCH", []:
                return self._change(repository, pull, request.json())
            case "PUT", ["merge"]:
                return _merge(repository, pull, request.json())
            case "GET", ["reviews"]:
                return DoubleReply(200, _page(request, list(pull.reviews.values())))
            case "POST", ["reviews"]:
                return self._review(repository, pull, request.json())
            case "GET", ["reviews", number] if int(number) in pull.reviews:
                return DoubleReply(200, pull.reviews[int(number)])
            case "PUT", ["reviews", number, "dismissals"] if int(number) in pull.reviews:
                review = pull.reviews[int(number)]
                if review["state"] == "COMMENTED":
                    return DoubleReply(422, {"message": "Can not dismiss a commented pull request review"})
                review["state"] = "DISMISSED"
                return DoubleReply(200, review)
            case _:
                return _NOT_FOUND

    def _open_asked(self, repository: GitRepository, asked: dict[str, Any]) -> DoubleReply:
        head, base = asked["head"], asked["base"]
        if head not in repository.branches or base not in repository.branches:
            return DoubleReply(422, {"message": "Validation Failed: head or base is invalid"})
        if repository.branches[head] in _ancestors(repository, repository.branches[base]):
            return DoubleReply(422, {"message": f"Validation Failed: No commits between {base} and {head}"})
        for pull in repository.pulls.values():
            if (pull.state, pull.head, pull.base) == ("open", head, base):
                message = f"Validation Failed: A pull request already exists for {head}."
                return DoubleReply(422, {"message": message})
        draft = bool(asked.get("draft"))
        made = self._open(repository, head, base, asked["title"], asked.get("body", ""), draft=draft)
        return DoubleReply(201, self._show(repository, made))

    def _open(
        self, repository: GitRepository, head: str, base: str, title: str, body: str, *, draft: bool
    ) -> GitPull:
        taken = [number for name, number in self._double.issues if name == repository.name]
        number = max([*taken, *repository.pulls, 0]) + 1
        made = GitPull(number=number, title=title, body=body, head=head, base=base, draft=draft)
        repository.pulls[number] = made
        self._double.issue(repository.name, number)
        return made

    def _change(self, repository: GitRepository, pull: GitPull, asked: dict[str, Any]) -> DoubleReply:
        if "state" in asked and asked["state"] != pull.state:
            if pull.merge_commit is not None:
                return DoubleReply(422, {"message": "Validation Failed: a merged pull request stays closed"})
            if asked["state"] == "open" and pull.head not in repository.branches:
                return DoubleReply(422, {"message": "Validation Failed: the head branch was deleted"})
            pull.head_sha = repository.branches.get(pull.head, pull.head_sha)
            pull.state = asked["state"]
        for name in ("title", "body", "base"):
            setattr(pull, name, asked.get(name, getattr(pull, name)))
        return DoubleReply(200, self._show(repository, pull))

    def _review(self, repository: GitRepository, pull: GitPull, asked: dict[str, Any]) -> DoubleReply:
        if asked.get("commit_id", "") not in repository.commits:
            return DoubleReply(
                422, {"message": "Validation Failed: commit_id is not part of the pull request"}
            )
        number = next(self._double._ids)
        pull.reviews[number] = {
            "id": number,
            "state": _STATES[asked["event"]],
            "body": asked.get("body", ""),
            "commit_id": asked["commit_id"],
            "html_url": f"{self._double.url}/{repository.name}/pull/{pull.number}#review-{number}",
        }
        return DoubleReply(200, pull.reviews[number])

    def _show(self, repository: GitRepository, pull: GitPull) -> dict[str, Any]:
        head = repository.branches.get(pull.head, pull.head_sha) if pull.state == "open" else pull.head_sha
        return {
            "number": pull.number,
            "node_id": f"PR_{repository.name}#{pull.number}",
            "html_url": f"{self._double.url}/{repository.name}/pull/{pull.number}",
            "title": pull.title,
            "body": pull.body,
            "state": pull.state,
            "draft": pull.draft,
            "merged": pull.merge_commit is not None,
            "merge_commit_sha": pull.merge_commit,
            "head": {"ref": pull.head, "sha": head},
            "base": {"ref": pull.base, "sha": repository.branches.get(pull.base, "")},
            "user": {"login": "octocat"},
        }

    # ------------------------------------------------------------------------------------------- GraphQL

    def _graphql(self, asked: dict[str, Any]) -> DoubleReply:
        query, given = str(asked.get("query", "")), asked.get("variables", {}).get("input", {})
        if "createCommitOnBranch" in query:
            return self._commit_on_branch(given)
        if "updateRefs" in query:
            return self._update_refs(given)
        if "revertPullRequest" in query:
            return self._revert(given)
        return _refuse("undefined_field", "the double knows no such operation")

    def _commit_on_branch(self, given: dict[str, Any]) -> DoubleReply:
        repository = self.repositories.get(given["branch"]["repositoryNameWithOwner"])
        branch = given["branch"]["branchName"]
        if repository is None or branch not in repository.branches:
            return _refuse("not_found", f"No such branch {branch}")
        tip = repository.branches[branch]
        if tip != given["expectedHeadOid"]:
            expected = given["expectedHeadOid"]
            return _refuse("stale_data", f'Expected branch to point to "{expected}" but it points to "{tip}"')
        files = dict(repository.commits[tip].files)
        changes = given.get("fileChanges", {})
        for gone in changes.get("deletions", ()):
            if files.pop(gone["path"], None) is None:
                return _refuse("unprocessable", f"{gone['path']} does not exist")
        for added in changes.get("additions", ()):
            files[added["path"]] = base64.b64decode(added["contents"])
        message = given["message"]
        text = "\n\n".join(filter(None, (message["headline"], message.get("body", ""))))
        made = _add(repository, text, files, (tip,))
        repository.branches[branch] = made.sha
        url = f"{self._double.url}/{repository.name}/commit/{made.sha}"
        return DoubleReply(200, {"data": {"createCommitOnBranch": {"commit": {"oid": made.sha, "url": url}}}})

    def _update_refs(self, given: dict[str, Any]) -> DoubleReply:
        repository = self.repositories.get(str(given["repositoryId"]).removeprefix("R_"))
        if repository is None:
            return _refuse("not_found", "Could not resolve to a node")
        for update in given["refUpdates"]:
            name = update["name"].removeprefix("refs/heads/")
            tip = repository.branches.get(name, _ZERO)
            if update.get("beforeOid", tip) != tip:
                return _refuse("stale_data", f"{name} is at {tip}, not at {update['beforeOid']}")
            if name in repository.protected:
                return _refuse("forbidden", f"Cannot force-push to the protected branch {name}")
            if update["afterOid"] not in (*repository.commits, _ZERO):
                return _refuse("unprocessable", f"Object {update['afterOid']} does not exist")
        for update in given["refUpdates"]:
            name = update["name"].removeprefix("refs/heads/")
            if update["afterOid"] == _ZERO:
                _delete_branch(repository, name)
            else:
                repository.branches[name] = update["afterOid"]
        return DoubleReply(200, {"data": {"updateRefs": {"clientMutationId": None}}})

    def _revert(self, given: dict[str, Any]) -> DoubleReply:
        name, _, number = str(given["pullRequestId"]).removeprefix("PR_").partition("#")
        repository = self.repositories[name]
        pull = repository.pulls[int(number)]
        if pull.merge_commit is None:
            return _refuse("unprocessable", "The pull request is not merged")
        merge = repository.commits[pull.merge_commit]
        before = repository.commits[merge.parents[0]].files
        tip = repository.commits[repository.branches[pull.base]]
        files = dict(tip.files)
        for path in _changed_paths(before, merge.files):
            files.pop(path, None)
            if path in before:
                files[path] = before[path]
        branch = f"revert-{pull.number}-{pull.head}"
        repository.branches[branch] = _add(repository, f"Revert #{pull.number}", files, (tip.sha,)).sha
        made = self._open(repository, branch, pull.base, given["title"], given.get("body", ""), draft=False)
        shown = {"number": made.number, "url": f"{self._double.url}/{name}/pull/{made.number}"}
        return DoubleReply(200, {"data": {"revertPullRequest": {"revertPullRequest": shown}}})


# ------------------------------------------------------------------------------------------------------ git


def _add(
    repository: GitRepository, message: str, files: dict[str, bytes], parents: tuple[str, ...]
) -> GitCommit:
    listed = {path: _blob(content) for path, content in files.items()}
    name = msgspec.json.encode([message, listed, parents, len(repository.commits)], order="sorted")
    made = GitCommit(sha1(name, usedforsecurity=False).hexdigest(), message, files, parents)
    repository.commits[made.sha] = made
    return made


def _blob(content: bytes) -> str:
    return sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def _ancestors(repository: GitRepository, sha: str) -> set[str]:
    """A commit and everything before it."""
    found: set[str] = set()
    left = [sha]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += repository.commits[one].parents
    return found


def _first_parents(repository: GitRepository, sha: str) -> Iterator[GitCommit]:
    commit = repository.commits[sha]
    yield commit
    while commit.parents:
        commit = repository.commits[commit.parents[0]]
        yield commit


def _merge_base(repository: GitRepository, base: str, head: str) -> str:
    known = _ancestors(repository, base)
    left, seen = [head], {head}
    while left:
        one = left.pop(0)
        if one in known:
            return one
        for parent in repository.commits[one].parents:
            if parent not in seen:
                seen.add(parent)
                left.append(parent)
    return base


def _changed_paths(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _create_ref(repository: GitRepository, asked: dict[str, Any]) -> DoubleReply:
    name = asked["ref"].removeprefix("refs/heads/")
    if name in repository.branches:
        return DoubleReply(422, {"message": "Reference already exists"})
    if asked["sha"] not in repository.commits:
        return DoubleReply(422, {"message": "Object does not exist"})
    repository.branches[name] = asked["sha"]
    return DoubleReply(201, {"ref": asked["ref"], "object": {"sha": asked["sha"]}})


def _delete_branch(repository: GitRepository, name: str) -> None:
    """Delete a branch; GitHub closes its pull requests."""
    sha = repository.branches.pop(name, "")
    for pull in repository.pulls.values():
        if pull.head == name and pull.state == "open":
            pull.state, pull.head_sha = "closed", sha


def _show_ref(repository: GitRepository, name: str) -> DoubleReply:
    if name not in repository.branches:
        return _NOT_FOUND
    return DoubleReply(200, {"ref": f"refs/heads/{name}", "object": {"sha": repository.branches[name]}})


def _show_branch(repository: GitRepository, name: str) -> DoubleReply:
    if name not in repository.branches:
        return DoubleReply(404, {"message": "Branch not found"})
    shown = {
        "name": name,
        "commit": {"sha": repository.branches[name]},
        "protected": name in repository.protected,
    }
    return DoubleReply(200, shown)


def _show_commit(commit: GitCommit) -> dict[str, Any]:
    return {
        "sha": commit.sha,
        "html_url": f"https://github.test/commit/{commit.sha}",
        "commit": {"message": commit.message},
        "parents": [{"sha": sha} for sha in commit.parents],
    }


def _list_commits(repository: GitRepository, request: DoubleRequest) -> DoubleReply:
    asked = request.first("sha", repository.default)
    sha = repository.branches.get(asked, asked)
    if sha not in repository.commits:
        return _NOT_FOUND
    return DoubleReply(200, _page(request, [_show_commit(one) for one in _first_parents(repository, sha)]))


def _compare(repository: GitRepository, spec: str) -> DoubleReply:
    base, _, head = spec.partition("...")
    base, head = repository.branches.get(base, base), repository.branches.get(head, head)
    if base not in repository.commits or head not in repository.commits:
        return _NOT_FOUND
    start = repository.commits[_merge_base(repository, base, head)]
    before, after = start.files, repository.commits[head].files
    files = [
        {
            "filename": path,
            "status": "removed" if path not in after else "added" if path not in before else "modified",
            "sha": _blob(after[path] if path in after else before[path]),
        }
        for path in _changed_paths(before, after)
    ]
    return DoubleReply(200, {"merge_base_commit": {"sha": start.sha}, "files": files})


def _show_content(repository: GitRepository, path: str, ref: str) -> DoubleReply:
    commit = repository.commits.get(repository.branches.get(ref, ref))
    if commit is None or path not in commit.files:
        return _NOT_FOUND
    content = base64.encodebytes(commit.files[path]).decode()
    return DoubleReply(200, {"path": path, "encoding": "base64", "content": content})


def _merge(repository: GitRepository, pull: GitPull, asked: dict[str, Any]) -> DoubleReply:
    if pull.state != "open" or pull.draft:
        return DoubleReply(405, {"message": "Pull Request is not mergeable"})
    head = repository.branches[pull.head]
    if asked.get("sha", head) != head:
        return DoubleReply(409, {"message": "Head branch was modified. Review and try the merge again."})
    tip = repository.commits[repository.branches[pull.base]]
    start = repository.commits[_merge_base(repository, tip.sha, head)]
    ours, theirs = repository.commits[head].files, tip.files
    changed = set(_changed_paths(start.files, ours))
    if changed & set(_changed_paths(start.files, theirs)):
        return DoubleReply(405, {"message": "Pull Request is not mergeable"})
    files = {path: content for path, content in theirs.items() if path not in changed}
    files |= {path: ours[path] for path in changed if path in ours}
    title = asked.get("commit_title") or f"Merge pull request #{pull.number} from {pull.head}"
    message = f"{title}\n\n{asked.get('commit_message', pull.title)}"
    parents = (tip.sha,) if asked.get("merge_method") == "squash" else (tip.sha, head)
    made = _add(repository, message, files, parents)
    repository.branches[pull.base] = made.sha
    pull.state, pull.head_sha, pull.merge_commit = "closed", head, made.sha
    return DoubleReply(200, {"sha": made.sha, "merged": True, "message": "Pull Request successfully merged"})


def _refuse(kind: str, message: str) -> DoubleReply:
    return DoubleReply(200, {"data": None, "errors": [{"type": kind.upper(), "message": message}]})


def _page(request: DoubleRequest, rows: list[Any]) -> list[Any]:
    size, page = int(request.first("per_page", "30")), int(request.first("page", "1"))
    return rows[(page - 1) * size : page * size]
