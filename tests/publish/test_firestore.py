"""The Firestore mirror against a double that enforces preconditions, and against Google's emulator where there is one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tenure.outbound.address_rules import AllowedNetworks
from tenure.publish.firestore.client import (
    FirestoreClient,
    FirestoreConflict,
    FirestoreSettings,
    FirestoreUnavailable,
)
from tenure.publish.firestore.documents import VERSION
from tenure.publish.firestore.indexes import render_indexes
from tenure.publish.firestore.mirror import FirestoreMirror
from tenure.publish.firestore.values import decode_fields, document_id, encode_payload
from tenure.store.feed import FeedRepository
from tenure.testing.doubles import FirestoreDouble, GitHubDouble
from tests.server.stage import Site, site
from tests.server.test_git_with_intent import (
    POLLS_MAX,
    REPO,
    RULE,
    TOKEN,
    document,
    has_status,
    start,
    until,
    working,
)
from tests.server.webhook_senders import SECRET, SECRET_NAME, GitHub, make_hook, pull_request

SEED = Path(__file__).parents[2] / "docs/spec/seeds/git-with-intent.md"
INDEX_FILE = Path(__file__).parents[2] / "docs/firestore.indexes.json"
PROJECT = "demo-tenure"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'mirror.db'}"
    return str(request.getfixturevalue("migrated_dsn"))


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)


@pytest.fixture
def firestore() -> Iterator[FirestoreDouble]:
    with FirestoreDouble() as double:
        yield double


@pytest.fixture
def github() -> Iterator[GitHubDouble]:
    with GitHubDouble(token=TOKEN) as double:
        double.issue(REPO, 7, labels=("bug",), assignees=("ada",))
        yield double


def client_of(address: str) -> FirestoreClient:
    return FirestoreClient(FirestoreSettings(project=PROJECT, emulator=address))


def host_of(firestore: FirestoreDouble) -> str:
    return firestore.url.removeprefix("http://")


def mirror_of(s: Site, firestore: FirestoreDouble, **more: Any) -> FirestoreMirror:
    feed = FeedRepository(s.engine.store)
    return FirestoreMirror(s.engine.store, feed, client_of(host_of(firestore)), tenants=("acme",), **more)


def fields_of(firestore: FirestoreDouble, path: str) -> dict[str, Any]:
    return decode_fields(firestore.documents[path].fields)


async def eventually(is_so: Callable[[], bool]) -> None:
    for _ in range(POLLS_MAX):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not happen")


async def becomes_equal(caller: httpx.AsyncClient, firestore: FirestoreDouble, run: str) -> None:
    """Wait until the mirror shows a run as the API does."""
    live: dict[str, Any] = {}
    mirrored: dict[str, Any] = {}
    for _ in range(POLLS_MAX):
        live, mirrored = await document(caller, run), plain(fields_of(firestore, f"gwi_runs/{run}"))
        for one in (live, mirrored):
            one.pop("lastHeartbeatAt", None)
        if live == mirrored:
            return
        await asyncio.sleep(0.02)
    assert mirrored == live


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """A mirrored document as the API shows it: without the mirror's own fields, with times as texts."""
    kept = {name: value for name, value in found.items() if not name.startswith("mirror")}
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(kept))
    return whole


