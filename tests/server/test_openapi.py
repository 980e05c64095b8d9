"""The OpenAPI document is correct: schemathesis finds no undocumented answer. Its page loads nothing from other servers."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tenure.server.auth.roles import ALLOWED
from tenure.server.http.openapi import encoded_document, openapi_document
from tenure.server.http.openapi_page import CONTENT_SECURITY_POLICY
from tests.cases import HUNTED, SEED, cases, note_cases
from tests.server.stage import problem, site
from tests.server.test_runner_leases import claim, start
from tests.server.workflows import begin, patient, register

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,unsupported_method"
)
STATUSES = {
    200,
    201,
    202,
    204,
    206,
    304,
    400,
    401,
    403,
    404,
    405,
    409,
    410,
    413,
    415,
    422,
    429,
    500,
    502,
    503,
    504,
}
STORES = 2
EVERY = ("viewer", "operator", "approver", "admin", "runner")


def operations() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, item in openapi_document()["paths"].items()
        for method, operation in item.items()
    ]


def test_the_openapi_document_describes_every_route() -> None:
    assert {name for name, _ in operations()} == set(ALLOWED)
    for name, operation in operations():
        answers = operation["responses"]
        assert {int(status) for status in answers} <= STATUSES, name
        for status, answer in answers.items():
            if int(status) >= 400:
                assert answer == {"$ref": f"#/components/responses/Error{status}"}, name
        assert operation["summary"], name
        assert operation["x-tenure-roles"] == sorted(ALLOWED[name]), name
        assert bool(operation["security"]) is ("anyone" not in ALLOWED[name]), name
    made = openapi_document()["components"]
    for answer in made["responses"].values():
        assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
    assert set(made["securitySchemes"]) == {"key", "session", "lease"}
    assert made["schemas"]["StartRun"]["additionalProperties"] is False
    keyed = {name for name, operation in operations() if _has(operation, "Idempotency-Key")}
    assert {"POST /runs", "POST /runs/batch", "POST /runs/{run_id}/signals/{name}"} <= keyed
    assert "POST /runs/{run_id}/cancel" not in keyed


def _has(operation: dict[str, Any], header: str) -> bool:
    return any(given["name"] == header for given in operation.get("parameters", ()))


async def test_the_page_loads_nothing_from_other_servers(url: str) -> None:
    async with site(url) as s:
        caller = await s.caller()
        page = await caller.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert "default-src 'none'" in CONTENT_SECURITY_POLICY
        assert not re.search(r"<script|<link|<img|src=|url\(", page.text)
        assert "POST" in page.text
        assert "/runs/{run_id}/approve" in page.text
        assert (await caller.get("/openapi.json")).json() == json.loads(encoded_document())


async def test_document_page_and_metrics_need_a_credential_except_on_loopback(url: str) -> None:
    async with site(url, behind_proxy=True) as s:
        stranger, known = await s.caller(), await s.as_("runner")
        for path in ("/docs", "/openapi.json", "/metrics"):
            refused = await stranger.get(path)
            assert (refused.status_code, problem(refused)) == (401, "UNAUTHENTICATED")
            assert (await known.get(path)).status_code == 200


async def test_dns_rebinding_reveals_nothing(url: str) -> None:
    async with site(url) as s:
        caller = await s.caller()
        port = s.address.rpartition(":")[2]
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", "localhost", f"[::1]:{port}"):
            assert (await caller.get("/openapi.json", headers={"Host": host})).status_code == 200, host
        for host in (f"evil.example:{port}", "evil.example", "", "localhost.evil.example"):
            refused = await caller.get("/metrics", headers={"Host": host})
            assert (refused.status_code, problem(refused)) == (401, "UNAUTHENTICATED"), host


@contextmanager
def server_process(url: str, folder: Path) -> Iterator[str]:
    """Start a server in its own process, as in production; yields its address."""
    words = [sys.executable, "-m", "tenure.cli", "serve", "--port", "0", "--db", url, "--no-log-runs"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        address: str = json.loads(running.stdout.readline())["address"]
        output: list[str] = []
        reading = threading.Thread(target=lambda: output.extend(running.stdout or ()))
        reading.start()
        try:
            yield address
        finally:
            running.send_signal(signal.SIGTERM)
            reading.join()
    assert not [line for line in output if "request_failed" in line], (
        "no request failed with an internal error"
    )


def explore(
    address: str, bearer: str, *words: str, folder: Path, seed: int, about: Mapping[str, str] | None = None
) -> int:
    """Let schemathesis search for undocumented answers. Returns the number of cases that it sent."""
    settings = folder / "schemathesis.toml"
    given = "".join(f'"{name}" = "{value}"\n' for name, value in (about or {}).items())
    settings.write_text(f"[parameters]\n{given}")
    ran = subprocess.run(
        [
            sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
            "--config-file", str(settings), "run", f"{address}/openapi.json", "--seed", str(seed), "--mode", "all",
            "--header", f"Authorization: Bearer {bearer}", "--checks", CHECKS, "--warnings", "off",
            "--exclude-path", "/events/stream", "--request-timeout", "60", "--no-color", "--no-shrink",
            "--suppress-health-check", "filter_too_much", *words,
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-12_000:] + ran.stderr[-2_000:]
    sent = re.search(r"(\d+) generated", ran.stdout)
    assert sent is not None, ran.stdout[-2_000:]
    return int(sent[1])


class CreatedObjects(NamedTuple):
    """Objects and credentials for schemathesis."""

    everything: str
    """The key of a person with every role."""
    operator: str
    run: str
    lease: str
    token: str


async def create_objects(url: str) -> CreatedObjects:
    async with site(url) as s:
        await register(s.engine, patient)
        caller = await s.as_("operator")
        run = await begin(caller, workflow="patient", input={})
        await start(s)
        (lease,) = await claim(await s.as_("runner"))
        key = await s.key(*EVERY, person="anna")
        return CreatedObjects(key, await s.operator_key(), run, lease["id"], lease["token"])


@pytest.mark.parametrize("url", ["sqlite", "postgres"] if HUNTED else ["sqlite"], indirect=True)
def test_schemathesis_finds_no_undocumented_response(url: str, tmp_path: Path) -> None:
    """Answers hardly depend on the store, so SQLite is enough here. `make hunt` uses PostgreSQL, too."""
    with asyncio.Runner() as runner:
        made = runner.run(create_objects(url))
    phases = (
        "coverage,fuzzing" if HUNTED else "fuzzing"
    )  # the coverage phase is fast and sends most cases of a hunt
    words = ("--phases", phases, "--max-examples", str(max(3, cases(1))))
    known = ("--phases", phases, "--max-examples", str(max(5, cases(2))), "--include-path-regex")
    about = {"run_id": made.run, "name": "news", "key": "main", "wait": "0"}
    with server_process(url, tmp_path) as address:
        sent, seed = 0, SEED
        while seed == SEED or sent < HUNTED / STORES:
            seed += 1
            look = partial(explore, address, folder=tmp_path, seed=seed)
            sent += look(made.everything, *words)
            sent += look(made.everything, *known, "^/runs/.run_id", about=about)
            sent += look(made.token, *known, "^/runner/leases/", about={"lease_id": made.lease})
            sent += look(made.operator, *known, "^/admin/", about={"tenant_id": "acme"})
        note_cases(f"schemathesis on {url.partition(':')[0]}", sent)
