"""`tenure hooks` finds deliveries that were set aside and replays them, with both databases and over a server."""

import asyncio
import os
from hashlib import sha256
from pathlib import Path

import pytest

from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.kernel.server_rows import DeliveryRow
from tenure.secrets import Secrets
from tenure.services.hooks.registry import HookFields
from tenure.shapes.hooks import HookRule
from tenure.store.hook_deliveries import HookDeliveries
from tests.cli.hook_rows import HOOK, add_hook
from tests.cli.shell import Tenure, in_folder
from tests.cli.test_serve import served

RULES = '[{"workflow": "tidy", "input": {"folder": "${{ body.folder }}"}}]'
FILE = """
name: tidy
version: "1"
inputs:
  folder: {type: string}
steps:
  - id: sweep
    approval: {title: "Sweep ${{ inputs.folder }}?"}
"""
WHY = "its process ended again and again while it was carried out"
ACME = ("--tenant", "acme")


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    for name in ("TENURE_SERVER", "TENURE_KEY", "TENURE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    return in_folder(tmp_path, monkeypatch, capsys)


async def _make_deliveries(db: str) -> None:
    """Make a hook of Bob with two deliveries: one ignored, one set aside."""
    async with Engine(db, tenant="acme", sweep=False) as engine:
        deliveries = HookDeliveries(engine.store)
        await add_hook(engine, "from the shop", RULES)
        for name, status, note in (("d-1", "ignored", "no rule fits"), ("d-2", "set_aside", WHY)):
            body = f'{{"folder": "{name}"}}'.encode()
            delivery = DeliveryRow(
                HOOK, name, "acme", f"webhook:{name}", "sold", sha256(body).digest(), None, "{}", body, 0
            )
            taken = await deliveries.take("generic", delivery)
            assert taken is not None
            assert taken.held is not None
            await deliveries.settle("generic", taken.delivery, taken.held, status, note=note)


async def _approve(db: str, run: str, person: str) -> str:
    async with Engine(db, tenant="acme", sweep=False) as engine:
        try:
            return await engine.approve(run, approver=person)
        except TenureError as refused:
            return refused.code


def _prepare(tenure: Tenure, db: str) -> None:
    Path("tidy.yaml").write_text(FILE)
    assert tenure("migrate", "--db", db).code == 0
    assert tenure("tenants", "create", "acme", "--db", db).code == 0
    registered = tenure("workflows", "register", "tidy.yaml", *ACME, "--db", db)
    assert registered.code == 0, registered.err
    asyncio.run(_make_deliveries(db))


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest) -> str:
    return "tenure.db" if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


def test_a_delivery_that_was_set_aside_is_found_and_replayed(tenure: Tenure, db: str) -> None:
    _prepare(tenure, db)
    options = (*ACME, "--db", db)
    [hook] = tenure("hooks", "list", *options, "--json").json()
    assert (hook["id"], hook["owner"], hook["address"]) == (HOOK, "person:bob", f"/hooks/generic/{HOOK}")
    assert HOOK in tenure("hooks", "list", *options).out
    assert len(tenure("hooks", "deliveries", HOOK, *options, "--json").json()) == 2
    [poison] = tenure("hooks", "deliveries", "--set-aside", *options, "--json").json()
    assert (poison["hook"], poison["id"], poison["status"], poison["note"]) == (HOOK, "d-2", "set_aside", WHY)
    printed = tenure("hooks", "deliveries", "--set-aside", *options).out
    assert f"{HOOK} d-2\n" in printed
    assert WHY in printed
    assert tenure("hooks", "show", HOOK, "d-2", *options, "--json").json()["body"] == {"folder": "d-2"}
    assert "from the shop" in tenure("hooks", "show", HOOK, *options).out

    made = tenure("hooks", "replay", HOOK, "d-2", *options, "--json").json()
    assert (made["delivery"], made["status"]) == ("d-2:replay:1", "done")
    me, run = f"uid:{os.getuid()}", made["run_id"]
    shown = tenure("runs", "show", run, *options, "--json").json()["run"]
    assert (shown["requester"], shown["input"]) == ("person:bob", {"folder": "d-2"})
    assert "APPROVER_IS_REQUESTER" in tenure("approvals", "approve", run, *options).err
    assert asyncio.run(_approve(db, run, "person:bob")) == "APPROVER_IS_REQUESTER"  # the owner of the hook
    assert asyncio.run(_approve(db, run, "person:carol")) == "approved"
    [line] = [
        line
        for line in tenure("tenants", "audit", "acme", "--db", db, "--json").json()["lines"]
        if line["kind"] == "hook.replayed"
    ]
    assert line["actor"] == f"database-owner:{me}"
    assert (line["about"]["hook"], line["about"]["delivery"]) == (HOOK, "d-2")
    assert tenure("doctor", "--db", db).code == 0


