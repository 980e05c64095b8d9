"""Metrics: the names and labels of git-with-intent, Tenure's own, and the limit on labels."""

import asyncio
import re
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.govern.signing import make_key
from tenure.kernel.commands import Complete, Fail
from tenure.server.http_server import serving
from tenure.server.observe.metrics import OTHER, TENANTS_MAX, LabelLimiter
from tenure.server.settings import Settings
from tests.engine.stage import head
from tests.server.manual_worker import claim, complete_next_step, fail_next_step
from tests.server.stage import Site, site
from tests.server.workflows import register

PLAN = [{"name": "build"}]
_LINE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")


async def scrape(s: Site) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All metrics by name and labels."""
    s.service.metrics._read_at = -1e9  # so that the gauges are read again
    text = (await (await s.caller()).get("/metrics")).text
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]  # no match fails the test
            pairs = re.findall(r'(\w+)="([^"]*)"', labels or "")
            found[name, frozenset(pairs)] = float(value)
    return found


def value_of(
    found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str
) -> float | None:
    return found.get((name, frozenset(labels.items())))


def labels_of(found: Iterable[tuple[str, frozenset[tuple[str, str]]]], name: str) -> set[str]:
    return {label for named, labels in found if named == name for label, _ in labels}


@pytest.mark.clause("GWI-22")
async def test_runs_of_git_with_intent_are_counted_in_its_words(url: str) -> None:
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        first, second, third = [
            await engine.create("autopilot", PLAN, profile="git-with-intent") for _ in range(3)
        ]
        await complete_next_step(s, first)
        await fail_next_step(s, second, "BROKEN")
        found = await scrape(s)
        count = "gwi_run_transitions_total"
        assert value_of(found, count, from_state="pending", to_state="running", tenant_id="acme") == 2
        assert value_of(found, count, from_state="running", to_state="completed", tenant_id="acme") == 1
        assert value_of(found, count, from_state="running", to_state="failed", tenant_id="acme") == 1
        length = "gwi_run_duration_seconds"
        assert value_of(found, f"{length}_count", type="autopilot", status="completed", tenant_id="acme") == 1
        assert value_of(found, f"{length}_count", type="autopilot", status="failed", tenant_id="acme") == 1
        assert (
            value_of(
                found, f"{length}_bucket", type="autopilot", status="failed", tenant_id="acme", le="+Inf"
            )
            == 1
        )
        assert value_of(found, "gwi_run_active_gauge", status="pending", tenant_id="acme") == 1
        assert value_of(found, "gwi_run_active_gauge", status="completed", tenant_id="acme") is None
        await engine.cancel(third)
        found = await scrape(s)
        assert value_of(found, count, from_state="pending", to_state="cancelled", tenant_id="acme") == 1
        assert value_of(found, "gwi_run_active_gauge", status="pending", tenant_id="acme") is None
        assert labels_of(found, count) == {"from_state", "to_state", "tenant_id"}
        assert labels_of(found, f"{length}_count") == {"type", "status", "tenant_id"}


@pytest.mark.clause("GWI-22")
async def test_requests_with_a_key_are_counted_by_source(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        caller = await s.as_("operator")
        body = {"workflow": "echo", "input": {"word": "a"}}
        for _ in range(3):
            assert (
                await caller.post("/runs", json=body, headers={"Idempotency-Key": "k"})
            ).status_code == 201
        other = {"workflow": "echo", "input": {"word": "b"}}
        assert (await caller.post("/runs", json=other, headers={"Idempotency-Key": "k"})).status_code in (
            409,
            422,
        )
        found = await scrape(s)
        assert value_of(found, "gwi_idempotency_hits_total", source="api", result="miss") == 1
        assert value_of(found, "gwi_idempotency_hits_total", source="api", result="hit") == 2
        assert value_of(found, "gwi_idempotency_hits_total", source="api", result="conflict") == 1


async def test_runs_of_every_profile_are_counted_in_the_kernels_words(url: str) -> None:
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        first = await engine.create("w", PLAN, profile="agent-runs")
        await engine.create("w", PLAN, profile="agent-runs")
        await complete_next_step(s, first)
        found = await scrape(s)
        count = "tenure_run_transitions_total"
        assert value_of(found, count, from_state="queued", to_state="running", tenant_id="acme") == 1
        assert value_of(found, count, from_state="running", to_state="succeeded", tenant_id="acme") == 1
        length = "tenure_run_duration_seconds_count"
        assert value_of(found, length, profile="agent-runs", status="succeeded", tenant_id="acme") == 1
        assert value_of(found, "tenure_runs_active", status="queued", tenant_id="acme") == 1
        assert not any(name.startswith("gwi_") for name, _ in found), "no run had that profile"
        for gauge in ("tenure_queue_age_seconds", "tenure_sweeper_lag_seconds", "tenure_outbox_lag_seconds"):
            assert value_of(found, gauge) is not None, gauge
        assert (value_of(found, "tenure_queue_age_seconds") or 0) > 0, "one step waits for a worker"
        assert (value_of(found, "tenure_commit_batch_size_count") or 0) >= 3
        assert (value_of(found, "tenure_commit_seconds_count") or 0) >= 3
        assert value_of(found, "tenure_store_up") == 1


async def test_messages_on_ended_leases_are_counted(url: str) -> None:
    async with site(url) as s:
        run = await s.engine.scoped(tenant="acme").create("w", PLAN)
        lease = await claim(s, run)
        assert lease is not None
        await s.engine.orchestrator.send(Fail(**head(lease, 1), code="X", retryable=False))
        with pytest.raises(TenureError, match="LEASE_STALE"):
            await s.engine.orchestrator.send(Complete(**head(lease, 2)))
        assert value_of(await scrape(s), "tenure_stale_messages_total") == 1


async def test_requests_are_counted_by_route_template(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("viewer")
        for run in ("run_2026-02-14_080000_abc123", "another", "x" * 50):
            await caller.get(f"/runs/{run}")
        await caller.get("/nowhere/1")
        await caller.get("/nowhere/2")
        found = await scrape(s)
        count = "tenure_http_requests_total"
        assert value_of(found, count, route="/runs/{run_id}", method="GET", status="404") == 3
        assert value_of(found, count, route=OTHER, method="GET", status="404") == 2
        assert value_of(found, "tenure_http_request_seconds_count", route="/runs/{run_id}", method="GET") == 3


async def test_open_streams_are_counted(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("viewer")
        async with caller.stream("GET", "/events/stream") as stream:
            assert stream.status_code == 200
            while value_of(await scrape(s), "tenure_stream_listeners") != 1:  # noqa: ASYNC110 - as a scraper does
                await asyncio.sleep(0.01)
        while value_of(found := await scrape(s), "tenure_stream_listeners") != 0:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.01)
        assert (
            value_of(found, "tenure_http_request_seconds_count", route="/events/stream", method="GET") is None
        )


async def test_above_two_hundred_tenants_the_label_is_other(url: str) -> None:
    async with site(url) as s:
        for n in range(TENANTS_MAX + 3):
            await s.engine.scoped(tenant=f"tenant-{n:03}").create("w", PLAN)
            if n == TENANTS_MAX - 1:
                await s.service.metrics.text()
        found = await scrape(s)
        name = "tenure_runs_active"
        tenants = {
            value
            for named, labels in found
            if named == name
            for label, value in labels
            if label == "tenant_id"
        }
        assert len(tenants) == TENANTS_MAX + 1
        assert value_of(found, name, status="queued", tenant_id=OTHER) == 3


def test_the_number_of_label_values_is_limited() -> None:
    bounded = LabelLimiter(2)
    assert [bounded(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


async def test_a_tenant_sees_only_its_own_metrics(url: str) -> None:
    async with site(url, behind_proxy=True) as s:
        for tenant in ("acme", "globex"):
            await s.engine.scoped(tenant=tenant).create("autopilot", PLAN, profile="git-with-intent")
        mine = (await (await s.as_("viewer")).get("/metrics")).text
        assert 'tenant_id="acme"' in mine
        assert "tenure_http_requests_total" in mine
        assert "globex" not in mine
        whole = (await (await s.caller(await s.operator_key())).get("/metrics")).text
        assert 'tenant_id="acme"' in whole
        assert 'tenant_id="globex"' in whole
        assert (await (await s.caller()).get("/metrics")).status_code == 401


async def test_a_sealing_server_counts_seals_and_reports_a_lost_key(tmp_path: Path) -> None:
    key = tmp_path / "seal.key"
    make_key(key)
    engine = Engine(f"sqlite:{tmp_path / 'site.db'}", signing_key=f"file:{key}")
    async with engine, serving(engine, Settings(port=0)) as (service, address), AsyncExitStack() as callers:
        s = Site(engine, service, address, callers)
        await s.tenant("acme")
        found = await scrape(s)
        assert (
            value_of(found, "tenure_signing_key_lost"),
            value_of(found, "tenure_seal_failures_total"),
        ) == (0.0, 0.0)
        key.unlink()
        await engine.cancel(await engine.create("build", PLAN))
        while value_of(found := await scrape(s), "tenure_signing_key_lost") == 0.0:  # noqa: ASYNC110 - another task's work
            await asyncio.sleep(0.05)
        assert value_of(found, "tenure_seal_failures_total") == 1.0
        assert value_of(found, "tenure_seals_total") == 0.0


async def test_a_server_that_does_not_seal_has_no_sealing_metrics(url: str) -> None:
    async with site(url) as s:
        assert value_of(await scrape(s), "tenure_signing_key_lost") is None