@pytest.mark.clause("GWI-25")
async def test_a_server_mirrors_runs_steps_checkpoints_and_keys(
    url: str, firestore: FirestoreDouble, github: GitHubDouble
) -> None:
    settings: dict[str, Any] = {
        "firestore_project": PROJECT,
        "firestore_emulator": host_of(firestore),
        "firestore_tenants": ("acme",),
    }
    async with working(url, github, **settings) as s:
        operator = await s.as_("operator", "viewer")
        hook = GitHub(s, (await make_hook(s, "github", {**RULE, "input": {"hold": True}}))["id"])
        run = (await hook.deliver("pull_request", pull_request(7), delivery="d/1")).json().get("run_id")
        assert run is None, "an id with a slash is refused"
        run = (await hook.deliver("pull_request", pull_request(7), delivery="d-1")).json()["run_id"]
        path = f"gwi_runs/{run}"
        await eventually(
            lambda: path in firestore.documents and fields_of(firestore, path)["status"] == "waiting_external"
        )
        await until(operator, run, has_status("waiting_external"))
        await becomes_equal(operator, firestore, run)
        await operator.post(f"/runs/{run}/cancel", json={"reason": "WRONG"})
        await eventually(
            lambda: (
                [entry["outcome"] for entry in fields_of(firestore, path).get("compensationLog", ())]
                == ["undone", "undone"]
            )
        )
        await becomes_equal(operator, firestore, run)
        kinds = [name.removeprefix(f"{path}/") for name in firestore.below(f"{path}/")]
        assert {"steps/main", "checkpoints/plan"} <= set(kinds)
        assert fields_of(firestore, f"{path}/checkpoints/plan")["output"] == "LOOK"
        key = "gwi_idempotency/acme:github_webhook:github%3Ad-1"
        record = fields_of(firestore, key)
        assert (record["key"], record["tenantId"], record["runId"]) == ("github:d-1", "acme", run)
        assert record["response"]["run_id"] == run
        assert isinstance(record["expiresAt"], datetime), "times are timestamps, so that indexes order them"
        assert firestore.documents[path].fields["createdAt"].keys() == {"timestampValue"}
        _assert_nothing_went_backwards(firestore)
        plain_run = await start(operator, "careful", profile="tenure")
        await eventually(lambda: _position(firestore) > 0)
        assert f"gwi_runs/{plain_run}" not in firestore.documents, "runs of other profiles are not mirrored"


def _position(firestore: FirestoreDouble) -> int:
    return int(fields_of(firestore, "gwi_mirror/tenure")["position"] or 0)


def _assert_nothing_went_backwards(firestore: FirestoreDouble) -> None:
    newest: dict[str, int] = {}
    for path, fields in firestore.history:
        if fields is not None and VERSION in fields:
            version = decode_fields(fields)[VERSION]
            assert version >= newest.get(path, 0), path
            newest[path] = version


async def _mirrored_run(s: Site) -> str:
    engine = s.engine.scoped(tenant="acme", actor="person:rita")
    return await engine.create("autopilot", [{"name": "a/b"}], profile="git-with-intent", key="k 1/ä")


async def test_a_stale_writer_writes_nothing(url: str, firestore: FirestoreDouble) -> None:
    """The holder sleeps, another takes over, the first one wakes up with an old state in its hands."""
    async with site(url) as s:
        run = await _mirrored_run(s)
        first, second = mirror_of(s, firestore), mirror_of(s, firestore)
        assert await first.look()
        path = f"gwi_runs/{run}"
        assert fields_of(firestore, path)["status"] == "pending"
        assert not await second.look(), "the lease is held"
        firestore.pass_time(31)
        assert await second.look(), "the lease has expired by Firestore's clock"
        before = len(firestore.history)
        fresh = await _mirrored_run_again(s)
        with pytest.raises(FirestoreConflict):
            await first.look()
        assert len(firestore.history) == before, "not even a document that nobody else has written"
        assert f"gwi_runs/{fresh}" not in firestore.documents

        firestore.pass_time(31)
        assert await first.look()
        await s.engine.scoped(tenant="acme").cancel(run)
        firestore.pass_time(31)
        with pytest.raises(FirestoreConflict):  # it held the lease before
            await second.look()
        assert await second.look()
        assert fields_of(firestore, path)["status"] == "cancelled"
        before = len(firestore.history)
        other = await _mirrored_run_again(s)
        with pytest.raises(FirestoreConflict):
            await first.look()
        assert len(firestore.history) == before
        assert f"gwi_runs/{other}" not in firestore.documents
        assert not await first.look(), "it is not the holder any more"
        assert await second.look()
        assert f"gwi_runs/{other}" in firestore.documents
        _assert_nothing_went_backwards(firestore)
        await second.stop()
        assert await first.look(), "a lease that was given back is free at once"


