"""A double of GitHub: issues and comments, as far as the connector uses them; with Apps, check runs and statuses
(`github_checks`), and branches, commits, pull requests and reviews (`github_repository`)."""

from __future__ import annotations

from typing import Any

from tenure.testing.doubles.base import DoubleReply, DoubleRequest
from tenure.testing.doubles.github_checks import ChecksDouble
from tenure.testing.doubles.github_checks import page as _page
from tenure.testing.doubles.github_checks import public as _public
from tenure.testing.doubles.github_repository import GitHubRepositories

_NOT_FOUND = DoubleReply(404, {"message": "Not Found"})


class GitHubDouble(ChecksDouble):
    """`url` is the address of the API."""

    def __init__(self, *, token: str = "", **how: Any) -> None:
        super().__init__(token=token, **how)
        self.issues: dict[tuple[str, int], dict[str, list[str]]] = {}
        self.comments: dict[int, dict[str, Any]] = {}
        self.git = GitHubRepositories(self)

    def issue(
        self, repo: str, number: int, *, labels: tuple[str, ...] = (), assignees: tuple[str, ...] = ()
    ) -> None:
        self.issues[repo, number] = {"labels": list(labels), "assignees": list(assignees)}

    def labels(self, repo: str, number: int) -> list[str]:
        return self.issues[repo, number]["labels"]

    def limit(self, *, second: bool = False, seconds: int = 30) -> None:
        """Refuse the next request that writes with a rate limit."""
        if second:
            body = {"message": "You have exceeded a secondary rate limit."}
            self.trouble(status=403, headers={"Retry-After": str(seconds)}, json=body)
        else:
            headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}
            self.trouble(status=403, headers=headers, json={"message": "API rate limit exceeded"})

    def handle(self, request: DoubleRequest) -> DoubleReply:
        refused = self.refuse(request)
        if refused is not None:
            return refused
        reply = self._handle(request)
        self.count_write(request)
        return reply

    def _handle(self, request: DoubleRequest) -> DoubleReply:
        if (reply := self.git.handle(request)) is not None:
            return reply
        match request.parts:
            case ("app", "installations", _, "access_tokens"):
                return self.issue_token(request)
            case ("repos", owner, name):
                known = {repo for repo, _ in self.issues}
                return (
                    DoubleReply(200, {"full_name": f"{owner}/{name}"})
                    if f"{owner}/{name}" in known
                    else _NOT_FOUND
                )
            case ("repos", owner, name, "issues", "comments", number):
                return self._comment(request, f"{owner}/{name}", int(number))
            case ("repos", owner, name, "issues", number, *below):
                key = (f"{owner}/{name}", int(number))
                return self._issue(request, key, below) if key in self.issues else _NOT_FOUND
            case ("repos", owner, name, *below):
                return self.handle_checks(request, f"{owner}/{name}", below) or _NOT_FOUND
            case _:
                return _NOT_FOUND

    def _issue(self, request: DoubleRequest, key: tuple[str, int], below: list[str]) -> DoubleReply:
        issue = self.issues[key]
        match request.method, below:
            case "GET", []:
                people = [{"login": login} for login in issue["assignees"]]
                return DoubleReply(
                    200, {"number": key[1], "assignees": people, "labels": _named(issue["labels"])}
                )
            case "GET", ["labels"]:
                return DoubleReply(200, _page(request, _named(issue["labels"])))
            case (("POST" | "PUT"), ["labels"]):
                kept = issue["labels"] if request.method == "POST" else []
                issue["labels"] = _with(kept, request.json()["labels"])
                return DoubleReply(200, _named(issue["labels"]))
            case "DELETE", ["labels", label]:
                if label not in issue["labels"]:
                    return DoubleReply(404, {"message": "Label does not exist"})
                issue["labels"].remove(label)
                return DoubleReply(200, _named(issue["labels"]))
            case (("POST" | "DELETE"), ["assignees"]):
                given = request.json()["assignees"]
                if request.method == "POST":
                    issue["assignees"] = _with(issue["assignees"], given)
                else:
                    gone = {login.casefold() for login in given}
                    issue["assignees"] = [
                        login for login in issue["assignees"] if login.casefold() not in gone
                    ]
                people = [{"login": login} for login in issue["assignees"]]
                return DoubleReply(201 if request.method == "POST" else 200, {"assignees": people})
            case "GET", ["comments"]:
                rows = [_public(row) for row in self.comments.values() if row["at"] == key]
                return DoubleReply(200, _page(request, rows))
            case "POST", ["comments"]:
                made = {"id": next(self._ids), "at": key, "body": request.json()["body"]}
                made["html_url"] = f"{self.url}/{key[0]}/issues/{key[1]}#issuecomment-{made['id']}"
                self.comments[made["id"]] = made
                return DoubleReply(201, _public(made))
            case _:
                return _NOT_FOUND

    def _comment(self, request: DoubleRequest, repo: str, number: int) -> DoubleReply:
        row = self.comments.get(number)
        if row is None or row["at"][0] != repo:
            return _NOT_FOUND
        if request.method == "DELETE":
            del self.comments[number]
            return DoubleReply(204)
        return DoubleReply(200, _public(row)) if request.method == "GET" else _NOT_FOUND


def _named(labels: list[str]) -> list[dict[str, str]]:
    return [{"name": label} for label in labels]


def _with(there: list[str], more: list[str]) -> list[str]:
    known = {name.casefold() for name in there}
    return [*there, *(name for name in dict.fromkeys(more) if name.casefold() not in known)]
