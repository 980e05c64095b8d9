"""Artifacts: each belongs to the attempt that uploaded it, and an accepted artifact never changes (I56)."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tenure.client import Client
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import artifact_state
from tenure.kernel.server_rows import ArtifactRow
from tenure.store.artifacts import put_artifact
from tests.server.stage import Site, problem, site
from tests.server.test_runner_leases import claim as claimed
from tests.server.test_runner_leases import say
from tests.server.test_runner_protocol import acme, advance_clock, status


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for artifacts, with PostgreSQL too."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))


async def start(s: Site, plan: list[dict[str, Any]] | None = None) -> str:
    steps = plan or [{"name": "build", "tool": "build", "retries": 3}]
    return await acme(s).create("ci", steps, profile="delta-ci")


async def claim(s: Site, name: str) -> dict[str, Any]:
    """Claim the only ready step."""
    (lease,) = await claimed(await s.as_("runner"), name, ack=True)
    return dict(lease)


async def upload(
    s: Site, lease: dict[str, Any], name: str, body: bytes, kind: str = "text/plain"
) -> httpx.Response:
    """Upload a file as a runner does."""
    caller = await s.caller(lease["token"])
    path = f"/runner/leases/{lease['id']}/artifacts/{quote(name, safe='')}"
    return await caller.put(path, content=body, headers={"Content-Type": kind})


def summary(listed: list[Any]) -> list[tuple[str, str, int, str]]:
    """Name, step, attempt and state of each listed file."""
    return [(one.name, one.step, one.attempt, one.state) for one in listed]


# ------------------------------------------------------------------------------------ who may change a file


@pytest.mark.clause("DCI-12")
async def test_an_ended_lease_cannot_add_files_to_a_succeeded_run(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        lost = await claim(s, "c1")
        assert not (await upload(s, lost, "app.tar", b"of attempt 1")).json()["late"]
        await advance_clock(s, 120)
        won = await claim(s, "c2")
        assert (await upload(s, lost, "app.tar", b"late 1")).json()["late"]
        assert not (await upload(s, won, "app.tar", b"of attempt 2")).json()["late"]
        assert (await say(s, won, "complete", 1)).status_code == 200
        assert await status(s, run) == "succeeded"
        for lease, body in ((lost, b"late 2"), (won, b"late 3")):
            answer = await upload(s, lease, "app.tar", body)
            assert (answer.status_code, answer.json()["late"]) == (200, True)
        viewer = await s.as_("viewer")
        got = await viewer.get(f"/runs/{run}/artifacts/app.tar")
        assert got.content == b"of attempt 2"
        assert got.headers["tenure-artifact"] == "step=build; attempt=2; state=accepted"
        engine = acme(s)
        listed = await engine.runs.list_artifacts(run)
        assert summary(listed) == [
            ("app.tar", "build", 1, "failed"),
            ("app.tar", "build", 1, "late"),
            ("app.tar", "build", 2, "accepted"),
            ("app.tar", "build", 2, "late"),
        ]
        bodies = [b"of attempt 1", b"late 2", b"of attempt 2", b"late 3"]
        for one, body in zip(listed, bodies, strict=True):
            how: dict[str, Any] = {"step": one.step, "attempt": one.attempt, "late": one.late}
            assert await engine.runs.read_artifact(run, "app.tar", **how) == body
            text = {**how, "late": str(one.late).lower()}
            assert (await viewer.get(f"/runs/{run}/artifacts/app.tar", params=text)).content == body
        got = await viewer.get(f"/runs/{run}/artifacts/app.tar?step=build&attempt=1")
        assert got.content == b"of attempt 1", "a file that came in time takes precedence over a late one"


async def test_two_steps_may_upload_files_of_one_name(url: str) -> None:
    async with site(url) as s:
        run = await start(
            s, plan=[{"name": "linux", "tool": "build"}, {"name": "mac", "tool": "build", "needs": []}]
        )
        leases = await claimed(await s.as_("runner"), "c1", max=2, ack=True)
        for lease in leases:
            await upload(s, lease, "report.txt", lease["step"].encode())
        engine, viewer = acme(s), await s.as_("viewer")
        path = f"/runs/{run}/artifacts/report.txt"
        for expected in ("pending", "accepted"):
            answer = await viewer.get(path)
            assert (answer.status_code, problem(answer)) == (409, "ARTIFACT_AMBIGUOUS")
            assert "?step=NAME&attempt=N" in answer.json()["error"]["message"]
            assert "'linux' attempt 1" in answer.json()["error"]["message"]
            with pytest.raises(TenureError, match=r"^ARTIFACT_AMBIGUOUS: .* name its step and attempt$"):
                await engine.runs.read_artifact(run, "report.txt")
            assert summary(await engine.runs.list_artifacts(run)) == [
                ("report.txt", "linux", 1, expected),
                ("report.txt", "mac", 1, expected),
            ]
            for step in ("linux", "mac"):
                assert (await viewer.get(f"{path}?step={step}")).content == step.encode()
                assert (
                    await engine.runs.read_artifact(run, "report.txt", step=step, attempt=1) == step.encode()
                )
            if expected == "pending":
                for lease in leases:
                    await say(s, lease, "complete", 1)


async def test_an_accepted_file_takes_precedence_over_others(url: str) -> None:
    async with site(url) as s:
        run = await start(
            s, plan=[{"name": "linux", "tool": "build"}, {"name": "mac", "tool": "build", "needs": []}]
        )
        one, two = await claimed(await s.as_("runner"), "c1", max=2, ack=True)
        for lease in (one, two):
            await upload(s, lease, "report.txt", lease["step"].encode())
        await say(s, one, "complete", 1)
        assert await acme(s).runs.read_artifact(run, "report.txt") == one["step"].encode()
        caller = await s.caller(two["token"])
        path = f"/runner/leases/{two['id']}/artifacts/report.txt"
        assert (await caller.get(path)).content == one["step"].encode()
        assert (await caller.get(f"{path}?step={two['step']}")).content == two["step"].encode()


async def test_a_failed_steps_file_is_found_unless_a_later_attempt_succeeded(url: str) -> None:
    async with site(url) as s:
        run = await start(s, plan=[{"name": "build", "tool": "build", "retries": 1}])
        first = await claim(s, "c1")
        await upload(s, first, "failures.txt", b"two tests failed")
        await say(s, first, "fail", 1, code="TESTS_FAILED", retryable=True)
        engine = acme(s)
        assert await engine.runs.read_artifact(run, "failures.txt") == b"two tests failed"
        await advance_clock(s, 3600)
        second = await claim(s, "c2")
        await say(s, second, "complete", 1)
        assert await status(s, run) == "succeeded"
        with pytest.raises(TenureError, match="has no accepted artifact") as refused:
            await engine.runs.read_artifact(run, "failures.txt")
        assert refused.value.code == "ARTIFACT_NOT_FOUND"
        assert (
            await engine.runs.read_artifact(run, "failures.txt", step="build", attempt=1)
            == b"two tests failed"
        )


async def test_the_commit_that_records_a_file_checks_the_fence(url: str) -> None:
    """The lease ends after the first check and before the row is committed."""
    async with site(url) as s:
        run = await start(s)
        lease = await claim(s, "c1")
        await upload(s, lease, "app.tar", b"in time")
        put = s.engine.artifacts.put

        async def slowly(body: bytes, run: str) -> bytes:
            reference = await put(body, run)
            await say(s, lease, "complete", 1)
            return reference

        s.engine.artifacts.put = slowly  # type: ignore[method-assign]  # lets the lease end during the upload
        answer = await upload(s, lease, "app.tar", b"too late")
        assert (answer.status_code, answer.json()["late"]) == (200, True)
        assert await acme(s).runs.read_artifact(run, "app.tar") == b"in time"


async def test_a_late_file_is_not_found_by_its_name_alone(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        lease = await claim(s, "c1")
        await say(s, lease, "complete", 1)
        await upload(s, lease, "core.dump", b"bytes")
        viewer = await s.as_("viewer")
        answer = await viewer.get(f"/runs/{run}/artifacts/core.dump")
        assert (answer.status_code, problem(answer)) == (404, "ARTIFACT_NOT_FOUND")
        assert "'build' attempt 1 (late)" in answer.json()["error"]["message"]
        assert (await viewer.get(f"/runs/{run}/artifacts/core.dump?step=build&attempt=1")).content == b"bytes"
        answer = await viewer.get(f"/runs/{run}/artifacts/core.dump?step=build&attempt=1&late=false")
        assert (answer.status_code, problem(answer)) == (404, "ARTIFACT_NOT_FOUND")


async def test_the_number_of_files_of_a_run_is_limited(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.store.artifacts.ARTIFACTS_PER_RUN_MAX", 2)
    async with site(url) as s:
        await start(s)
        lease = await claim(s, "c1")
        answers = [await upload(s, lease, f"file{n}", b"x") for n in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 422]
        assert problem(answers[-1]) == "LIMIT_EXCEEDED"


async def test_a_file_for_a_deleted_run_is_refused(url: str) -> None:
    async with site(url) as s:
        row = ArtifactRow(1, "a", 0, 1, False, "acme", "s", "w", 1, "sha256:" + "0" * 64, "text/plain", 0, 0)
        with pytest.raises(TenureError, match="LEASE_STALE"):
            await put_artifact(s.engine.store, row, late_seconds=600)


@pytest.mark.parametrize(
    ("kind", "step", "attempt", "state"),
    [
        ("work", "running", "running", "pending"),
        ("work", "retry_wait", "failed", "failed"),
        ("work", "succeeded", "succeeded", "accepted"),
        ("work", "waiting_external", "succeeded", "accepted"),
        ("work", "ready", "released", "failed"),
        ("work", "waiting_approval", "suspended", "pending"),
        ("work", "succeeded", "suspended", "accepted"),
        ("work", "failed", "suspended", "failed"),
        ("body", "running", "stale", "pending"),
        ("body", "succeeded", "stale", "accepted"),
        ("body", "canceled", "released", "failed"),
    ],
)
def test_the_acceptance_of_a_file_follows_from_its_attempt(
    kind: str, step: str, attempt: str, state: str
) -> None:
    assert artifact_state(late=False, kind=kind, step=step, attempt=attempt) == state
    assert artifact_state(late=True, kind=kind, step=step, attempt=attempt) == "late"


# ----------------------------------------------------------------------------------------------- names


NAMES = ["logs/build.txt", "a b%2F.txt", "ü/ñ+?#&=.txt", "100%", "a/b/c/d", "..hidden", "x..y/z", "%2e%2e"]


async def test_every_file_name_is_read_back_unchanged(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        lease = await claim(s, "c1")
        caller, viewer = await s.caller(lease["token"]), await s.as_("viewer")
        for name in NAMES:
            answer = await upload(s, lease, name, name.encode())
            assert (answer.status_code, answer.json().get("name")) == (200, name)
            path = f"/runner/leases/{lease['id']}/artifacts/"
            assert (await caller.get(path + quote(name, safe=""))).content == name.encode()
            assert (await caller.get(path + quote(name))).content == name.encode(), (
                "unescaped slashes are accepted"
            )
        listed = (await viewer.get(f"/runs/{run}/artifacts")).json()["items"]
        assert sorted(one["name"] for one in listed) == sorted(NAMES)
        key = viewer.headers["Authorization"].removeprefix("Bearer ")
        async with Client(s.address, key) as client:
            assert {one.name for one in await client.runs.list_artifacts(run)} == set(NAMES)
            for name in NAMES:
                for safe in ("", "/"):
                    got = await viewer.get(f"/runs/{run}/artifacts/{quote(name, safe=safe)}")
                    assert (got.status_code, got.content) == (200, name.encode())
                assert await client.runs.read_artifact(run, name) == name.encode()
                assert await acme(s).runs.read_artifact(run, name) == name.encode()


async def test_pages_of_files_continue_where_the_last_one_ended(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        lease = await claim(s, "c1")
        for name in "abc":
            await upload(s, lease, name, b"1")
        await say(s, lease, "complete", 1)
        for name in "abc":
            await upload(s, lease, name, b"2")
        viewer, more, found = await s.as_("viewer"), "", list[tuple[str, bool]]()
        for _ in range(6):
            page = (await viewer.get(f"/runs/{run}/artifacts?limit=1{more}")).json()
            found += [(one["name"], one["late"]) for one in page["items"]]
            more = f"&cursor={page['next_cursor']}"
        assert more == "&cursor=None"
        assert found == [(name, late) for name in "abc" for late in (False, True)]


@pytest.mark.parametrize(
    "name", ["..", ".", "../x", "a/../b", "/etc/passwd", "a//b", "a/", "a/.", "..\\x", "\x00", "a\nb"]
)
async def test_file_names_that_leave_the_folder_are_refused(url: str, name: str) -> None:
    async with site(url) as s:
        run = await start(s)
        lease = await claim(s, "c1")
        caller, viewer = await s.caller(lease["token"]), await s.as_("viewer")
        encoded = "".join(
            f"%{byte:02X}" for byte in name.encode()
        )  # so that no HTTP client normalizes the path
        answer = await caller.put(f"/runner/leases/{lease['id']}/artifacts/{encoded}", content=b"x")
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        answer = await viewer.get(f"/runs/{run}/artifacts/{encoded}")
        assert (answer.status_code, problem(answer)) == (404, "ARTIFACT_NOT_FOUND")
        assert await acme(s).runs.list_artifacts(run) == []
        with pytest.raises(TenureError, match="ARTIFACT_NOT_FOUND"):
            await acme(s).runs.read_artifact(run, name)


@pytest.mark.clause("DCI-12")
async def test_a_file_is_sent_as_a_download(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        lease = await claim(s, "c1")
        files = {"logs/build.txt": ("text/plain", b"first\n"), "page.html": ('text/html; x="1', b"<script>")}
        for name, (kind, body) in files.items():
            assert (await upload(s, lease, name, body, kind)).status_code == 200
        viewer = await s.as_("viewer")
        for name, (kind, body) in files.items():
            got = await viewer.get(f"/runs/{run}/artifacts/{quote(name, safe='')}")
            assert got.content == body
            assert got.headers["content-disposition"].startswith("attachment")
            assert got.headers["x-content-type-options"] == "nosniff"
            wanted = kind if kind == "text/plain" else "application/octet-stream"
            assert got.headers["content-type"].startswith(wanted)
            again = await viewer.get(got.url, headers={"If-None-Match": got.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        stranger = await s.as_("viewer", tenant="globex")
        answer = await stranger.get(f"/runs/{run}/artifacts/page.html")
        assert (answer.status_code, problem(answer)) == (404, "RUN_NOT_FOUND")
