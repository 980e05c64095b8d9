"""I53: no value resolved from a secret's reference, no key, hook secret, lease token or password of a DSN is in any table, log, metric,
bundle or response, however it is written, also when whoever was given it repeats it."""

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
"""Characters that each way of writing writes otherwise."""
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


def written(secret: str) -> set[str]:
    """A secret as others may write it; of base64 the part that is the same wherever it begins."""
    found = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), json.dumps(secret)[1:-1]}
    for before in ("", "x", "xx"):
        text = base64.b64encode(f"{before}{secret}xx".encode()).decode()[4:-8]
        found |= {text, text.replace("+", "-").replace("/", "_")}
    return {form for form in found if len(form) >= 8}


def every_way(secret: str) -> str:
    """What somebody says who repeats a secret in every way."""
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    plain = base64.b64encode(secret.encode()).decode()
    return f"{secret} | {plain} | {basic} | {quote(secret, safe='')} | {quote_plus(secret)}"


# ---------------------------------------------------------------------------------------- taking them out


@pytest.mark.parametrize(
    "secret", [TOKEN, "plain-and-long-enough", "ünïcödé sëcrët", "x" * 40, "a\nb\n" + "c" * 30]
)
def test_a_secret_is_redacted_in_every_encoding(secret: str) -> None:
    clean = Redactor([secret.encode()])
    said = [
        json.dumps(secret),
        quote(secret),
        re.sub("%..", lambda found: found[0].lower(), quote(secret, safe="")),
        every_way(secret),
        secret.encode().hex(),
    ]
    for before in ("", "u:", "us:", "usr:"):
        whole = f"{before}{secret} and more".encode()
        said += [
            base64.b64encode(whole).decode(),
            base64.urlsafe_b64encode(whole).decode(),
            base64.encodebytes(whole).decode(),
        ]
    for text in said:
        left = clean.text(f"before {text} after")
        assert REDACTED in left, text
        assert not [form for form in written(secret) if form in "".join(left.split())], text
    assert secret not in str(clean.clean({"a": [every_way(secret)], secret: [secret.encode()]}))


def test_other_text_is_not_redacted() -> None:
    said = {"status": 200, "json": {"no": 1, "list": ["a", None, 1.5, True]}}
    assert Redactor([]).clean(said) == said
    assert Redactor([TOKEN.encode()]).clean(said) == said


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
    """A connector of somebody's own that resolves a secret and has it in all that it raises and returns."""

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
            "calling", token=secret, headers=[{"authorization": every_way(secret)}]
        )
        if call.fields["how"] == "result":
            return {"echo": every_way(secret), every_way(secret): [secret]}
        try:
            raise ValueError(every_way(secret))
        except ValueError as cause:
            raise TenureError("SECRET_UNAVAILABLE", f"{'.' * 480}{every_way(secret)}") from cause


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
        said = repr(await covered.call(order))
        assert REDACTED in said
    else:
        with pytest.raises(CallFailed) as raised:
            await covered.call(order)
        assert (raised.value.__cause__, raised.value.__context__) == (None, None), "they would bring it back"
        said = repr(raised.value.fault)
    assert not [form for form in written(RAISED) if form in said]
    assert "raised-sec" not in said, "nor a part of it, cut off"


# ------------------------------------------------------------------------------------------ the whole of it


class Echo(Double):
    """Repeats what it was told, in every way; with 422 where it is asked to."""

    def handle(self, request: DoubleRequest) -> DoubleReply:
        said = {name: every_way(request.headers.get(name, "")) for name in ("authorization", "x-key")}
        bare = every_way(request.headers.get("authorization", "").removeprefix("Bearer "))
        if request.path == "/refuse":
            return DoubleReply(422, {"message": f"not with {bare} and {said}"})
        return DoubleReply(
            200, {"you": said, "bare": bare, bare[:40]: "a key"}, {"ETag": bare.encode("ascii").decode()}
        )


