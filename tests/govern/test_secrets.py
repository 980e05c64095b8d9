"""I53: no resolved secret, key, hook secret, lease token or DSN password is in any table, log, metric, bundle or response, in any
encoding, even if the receiver of the secret repeats it."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import apsw
import httpx
import pytest
import structlog

import tenure
from tenure.clock import boot_seconds
from tenure.doctor.examination import examine_database
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.govern.connector import ConnectorCall, Operation
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.command import CommandConnector, Program
from tenure.govern.connectors.faults import CallFailed
from tenure.govern.connectors.http import HttpConnector
from tenure.govern.connectors.http_service import HttpService
from tenure.govern.connectors.registry import Connectors
from tenure.govern.redaction import REDACTED, Redactor
from tenure.govern.signing import make_key
from tenure.ids import run_int
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.urls import OutboundRoute
from tenure.sdk import Workflow
from tenure.secrets import Secrets, record_resolved, resolve_own
from tenure.server.http_server import serving
from tenure.server.observe.structured_logs import configure_logging
from tenure.server.settings import Settings
from tenure.store.policies import PolicyRegistry
from tenure.testing.doubles import Double, DoubleReply, DoubleRequest
from tests.server.stage import Site, site
from tests.server.webhook_senders import REFERENCE, GitHub, contents, make_hook, pull_request

ODD = "/+ =&?%"
"""Characters that every encoding changes."""
TOKEN = f"connector-token{ODD}Zq81"
HEADER = f"header-secret{ODD}Yx72"
COMMAND = f"command-secret{ODD}Wv63"
RAISED = f"raised-secret{ODD}Ut54"
HOOK = f"hook-secret{ODD}Sr45"
PASSWORD = "dsn-password-Qp36"

POLICY = """
version: 1
rules:
  - {name: posts, connector: http, operation: post, allow: true}
  - {name: tools, connector: command, operation: tool, allow: true}
  - {name: raising, connector: raising, operation: do, allow: true}
