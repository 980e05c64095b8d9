"""Reads of published documents: from S3 and files, without the orchestrator, and during outages."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx
import msgspec
import pytest

from tenure.declared import load_workflow
from tenure.engine import Engine
from tenure.server.auth.roles import ALLOWED
from tenure.services.catalog import register_definition
from tenure.services.identity.keys import Keys
from tenure.shapes.published import READING_ROLES, tenant_folder
from tenure.status_server.http_server import StatusSettings, serving_documents
from tests.publish.stage import AGENT, archivist, await_status, read_json, status_of, until, work
from tests.publish.storage_gate import StorageGate
from tests.server.stage import Site, problem, site
from tools.s3_server import PrivateS3

pytestmark = pytest.mark.guard_seconds(180)

PLAN = [{"name": "load-context"}, {"name": "finalize"}]


@asynccontextmanager
async def reading(place: str, key: str | None) -> AsyncIterator[httpx.AsyncClient]:
    """A status server over a place, and a client with a key."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with (
        serving_documents(StatusSettings(documents=place, listen="127.0.0.1:0")) as address,
        httpx.AsyncClient(base_url=address, headers=headers, timeout=30) as client,
    ):
        yield client


async def until_ok(client: httpx.AsyncClient, path: str) -> httpx.Response:
    async def look() -> Any:
        answer = await client.get(path)
        return answer if answer.status_code == 200 else None

    found: httpx.Response = await until(look)
    return found


def acme(s: Site) -> Engine:
    return s.engine.scoped(tenant="acme")


@pytest.mark.clause("AGR-14")
async def test_reads_are_what_was_published_and_nothing_else(sqlite_url: str, place: str) -> None:
    async with site(sqlite_url, publish=place) as s:
        key = await s.key("viewer")
        async with reading(place, key) as client:
            run = await acme(s).create("archivist-violin", PLAN, profile=AGENT)
            await work(s.engine)
            await await_status(place, run, "running")
            answer = await until_ok(client, f"/runs/{run}/status")
            assert answer.json() == await status_of(place, run)
            tag = answer.headers["etag"]
            again = await client.get(f"/runs/{run}/status", headers={"If-None-Match": tag})
            assert (again.status_code, again.content) == (304, b"")
            # The publisher stops: what readers see stands still, whatever the orchestrator does.
            publisher = s.engine.publisher
            assert publisher is not None
            await publisher.__aexit__()
            publisher._task = None
            publisher._fence = 0
            await work(s.engine)
            assert (await acme(s).get(run)).status == "succeeded"
            still = await client.get(f"/runs/{run}/status", headers={"If-None-Match": tag})
            assert still.status_code == 304
            other = await acme(s).create("archivist-violin", PLAN, profile=AGENT)
            missing = await client.get(f"/runs/{other}/status")
            assert (missing.status_code, problem(missing)) == (404, "NOT_PUBLISHED")
            assert missing.headers["retry-after"] == "1"
            # It begins again, and readers catch up.
            async with publisher:
                await await_status(place, run, "completed")
                assert (await client.get(f"/runs/{run}/status")).json()["status"] == "completed"


@pytest.mark.clause("AGR-14")
async def test_a_stream_has_the_documents_events_and_never_runs_ahead(sqlite_url: str, bucket: str) -> None:
    async with site(sqlite_url, publish=bucket) as s:
        key = await s.key("viewer")
        async with reading(bucket, key) as client, s.engine.worker(archivist):
            await until_ok(client, "/inbox/stats")
            heard: list[dict[str, Any]] = []
            last = ""
            async with client.stream("GET", "/events/stream") as stream:
                assert stream.status_code == 200
                lines = stream.aiter_lines()
                assert await anext(lines) == ": listening"
                run = await acme(s).submit(archivist, {"topic": "violins"})
                async for line in lines:
                    if line.startswith("id: "):
                        last = line[4:]
                    if not line.startswith("data: "):
                        continue
                    event = msgspec.json.decode(line[6:])
                    heard.append(event)
                    shown = await status_of(bucket, run.id)
                    words = ["requested", "queued", "running", "completed"]
                    if event["type"] == "run.status.changed":
                        assert words.index(shown["status"]) >= words.index(event["status"])
                    elif event["type"] == "run.step.completed":
                        assert shown["steps_completed"] >= event["step"]
                    else:
                        assert event["proposalId"] in shown["proposals_created"]
                    if event.get("status") == "completed":
                        break
            [proposal] = (await status_of(bucket, run.id))["proposals_created"]
            changed, step = "run.status.changed", "run.step.completed"
            assert heard == [
                {"type": changed, "runId": run.id, "status": "requested"},
                {"type": changed, "runId": run.id, "status": "queued"},
                {"type": changed, "runId": run.id, "status": "running"},
                {"type": step, "runId": run.id, "step": 1},
                {"type": "proposal.created", "proposalId": proposal},
                {"type": step, "runId": run.id, "step": 2},
                {"type": changed, "runId": run.id, "status": "completed"},
            ]
            # A client that comes back gets what follows its last event, and nothing twice.
            async with client.stream("GET", "/events/stream", headers={"Last-Event-ID": "5"}) as stream:
                found: list[str] = []
                async for line in stream.aiter_lines():
                    if line.startswith("id: "):
                        found.append(line[4:])
                    if found[-1:] == [last]:
                        break
                assert found == ["5", "6", "7"]
            for given, code in (("999", "STREAM_RESET"), ("x", "REQUEST_MALFORMED")):
                refused = await client.get("/events/stream", headers={"Last-Event-ID": given})
                assert problem(refused) == code


