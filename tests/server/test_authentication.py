"""Authentication: which credentials are accepted, and how others are refused."""

from collections.abc import Callable
from hashlib import sha256

import pytest

from tenure.errors import TenureError
from tenure.kernel.identity_rows import ApiKeyRow
from tenure.server.auth import authentication as gates
from tenure.server.settings import Settings
from tenure.services.identity import key_lookup
from tenure.services.identity.principals import new_key
from tests.server.stage import ACME, problem, site

NOTHING = "/runs/run_2026-02-14_080000_abc123"


async def test_a_request_without_a_credential_gets_the_standard_error(url: str) -> None:
    async with site(url) as s:
        stranger = await s.caller()
        answer = await stranger.get(NOTHING)
        assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await stranger.get("/healthz")).json() == {"status": "ok"}
        assert (await stranger.get("/readyz")).status_code == 200


@pytest.mark.clause("APR-11")
async def test_a_key_gives_the_access_of_its_role(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        run = await s.engine.scoped(tenant="acme").create("w", [{"name": "a"}])
        assert (await viewer.get(f"/runs/{run}")).json()["id"] == run
        other = await s.as_("viewer", tenant="globex")
        answer = await other.get(f"/runs/{run}")
        assert (answer.status_code, problem(answer)) == (404, "RUN_NOT_FOUND")
        runner = await s.as_("runner")
        answer = await runner.get(f"/runs/{run}")
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
        answer = await viewer.get("/nowhere")
        assert (answer.status_code, problem(answer)) == (404, "NOT_FOUND")
        answer = await viewer.delete("/healthz")
        assert (answer.status_code, problem(answer)) == (405, "METHOD_NOT_ALLOWED")


async def test_every_invalid_key_gets_the_same_answer(url: str) -> None:
    async with site(url) as s:
        good, admin = await s.key("viewer"), await s.as_("admin")
        revoked = await s.key("viewer")
        await admin.delete(f"/keys/{revoked.split('_')[1]}")
        key_id, secret = good.split("_")[1], good.split("_", 2)[2]
        other_end = "A" if secret[-1] != "A" else "E"
        wrong = [
            revoked, f"tn_{key_id}_{'x' * 43}", f"tn_{key_id}_{secret[:-1]}{other_end}", f"tn_{'a' * 12}_{secret}",
            new_key().text, f"tn_{key_id}_", f"tn_{key_id}", "tn_", "x", good.upper(), f"{good}=", f"{good} x",
            sha256(secret.encode()).hexdigest(),
        ]  # fmt: skip
        messages = set()
        stranger = await s.caller()
        headers = [f"Bearer {key}" for key in wrong] + [f"Basic {good}", good, "Bearer", "é"]
        for given in headers:
            answer = await stranger.get(NOTHING, headers={b"Authorization": given.encode()})
            assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED"), given
            messages.add(answer.text.replace(answer.headers["x-request-id"], ""))
        assert len(messages) == 1
        twice = [("Authorization", f"Bearer {good}"), ("Authorization", f"Bearer {good}")]
        assert problem(await stranger.get(NOTHING, headers=twice)) == "UNAUTHENTICATED"
        assert (
            problem(await stranger.get(NOTHING, headers={"Authorization": f"bearer {good}"}))
            == "RUN_NOT_FOUND"
        )


async def test_a_key_in_a_url_is_ignored(url: str) -> None:
    async with site(url) as s:
        key, stranger = await s.key("viewer"), await s.caller()
        for name in ("access_token", "key", "token", "api_key", "authorization"):
            answer = await stranger.get("/session", params={name: key})
            assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")
        answer = await stranger.get(s.address.replace("//", f"//{key}:x@") + "/session")
        assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")


async def test_head_omits_the_body_and_options_lists_the_methods(url: str) -> None:
    async with site(url) as s:
        stranger, viewer = await s.caller(), await s.as_("viewer")
        assert (await stranger.head("/healthz")).status_code == 200
        assert (await stranger.head(NOTHING)).status_code == 401
        found, full = await viewer.head("/session"), await viewer.get("/session")
        assert (found.status_code, found.content) == (200, b"")
        assert found.headers["content-length"] == full.headers["content-length"]
        assert (await viewer.head(NOTHING)).status_code == 404
        assert (await viewer.head("/enrolments")).status_code == 405
        asked = await stranger.options("/session")
        assert (asked.status_code, asked.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, POST")
        assert not [name for name in asked.headers if name.startswith("access-control")]
        assert (await stranger.options("/nowhere")).status_code == 404
        refused = await viewer.patch("/session", json={})
        assert (refused.status_code, problem(refused)) == (405, "METHOD_NOT_ALLOWED")
        assert refused.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, POST"


async def test_a_credential_over_its_rate_gets_429(url: str) -> None:
    async with site(url, requests_per_second=0.01, requests_burst=3) as s:
        viewer, other = await s.as_("viewer"), await s.as_("viewer", "operator")
        assert [(await viewer.get("/session")).status_code for _ in range(3)] == [200, 200, 200]
        answer = await viewer.get("/session")
        assert (answer.status_code, problem(answer)) == (429, "RATE_LIMITED")
        assert 1 <= int(answer.headers["retry-after"]) <= 100
        assert answer.json()["error"]["retryable"] is True
        assert (await other.get("/session")).status_code == 200, "each credential has its own rate"
        assert (await (await s.caller()).get("/healthz")).status_code == 200


def test_the_burst_is_derived_from_the_rate() -> None:
    assert (Settings().burst, Settings(requests_per_second=100).burst) == (10_000, 500)
    assert Settings(requests_per_second=100, requests_burst=7).burst == 7


async def test_guessed_keys_stop_reaching_the_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "REFUSALS_BURST", 5.0)
    monkeypatch.setattr(gates, "REFUSALS_PER_SECOND", 0.001)
    async with site(url, key_cache_seconds=0.0) as s:
        viewer, stranger, browser = await s.as_("viewer"), await s.caller(), await s.caller()
        assert (await viewer.get("/session")).status_code == 200
        browser.cookies = (await viewer.post("/session")).cookies
        viewer.cookies.clear()
        assert (await browser.get("/session")).json()["by_cookie"] is True
        answers = [
            await stranger.get(NOTHING, headers={"Authorization": f"Bearer {new_key().text}"})
            for _ in range(8)
        ]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 3
        assert "retry-after" in answers[-1].headers
        answer = await stranger.post("/enrolments", json={"code": "x"})
        assert (answer.status_code, problem(answer)) == (429, "RATE_LIMITED")
        for known in (viewer, browser):
            assert (await known.get("/session")).status_code == 200, "a known key is still accepted"


WRONG_KEYS: dict[str, Callable[[str], str]] = {
    "unknown": lambda _key: new_key().text,
    "unknown, repeated": lambda _key: f"tn_{'a' * 12}_{'x' * 43}",
    "known, with another secret": lambda key: f"{key.rpartition('_')[0][:15]}_{'x' * 43}",
    "malformed": lambda key: key[:-1],
}


@pytest.mark.parametrize("wrong", WRONG_KEYS)
async def test_every_wrong_key_counts_against_its_address(
    url: str, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr(gates, "REFUSALS_BURST", 5.0)
    monkeypatch.setattr(gates, "REFUSALS_PER_SECOND", 0.001)
    async with site(url) as s:
        key = await s.key("viewer")
        viewer, stranger = await s.caller(key), await s.caller()
        assert (await viewer.get("/session")).status_code == 200
        guesses = [
            await stranger.get(NOTHING, headers={"Authorization": f"Bearer {WRONG_KEYS[wrong](key)}"})
            for _ in range(8)
        ]
        assert [answer.status_code for answer in guesses] == [401] * 5 + [429] * 3
        assert problem(guesses[-1]) == "RATE_LIMITED"
        new = await s.as_("viewer", "operator")
        assert (await new.get("/session")).status_code == 429, (
            "a valid key that this process has not seen is refused, too"
        )
        assert (await viewer.get("/session")).status_code == 200, "a known key is still accepted"


async def test_ended_keys_and_sessions_count_against_their_address(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(url) as s:
        viewer, browser = await s.as_("viewer"), await s.caller()
        browser.cookies = (await viewer.post("/session")).cookies
        key_id = (await viewer.get("/session")).json()["key_id"]
        viewer.cookies.clear()
        admin = await s.as_("admin")
        assert (await admin.delete(f"/keys/{key_id}")).status_code == 204
        monkeypatch.setattr(gates, "REFUSALS_BURST", 4.0)
        monkeypatch.setattr(gates, "REFUSALS_PER_SECOND", 0.001)
        ended = [await each.get("/session") for each in (viewer, browser) * 3]
        assert [answer.status_code for answer in ended] == [401] * 4 + [429] * 2


async def test_unknown_addresses_do_not_displace_known_ones(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "BUCKETS_MAX", 4)
    monkeypatch.setattr(key_lookup, "CACHED_MAX", 4)
    async with site(url, key_cache_seconds=1000.0) as s:
        key = await s.key("viewer")
        gate = s.service.authenticator
        who = await gate.by_bearer(f"Bearer {key}".encode())
        for _ in range(20):
            with pytest.raises(TenureError):
                await gate.by_bearer(f"Bearer {new_key().text}".encode())
        assert await gate.by_bearer(f"Bearer {key}".encode()) is who, "the known key is still cached"
        for _ in range(20):
            await gate.by_bearer(f"Bearer {await s.key('viewer')}".encode())
        keys = gate._keys
        kept = (keys._known, keys._unknown, keys._sessions, gate._buckets, gate._refusals)
        assert all(len(each) <= 4 for each in kept)


async def test_the_operator_of_the_installation_has_no_role_in_a_tenant(url: str) -> None:
    async with site(url) as s:
        operator = await s.caller(await s.operator_key())
        assert (await operator.get("/session")).json()["kind"] == "operator"
        for path in ("/runs", "/people", "/keys", "/audit", NOTHING):
            answer = await operator.get(path)
            assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN"), path
        everything = await s.as_("viewer", "operator", "approver", "admin", "runner")
        answer = await everything.get("/admin/tenants")
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")


async def test_a_key_whose_owner_is_gone_is_refused(url: str) -> None:
    async with site(url) as s:
        made = new_key()
        row = ApiKeyRow(made.id, ACME, "client", "gone", "", made.hash, None, "test", 1, None)
        await s.identity.put(row, None)
        answer = await (await s.caller(made.text)).get("/session")
        assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")
