"""The part of the double of GitHub that CI uses: Apps and their tokens, check runs, commit statuses, rate limits, outages, webhooks.

Laws:
1. With an App, requests need a token of one of its installations: unexpired, for a repository of the installation, with the permission
   for what is written. The App's own JWT is verified and opens nothing but the issue of tokens.
2. Check runs and statuses are checked as GitHub checks them; what breaks a rule is a 422 with the reason.
3. `check_writes` and `statuses` record what was written, in order.
"""

from __future__ import annotations

import hmac
import secrets
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from http.client import HTTPConnection, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tenure.clock import SECOND_US, Clock, HostClock
from tenure.testing.doubles.base import WRITES, Double, DoubleReply, DoubleRequest

TOKEN_SECONDS = 3_600
JWT_SECONDS_MAX = 600
RATE_MAX = 5_000
ANNOTATIONS_MAX = 50
TEXT_CHARS_MAX = 65_535
ACTIONS_MAX = 3
STATUS_CHARS_MAX = 140
CONCLUSIONS = frozenset(
    {"action_required", "cancelled", "failure", "neutral", "success", "skipped", "stale", "timed_out"}
)
STATES = frozenset({"error", "failure", "pending", "success"})
ALL_PERMISSIONS = {"checks": "write", "statuses": "write", "contents": "write", "pull_requests": "write"}
SEND_SECONDS = 60.0


class CheckWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted write of a check run, as it left the check run."""

    check: int
    external_id: str
    name: str
    status: str
    conclusion: str | None
    created: bool


class DoubleInstallation(msgspec.Struct, kw_only=True):
    id: int
    app_id: int
    repositories: frozenset[str]
    permissions: dict[str, str]


class HookAnswer(msgspec.Struct, frozen=True):
    """What the receiver of a webhook answered."""

    status: int
    json: Any


class ChecksDouble(Double):
    """See the laws above. `GitHubDouble` inherits it."""

    def __init__(self, *, token: str = "", host_clock: Clock | None = None, **how: Any) -> None:
        super().__init__(token=token, **how)
        self.checks: dict[int, dict[str, Any]] = {}
        self.statuses: list[dict[str, Any]] = []
        """Newest first."""
        self.check_writes: list[CheckWrite] = []
        self.commits: dict[str, set[str]] = {}
        """Repository -> its commits. Writes to other commits of a repository listed here are refused."""
        self.outage = False
        """While it is set, every request is answered 503."""
        self.on_write: Callable[[int], None] | None = None
        """Called after the n-th write was handled, before its answer is sent."""
        self.tokens_issued = 0
        self.refused_by_limit = 0
        self._written = 0
        self._clock = host_clock or HostClock()
        self._keys: dict[int, Any] = {}
        self._installations: dict[int, DoubleInstallation] = {}
        self._tokens: dict[str, tuple[DoubleInstallation, float]] = {}
        self._rates: dict[int, tuple[int, float]] = {}
        self._ids = iter(range(1_001, 10_000_000))

    def now(self) -> float:
        return self._clock.now_us() / SECOND_US

    # ------------------------------------------------------------------------------------------------ set-up

    def install_app(
        self,
        *repositories: str,
        app_id: int = 1,
        installation: int = 77,
        permissions: Mapping[str, str] | None = None,
    ) -> bytes:
        """Install an App on repositories, possibly once more elsewhere. Returns the App's private key as PEM."""
        from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        if app_id not in self._keys:
            self._keys[app_id] = generate_private_key(65537, 2048)
        key = self._keys[app_id]
        self._installations[installation] = DoubleInstallation(
            id=installation,
            app_id=app_id,
            repositories=frozenset(repositories),
            permissions=dict(ALL_PERMISSIONS if permissions is None else permissions),
        )
        pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        return pem

    def set_permissions(self, installation: int, **permissions: str) -> None:
        """Replace the permissions of an installation."""
        self._installations[installation].permissions = permissions

    def expire_tokens(self) -> None:
        """Let every token expire."""
        self._tokens = {token: (found, 0.0) for token, (found, _) in self._tokens.items()}

    def limit_rate(self, remaining: int, seconds: float, *, installation: int = 77) -> None:
        """Allow an installation so many more requests until `seconds` from now: the primary rate limit."""
        self._rates[installation] = (remaining, self.now() + seconds)

    def find_checks(self, external_id: str) -> list[dict[str, Any]]:
        return [check for check in self.checks.values() if check.get("external_id") == external_id]

    # ------------------------------------------------------------------------------------------------ access

    def refuse(self, request: DoubleRequest) -> DoubleReply | None:
        """The refusal of a request, or None if it may be handled."""
        if self.outage:
            return DoubleReply(503, {"message": "No server is currently available"})
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.parts[:2] == ("app", "installations"):
            return None if self._jwt_app(given) is not None else _bad_credentials()
        if not self._keys and (not self.token or given == self.token):
            return None
        if self.token and given == self.token:
            return None
        found = self._tokens.get(given)
        if found is None or found[1] <= self.now():
            return _bad_credentials()
        limited = self._count_request(found[0].id)
        if limited is not None:
            return limited
        return self._check_scope(request, found[0])

    def _count_request(self, installation: int) -> DoubleReply | None:
        left, reset_at = self._rates.get(installation, (RATE_MAX, 0.0))
        if self.now() >= reset_at:
            left, reset_at = RATE_MAX, self.now() + TOKEN_SECONDS
        if left <= 0:
            self.refused_by_limit += 1
            headers = {
                "X-RateLimit-Limit": str(RATE_MAX),
                "X-RateLimit-Remaining": "0",
                "X-RateLimit-Reset": str(-int(-reset_at // 1)),
            }
            return DoubleReply(403, {"message": "API rate limit exceeded for installation."}, headers)
        self._rates[installation] = (left - 1, reset_at)
        return None

    def _check_scope(self, request: DoubleRequest, found: DoubleInstallation) -> DoubleReply | None:
        repo = "/".join(request.parts[1:3])
        if request.parts[:1] == ("repos",) and repo not in found.repositories:
            return DoubleReply(404, {"message": "Not Found"})
        if request.method in WRITES and len(request.parts) > 3:
            need = {"check-runs": "checks", "statuses": "statuses"}.get(request.parts[3])
            if need is not None and found.permissions.get(need) != "write":
                return DoubleReply(403, {"message": "Resource not accessible by integration"})
        return None

    def _jwt_app(self, text: str) -> int | None:
        """The App that signed a JWT, or None if it is not valid."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            head, claims, signature = (urlsafe_b64decode(part + "===") for part in text.split("."))
            about, said = msgspec.json.decode(head), msgspec.json.decode(claims)
            app_id, issued, expires = int(said["iss"]), said["iat"], said["exp"]
            if about["alg"] != "RS256":
                return None
            self._keys[app_id].public_key().verify(
                signature, text.rpartition(".")[0].encode(), PKCS1v15(), SHA256()
            )
        except (ValueError, KeyError, TypeError, msgspec.DecodeError, InvalidSignature):
            return None
        now = self.now()
        return app_id if issued <= now < expires <= now + JWT_SECONDS_MAX else None

    def issue_token(self, request: DoubleRequest) -> DoubleReply:
        app_id = self._jwt_app(request.headers.get("authorization", "").removeprefix("Bearer "))
        number = request.parts[2]
        found = self._installations.get(int(number)) if number.isdigit() else None
        if request.method != "POST" or found is None or found.app_id != app_id:
            return DoubleReply(404, {"message": "Not Found"})
        self.tokens_issued += 1
        token, until = f"ghs_{secrets.token_hex(18)}", self.now() + TOKEN_SECONDS
        self._tokens[token] = (found, until)
        expires = datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return DoubleReply(201, {"token": token, "expires_at": expires, "permissions": found.permissions})

    def count_write(self, request: DoubleRequest) -> None:
        if request.method in WRITES and request.parts[:1] == ("repos",):
            self._written += 1
            if self.on_write is not None:
                self.on_write(self._written)

    # --------------------------------------------------------------------------------- check runs and statuses

    def handle_checks(self, request: DoubleRequest, repo: str, below: list[str]) -> DoubleReply | None:
        """The answer about check runs and statuses; None: the request is about something else."""
        match request.method, below:
            case "POST", ["statuses", sha]:
                return self._set_status(request.json(), repo, sha)
            case "GET", ["commits", sha, "statuses"]:
                rows = [public(row) for row in self.statuses if row["at"] == (repo, sha)]
                return DoubleReply(200, page(request, rows))
            case "POST", ["check-runs"]:
                return self._create_check(request.json(), repo)
            case "PATCH", ["check-runs", number] if int(number) in self.checks:
                return self._update_check(int(number), request.json())
            case "GET", ["check-runs", number] if int(number) in self.checks:
                return DoubleReply(200, public(self.checks[int(number)]))
            case "GET", ["commits", sha, "check-runs"]:
                found = _matching(request, (row for row in self.checks.values() if row["at"] == (repo, sha)))
                rows = [public(row) for row in found]
                return DoubleReply(200, {"total_count": len(rows), "check_runs": page(request, rows)})
            case _:
                return None

    def _knows(self, repo: str, sha: str) -> bool:
        return repo not in self.commits or sha in self.commits[repo]

    def _set_status(self, asked: dict[str, Any], repo: str, sha: str) -> DoubleReply:
        if not self._knows(repo, sha):
            return _invalid(f"No commit found for SHA: {sha}")
        if asked.get("state") not in STATES:
            return _invalid("State is not included in the list")
        if len(asked.get("description") or "") > STATUS_CHARS_MAX:
            return _invalid(f"Description is too long (maximum is {STATUS_CHARS_MAX} characters)")
        made = {"context": "default", **asked, "id": next(self._ids), "at": (repo, sha)}
        self.statuses.insert(0, made)
        return DoubleReply(201, public(made))

    def _create_check(self, asked: dict[str, Any], repo: str) -> DoubleReply:
        sha = asked.get("head_sha")
        if not asked.get("name") or not isinstance(sha, str):
            return _invalid("Invalid request. 'name' and 'head_sha' must be set")
        if not self._knows(repo, sha):
            return _invalid(f"No commit found for SHA: {sha}")
        number = next(self._ids)
        made = {
            "id": number,
            "at": (repo, sha),
            "html_url": f"{self.url}/{repo}/runs/{number}",
            "status": "queued",
            "conclusion": None,
            "external_id": "",
            "actions": [],
        }
        refused = _apply(made, asked)
        if refused is not None:
            return _invalid(refused)
        self.checks[number] = made
        self._record(made, created=True)
        return DoubleReply(201, public(made))

    def _update_check(self, number: int, asked: dict[str, Any]) -> DoubleReply:
        changed = dict(self.checks[number])
        refused = _apply(changed, asked)
        if refused is not None:
            return _invalid(refused)
        self.checks[number] = changed
        self._record(changed, created=False)
        return DoubleReply(200, public(changed))

    def _record(self, check: dict[str, Any], *, created: bool) -> None:
        self.check_writes.append(
            CheckWrite(
                check=check["id"],
                external_id=check["external_id"],
                name=check["name"],
                status=check["status"],
                conclusion=check["conclusion"],
                created=created,
            )
        )

    # ---------------------------------------------------------------------------------------------- webhooks

    def check_run_event(
        self, number: int, action: str, *, identifier: str = "", login: str = "ada", installation: int = 77
    ) -> dict[str, Any]:
        """The payload of a `check_run` event: `rerequested`, or `requested_action` with the button's identifier."""
        check = self.checks[number]
        repo, sha = check["at"]
        payload = {
            "action": action,
            "check_run": {**public(check), "head_sha": sha},
            "repository": {"full_name": repo},
            "sender": {"login": login},
            "installation": {"id": installation},
        }
        if identifier:
            payload["requested_action"] = {"identifier": identifier}
        return payload

    def check_suite_event(
        self, repo: str, sha: str, *, login: str = "ada", installation: int = 77
    ) -> dict[str, Any]:
        """The payload of a `check_suite` event: somebody pressed *Re-run all checks*."""
        return {
            "action": "rerequested",
            "check_suite": {"id": 5, "head_sha": sha, "status": "queued", "conclusion": None},
            "repository": {"full_name": repo},
            "sender": {"login": login},
            "installation": {"id": installation},
        }

    def send_event(
        self, url: str, event: str, payload: Mapping[str, Any], *, secret: str, delivery: str | None = None
    ) -> HookAnswer:
        """Send a webhook as GitHub does, signed with X-Hub-Signature-256. The same `delivery` is the same delivery again."""
        body = msgspec.json.encode(payload)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/double",
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": delivery or str(uuid.uuid4()),
            "X-Hub-Signature-256": f"sha256={hmac.new(secret.encode(), body, sha256).hexdigest()}",
        }
        where = urlsplit(url)
        kind = HTTPSConnection if where.scheme == "https" else HTTPConnection
        connection = kind(where.hostname or "", where.port, timeout=SEND_SECONDS)
        try:
            connection.request("POST", where.path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return HookAnswer(answer.status, msgspec.json.decode(text) if text else None)


def push_event(
    repo: str, sha: str, *, ref: str = "refs/heads/main", before: str = "0" * 40, login: str = "ada"
) -> dict[str, Any]:
    """The payload of a `push` event."""
    return {
        "ref": ref,
        "before": before,
        "after": sha,
        "repository": {"full_name": repo},
        "pusher": {"name": login},
        "sender": {"login": login},
        "installation": {"id": 77},
    }


def pull_request_event(
    repo: str, number: int, sha: str, *, action: str = "opened", login: str = "ada", fork: bool = False
) -> dict[str, Any]:
    """The payload of a `pull_request` event."""
    return {
        "action": action,
        "number": number,
        "pull_request": {
            "number": number,
            "html_url": f"https://github.test/{repo}/pull/{number}",
            "head": {"sha": sha, "ref": "change", "repo": {"full_name": "fork/app" if fork else repo}},
            "base": {"sha": "0" * 40, "ref": "main", "repo": {"full_name": repo}},
            "user": {"login": login},
        },
        "repository": {"full_name": repo},
        "sender": {"login": login},
        "installation": {"id": 77},
    }


def _apply(check: dict[str, Any], asked: dict[str, Any]) -> str | None:
    """Change a check run as asked; the reason if that is not allowed (law 2)."""
    output = asked.get("output") or {}
    annotations = output.get("annotations", [])
    actions = asked.get("actions", [])
    conclusion = asked.get("conclusion")
    if asked.get("status", "queued") not in ("queued", "in_progress", "completed"):
        return "status is not a member of the enum"
    if conclusion is not None and conclusion not in CONCLUSIONS:
        return "conclusion is not a member of the enum"
    if asked.get("status") == "completed" and conclusion is None:
        return "conclusion is required if status is completed"
    if output and not ("title" in output and "summary" in output):
        return "output needs title and summary"
    if any(len(output.get(name) or "") > TEXT_CHARS_MAX for name in ("summary", "text")):
        return f"only {TEXT_CHARS_MAX} characters are allowed"
    if len(annotations) > ANNOTATIONS_MAX:
        return f"no more than {ANNOTATIONS_MAX} annotations are permitted"
    for one in annotations:
        if not ({"path", "start_line", "end_line", "annotation_level", "message"} <= one.keys()):
            return "an annotation lacks a field"
    if len(actions) > ACTIONS_MAX:
        return f"no more than {ACTIONS_MAX} actions are permitted"
    for one in actions:
        if len(one["label"]) > 20 or len(one["description"]) > 40 or len(one["identifier"]) > 20:
            return "an action is too long"
    kept = dict(asked)
    if output:
        earlier = (check.get("output") or {}).get("annotations", [])
        # GitHub adds the annotations of every request to those that the check run has.
        kept["output"] = {**output, "annotations": [*earlier, *annotations]}
        kept["output"]["annotations_count"] = len(kept["output"]["annotations"])
    check.update(kept)
    if conclusion is not None:
        check["status"] = "completed"
    elif "status" in asked:
        check["conclusion"] = None
    return None


def _matching(request: DoubleRequest, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The check runs that the query selects: by default the newest of each name."""
    found = [row for row in rows if request.first("check_name", row["name"]) == row["name"]]
    found = [row for row in found if request.first("status", row["status"]) == row["status"]]
    if request.first("filter", "latest") == "latest":
        found = list({row["name"]: row for row in found}.values())
    return sorted(found, key=lambda row: -row["id"])


def public(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "at"}


def page(request: DoubleRequest, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    size, number = int(request.first("per_page", "30")), int(request.first("page", "1"))
    return rows[(number - 1) * size : number * size]


def _invalid(reason: str) -> DoubleReply:
    return DoubleReply(422, {"message": reason, "errors": [{"message": reason}]})


def _bad_credentials() -> DoubleReply:
    return DoubleReply(401, {"message": "Bad credentials"})
