"""Browser sessions: a cookie replaces the key, other sites cannot use it, and it ends with its key."""

import httpx
import pytest

from tenure.clock import us
from tests.server.stage import ACME, Site, problem, site

COOKIE = "tenure_session"


async def signed_in(s: Site, *roles: str, person: str = "ada") -> tuple[httpx.AsyncClient, str]:
    """A browser with a session, and the key it was exchanged for."""
    key = await s.key(*roles, person=person)
    browser = await s.caller()
    answer = await browser.post("/session", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 201
    return browser, key


async def test_a_key_is_exchanged_for_a_cookie_that_scripts_cannot_read(url: str) -> None:
    async with site(url) as s:
        key = await s.key("viewer", person="ada")
        browser = await s.caller()
        answer = await browser.post("/session", headers={"Authorization": f"Bearer {key}"})
        assert answer.json()["id"] == "ada"
        assert key.split("_", 2)[2] not in answer.text
        cookie = answer.headers["set-cookie"]
        parts = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= parts
        assert "secure" not in parts, "a secure cookie would not be sent over http"
        me = (await browser.get("/session")).json()
        assert (me["id"], me["kind"], me["tenant"], me["by_cookie"]) == ("ada", "person", ACME, True)
        secret = browser.cookies[COOKIE]
        assert await s.engine.store.read("session_named", secret.encode()) == []


async def test_behind_tls_the_cookie_is_secure(tmp_path: object) -> None:
    async with site(f"sqlite:{tmp_path}/site.db", behind_proxy=True) as s:
        key = await s.key("viewer", person="ada")
        answer = await (await s.caller()).post("/session", headers={"Authorization": f"Bearer {key}"})
        assert "secure" in {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}


async def test_a_change_by_cookie_needs_the_servers_own_origin(url: str) -> None:
    async with site(url) as s:
        browser, _ = await signed_in(s, "admin")
        body = {"name": "x", "roles": ["viewer"]}
        for headers in (
            {}, {"Origin": "https://evil.example"}, {"Origin": "null"},
            {"Origin": s.address.replace("http:", "https:")}, {"Origin": f"{s.address}.evil.example"},
            {"Origin": "https://evil.example", "X-Forwarded-Host": "evil.example"},
        ):  # fmt: skip
            answer = await browser.post("/people", json=body, headers=headers)
            assert (answer.status_code, problem(answer)) == (403, "ORIGIN_REFUSED"), headers
        assert (await browser.get("/people")).status_code == 200, "reading needs no origin"
        answer = await browser.post("/people", json=body, headers={"Origin": s.address})
        assert answer.status_code == 201


async def test_a_session_ends_when_its_browser_signs_out(url: str) -> None:
    async with site(url) as s:
        browser, key = await signed_in(s, "viewer")
        held = browser.cookies[COOKIE]
        refused = await browser.delete("/session")
        assert problem(refused) == "ORIGIN_REFUSED"
        assert (await browser.delete("/session", headers={"Origin": s.address})).status_code == 204
        assert COOKIE not in browser.cookies
        thief = await s.caller()
        thief.cookies.set(COOKIE, held)
        assert problem(await thief.get("/session")) == "UNAUTHENTICATED"
        assert (await (await s.caller(key)).get("/session")).status_code == 200, "the key is still valid"
        assert (await (await s.caller(key)).delete("/session")).status_code == 204, (
            "a key without a session may sign out"
        )


async def test_a_revoked_key_ends_its_sessions(url: str) -> None:
    async with site(url) as s:
        browser, key = await signed_in(s, "viewer")
        assert (await browser.get("/session")).status_code == 200
        admin = await s.as_("admin")
        await admin.delete(f"/keys/{key.split('_')[1]}")
        assert problem(await browser.get("/session")) == "UNAUTHENTICATED"


async def test_a_session_expires(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        browser, _ = await signed_in(s, "viewer")
        assert (await browser.get("/session")).status_code == 200
        s.engine.store.shift_clock(us(12 * 3600 + 1))
        assert problem(await browser.get("/session")) == "UNAUTHENTICATED"
        # The next sign-in deletes expired sessions.
        await signed_in(s, "viewer", person="bob")
        hashes = [await s.engine.store.read("session_named", b"x")]
        assert hashes == [[]]


async def test_the_access_of_a_session_is_checked_again(url: str) -> None:
    async with site(url) as s:
        browser, key = await signed_in(s, "viewer")
        gate = s.service.authenticator
        by_key = await gate.by_bearer(f"Bearer {key}".encode())
        by_cookie = await gate.by_cookie(browser.cookies[COOKIE])
        assert await gate.revalidate(by_key) == by_key
        assert await gate.revalidate(by_cookie) == by_cookie
        await browser.delete("/session", headers={"Origin": s.address})
        assert await gate.revalidate(by_cookie) is None
        assert await gate.revalidate(by_key) == by_key
        await (await s.as_("admin")).delete(f"/keys/{key.split('_')[1]}")
        assert await gate.revalidate(by_key) is None


@pytest.mark.parametrize("cookie", ["", "x", "x" * 43, "a" * 5000, "tn_aaaaaaaaaaaa_" + "a" * 43])
async def test_a_wrong_cookie_is_refused_like_any_wrong_credential(tmp_path: object, cookie: str) -> None:
    async with site(f"sqlite:{tmp_path}/site.db") as s:
        stranger = await s.caller()
        answer = await stranger.get("/session", headers={"Cookie": f"{COOKIE}={cookie}"})
        assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")


async def test_a_session_can_only_be_created_from_a_key(url: str) -> None:
    async with site(url) as s:
        browser, key = await signed_in(s, "viewer")
        answer = await browser.post("/session", headers={"Origin": s.address})
        assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")
        stranger = await s.caller()
        for given in (
            "",
            "Bearer",
            f"Basic {key}",
            f"Bearer {key}x",
            f"Bearer {key[:-1]}",
            f"Bearer  {key}",
        ):
            answer = await stranger.post("/session", headers={"Authorization": given})
            assert answer.status_code in (201, 401)
            if answer.status_code == 201:
                assert given.split() == ["Bearer", key]


async def test_the_operator_of_the_installation_may_have_sessions(url: str) -> None:
    async with site(url) as s:
        browser = await s.caller()
        key = await s.operator_key()
        await browser.post("/session", headers={"Authorization": f"Bearer {key}"})
        me = (await browser.get("/session")).json()
        assert (me["kind"], me["tenant"], me["roles"]) == ("operator", "", [])
        assert (await browser.get("/admin/tenants")).status_code == 200