async def test_inbox_and_proposals_are_published(url: str, place: str) -> None:
    async with site(url, publish=place) as s:
        ada = await s.person("ada", "approver", "viewer")
        key = await s.key("viewer")
        async with reading(place, key) as client, s.engine.worker(archivist):
            run = await acme(s).submit(archivist, {"topic": "violins"})
            await run.result(wait=30)

            async def counted(number: int) -> Any:
                answer = await client.get("/inbox/stats")
                return answer.status_code == 200 and answer.json()["pending_proposals"] == number

            await until(lambda: counted(1))
            listed = (await client.get("/proposals/pending")).json()
            assert listed == (await ada.get("/proposals/pending")).json()
            [one] = listed["items"]
            assert (await client.get("/inbox/stats")).json() == (await ada.get("/inbox/stats")).json()
            await ada.post(f"/proposals/{one['id']}/decision", json={"decision": "accept"})
            await until(lambda: counted(0))
            assert (await client.get("/proposals/pending")).json()["items"] == []


async def test_keys_are_checked_by_published_digests(url: str, place: str) -> None:
    async with site(url, publish=place) as s:
        key, runner = await s.key("viewer"), await s.key("runner")
        stranger = await s.key("viewer", tenant="rival")
        run = await acme(s).create("archivist-violin", PLAN, profile=AGENT)
        await await_status(place, run, "queued")
        async with reading(place, None) as client:

            async def ask(text: str) -> httpx.Response:
                return await client.get(f"/runs/{run}/status", headers={"Authorization": f"Bearer {text}"})

            for text in (key, runner, stranger):
                await until(partial(read_json, place, f"keys/{text.split('_')[1]}.json"))
            assert (await ask(key)).status_code == 200
            assert problem(await client.get(f"/runs/{run}/status")) == "UNAUTHENTICATED"
            assert problem(await ask(key[:-4] + "abcd")) == "UNAUTHENTICATED"
            assert problem(await ask(runner)) == "FORBIDDEN"
            assert problem(await ask(stranger)) == "NOT_PUBLISHED", "the tenant comes from the key"
            # A revoked key stops working within seconds, also for a stream that is open.
            async with client.stream(
                "GET", "/events/stream", headers={"Authorization": f"Bearer {key}"}
            ) as stream:
                keys = Keys(s.engine.scoped(tenant="acme").scope)
                await keys.revoke(key.split("_")[1])
                async with asyncio.timeout(30):
                    async for _ in stream.aiter_bytes():
                        pass  # the server ends the stream
            assert problem(await ask(key)) == "UNAUTHENTICATED"