async def _mirrored_run_again(s: Site) -> str:
    engine = s.engine.scoped(tenant="acme")
    return await engine.create("autopilot", [{"name": "a"}], profile="git-with-intent")


async def test_a_higher_version_is_never_overwritten(tmp_path: Path, firestore: FirestoreDouble) -> None:
    async with site(f"sqlite:{tmp_path / 'm.db'}") as s:
        run = await _mirrored_run(s)
        mirror = mirror_of(s, firestore)
        await mirror.look()
        path = f"gwi_runs/{run}"
        newer = {**firestore.documents[path].fields, "status": {"stringValue": "completed"}}
        newer |= {VERSION: {"integerValue": "1000"}, "mirrorDigest": {"stringValue": "other"}}
        firestore.documents[path].fields = newer
        again = mirror_of(s, firestore, name="another")
        await again.look()
        assert fields_of(firestore, path)["status"] == "completed"
        # The document changes between the mirror's read and its write: the precondition refuses the write.
        third = mirror_of(s, firestore, name="third")
        await third.look()
        firestore.documents[path].updated = "2027-01-01T00:00:00.000000Z"
        newer[VERSION] = {"integerValue": "1"}
        await s.engine.scoped(tenant="acme").cancel(run)
        await third.look()
        assert fields_of(firestore, path)["status"] == "completed"


async def test_the_mirror_continues_after_a_crash_and_after_a_reset(
    url: str, firestore: FirestoreDouble
) -> None:
    async with site(url) as s:
        run = await _mirrored_run(s)
        await mirror_of(s, firestore).look()  # and is gone, without giving the lease back
        position = _position(firestore)
        other = await _mirrored_run_again(s)
        firestore.pass_time(31)
        writes = len(firestore.history)
        await mirror_of(s, firestore).look()
        written = {path for path, _ in firestore.history[writes:]}
        assert not any(run in path for path in written), "what is there and unchanged is not written again"
        assert f"gwi_runs/{other}" in written
        assert _position(firestore) > position
        assert fields_of(firestore, "gwi_mirror/tenure")["fence"] == 2

        del firestore.documents[f"gwi_runs/{run}"]
        lease = firestore.documents["gwi_mirror/tenure"]
        lease.fields["position"] = {"integerValue": str(1 << 40)}  # a position that this feed does not have
        firestore.pass_time(31)
        await mirror_of(s, firestore).look()
        assert f"gwi_runs/{run}" in firestore.documents, "everything is written from the rows"
        assert _position(firestore) < 1 << 40


async def test_an_outage_is_ridden_out(tmp_path: Path, firestore: FirestoreDouble) -> None:
    async with site(f"sqlite:{tmp_path / 'm.db'}") as s:
        mirror = mirror_of(s, firestore)
        await mirror.look()
        run = await _mirrored_run(s)
        denied = {"error": {"status": "PERMISSION_DENIED", "message": "the role is missing"}}
        for how in ({"drop": "before"}, {"status": 503}, {"status": 429}, {"status": 403, "json": denied}):
            firestore.trouble(**how)
            with pytest.raises(FirestoreUnavailable):
                await mirror.look()
        assert await mirror.look()
        assert f"gwi_runs/{run}" in firestore.documents
        assert mirror.refused == 0, "nothing is left out because of an outage or a missing role"
        # The answer to a commit is lost: the next one meets its own write, and begins again from what is there.
        await s.engine.scoped(tenant="acme").cancel(run)
        firestore.trouble(drop="after", methods=frozenset({"POST"}))
        with pytest.raises(FirestoreUnavailable):
            await mirror.look()
        await s.engine.scoped(tenant="acme").runs.update(run, labels={"a": "b"})
        for _ in range(3):
            try:
                if await mirror.look():
                    break
            except FirestoreConflict:
                continue
        assert fields_of(firestore, f"gwi_runs/{run}")["status"] == "cancelled"
        _assert_nothing_went_backwards(firestore)