def test_a_replay_under_another_name_keeps_its_requester(tenure: Tenure) -> None:
    _prepare(tenure, "tenure.db")
    output = tenure("hooks", "replay", HOOK, "d-2", *ACME, "--by", "zoe").out
    run = output.partition("run ")[2].partition(":")[0]
    assert output.startswith("d-2:replay:1 is done, run run_")
    refused = tenure("approvals", "approve", run, *ACME)  # the local account owns the database
    assert "APPROVER_IS_REQUESTER" in refused.err
    for asked in (("show", HOOK), ("deliveries", HOOK), ("show", HOOK, "d-2"), ("replay", HOOK, "d-2")):
        assert "HOOK_NOT_FOUND" in tenure("hooks", *asked).err
    assert tenure("hooks", "list").out == "no hooks\n"
    assert tenure("hooks", "deliveries", "--set-aside").out == "nothing is set aside\n"
    for asked in (("show", HOOK, "none"), ("replay", HOOK, "none")):
        missing = tenure("hooks", *asked, *ACME, "--json")
        assert (missing.code, "DELIVERY_NOT_FOUND" in missing.err) == (1, True)


async def test_hooks_are_not_created_on_a_database(tmp_path: Path) -> None:
    fields = HookFields(
        name="shop", secrets=["env:TENURE_SECRET_default_SHOP"], rules=[HookRule(workflow="tidy")]
    )
    async with Engine(str(tmp_path / "runs.db"), sweep=False) as engine:
        with pytest.raises(TenureError, match="FORBIDDEN: hooks are created and changed on a server"):
            await engine.hooks.create("generic", fields, Secrets())
        assert await engine.hooks.list() == []


def test_deliveries_are_replayed_over_a_server(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare(tenure, "tenure.db")
    roles = ("--role", "operator", "--role", "viewer")
    assert tenure("clients", "create", "ci", *roles, *ACME).code == 0
    (tmp_path / "ci.key").write_text(tenure("keys", "create", "--client", "ci", *ACME).out)
    with served(tmp_path) as (_, address):
        monkeypatch.setenv("TENURE_SERVER", address)
        monkeypatch.setenv("TENURE_KEY_FILE", str(tmp_path / "ci.key"))
        assert [hook["id"] for hook in tenure("hooks", "list", "--json").json()] == [HOOK]
        assert len(tenure("hooks", "deliveries", "--json").json()) == 2
        [poison] = tenure("hooks", "deliveries", HOOK, "--set-aside", "--json").json()
        assert (poison["id"], poison["note"]) == ("d-2", WHY)
        assert tenure("hooks", "show", HOOK, "d-2", "--json").json()["body"] == {"folder": "d-2"}
        for missing in (("show", "hk_none"), ("show", HOOK, "none")):
            printed = tenure("hooks", *missing).err
            assert "tenure hooks " in printed
            assert "GET /" not in printed, "the message of a command names an HTTP route"
        run = tenure("hooks", "replay", HOOK, "d-2", "--json").json()["run_id"]
        again = tenure("hooks", "replay", HOOK, "d-2:replay:1")
        assert again.out.startswith("d-2:replay:1:replay:1 is done, run run_"), again.err
        assert tenure("runs", "show", run, "--json").json()["run"]["input"] == {"folder": "d-2"}


def test_a_hook_is_created_over_a_server(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare(tenure, "tenure.db")
    monkeypatch.setenv("TENURE_SECRET_acme_SN", "s3cret")
    assert tenure("clients", "create", "ci", "--role", "admin", "--role", "viewer", *ACME).code == 0
    (tmp_path / "ci.key").write_text(tenure("keys", "create", "--client", "ci", *ACME).out)
    make = ("hooks", "create", "incidents", "--kind", "servicenow", "--secret", "env:TENURE_SECRET_acme_SN")
    more = ("--event-id", "body:sys_id", "--secret-header", "x-s", "--workflow", "triage", "--when", "true")
    refused = tenure(*make, *more, *ACME)
    assert (refused.code, "hooks are created and changed on a server" in refused.err) == (1, True), (
        refused.err
    )
    with served(tmp_path) as (_, address):
        monkeypatch.setenv("TENURE_SERVER", address)
        monkeypatch.setenv("TENURE_KEY_FILE", str(tmp_path / "ci.key"))
        path = tenure(*make, *more, "--input", '{"sys_id": "${{ body.sys_id }}"}').out.strip()
        assert path.startswith("/hooks/servicenow/hk_")
        hook = tenure("hooks", "list", "--json").json()[0]
        assert (hook["address"], hook["settings"]) == (
            path,
            {"secret_header": "x-s", "event_id": ["body:sys_id"]},
        )
        assert "settings.event_id" in tenure(*make, "--workflow", "triage").err
        assert tenure(*make).code == 2, "a workflow or rules are needed"
