"""Behind proxies, the client address comes from trusted proxies only, so that a lock-out can be neither evaded nor aimed at others.
HSTS is sent to clients that used TLS."""

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from tenure.server.auth import authentication
from tenure.server.http.forwarded import FORWARDED, address_group, client_address, forwarded_scheme
from tests.certificates import make_certificate
from tests.server.stage import Site, problem, site
from tests.server.test_load_limits import half_request, sockets, until

MINE, VICTIM, PROXY = "198.51.100.7", "203.0.113.9", "192.0.2.1"


def xff(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-forwarded-for", value.encode()) for value in values]


@pytest.mark.parametrize(
    ("values", "proxies", "found"),
    [
        ([MINE], 1, MINE),
        ([f"{VICTIM}, {MINE}"], 1, MINE),
        ([VICTIM, MINE], 1, MINE),
        ([f"{VICTIM}, {MINE}, {PROXY}"], 2, MINE),
        ([VICTIM, f"{MINE},{PROXY}"], 2, MINE),
        ([f"{MINE}:4711"], 1, MINE),
        (["[2001:db8::1]:4711"], 1, "2001:db8::1"),
        (["2001:db8::1"], 1, "2001:db8::1"),
        ([f"::ffff:{MINE}"], 1, MINE),
        ([MINE], 2, None),
        ([], 1, None),
        ([""], 1, None),
        ([f"{VICTIM}, "], 1, None),
        ([f"{VICTIM}, unknown"], 1, None),
        ([f"{VICTIM}, _hidden"], 1, None),
        ([f"{VICTIM}, {MINE}:x"], 1, None),
        ([f"{VICTIM}, [{MINE}"], 1, None),
        ([f"{VICTIM}, {MINE} {VICTIM}"], 1, None),
        ([f"{VICTIM}, ٣.1.1.1"], 1, None),
        ([f"{VICTIM}, " + "1" * 500], 1, None),
    ],
)
def test_the_client_address_is_counted_from_the_right(
    values: list[str], proxies: int, found: str | None
) -> None:
    assert client_address(xff(*values), proxies) == found


@pytest.mark.parametrize(
    ("value", "proxies", "found"),
    [
        (f"for={VICTIM}, for={MINE};proto=https;by={PROXY}", 1, MINE),
        (f'for={VICTIM}, For="{MINE}:80"', 1, MINE),
        ('for="[2001:db8::1]:80"', 1, "2001:db8::1"),
        (f"for={VICTIM}, for={MINE}, for={PROXY}", 2, MINE),
        (f"for={VICTIM}, for=unknown", 1, None),
        (f"for={VICTIM}, for={MINE};for={VICTIM}", 1, None),
        (f"for={VICTIM}, proto=https", 1, None),
    ],
)
def test_the_standard_header_is_read_the_same_way(value: str, proxies: int, found: str | None) -> None:
    headers = [(b"x-forwarded-for", VICTIM.encode()), (b"forwarded", value.encode())]
    assert client_address(headers, proxies, FORWARDED) == found
    assert client_address(headers, 1) == VICTIM, "a setting, not the request, selects the header that is read"


def test_addresses_of_one_machine_count_as_one() -> None:
    assert address_group("2001:db8:1:2:3::4") == address_group("2001:db8:1:2:ffff::") == "2001:db8:1:2::/64"
    assert address_group("2001:db8:1:3::") != address_group("2001:db8:1:2::")
    assert address_group(f"::ffff:{MINE}") == MINE
    assert (
        forwarded_scheme([(b"x-forwarded-proto", b"https"), (b"x-forwarded-proto", b"http, https")])
        == "https"
    )
    assert forwarded_scheme([(b"x-forwarded-proto", b"gopher")]) is None


async def _guess(s: Site, number: int, forwarded: str) -> httpx.Response:
    key = f"tn_{number:012d}_{'x' * 43}"
    return await (await s.caller(key)).get("/runs", headers={"X-Forwarded-For": forwarded})


async def test_a_lock_out_cannot_be_evaded_or_aimed_at_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "REFUSALS_BURST", 3.0)
    monkeypatch.setattr(authentication, "REFUSALS_PER_SECOND", 0.001)
    async with site(url, behind_proxy=True, trusted_proxies=2) as s:
        for number in range(3):  # each request claims to come from the victim, and from a different address
            answer = await _guess(s, number, f"{VICTIM}, 203.0.113.{number}, {MINE}, {PROXY}")
            assert answer.status_code == 401
        dodging = await _guess(s, 10, f"203.0.113.77, {MINE}, {PROXY}")
        assert (dodging.status_code, problem(dodging)) == (429, "RATE_LIMITED")
        assert (await _guess(s, 11, f"{VICTIM}, {PROXY}")).status_code == 401, "the victim is not locked out"
        assert (await _guess(s, 12, "not an address")).status_code == 401, "the proxy is not locked out"


async def test_half_sent_bodies_behind_a_proxy_count_against_the_client(tmp_path: Path) -> None:
    async with site(
        f"sqlite:{tmp_path}/site.db",
        behind_proxy=True,
        bodies_per_address_max=2,
        connections_per_address_max=3,
    ) as s:
        key = await s.key("operator")
        async with sockets(s, 5) as held:
            for one in held[:2]:
                await one.send(half_request(key, x_forwarded_for=f"{VICTIM}, {MINE}"))
            await until(lambda: s.service.load.half_sent == 2)
            await held[2].send(half_request(key, x_forwarded_for=MINE))
            assert (await held[2].answer())[0] == 429
            await held[3].send(half_request(key, x_forwarded_for=VICTIM))
            await until(lambda: s.service.load.half_sent == 3)
            await held[4].send(half_request(key, x_forwarded_for=MINE))
            assert (await held[4].answer())[0] == 429
        await until(lambda: not s.service.load._connections_of and not s.service.load._half_sent_of)


# ------------------------------------------------------------------------------------------------------ HSTS


@pytest.mark.parametrize(
    ("settings", "headers", "expected"),
    [
        ({}, {}, False),
        ({}, {"X-Forwarded-Proto": "https"}, False),
        ({"behind_proxy": True}, {"X-Forwarded-Proto": "https"}, True),
        ({"behind_proxy": True}, {"X-Forwarded-Proto": "http"}, False),
        ({"behind_proxy": True}, {}, False),
    ],
)
async def test_hsts_is_sent_to_clients_that_used_tls(
    tmp_path: Path, settings: dict[str, Any], headers: dict[str, str], expected: bool
) -> None:
    async with site(f"sqlite:{tmp_path}/site.db", **settings) as s:
        for path in ("/healthz", "/runs", "/nowhere"):
            answer = await (await s.caller()).get(path, headers=headers)
            assert ("strict-transport-security" in answer.headers) == expected
            if expected:
                assert answer.headers["strict-transport-security"] == "max-age=31536000"


async def test_hsts_is_sent_over_the_servers_own_tls(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "localhost")
    async with site(f"sqlite:{tmp_path}/site.db", tls_cert=str(cert), tls_key=str(key)) as s:
        context = ssl.create_default_context(cafile=str(cert))
        context.check_hostname = False
        async with httpx.AsyncClient(verify=context) as client:
            answer = await client.get(f"{s.address}/healthz")
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