async def test_a_deleted_run_is_deleted_from_the_mirror(url: str, firestore: FirestoreDouble) -> None:
    async with site(url) as s:
        run, other = await _mirrored_run(s), await _mirrored_run_again(s)
        mirror = mirror_of(s, firestore, sweep_seconds=0.0)
        await mirror.look()
        assert any("/steps/a%2Fb" in path for path in firestore.below(f"gwi_runs/{run}"))
        assert firestore.below("gwi_idempotency/") == ["gwi_idempotency/acme:api:k%201%2F%C3%A4"]
        engine = s.engine.scoped(tenant="acme")
        await engine.cancel(run)
        await engine.runs.delete(run)
        firestore.documents["gwi_runs/run_of_somebody_else"] = firestore.documents[f"gwi_runs/{other}"]
        firestore.trouble(status=503)
        with pytest.raises(FirestoreUnavailable):
            await mirror.sweep()
        for _ in range(3):
            try:
                await mirror.look()
            except FirestoreConflict:
                continue
        assert firestore.below(f"gwi_runs/{run}") == []
        assert firestore.below("gwi_idempotency/") == []
        assert f"gwi_runs/{other}" in firestore.documents
        assert "gwi_runs/run_of_somebody_else" in firestore.documents


async def test_a_document_that_firestore_refuses_does_not_stop_the_others(
    tmp_path: Path, firestore: FirestoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(f"sqlite:{tmp_path / 'm.db'}") as s:
        bad, good = await _mirrored_run_again(s), await _mirrored_run_again(s)
        handle = firestore.handle

        def picky(request: Any) -> Any:
            if b":commit" in request.path.encode() and f"gwi_runs/{bad}".encode() in request.body:
                return handle(msgspec.structs.replace(request, body=b'{"writes": [{"delete": "x"}]}'))
            return handle(request)

        monkeypatch.setattr(firestore, "handle", picky)
        mirror = mirror_of(s, firestore)
        await mirror.look()
        assert f"gwi_runs/{good}" in firestore.documents
        assert mirror.refused > 0


async def test_a_service_account_signs_for_its_token(tmp_path: Path) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    key = tmp_path / "key.json"
    with FirestoreDouble(account="mirror@demo.test", public_key=public) as firestore:

        def client(email: str) -> FirestoreClient:
            account = {
                "client_email": email,
                "private_key": pem.decode(),
                "token_uri": f"{firestore.url}/token",
            }
            key.write_bytes(msgspec.json.encode(account))
            reach = AllowedNetworks(networks=("127.0.0.1",))
            settings = FirestoreSettings(
                project=PROJECT, credentials=f"file:{key}", url=firestore.url, reach=reach
            )
            return FirestoreClient(settings)

        asking = client("mirror@demo.test")
        [first] = await asking.commit([asking.update("gwi_runs/a", {}, None)])
        with pytest.raises(FirestoreConflict):
            await asking.commit([asking.update("gwi_runs/a", {}, None)])
        assert len(firestore.tokens) == 1, "a token is kept"
        firestore.tokens.clear()  # it has expired
        with pytest.raises(FirestoreUnavailable):
            await asking.commit([asking.update("gwi_runs/a", {}, first)])
        await asking.commit([asking.update("gwi_runs/a", {}, first)])
        with pytest.raises(FirestoreUnavailable, match="invalid_grant"):
            await client("somebody@demo.test").get(["gwi_runs/a"], ())


# ----------------------------------------------------------------------------------------- values and ids


@pytest.mark.parametrize(
    "value",
    [
        [[1, 2], [3]],
        {"__reserved__": 1},
        {"": 1},
        {"list": list(range(10_000))},
        "x" * 1_000_000,
        {"deep": {"d": {"d": {"d": {"d": {"d": {"d": {"d": {"d": {"d": {"d": {"d": {"d": {}}}}}}}}}}}}}},
    ],
)
async def test_every_payload_has_a_form(firestore: FirestoreDouble, value: Any) -> None:
    client = client_of(host_of(firestore))
    await client.commit([client.update("gwi_runs/a", {"result": encode_payload(value)}, None)])
    stored = fields_of(firestore, "gwi_runs/a")["result"]
    assert stored == {"json": msgspec.json.encode(value).decode()} or (
        stored["truncated"] and msgspec.json.encode(value).decode().startswith(stored["json"])
    )


def test_plain_payloads_are_typed() -> None:
    value = {"n": 1, "f": 1.5, "t": True, "none": None, "list": [1, {"a": "b"}], "big": 1 << 70, "s": "ä"}
    assert decode_fields({"v": encode_payload(value)})["v"] == {**value, "big": float(1 << 70)}


def test_ids_hold_the_tenant_and_cannot_be_confused() -> None:
    ids_made = [
        document_id("acme", "api", "a/b"),
        document_id("acme", "api:a", "b"),
        document_id("acme:api", "a", "b"),
        document_id("acme", "api", "a%2Fb"),
        document_id("globex", "api", "a/b"),
        document_id("acme", "api", "x" * 4_000),
        document_id("acme", "api", "x" * 4_001),
        document_id("."),
        document_id(".."),
        document_id("__x__"),
        document_id("%2E"),
    ]
    assert len(set(ids_made)) == len(ids_made)
    assert ids_made[0] == "acme:api:a%2Fb"
    for made in ids_made:
        assert "/" not in made
        assert made not in (".", "..")
        assert not (made.startswith("__") and made.endswith("__"))
        assert 0 < len(made.encode()) <= 1_500


def test_the_index_file_is_that_of_section_6_3() -> None:
    section = SEED.read_text().split("### 6.3 Indexes")[1].split("```")[1].removeprefix("yaml")
    documented = [
        (
            one["collectionGroup"],
            [(field["fieldPath"], field.get("order", "ASCENDING")) for field in one["fields"]],
        )
        for one in yaml.safe_load(section)
    ]
    assert len(documented) == 4
    written = msgspec.json.decode(INDEX_FILE.read_bytes())
    assert [
        (one["collectionGroup"], [(field["fieldPath"], field["order"]) for field in one["fields"]])
        for one in written["indexes"]
    ] == documented
    assert INDEX_FILE.read_text() == render_indexes(), "run `make docs`"


# ------------------------------------------------------------------------------------- Google's emulator


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[str]:
    """The address of Google's emulator, which the Google Cloud CLI starts. Its configuration is an empty folder, so that no account of
    this machine is used."""
    if shutil.which("gcloud") is None:
        pytest.skip("Google's emulator is not on PATH")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        ["gcloud", "emulators", "firestore", "start", f"--host-port={address}"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path / "gcloud")},
    )
    try:
        for _ in range(600):
            if process.poll() is not None:
                pytest.skip("the Google Cloud CLI here cannot start the emulator")
            with suppress(httpx.HTTPError):
                if httpx.get(f"http://{address}/").status_code == 200:
                    break
            time.sleep(0.1)
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@pytest.mark.clause("GWI-25")
@pytest.mark.guard_seconds(120)
async def test_the_mirror_writes_to_googles_emulator(tmp_path: Path, emulator: str) -> None:
    client = client_of(emulator)
    async with site(f"sqlite:{tmp_path / 'm.db'}") as s:
        run = await _mirrored_run(s)
        feed = FeedRepository(s.engine.store)
        mirror = FirestoreMirror(s.engine.store, feed, client, tenants=("acme",))
        assert await mirror.look()
        await s.engine.scoped(tenant="acme").cancel(run)
        assert await mirror.look()
        found = (await client.get([f"gwi_runs/{run}"], ("status", VERSION))).found[f"gwi_runs/{run}"]
        assert decode_fields(found.fields)["status"] == "cancelled"
        with pytest.raises(FirestoreConflict):
            await client.commit([client.update(f"gwi_runs/{run}", {}, None)])
        await s.engine.scoped(tenant="acme").runs.delete(run)
        assert await mirror.sweep() == 1
        found_after = await client.list_page("gwi_runs", (VERSION,))
        assert found_after == ([], "")