async def _leaking(url: str) -> Any:
    told: list[Any] = []
    secret = {"X-Key": "env:TENURE_SECRET_acme_HEADER"}
    told.append(
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
            told.append(str(failed))
    fields = {"args": ["0"], "secret_env": {"TOOL": "env:TENURE_SECRET_acme_COMMAND"}}
    told.append(await tenure.act("command.tool", fields=fields))
    fields = {"how": "result", "secret": "env:TENURE_SECRET_acme_RAISED"}
    told.append(await tenure.act("raising.do", fields=fields))
    return told


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
    """What is logged during a test, as a server does it."""
    before, stream = structlog.get_config(), io.StringIO()
    configure_logging(stream)
    yield stream
    structlog.configure(**before)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database; the address of PostgreSQL's has a password."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'site.db'}"
    dsn: str = request.getfixturevalue("migrated_dsn")
    return dsn.replace("://postgres@", f"://postgres:{PASSWORD}@")


class Heap:
    """All that was seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def add(self, where: str, text: str | bytes) -> None:
        """Something that was seen; of an archive, what is in it."""
        raw = text.encode() if isinstance(text, str) else text
        if raw[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                for name in archive.namelist():
                    self.add(f"{where}:{name}", archive.read(name))
        else:
            self.seen.append((where, raw.decode(errors="replace")))

    def find(self, secret: str) -> list[str]:
        """Where a secret is, in any way of writing; also hexadecimal, as a database shows its bytes."""
        forms = written(secret) | {form.encode().hex() for form in (secret, quote(secret, safe=""))}
        return [f"{where}: {form}" for where, text in self.seen for form in forms if form in text]


async def test_no_secret_is_stored_anywhere(
    url: str, tmp_path: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of secret is used, and repeated by whoever was given it; then everything that was kept or said is looked through."""
    for name, value in (("HEADER", HEADER), ("COMMAND", COMMAND), ("RAISED", RAISED), ("HOOK", HOOK)):
        monkeypatch.setenv(f"TENURE_SECRET_acme_{name}", value)
    monkeypatch.setenv("SERVICE_TOKEN", TOKEN)
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))
    signing = tmp_path / "signing.pem"
    make_key(signing)
    heap, keys = Heap(), list[str]()
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
            callers = await _callers(s, heap, keys)
            await _hooked(s, callers["admin"])
            leased = await _leased(s, callers["runner"])
            acme = engine.scoped(tenant="acme")
            async with engine.worker(leaking):
                run = await acme.start(leaking, echo.url)
                told = await acme.result(run.id, wait=50)
            assert str(told).count(REDACTED) > 10, "everybody has repeated what they were given"
            heap.add("the workflow's result", json.dumps(told))
            await engine.runtime.sealing.seal(engine.orchestrator, run_int(run.id))
            await _looked(callers, run.id)
            heap.add(
                "what is printed",
                f"{service!r} {engine!r} {engine.url!r}" if "sqlite" in url else f"{service!r}",
            )
        for table, rows in (await contents(url)).items():
            for row in rows:
                heap.add(f"table {table}", row)
    heap.add("log", log.getvalue())
    for file in (tmp_path / "artifacts").rglob("*"):
        if file.is_file():
            heap.add(file.name, file.read_bytes())
    places = {where.partition(" ")[0] for where, _ in heap.seen}
    assert {"table", "log", "GET", "POST"} <= places
    assert any(":events.jsonl" in where for where, _ in heap.seen), "there is a bundle"
    assert any("tenure_" in text for where, text in heap.seen if where.endswith("/metrics")), (
        "there are metrics"
    )
    assert heap.find(run.id), "what is there is found"
    assert '"event": "calling"' in log.getvalue(), "a connector has logged what it was given"

    private = [line for line in signing.read_text().splitlines() if "-" not in line]
    for secret in (TOKEN, HEADER, COMMAND, RAISED, HOOK, PASSWORD, leased, *keys, *private):
        assert len(secret) >= len(PASSWORD), "it is one"
        assert heap.find(secret) == []


async def _callers(s: Site, heap: Heap, keys: list[str]) -> dict[str, httpx.AsyncClient]:
    """Somebody of each role, whose every answer is kept."""

    async def heard_answer(response: httpx.Response) -> None:
        body = await response.aread()
        if response.request.url.path != "/runner/claim":  # which is where a lease's token is handed out
            where = f"{response.request.method} {response.request.url.path}"
            heap.add(where, body)
            heap.add(where, repr(response.headers))

    made: dict[str, httpx.AsyncClient] = {}
    for role in ("viewer", "operator", "admin", "runner"):
        key = await s.key(role)
        keys.append(key.split("_", 2)[-1])
        made[role] = await s.caller(key)
        made[role].event_hooks["response"] = [heard_answer]
    return made


async def _hooked(s: Site, admin: httpx.AsyncClient) -> None:
    """A hook and a webhook, and deliveries that are signed well and badly."""
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


async def _leased(s: Site, runner: httpx.AsyncClient) -> str:
    """A step that is taken and done over HTTP; the token of its lease."""
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


async def _looked(callers: dict[str, httpx.AsyncClient], run: str) -> None:
    """Everything that can be asked for, is."""
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
    """Somebody wrote into the database; what they wrote is not repeated."""
    monkeypatch.setenv("TENURE_SECRET_acme_HOOK", HOOK)
    file = tmp_path / "site.db"
    async with site(f"sqlite:{file}") as s:
        hook = await make_hook(s, "github")
        assert (await examine_database(s.engine.store)).clean
        for secrets, clean in (('["hunter2"]', False), ("hunter2", False), (f'["{REFERENCE}"]', True)):
            with closing(
                apsw.Connection(str(file))
            ) as db:  # two libraries in one process would break its locks
                db.set_busy_timeout(10_000)
                db.execute("update hook set secrets = ?", (secrets,))
            report = await examine_database(s.engine.store)
            assert report.clean == clean
            assert [violation.number for violation in report.violations] == ([] if clean else ["I53"])
            assert clean or hook["id"] in str(report.violations[0])
            assert "hunter2" not in str(report)
