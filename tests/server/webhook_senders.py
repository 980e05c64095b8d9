"""Test doubles of GitHub, Slack, ServiceNow and Standard Webhooks senders. They sign as the real services do and send real HTTP."""

import base64
import hmac
import json
import uuid
from collections.abc import Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import apsw
import asyncpg
import httpx

from tenure.services.identity.principals import OPERATOR
from tenure.store.workflows import save_workflow
from tests.server.stage import Site

SECRET = "It's a Secret to Everybody"
SECRET_NAME = "TENURE_SECRET_acme_HOOK"
REFERENCE = f"env:{SECRET_NAME}"
OTHER_SECRET = "the next one"
OTHER_NAME = "TENURE_SECRET_acme_HOOK_NEW"

PR_RULE: dict[str, Any] = {
    "when": "event == 'pull_request' && action in ['opened', 'synchronize']",
    "workflow": "review",
    "input": {"pr": "${{ body.pull_request.number }}", "title": "PR ${{ body.pull_request.number }}"},
    "labels": {"by": "${{ headers['x-github-event'] }}"},
}


def pull_request(
    number: int = 7, *, action: str = "opened", head: str = "c0ffee", **more: Any
) -> dict[str, Any]:
    """The payload of a GitHub `pull_request` event."""
    return {
        "action": action,
        "number": number,
        "pull_request": {
            "number": number,
            "html_url": f"https://github.test/octo/widgets/pull/{number}",
            "head": {"sha": head},
        },
        "repository": {"full_name": "octo/widgets"},
        **more,
    }


async def register(site: Site, name: str = "review", tenant: str = "acme") -> None:
    """Register a code-first workflow as a worker does."""
    about = {"name": name, "version": "1", "kind": "code", "profile": "agent-runs", "queue": "default"}
    await save_workflow(site.engine.store, tenant, name, "1", "code", json.dumps(about), "d")


async def make_hook(
    site: Site,
    kind: str = "github",
    *rules: Mapping[str, Any],
    tenant: str = "acme",
    **more: Any,
) -> dict[str, Any]:
    """Create a hook as an admin of the tenant."""
    body = {
        "kind": kind,
        "name": f"our {kind}",
        "secrets": [REFERENCE.replace("acme", tenant)],
        "rules": list(rules),
        **more,
    }
    made = await (await site.as_("admin", tenant=tenant)).post("/hooks", json=body)
    assert made.status_code == 201, made.text
    hook: dict[str, Any] = made.json()
    if kind == "slack":
        await register_app(site, tenant=tenant)
    return hook


async def register_app(
    site: Site, team: str = "T1", reference: str = REFERENCE, *, tenant: str = "acme"
) -> None:
    """Register a Slack app for a team as the operator of the installation."""
    await site.engine.scoped(tenant="", caller=OPERATOR).tenants.set_slack_app(
        tenant, team, [reference.replace("acme", tenant)]
    )