@pytest.mark.clause("AGR-17")
async def test_a_storage_outage_is_upstream_unavailable(
    sqlite_url: str, bucket: str, s3_server: PrivateS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(sqlite_url, publish=bucket) as s, StorageGate(s3_server.endpoint).opened() as gate:
        key = await s.key("viewer")
        run = await acme(s).create("archivist-violin", PLAN, profile=AGENT)
        await await_status(bucket, run, "queued")
        monkeypatch.setenv("AWS_ENDPOINT", gate.endpoint)
        async with reading(bucket, key) as client:
            await until_ok(client, f"/runs/{run}/status")
            gate.close()
            for path in (f"/runs/{run}/status", "/inbox/stats", "/proposals/pending", "/events/stream"):
                answer = await client.get(path)
                assert (answer.status_code, problem(answer)) == (502, "UPSTREAM_UNAVAILABLE"), path
            gate.open()
            await until_ok(client, f"/runs/{run}/status")


async def test_bad_requests_are_answered(tmp_path: Path) -> None:
    async with reading(str(tmp_path), None) as client:
        assert problem(await client.post("/runs/x/status")) == "METHOD_NOT_ALLOWED"
        assert problem(await client.get("/nowhere")) == "NOT_FOUND"
        assert problem(await client.get("/page/../../../etc/passwd")) == "NOT_FOUND"
        assert problem(await client.get("/runs/%2e%2e%2fx/status")) in ("NOT_FOUND", "UNAUTHENTICATED")
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        page = await client.get("/page")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        seen = {
            (await client.get("/inbox/stats", headers={"Authorization": "Bearer tn_a_b"})).status_code
            for _ in range(40)
        }
        assert seen == {401, 429}, "guesses are limited"


async def test_behind_a_proxy_one_client_does_not_block_others(tmp_path: Path) -> None:
    settings = StatusSettings(documents=str(tmp_path), listen="127.0.0.1:0", behind_proxy=True)
    async with (
        serving_documents(settings) as address,
        httpx.AsyncClient(base_url=address, headers={"Authorization": "Bearer tn_a_b"}) as client,
    ):
        guesses = [
            await client.get("/inbox/stats", headers={"X-Forwarded-For": "203.0.113.9, 198.51.100.1"})
            for _ in range(30)
        ]
        other = await client.get("/inbox/stats", headers={"X-Forwarded-For": "198.51.100.1, 198.51.100.2"})
        assert (guesses[-1].status_code, other.status_code) == (429, 401)


async def test_a_place_that_cannot_be_read_is_upstream_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    async with reading(str(tmp_path / "file"), "tn_abc_def") as client:
        assert problem(await client.get("/inbox/stats")) == "UPSTREAM_UNAVAILABLE"


def test_the_roles_are_those_of_the_ordinary_server() -> None:
    for route in (
        "GET /runs/{run_id}/status",
        "GET /inbox/stats",
        "GET /proposals/pending",
        "GET /events/stream",
    ):
        assert ALLOWED[route] == READING_ROLES


@pytest.mark.parametrize("tenant", ["..", ".", "a/b", "../x", "ä", ""])
def test_no_tenant_leads_out_of_its_folder(tenant: str) -> None:
    folder = tenant_folder(tenant)
    assert folder.isascii()
    assert "/" not in folder
    assert folder not in ("", ".", "..")


# ---- Real processes.

ARCHIVIST = """
name: archivist
version: "1"
steps:
  - id: collect
    uses: collect
"""


@asynccontextmanager
async def process(*words: str) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """A `tenure` process, and the address in its log."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    with TemporaryFile() as log:
        started = subprocess.Popen(  # noqa: ASYNC220 - it starts at once, and is only polled
            [sys.executable, "-m", "tenure.cli", *words], stdout=log, stderr=log, env=env
        )

        async def find_address() -> str | None:
            text = os.pread(log.fileno(), 1 << 16, 0).decode()
            assert started.poll() is None, text
            found = re.search(r"https?://127\.0\.0\.1:\d+", text)
            return None if found is None else found[0]

        try:
            yield started, await until(find_address)
        finally:
            started.kill()
            started.wait()


@pytest.mark.clause("AGR-14")
async def test_reads_go_on_without_the_orchestrator(tmp_path: Path, bucket: str) -> None:
    url = f"sqlite:{tmp_path / 'site.db'}"
    async with site(url) as s:
        key = await s.key("viewer", "operator")
        workflow = load_workflow(ARCHIVIST)
        await register_definition(s.engine.scope, workflow, "acme", registered_by="test")
    async with (
        process("status-server", "--documents", bucket, "--listen", "127.0.0.1:0") as (_, reader),
        httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as client,
    ):
        async with process("serve", "--db", url, "--port", "0", "--publish", bucket) as (server, api):
            answer = await client.post(f"{api}/agents/run", json={"workflow": "archivist"})
            assert (answer.status_code, answer.json()["status"]) == (201, "requested"), answer.text
            run = answer.json()["id"]
            await until_ok(client, f"{reader}/runs/{run}/status")
            await await_status(bucket, run, "queued")
            server.send_signal(signal.SIGKILL)
            server.wait()
        answer = await client.get(f"{reader}/runs/{run}/status")
        assert (answer.status_code, answer.json()["status"]) == (200, "queued")
        assert (await client.get(f"{reader}/inbox/stats")).status_code == 200


def test_a_status_server_loads_no_database(tmp_path: Path) -> None:
    program = (
        "import sys, tenure.status_server.http_server, tenure.cli.ops.status_server\n"
        "found = [name for name in sys.modules if name in ('apsw', 'asyncpg', 'sqlite3') or name.startswith(('tenure.store', 'tenure.engine'))]\n"
        "assert found == [], found\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