"""


def encodings_of(secret: str) -> set[str]:
    """Return the encodings of a secret. For base64, return the part that does not depend on the offset."""
    found = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), json.dumps(secret)[1:-1]}
    for before in ("", "x", "xx"):
        text = base64.b64encode(f"{before}{secret}xx".encode()).decode()[4:-8]
        found |= {text, text.replace("+", "-").replace("/", "_")}
    return {form for form in found if len(form) >= 8}


def in_every_encoding(secret: str) -> str:
    """Return a text that repeats a secret in every encoding."""
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    plain = base64.b64encode(secret.encode()).decode()
    return f"{secret} | {plain} | {basic} | {quote(secret, safe='')} | {quote_plus(secret)}"


# ---------------------------------------------------------------------------------------- taking them out


@pytest.mark.parametrize(
    "secret", [TOKEN, "plain-and-long-enough", "ünïcödé sëcrët", "x" * 40, "a\nb\n" + "c" * 30]
)
def test_a_secret_is_redacted_in_every_encoding(secret: str) -> None:
    clean = Redactor([secret.encode()])
    repeated = [
        json.dumps(secret),
        quote(secret),
        re.sub("%..", lambda found: found[0].lower(), quote(secret, safe="")),
        in_every_encoding(secret),
        secret.encode().hex(),
    ]
    for before in ("", "u:", "us:", "usr:"):
        whole = f"{before}{secret} and more".encode()
        repeated += [
            base64.b64encode(whole).decode(),
            base64.urlsafe_b64encode(whole).decode(),
            base64.encodebytes(whole).decode(),
        ]
    for text in repeated:
        left = clean.text(f"before {text} after")
        assert REDACTED in left, text
        assert not [form for form in encodings_of(secret) if form in "".join(left.split())], text
    assert secret not in str(clean.clean({"a": [in_every_encoding(secret)], secret: [secret.encode()]}))


def test_other_text_is_not_redacted() -> None:
    repeated = {"status": 200, "json": {"no": 1, "list": ["a", None, 1.5, True]}}
    assert Redactor([]).clean(repeated) == repeated
    assert Redactor([TOKEN.encode()]).clean(repeated) == repeated


def test_the_longer_of_two_secrets_is_redacted_first() -> None:
    assert Redactor([b"abcd-1234", b"abcd-1234-5678"]).text("abcd-1234-5678!") == f"{REDACTED}!"


def test_only_secrets_resolved_in_the_same_context_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_SECRET_acme_A", "one")
    monkeypatch.setenv("OWN", "two")
    with record_resolved() as outer:
        Secrets().resolve("env:TENURE_SECRET_acme_A", "acme")
        with record_resolved() as inner:
            resolve_own("env:OWN")
            assert inner == [b"two"]
        assert outer == [b"one", b"two"]
    Secrets().resolve("env:TENURE_SECRET_acme_A", "acme")
    assert outer == [b"one", b"two"]


class Raising(ConnectorBase):
    """A custom connector that resolves a secret and repeats it in every error and result."""

    def __init__(self) -> None:
        self.name = "raising"
        fields = {
            "type": "object",
            "properties": {"how": {"type": "string"}, "secret": {"type": "string", "secret": True}},
        }
        none = {"type": "object", "properties": {}}
        self.operations = {
            "do": Operation(name="do", summary="Do it.", target=none, fields=fields, repeats="sets_state")
        }

    async def call(self, call: ConnectorCall) -> Any:
        secret = Secrets().resolve(call.fields["secret"], call.tenant).decode()
        structlog.get_logger().warning(
            "calling", token=secret, headers=[{"authorization": in_every_encoding(secret)}]
        )
        if call.fields["how"] == "result":
            return {"echo": in_every_encoding(secret), in_every_encoding(secret): [secret]}
        try:
            raise ValueError(in_every_encoding(secret))
        except ValueError as cause:
            raise TenureError("SECRET_UNAVAILABLE", f"{'.' * 480}{in_every_encoding(secret)}") from cause


@pytest.mark.parametrize("how", ["result", "raise"])
async def test_a_secret_repeated_by_a_custom_connector_is_redacted(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_SECRET_acme_R", RAISED)
    covered = Connectors([Raising()])["raising"]
    fields = {"how": how, "secret": "env:TENURE_SECRET_acme_R"}
    order = ConnectorCall(
        tenant="acme", operation="do", target={}, fields=fields, key="k", deadline=boot_seconds() + 5
    )
    if how == "result":
        repeated = repr(await covered.call(order))
        assert REDACTED in repeated
    else:
        with pytest.raises(CallFailed) as raised:
            await covered.call(order)
        assert (raised.value.__cause__, raised.value.__context__) == (None, None), (
            "chained exceptions would contain the secret"
        )
        repeated = repr(raised.value.fault)
    assert not [form for form in encodings_of(RAISED) if form in repeated]
    assert "raised-sec" not in repeated, "a truncated secret was not redacted"


# ------------------------------------------------------------------------------------------ the whole of it


class Echo(Double):
    """A service double that repeats the received secrets in every encoding, with status 422 on request."""

    def handle(self, request: DoubleRequest) -> DoubleReply:
        repeated = {
            name: in_every_encoding(request.headers.get(name, "")) for name in ("authorization", "x-key")
        }
        bare = in_every_encoding(request.headers.get("authorization", "").removeprefix("Bearer "))
        if request.path == "/refuse":
            return DoubleReply(422, {"message": f"not with {bare} and {repeated}"})
        return DoubleReply(
            200, {"you": repeated, "bare": bare, bare[:40]: "a key"}, {"ETag": bare.encode("ascii").decode()}
        )


async def _leaking(url: str) -> Any:
    results: list[Any] = []
    secret = {"X-Key": "env:TENURE_SECRET_acme_HEADER"}
    results.append(
        await tenure.act(
            "http.post", target={"url": f"{url}/"}, fields={"secret_headers": secret}, why="asked"
        )
    )
    asked: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("http.post", {"url": f"{url}/refuse"}, {"secret_headers": secret}),
        ("command.tool", {}, {"args": ["64"], "secret_env": {"TOOL": "env:TENURE_SECRET_acme_COMMAND"}}),
        ("raising.do", {}, {"how": "raise", "secret": "env:TENURE_SECRET_acme_RAISED"}),
    )
    for action, target, fields in asked:
        try:
            await tenure.act(action, target=target, fields=fields)
        except tenure.ActionFailed as failed:
            results.append(str(failed))
    fields = {"args": ["0"], "secret_env": {"TOOL": "env:TENURE_SECRET_acme_COMMAND"}}
    results.append(await tenure.act("command.tool", fields=fields))
    fields = {"how": "result", "secret": "env:TENURE_SECRET_acme_RAISED"}
    results.append(await tenure.act("raising.do", fields=fields))
    return results


leaking = Workflow(_leaking, name="leaking")

TOOL = """
import base64, os, sys
from urllib.parse import quote, quote_plus
secret = os.environ["TOOL"]
said = [secret, base64.b64encode(secret.encode()).decode(), base64.b64encode(b"user:" + secret.encode()).decode(), quote(secret, safe=""), quote_plus(secret)]
print(*said)
print(*said, file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log of a test, configured as in a server."""
    before, stream = structlog.get_config(), io.StringIO()
    configure_logging(stream)
    yield stream
    structlog.configure(**before)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database. The URL of PostgreSQL has a password."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'site.db'}"
    dsn: str = request.getfixturevalue("migrated_dsn")
    return dsn.replace("://postgres@", f"://postgres:{PASSWORD}@")


class CollectedTexts:
    """All texts that the test collected, with their places."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def add(self, where: str, text: str | bytes) -> None:
        """Add a text. For a zip archive, add the content of its files."""
        raw = text.encode() if isinstance(text, str) else text
        if raw[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                for name in archive.namelist():
                    self.add(f"{where}:{name}", archive.read(name))
        else:
            self.seen.append((where, raw.decode(errors="replace")))

    def find(self, secret: str) -> list[str]:
        """Return the places of a secret in any encoding, including hexadecimal, which databases use for bytes."""
        forms = encodings_of(secret) | {form.encode().hex() for form in (secret, quote(secret, safe=""))}
        return [f"{where}: {form}" for where, text in self.seen for form in forms if form in text]


async def test_no_secret_is_stored_anywhere(
    url: str, tmp_path: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test uses every kind of secret, has each receiver repeat it, and then searches all stored and sent texts."""
    for name, value in (("HEADER", HEADER), ("COMMAND", COMMAND), ("RAISED", RAISED), ("HOOK", HOOK)):
        monkeypatch.setenv(f"TENURE_SECRET_acme_{name}", value)
    monkeypatch.setenv("SERVICE_TOKEN", TOKEN)
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))
    signing = tmp_path / "signing.pem"
    make_key(signing)
    texts, keys = CollectedTexts(), list[str]()
    with Echo() as echo:
        way = OutboundRoute(
            hosts=(echo.url.removeprefix("http://"),), reach=AllowedNetworks(networks=("127.0.0.1",))
        )
        connectors = (
            HttpConnector("http", HttpService(base_url=echo.url, way=way, tokens={"*": "env:SERVICE_TOKEN"})),
            CommandConnector(
                programs={"tool": Program(path=sys.executable, args=("-I", "-c", TOOL), env=("TOOL",))}
            ),
            Raising(),
        )
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(
                Engine(url, connectors=connectors, signing_key=f"file:{signing}")
            )
            service, address = await stack.enter_async_context(
                serving(engine, Settings(port=0, log_requests=True))
            )
            s = Site(engine, service, address, stack)
            await s.tenant("acme")
            await PolicyRegistry(engine.store, "acme").install(POLICY)
            callers = await _callers(s, texts, keys)
            await _use_hooks(s, callers["admin"])
            leased = await _complete_step(s, callers["runner"])
            acme = engine.scoped(tenant="acme")
            async with engine.worker(leaking):
                run = await acme.start(leaking, echo.url)
                results = await acme.result(run.id, wait=50)
            assert str(results).count(REDACTED) > 10, "not every receiver repeated its secret"
            texts.add("the workflow's result", json.dumps(results))
            await engine.runtime.sealing.seal(engine.orchestrator, run_int(run.id))
            await _read_all_routes(callers, run.id)
            texts.add(
                "what is printed",
                f"{service!r} {engine!r} {engine.url!r}" if "sqlite" in url else f"{service!r}",
            )
        for table, rows in (await contents(url)).items():
            for row in rows:
                texts.add(f"table {table}", row)
    texts.add("log", log.getvalue())
    for file in (tmp_path / "artifacts").rglob("*"):
        if file.is_file():
            texts.add(file.name, file.read_bytes())
    places = {where.partition(" ")[0] for where, _ in texts.seen}
    assert {"table", "log", "GET", "POST"} <= places
    assert any(":events.jsonl" in where for where, _ in texts.seen), "no bundle was collected"
    assert any("tenure_" in text for where, text in texts.seen if where.endswith("/metrics")), (
        "no metrics were collected"
    )
    assert texts.find(run.id), "the search does not find a known text"
    assert '"event": "calling"' in log.getvalue(), "the connector did not log"

    private = [line for line in signing.read_text().splitlines() if "-" not in line]
    for secret in (TOKEN, HEADER, COMMAND, RAISED, HOOK, PASSWORD, leased, *keys, *private):
        assert len(secret) >= len(PASSWORD), "the value is too short for a secret"
        assert texts.find(secret) == []


async def _callers(s: Site, texts: CollectedTexts, keys: list[str]) -> dict[str, httpx.AsyncClient]:
    """Return one client for each role. All their responses are collected."""

    async def collect_response(response: httpx.Response) -> None:
        body = await response.aread()
        if response.request.url.path != "/runner/claim":  # this response contains the token of the lease
            where = f"{response.request.method} {response.request.url.path}"
            texts.add(where, body)
            texts.add(where, repr(response.headers))

    made: dict[str, httpx.AsyncClient] = {}
    for role in ("viewer", "operator", "admin", "runner"):
        key = await s.key(role)
        keys.append(key.split("_", 2)[-1])
        made[role] = await s.caller(key)
        made[role].event_hooks["response"] = [collect_response]
    return made


async def _use_hooks(s: Site, admin: httpx.AsyncClient) -> None:
    """Make a hook and a webhook, and send deliveries with valid and invalid signatures."""
    reference = "env:TENURE_SECRET_acme_HOOK"
    hook = await make_hook(s, "github", secrets=[reference])
    github = GitHub(s, hook["id"], HOOK)
    assert (await github.deliver("pull_request", pull_request())).status_code < 300
    assert (await github.deliver("pull_request", pull_request(), secret="wrong")).status_code == 401
    assert (
        await admin.post("/webhooks", json={"url": "https://example.com/", "secret": reference})
    ).status_code == 201
    assert (
        await admin.post("/webhooks", json={"url": "https://example.com/", "secret": HOOK})
    ).status_code == 422
    for path in ("/hooks", f"/hooks/{hook['id']}", "/webhooks"):
        await admin.get(path)


async def _complete_step(s: Site, runner: httpx.AsyncClient) -> str:
    """Claim and complete a step over HTTP. Return the token of its lease."""
    plan = [{"name": "build", "tool": "build", "input": {}}]
    await s.engine.scoped(tenant="acme").create("ci", plan)
    asked = {"claim_id": "c1", "capabilities": ["default|tool:build"], "max": 1}
    (lease,) = (await runner.post("/runner/claim", json=asked)).json()["leases"]
    headers = {"Authorization": f"Bearer {lease['token']}"}
    for seq, verb in enumerate(("ack", "running", "complete"), start=1):
        await runner.post(f"/runner/leases/{lease['id']}/{verb}", json={"seq": seq}, headers=headers)
    bad = {"Authorization": f"Bearer {lease['token']}x"}
    await runner.post(f"/runner/leases/{lease['id']}/heartbeat", json={"seq": 9}, headers=bad)
    return str(lease["token"]).removeprefix("tl_")


async def _read_all_routes(callers: dict[str, httpx.AsyncClient], run: str) -> None:
    """Send a GET request to every route."""
    parts: tuple[str, ...] = (
        "",
        "/status",
        "/result",
        "/steps",
        "/events",
        "/checkpoints",
        "/logs",
        "/tries",
        "/artifacts",
        "/why",
        "/decisions",
    )
    parts += ("/receipts", "/evidence", "/evidence/0/bundle", "/evidence/0/statement", "/undo", "/costs")
    for part in parts:
        await callers["operator"].get(f"/runs/{run}{part}")
    for path in (
        "/runs",
        "/metrics",
        "/readyz",
        "/inbox",
        "/workflows",
        "/policies",
        "/costs",
        "/receipts",
        "/evidence",
    ):
        await callers["operator"].get(path)
    for path in ("/keys", "/people", "/clients", "/audit", "/hooks", "/webhooks", "/ledger/trust"):
        await callers["admin"].get(path)


async def test_the_doctor_finds_a_hook_that_contains_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret was written with plain SQL. The finding does not repeat it."""
    monkeypatch.setenv("TENURE_SECRET_acme_HOOK", HOOK)
    file = tmp_path / "site.db"
    async with site(f"sqlite:{file}") as s:
        hook = await make_hook(s, "github")
        assert (await examine_database(s.engine.store)).clean
        for secrets, clean in (('["hunter2"]', False), ("hunter2", False), (f'["{REFERENCE}"]', True)):
            with closing(
                apsw.Connection(str(file))
            ) as db:  # two SQLite libraries in one process would break the file locks
                db.set_busy_timeout(10_000)
                db.execute("update hook set secrets = ?", (secrets,))
            report = await examine_database(s.engine.store)
            assert report.clean == clean
            assert [violation.number for violation in report.violations] == ([] if clean else ["I53"])
            assert clean or hook["id"] in str(report.violations[0])
            assert "hunter2" not in str(report)
