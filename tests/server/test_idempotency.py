"""Requests under a key are executed once, and every repeat gets the same answer."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tenure import ids
from tenure.clock import us
from tenure.kernel.identity_rows import ApiKeyRow
from tenure.kernel.run_rows import IdempotencyRow
from tenure.services.identity.principals import new_key
from tenure.store.idempotency import HeldRecord, KeyedRequest
from tests.server.cutting_proxy import cutting
from tests.server.stage import ACME, Site, problem, site
from tests.server.workflows import begin, patient, register

ECHO = {"workflow": "echo", "input": {"word": "a"}}
OTHER = {"workflow": "echo", "input": {"word": "b"}}
HOUR = us(3_600)


async def post(caller: httpx.AsyncClient, key: str, body: Any = ECHO, path: str = "/runs") -> httpx.Response:
    return await caller.post(path, json=body, headers={"Idempotency-Key": key})


async def record_of(s: Site, key: str) -> IdempotencyRow | None:
    """The record of a key. The test has one client only."""
    [client] = await s.engine.store.read("clients_before", ACME, 1 << 60, "", 9)
    return await s.service.keys.find(ACME, "api", f"api:{client.id}:{key}")


async def the_record(s: Site, key: str) -> IdempotencyRow:
    found = await record_of(s, key)
    assert found is not None
    return found


@pytest.mark.clause("GWI-12", "APR-10")
async def test_a_replay_repeats_status_body_and_location_byte_for_byte(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        first = await post(operator, "k")
        again = await post(operator, "k")
        spaced = await operator.post(
            "/runs",
            content=b'{ "input": {"word": "\\u0061"},\n"workflow":"echo" }',
            headers={"Idempotency-Key": "k", "Content-Type": "application/json"},
        )
        assert first.status_code == again.status_code == spaced.status_code == 201
        assert first.content == again.content == spaced.content
        assert first.headers["location"] == again.headers["location"] == spaced.headers["location"]
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == spaced.headers["idempotency-replayed"] == "true"
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 1


@pytest.mark.clause("APR-10", "GWI-12")
async def test_fifty_identical_concurrent_posts_create_one_run(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        answers = await asyncio.gather(*(post(operator, "k") for _ in range(50)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in answers}) == 1
        assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 1


@pytest.mark.clause("APR-10")
async def test_fifty_identical_posts_to_two_processes_create_one_run(url: str) -> None:
    async with site(url) as s, site(url) as t:
        await register(s.engine)
        key = await s.key("operator")
        here, there = await s.caller(key), await t.caller(key)
        answers = await asyncio.gather(*(post(here if i % 2 else there, "k") for i in range(50)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in answers}) == 1
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 1


@pytest.mark.clause("GWI-11")
async def test_the_record_has_its_fields_and_the_run_has_the_key(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        answer = await post(await s.as_("operator"), "k")
        run = ids.run_int(answer.json()["id"])
        [client] = await s.engine.store.read("clients_before", ACME, 1 << 60, "", 9)
        record = await the_record(s, "k")
        assert (record.tenant, record.source, record.name) == (ACME, "api", f"api:{client.id}:k")
        assert (record.run_id, record.status, record.attempts) == (run, "completed", 1)
        assert record.response is not None
        assert record.response.endswith(answer.content)
        assert (record.error, record.lock_expires_at, len(record.request_hash)) == (None, None, 32)
        assert record.created_at == record.updated_at
        assert record.expires_at == record.created_at + 24 * HOUR
        spec = await s.engine.scoped(tenant=ACME).scope.reader.spec(run)
        assert (spec.source, spec.idempotency_key) == ("api", record.name)
        assert spec.request_hash == record.request_hash


@pytest.mark.clause("GWI-12")
async def test_another_request_under_a_used_key_is_refused(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = (await post(operator, "k")).json()["id"]
        answer = await post(operator, "k", OTHER)
        assert (answer.status_code, problem(answer)) == (422, "IDEMPOTENCY_KEY_REUSED")
        assert answer.json()["error"]["details"] == [{"path": "run_id", "problem": run}]
        answer = await post(operator, "k", {}, f"/runs/{run}/signals/news")
        assert (answer.status_code, problem(answer)) == (422, "IDEMPOTENCY_KEY_REUSED"), "another route"
        assert (await post(operator, "k")).headers["idempotency-replayed"] == "true"
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 1


async def test_a_key_used_for_another_kind_of_request_creates_no_run(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(operator, workflow="patient", input={})
        assert (await post(operator, "k", {}, f"/runs/{run}/signals/news")).status_code == 200
        answer = await post(operator, "k")
        assert (answer.status_code, problem(answer)) == (422, "IDEMPOTENCY_KEY_REUSED")
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 1
        s.engine.store.shift_clock(24 * HOUR)
        assert (await post(operator, "k")).status_code == 201, "the record has expired, and it created no run"


@pytest.mark.clause("GWI-08")
async def test_a_key_comes_in_any_of_three_headers(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        names = ("Idempotency-Key", "X-Idempotency-Key", "X-Request-ID")
        answers = [await operator.post("/runs", json=ECHO, headers={name: "k"}) for name in names]
        answers.append(await operator.post("/runs", json=ECHO, headers=dict.fromkeys(names, "k")))
        assert len({answer.content for answer in answers}) == 1
        for pair in ((0, 1), (0, 2), (1, 2)):
            differing = {names[place]: f"k{place}" for place in pair}
            answer = await operator.post("/runs", json=ECHO, headers=differing)
            assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED")
        twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        assert (await operator.post("/runs", json=ECHO, headers=twice)).status_code == 400
        for bad in ("", "x" * 256, "caf\u00e9", "a\tb"):
            sent = [(b"Idempotency-Key", bad.encode())]
            answer = await operator.post("/runs", json=ECHO, headers=sent)
            assert (answer.status_code, problem(answer)) == (400, "REQUEST_MALFORMED"), bad
        for good in ("x", "x" * 255, "a b:{}~"):
            assert (await post(operator, good)).status_code == 201


@pytest.mark.clause("GWI-08", "GWI-14")
async def test_the_request_id_is_not_a_key_if_that_is_switched_off(url: str) -> None:
    async with site(url, request_id_is_key=False) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        for _ in range(2):
            answer = await operator.post("/runs", json=ECHO, headers={"X-Request-ID": "k"})
            assert answer.status_code == 201
        both = {"X-Request-ID": "a", "Idempotency-Key": "b"}
        assert (await operator.post("/runs", json=ECHO, headers=both)).status_code == 201
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 3


@pytest.mark.clause("GWI-14")
async def test_a_call_without_a_key_is_never_deduplicated(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        assert len({await begin(operator) for _ in range(3)}) == 3
        counted = {size.table: size.rows for size in await s.engine.store.read("sizes")}
        assert (counted["run"], counted["idempotency"]) == (3, 0)


@pytest.mark.clause("GWI-08")
async def test_keys_belong_to_the_client_under_any_of_its_credentials(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        first = await post(await s.as_("operator"), "k")
        [client] = await s.engine.store.read("clients_before", ACME, 1 << 60, "", 9)
        made = new_key()
        key = ApiKeyRow(made.id, ACME, "client", client.id, "next", made.hash, None, "test", 1, None)
        await s.identity.put(key, None)
        rotated = await post(await s.caller(made.text), "k")
        assert rotated.content == first.content
        assert rotated.headers["idempotency-replayed"] == "true"
        stranger = await post(await s.caller(await s.key("operator")), "k")
        assert stranger.json()["id"] != first.json()["id"], "another client's key is another key"
        abroad = await post(await s.as_("operator", tenant="globex"), "k")
        assert abroad.json()["id"] != first.json()["id"]


@pytest.mark.clause("GWI-15", "GWI-24")
async def test_an_expired_key_names_its_run_and_creates_no_other(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = (await post(operator, "k")).json()["id"]
        s.engine.store.shift_clock(24 * HOUR - us(60))
        assert (await post(operator, "k")).status_code == 201
        s.engine.store.shift_clock(24 * HOUR + us(1))
        for body in (ECHO, OTHER, ECHO):
            answer = await post(operator, "k", body)
            assert (answer.status_code, problem(answer)) == (409, "IDEMPOTENCY_EXPIRED")
            assert answer.json()["error"]["details"] == [{"path": "run_id", "problem": run}]
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 1


@pytest.mark.clause("GWI-15")
async def test_a_key_names_its_run_even_after_it_was_deleted(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = (await post(operator, "k")).json()["id"]
        engine = s.engine.scoped(tenant=ACME)
        await engine.cancel(run)
        await engine.runs.delete(run)
        assert (await post(operator, "k")).json()["id"] == run, "the answer is still recorded"
        s.engine.store.shift_clock(25 * HOUR)
        answer = await post(operator, "k")
        assert (answer.status_code, problem(answer)) == (409, "IDEMPOTENCY_EXPIRED")
        assert answer.json()["error"]["details"] == [{"path": "run_id", "problem": run}]


@pytest.mark.clause("GWI-12")
async def test_a_replay_is_answered_even_if_the_request_would_now_be_refused(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        first = await post(operator, "k")
        text = 'name: echo\nversion: "2"\ninputs:\n  loud: {type: boolean}\nsteps:\n  - id: say\n    run: [echo, hi]\n'
        put = await operator.put(
            "/workflows/echo", content=text, headers={"Content-Type": "application/yaml"}
        )
        assert put.status_code == 201, put.text
        assert (await post(operator, "other")).status_code == 422, "the newest version has other inputs"
        again = await post(operator, "k")
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        items = {"items": [{**ECHO, "idempotency_key": "k"}, {**ECHO, "idempotency_key": "new"}]}
        results = (await operator.post("/runs/batch", json=items)).json()["results"]
        assert [result["status"] for result in results] == [201, 422]
        assert results[0]["run"] == first.json()
        reused = await post(operator, "k", {**ECHO, "priority": 1})
        assert (reused.status_code, problem(reused)) == (422, "IDEMPOTENCY_KEY_REUSED")
        s.engine.store.shift_clock(25 * HOUR)
        late = await post(operator, "k")
        assert (late.status_code, problem(late)) == (409, "IDEMPOTENCY_EXPIRED")


@pytest.mark.clause("GWI-15")
async def test_expired_records_are_cleaned_up(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        for i in range(3):
            await post(operator, f"k{i}")
        assert await s.service.keys.sweep() == 0
        s.engine.store.shift_clock(25 * HOUR)
        assert await s.service.keys.sweep(2) == 2, "a bounded number at a time"
        assert await s.service.keys.sweep(2) == 1
        assert await record_of(s, "k1") is None
        assert problem(await post(operator, "k1")) == "IDEMPOTENCY_EXPIRED"


@pytest.mark.clause("GWI-15")
async def test_an_abandoned_request_expires(url: str) -> None:
    async with site(url) as s:
        keys, wanted = s.service.keys, KeyedRequest(tenant=ACME, source="api", name="k", hash=b"h")
        held = await keys.begin(wanted)
        assert isinstance(held, HeldRecord)
        s.engine.store.shift_clock(25 * HOUR)
        assert await keys.sweep() == 1
        await keys.complete(held, wanted, b"too late", None)
        assert await keys.find(*wanted.key) is None


async def test_only_the_holder_of_a_record_writes_its_outcome(url: str) -> None:
    async with site(url) as s:
        keys, wanted = s.service.keys, KeyedRequest(tenant=ACME, source="api", name="k", hash=b"h")
        slow = await keys.begin(wanted)
        s.engine.store.shift_clock(HOUR)  # longer than the lock
        quick = await keys.begin(wanted)
        assert isinstance(slow, HeldRecord)
        assert isinstance(quick, HeldRecord)
        await keys.fail(slow, b"mine", "ERROR")
        await keys.drop(slow)
        assert await keys.find(*wanted.key) == quick.record
        await keys.complete(quick, wanted, b"ours", None)
        await keys.fail(quick, b"once more", "ERROR")
        found = await keys.find(*wanted.key)
        assert found is not None
        assert (found.status, found.response, found.attempts) == ("completed", b"ours", 2)


# ---------------------------------------------------------------------------- requests that take more than one commit


async def start_waiting_run(s: Site, operator: httpx.AsyncClient) -> str:
    """Start a run that waits for the event `news`, longer than these tests shift the clock."""
    await register(s.engine)
    run = await begin(operator, workflow="patient", input={}, timeout="30d")
    async with s.engine.worker(patient):
        await s.engine.scoped(tenant=ACME).run(run).reaches("waiting_external", wait=20)
    return run


async def begin_and_die(s: Site, operator: httpx.AsyncClient, run: str, key: str, body: Any) -> HeldRecord:
    """Begin a request as a process that then dies: its record stays in process."""
    refused = await operator.post(  # to get the hash of the request
        f"/runs/{run}/signals/news", json=body, headers={"Idempotency-Key": "spy"}
    )
    assert refused.status_code == 200
    spied = await the_record(s, "spy")
    [client] = await s.engine.store.read("clients_before", ACME, 1 << 60, "", 9)
    number = ids.run_int(run)
    request = KeyedRequest(
        tenant=ACME, source="api", name=f"api:{client.id}:{key}", hash=spied.request_hash, run_id=number
    )
    held = await s.service.keys.begin(request)
    assert isinstance(held, HeldRecord)
    return held


@pytest.mark.clause("GWI-11", "GWI-12", "GWI-24")
async def test_while_in_process_the_same_request_gets_202_and_another_one_409(url: str) -> None:
    async with site(url) as s:
        operator = await s.as_("operator")
        run = await start_waiting_run(s, operator)
        held = await begin_and_die(s, operator, run, "k", {"data": 1})
        record = await the_record(s, "k")
        assert (record.status, record.lock_expires_at) == ("processing", held.record.created_at + us(300))
        path = f"/runs/{run}/signals/news"
        answer = await post(operator, "k", {"data": 1}, path)
        assert answer.status_code == 202
        assert answer.json() == {"status": "processing", "run_id": run}
        assert answer.headers["retry-after"] == "1"
        answer = await post(operator, "k", {"data": 2}, path)
        assert (answer.status_code, problem(answer)) == (409, "IDEMPOTENCY_CONFLICT")
        answer = await post(operator, "k")
        assert (answer.status_code, problem(answer)) == (409, "IDEMPOTENCY_CONFLICT"), (
            "a request that creates a run, too"
        )


@pytest.mark.clause("GWI-15", "GWI-12")
async def test_an_expired_lock_lets_another_process_take_the_key_over(url: str) -> None:
    async with site(url) as s:
        operator = await s.as_("operator")
        run = await start_waiting_run(s, operator)
        held = await begin_and_die(s, operator, run, "k", {"data": 1})
        s.engine.store.shift_clock(us(301))
        path = f"/runs/{run}/signals/news"
        answer = await post(operator, "k", {"data": 2}, path)
        assert (answer.status_code, problem(answer)) == (409, "IDEMPOTENCY_CONFLICT"), (
            "only by the same request"
        )
        answers = await asyncio.gather(*(post(operator, "k", {"data": 1}, path) for _ in range(10)))
        done = [answer for answer in answers if answer.status_code == 200]
        assert {answer.status_code for answer in answers} <= {200, 202}
        assert sum("idempotency-replayed" not in answer.headers for answer in done) == 1
        record = await the_record(s, "k")
        assert (record.status, record.attempts) == ("completed", 2)
        request = KeyedRequest(tenant=ACME, source="api", name=record.name, hash=record.request_hash)
        await s.service.keys.complete(held, request, b"200\n{}", None)  # the late answer of the first process
        assert await the_record(s, "k") == record
        assert (await post(operator, "k", {"data": 1}, path)).content == done[0].content


@pytest.mark.clause("GWI-12", "GWI-15")
async def test_a_signal_under_a_key_counts_once(url: str) -> None:
    async with site(url) as s:
        operator = await s.as_("operator")
        run = await start_waiting_run(s, operator)
        path = f"/runs/{run}/signals/other"
        answers = [await post(operator, "k", {"data": 1}, path) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert len({answer.content for answer in answers}) == 1
        assert [a.headers.get("idempotency-replayed") for a in answers] == [None, "true", "true"]
        assert len(await s.engine.store.read("inbox_of", ids.run_int(run))) == 1
        s.engine.store.shift_clock(25 * HOUR)
        answer = await post(operator, "k", {"data": 1}, path)
        assert (answer.status_code, problem(answer)) == (409, "IDEMPOTENCY_EXPIRED")
        assert answer.json()["error"]["details"] == [{"path": "run_id", "problem": run}]
        assert len(await s.engine.store.read("inbox_of", ids.run_int(run))) == 1


@pytest.mark.clause("GWI-12", "GWI-15", "GWI-11")
async def test_a_failed_request_is_recorded_and_may_be_tried_three_times(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "artifacts"
    monkeypatch.setenv("TENURE_ARTIFACTS", str(place))
    async with site(url) as s:
        operator = await s.as_("operator")
        run = await start_waiting_run(s, operator)
        place.write_text("a file where the folder should be: nothing can be kept here")
        path, body = f"/runs/{run}/signals/news", {"data": "x" * 300_000}

        async def attempt() -> httpx.Response:
            return await post(operator, "k", body, path)

        first = await attempt()
        assert first.status_code == 502
        record = await the_record(s, "k")
        assert (record.status, record.error, record.attempts) == ("failed", "UPSTREAM_UNAVAILABLE", 1)
        assert record.expires_at == record.updated_at + HOUR
        await attempt()
        third = await attempt()
        assert (await the_record(s, "k")).attempts == 3
        assert "idempotency-replayed" not in third.headers
        place.unlink()
        fourth = await attempt()
        assert (fourth.status_code, fourth.content) == (502, third.content), "no fourth attempt"
        assert fourth.headers["idempotency-replayed"] == "true"
        assert (await the_record(s, "k")).attempts == 3
        other = await post(operator, "k", {"data": 1}, path)
        assert (other.status_code, problem(other)) == (422, "IDEMPOTENCY_KEY_REUSED")
        s.engine.store.shift_clock(HOUR + us(1))
        assert (await attempt()).status_code == 200, "an hour later the failure is forgotten"
        assert (await the_record(s, "k")).status == "completed"


async def test_a_temporary_failure_succeeds_at_the_next_attempt(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "artifacts"
    monkeypatch.setenv("TENURE_ARTIFACTS", str(place))
    async with site(url) as s:
        operator = await s.as_("operator")
        run = await start_waiting_run(s, operator)
        place.write_text("in the way")
        path, body = f"/runs/{run}/signals/news", {"data": "x" * 300_000}
        assert (await post(operator, "k", body, path)).status_code == 502
        place.unlink()
        answer = await post(operator, "k", body, path)
        assert (answer.status_code, answer.json()["taken"]) == (200, True)
        record = await the_record(s, "k")
        assert (record.status, record.attempts, record.error) == ("completed", 2, None)


REFUSALS: dict[str, tuple[Any, str, int]] = {
    "an unknown run": ({}, "/runs/run_2026-02-14_080000_abc123/signals/news", 404),
    "an invalid body": ({"date": 1}, "/runs/{run}/signals/news", 422),
    "an invalid state": ({}, "/runs/{run}/rerun", 409),
    "too large": ({"data": "x" * 60_000}, "/runs/{run}/signals/news", 413),
}


async def test_a_refused_request_leaves_its_key_unused(url: str) -> None:
    async with site(url, body_bytes_max=50_000) as s:
        operator = await s.as_("operator")
        run = await start_waiting_run(s, operator)
        for name, (body, path, status) in REFUSALS.items():
            answer = await post(operator, "k", body, path.format(run=run))
            assert answer.status_code == status, (name, answer.text)
            assert await record_of(s, "k") is None, name
        assert (await post(operator, "k", {}, f"/runs/{run}/signals/news")).status_code == 200


@pytest.mark.clause("GWI-12")
async def test_a_rerun_under_a_key_creates_one_run_even_after_a_crash(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        run = await begin(operator)
        await s.engine.scoped(tenant=ACME).cancel(run)
        first = await post(operator, "k", {}, f"/runs/{run}/rerun")
        assert first.status_code == 201, first.text
        made = first.json()["id"]
        assert first.headers["location"] == f"/runs/{made}"
        again = await post(operator, "k", {}, f"/runs/{run}/rerun")
        assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
        spec = await s.engine.scoped(tenant=ACME).scope.reader.spec(ids.run_int(made))
        assert spec.idempotency_key == (await the_record(s, "k")).name
        # As if the process had died before it wrote the answer down.
        record = await the_record(s, "k")
        s.engine.store.shift_clock(25 * HOUR)
        assert await s.service.keys.sweep() == 1
        request = KeyedRequest(tenant=ACME, source="api", name=record.name, hash=record.request_hash)
        assert isinstance(await s.service.keys.begin(request), HeldRecord)
        s.engine.store.shift_clock(25 * HOUR + us(301))
        taken_over = await post(operator, "k", {}, f"/runs/{run}/rerun")
        assert (taken_over.status_code, taken_over.content) == (201, first.content)
        assert (await the_record(s, "k")).attempts == 2
        s.engine.store.shift_clock(51 * HOUR)
        late = await post(operator, "k", {}, f"/runs/{run}/rerun")
        assert (late.status_code, problem(late)) == (409, "IDEMPOTENCY_EXPIRED")
        assert late.json()["error"]["details"] == [{"path": "run_id", "problem": made}]
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == 2


@pytest.mark.clause("APR-10")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_disconnected_client_gets_the_answer_by_its_key(url: str, when: str) -> None:
    """Failure 17: the connection breaks before or after the commit. A retry gets the answer, and there is one effect."""
    async with site(url) as s, cutting(s.address) as proxy:
        operator = await s.as_("operator")
        run = await start_waiting_run(s, operator)
        ended = await begin(operator)
        await s.engine.scoped(tenant=ACME).cancel(ended)
        asked = {
            "/runs": ECHO,
            "/runs/batch": {"items": [OTHER, OTHER]},
            f"/runs/{run}/signals/other": {"data": 1},
            f"/runs/{ended}/rerun": {},
        }
        before = len(await s.engine.scoped(tenant=ACME).runs.list())
        async with httpx.AsyncClient(base_url=proxy.address, headers=operator.headers) as unlucky:
            for path, body in asked.items():
                proxy.cut(when, path)
                with pytest.raises(httpx.HTTPError):
                    await post(unlucky, f"key of {path}", body, path)
                answer = await post(unlucky, f"key of {path}", body, path)
                assert answer.status_code in (200, 201), answer.text
                replayed = answer.headers.get("idempotency-replayed")
                assert replayed == ("true" if when == "after" else None), path
        assert proxy.cuts == len(asked)
        assert len(await s.engine.scoped(tenant=ACME).runs.list()) == before + 4
        assert len(await s.engine.store.read("inbox_of", ids.run_int(run))) == 1
