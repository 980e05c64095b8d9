"""A double of GitHub: issues, comments, statuses and check runs, as far as the connector uses them. `github_repository` adds
branches, commits, pull requests and reviews."""

from __future__ import annotations

from typing import Any

from tenure.testing.doubles.base import Double, DoubleReply, DoubleRequest
from tenure.testing.doubles.github_repository import GitHubRepositories

_NOT_FOUND = DoubleReply(404, {"message": "Not Found"})


class GitHubDouble(Double):
    """`url` is the address of the API."""

    def __init__(self, *, token: str = "", **how: Any) -> None:
        super().__init__(token=token, **how)
        self.issues: dict[tuple[str, int], dict[str, list[str]]] = {}
        self.comments: dict[int, dict[str, Any]] = {}
        self.statuses: list[dict[str, Any]] = []
        """Newest first."""
        self.checks: dict[int, dict[str, Any]] = {}
        self._ids = iter(range(1_001, 1_000_000))
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
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return DoubleReply(401, {"message": "Bad credentials"})
        if (reply := self.git.handle(request)) is not None:
            return reply
        match request.parts:
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
                return self._commits(request, f"{owner}/{name}", below)
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

    def _commits(self, request: DoubleRequest, repo: str, below: list[str]) -> DoubleReply:
        match request.method, below:
            case "POST", ["statuses", sha]:
                made = {**request.json(), "id": next(self._ids), "at": (repo, sha)}
                self.statuses.insert(0, made)
                return DoubleReply(201, _public(made))
            case "GET", ["commits", sha, "statuses"]:
                rows = [_public(row) for row in self.statuses if row["at"] == (repo, sha)]
                return DoubleReply(200, _page(request, rows))
            case "POST", ["check-runs"]:
                asked = request.json()
                made = {"status": "queued", "conclusion": None, **asked, "id": next(self._ids)}
                made |= {"at": (repo, asked["head_sha"]), "html_url": f"{self.url}/{repo}/runs/{made['id']}"}
                self.checks[made["id"]] = made
                return DoubleReply(201, _public(made))
            case "PATCH", ["check-runs", number] if int(number) in self.checks:
                self.checks[int(number)].update(request.json())
                return DoubleReply(200, _public(self.checks[int(number)]))
            case "GET", ["commits", sha, "check-runs"]:
                rows = [_public(row) for row in self.checks.values() if row["at"] == (repo, sha)]
                return DoubleReply(200, {"total_count": len(rows), "check_runs": _page(request, rows)})
            case _:
                return _NOT_FOUND


def _named(labels: list[str]) -> list[dict[str, str]]:
    return [{"name": label} for label in labels]


def _with(there: list[str], more: list[str]) -> list[str]:
    known = {name.casefold() for name in there}
    return [*there, *(name for name in dict.fromkeys(more) if name.casefold() not in known)]


def _public(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "at"}


def _page(request: DoubleRequest, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    size, page = int(request.first("per_page", "30")), int(request.first("page", "1"))
    return rows[(page - 1) * size : page * size]