class GitHub:
    """Delivers events to a hook."""

    def __init__(self, site: Site, hook_id: str, secret: str = SECRET) -> None:
        self.site, self.hook_id, self.secret = site, hook_id, secret
        self._client: httpx.AsyncClient | None = None

    async def deliver(
        self,
        event: str,
        body: Any,
        *,
        delivery: str | None = None,
        secret: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        """Send one delivery. Bytes are sent unchanged."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        mac = hmac.new((secret or self.secret).encode(), raw, sha256).hexdigest()
        sent: dict[str, Any] = {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": delivery or str(uuid.uuid4()),
            "X-Hub-Signature-256": f"sha256={mac}",
            "Content-Type": "application/json",
            **(headers or {}),
        }
        if self._client is None:
            self._client = await self.site.caller()
        return await self._client.post(f"/hooks/github/{self.hook_id}", content=raw, headers=sent)


class Slack:
    """A Slack user who types commands and clicks buttons."""

    def __init__(self, site: Site, hook_id: str, *, team: str = "T1", user: str = "U1") -> None:
        self.site, self.hook_id, self.team, self.user = site, hook_id, team, user
        self._client: httpx.AsyncClient | None = None
        self._triggers = 0

    def _trigger(self) -> str:
        self._triggers += 1
        return f"{self._triggers}.{self.team}.{self.user}"

    async def send(self, where: str, fields: Mapping[str, str], *, off_seconds: float = 0) -> httpx.Response:
        """Send a form, signed with the store's time plus `off_seconds`."""
        raw = urlencode(fields).encode()
        now_us: int = (await self.site.engine.store.read("now"))[0].now_us
        return await self.send_raw(where, raw, str(int(now_us / 1e6 + off_seconds)))

    async def send_raw(
        self, where: str, raw: bytes, at: str, *, signature: str | None = None
    ) -> httpx.Response:
        """Send bytes with a signature of the current time."""
        mac = hmac.new(SECRET.encode(), f"v0:{at}:".encode() + raw, sha256).hexdigest()
        headers = {
            "X-Slack-Request-Timestamp": at,
            "X-Slack-Signature": signature or f"v0={mac}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        if self._client is None:
            self._client = await self.site.caller()
        return await self._client.post(f"/hooks/slack/{self.hook_id}/{where}", content=raw, headers=headers)

    def command_fields(self, text: str, *, trigger: str | None = None) -> dict[str, str]:
        """The fields that Slack sends for `/tenure text`."""
        return {
            "token": "legacy-verification-token",
            "team_id": self.team,
            "user_id": self.user,
            "command": "/tenure",
            "text": text,
            "trigger_id": trigger or self._trigger(),
            "response_url": "https://hooks.slack.test/commands/capability",
        }

    async def command(
        self, text: str, *, trigger: str | None = None, off_seconds: float = 0
    ) -> httpx.Response:
        """Type a command."""
        return await self.send(
            "commands", self.command_fields(text, trigger=trigger), off_seconds=off_seconds
        )

    async def click(self, action: str, value: str) -> str:
        """Click a button; returns the text that Slack shows."""
        payload = {
            "type": "block_actions",
            "team": {"id": self.team},
            "user": {"id": self.user},
            "trigger_id": self._trigger(),
            "actions": [{"action_id": action, "value": value}],
        }
        answer = await self.send("actions", {"payload": json.dumps(payload)})
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["text"]
        assert answer.json()["response_type"] == "ephemeral"
        return text


class Sender:
    """Sends Standard Webhooks."""

    def __init__(self, site: Site, hook_id: str, secret: bytes = SECRET.encode()) -> None:
        self.site, self.hook_id, self.secret = site, hook_id, secret
        self._client: httpx.AsyncClient | None = None

    async def send(
        self,
        body: Any,
        *,
        name: str | None = None,
        off_seconds: float = 0,
        headers: Mapping[str, str] | None = None,
        signature: str | None = None,
    ) -> httpx.Response:
        """Send one webhook."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        now_us: int = (await self.site.engine.store.read("now"))[0].now_us
        name, at = name or f"msg_{uuid.uuid4().hex}", str(int(now_us / 1e6 + off_seconds))
        mac = hmac.new(self.secret, f"{name}.{at}.".encode() + raw, sha256).digest()
        sent = {
            "webhook-id": name,
            "webhook-timestamp": at,
            "webhook-signature": signature or f"v1,{base64.b64encode(mac).decode()}",
            "Content-Type": "application/json",
            **(headers or {}),
        }
        if self._client is None:
            self._client = await self.site.caller()
        return await self._client.post(f"/hooks/generic/{self.hook_id}", content=raw, headers=sent)


class ServiceNow:
    """Calls a hook as ServiceNow does: with a secret in a header, and without a signature."""

    def __init__(self, site: Site, hook_id: str, credential: Mapping[str, str]) -> None:
        self.site, self.hook_id, self.credential = site, hook_id, credential
        self._client: httpx.AsyncClient | None = None

    async def call(
        self, body: Any, *, credential: Mapping[str, str] | None = None, **headers: str
    ) -> httpx.Response:
        """Call once. Bytes are sent unchanged."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {
            "Content-Type": "application/json",
            "User-Agent": "ServiceNow/1.0",
            **(self.credential if credential is None else credential),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        if self._client is None:
            self._client = await self.site.caller()
        return await self._client.post(f"/hooks/servicenow/{self.hook_id}", content=raw, headers=sent)


def basic(user: str, password: str) -> dict[str, str]:
    """The header of basic credentials."""
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


async def contents(url: str) -> dict[str, list[Any]]:
    """All rows of all tables, for comparisons, without the last use of keys and the clock of SQLite."""
    found: dict[str, list[Any]] = {}
    if url.startswith("sqlite:"):
        with closing(apsw.Connection(url[7:], flags=apsw.SQLITE_OPEN_READONLY)) as db:
            for (table,) in db.execute("select name from sqlite_master where type = 'table'").fetchall():
                found[str(table)] = sorted(map(repr, db.execute(f"select * from {table}")))
    else:
        db = await asyncpg.connect(url)
        try:
            tables = await db.fetch("select tablename from pg_tables where schemaname = 'tenure'")
            for (table,) in tables:
                found[table] = sorted(map(repr, await db.fetch(f"select * from tenure.{table}")))
        finally:
            await db.close()
    for beside in ("api_key", "meta"):
        found.pop(beside, None)
    return found
