"""Authentication as a GitHub App, against a double that verifies signatures and lets tokens expire."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import clock
from tenure.clock import ManualClock, boot_seconds
from tenure.errors import TenureError
from tenure.govern.connector import ConnectorCall
from tenure.govern.connectors.faults import CallFailed
from tenure.govern.connectors.settings import parse_connectors
from tenure.outbound import github_app
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.github_app import GitHubApp, GitHubRefused, rate_limit_seconds
from tenure.outbound.responses import HttpResponse, RequestNotSent
from tenure.outbound.urls import OutboundRoute
from tenure.secrets import record_resolved
from tenure.testing.doubles import GitHubDouble

REPO = "acme/app"
SHA = "0123456789abcdef0123456789abcdef01234567"
CHECK = {"name": "build", "head_sha": SHA}


@pytest.fixture
def github() -> Iterator[GitHubDouble]:
    with GitHubDouble() as double:
        yield double


@pytest.fixture
def key(github: GitHubDouble, tmp_path: Path) -> Path:
    path = tmp_path / "app.pem"
    path.write_bytes(github.install_app(REPO))
    return path


def make_app(github: GitHubDouble, key: Path, *, app_id: int = 1) -> GitHubApp:
    way = OutboundRoute(
        hosts=(github.url.removeprefix("http://"),), reach=AllowedNetworks(networks=("127.0.0.1",))
    )
    return GitHubApp(app_id=app_id, private_key=f"file:{key}", base_url=github.url, way=way)


async def create_check(app: GitHubApp, repo: str = REPO) -> HttpResponse:
    return await app.request(
        77, "POST", f"/repos/{repo}/check-runs", deadline=boot_seconds() + 30, json=CHECK
    )


async def test_requests_at_the_same_time_share_one_token(github: GitHubDouble, key: Path) -> None:
    app = make_app(github, key)
    answers = await asyncio.gather(*(create_check(app) for _ in range(5)))
    assert [answer.status for answer in answers] == [201] * 5
    assert github.tokens_issued == 1


async def test_a_refused_token_is_replaced_once_and_the_request_sent_again(
    github: GitHubDouble, key: Path
) -> None:
    app = make_app(github, key)
    await create_check(app)
    github.expire_tokens()
    assert (await create_check(app)).status == 201
    assert github.tokens_issued == 2
    assert len(github.checks) == 2


async def test_a_token_is_replaced_before_it_expires(
    github: GitHubDouble, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(github, key)
    await create_check(app)
    began = boot_seconds()
    monkeypatch.setattr(clock, "boot_seconds", lambda: began + 3_600 - github_app.RENEW_SECONDS + 1)
    deadline = began + 7_200
    assert await app.token(77, deadline=deadline)
    assert github.tokens_issued == 2
    assert await app.token(77, deadline=deadline)
    assert github.tokens_issued == 2


async def test_a_key_of_another_app_gets_no_token(github: GitHubDouble, key: Path) -> None:
    with pytest.raises(GitHubRefused, match="installation 77: HTTP 401: Bad credentials"):
        await create_check(make_app(github, key, app_id=2))
    assert github.checks == {}


async def test_a_clock_that_is_far_off_gets_no_token(github: GitHubDouble, key: Path) -> None:
    app = make_app(github, key)
    app._clock = ManualClock(0)
    with pytest.raises(GitHubRefused):
        await create_check(app)


async def test_an_installation_reaches_only_its_repositories_and_permissions(
    github: GitHubDouble, key: Path
) -> None:
    app = make_app(github, key)
    assert (await create_check(app, "globex/app")).status == 404
    github.set_permissions(77, checks="read")
    answer = await create_check(app)
    assert (answer.status, rate_limit_seconds(answer)) == (403, None)


async def test_neither_key_nor_token_is_shown(github: GitHubDouble, key: Path, tmp_path: Path) -> None:
    app = make_app(github, key)
    with record_resolved() as resolved:
        token = await app.token(77, deadline=boot_seconds() + 30)
    assert token.encode() in resolved
    assert token not in repr(app) + repr(app._tokens)
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("-----BEGIN SECRET-----")
    with pytest.raises(TenureError) as refused:
        await create_check(make_app(github, wrong))
    assert refused.value.code == "SECRET_UNAVAILABLE"
    assert "BEGIN SECRET" not in refused.value.message


async def test_a_lost_answer_about_a_token_means_that_nothing_was_sent(
    github: GitHubDouble, key: Path
) -> None:
    github.trouble(drop="after")
    with pytest.raises(RequestNotSent, match="no token was issued"):
        await create_check(make_app(github, key))


@pytest.mark.parametrize(
    ("status", "headers", "body", "seconds"),
    [
        (403, {"retry-after": "7"}, b"{}", 7),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "110"}, b"{}", 10),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9"}, b"{}", 0),
        (403, {}, b'{"message": "You have exceeded a secondary rate limit"}', 60),
        (429, {}, b"{}", 60),
        (403, {}, b'{"message": "Resource not accessible by integration"}', None),
        (503, {"retry-after": "7"}, b"{}", None),
    ],
)
def test_the_pause_of_a_rate_limit(
    status: int, headers: dict[str, str], body: bytes, seconds: float | None
) -> None:
    answer = HttpResponse(status=status, headers=headers, body=body)
    assert rate_limit_seconds(answer, 100_000_000) == seconds


# ---- The connector.


def settings(github: GitHubDouble, key: Path, more: str = "installations: {acme: 77}") -> str:
    return f"""
connectors:
  github:
    base_url: {github.url}
    allow_private: ["127.0.0.1"]
    app_id: 1
    private_key: file:{key}
    {more}
"""


def status_call(tenant: str = "acme") -> ConnectorCall:
    return ConnectorCall(
        tenant=tenant,
        operation="status.set",
        target={"repo": REPO, "sha": SHA},
        fields={"state": "success", "context": "ci"},
        key="k",
        deadline=boot_seconds() + 30,
    )


async def test_the_connector_acts_as_the_installation_of_the_tenant(github: GitHubDouble, key: Path) -> None:
    connector = parse_connectors(settings(github, key))["github"]
    await connector.call(status_call())
    github.expire_tokens()
    await connector.call(status_call())
    assert [row["state"] for row in github.statuses] == ["success", "success"]
    with pytest.raises(CallFailed) as refused:
        await connector.call(status_call("globex"))
    assert (refused.value.fault.outcome, refused.value.fault.code) == ("not_done", "SECRET_UNAVAILABLE")


async def test_a_refused_installation_means_that_nothing_was_done(github: GitHubDouble, key: Path) -> None:
    connector = parse_connectors(settings(github, key, "installation: 99"))["github"]
    with pytest.raises(CallFailed) as refused:
        await connector.call(status_call())
    assert (refused.value.fault.outcome, refused.value.fault.retryable) == ("not_done", False)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("token: env:T", "use either a token or a GitHub App"),
        ("hosts: []", "needs `installation`"),
        ("installation: 0", "must be an integer"),
    ],
)
def test_settings_of_an_app_are_checked(github: GitHubDouble, key: Path, more: str, problem: str) -> None:
    with pytest.raises(TenureError, match=problem):
        parse_connectors(settings(github, key, more))
