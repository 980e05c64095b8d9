"""The status reporter against a double of GitHub: what checks show, in which order, and when a run is REPORTED."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.commands import Context, MarkReported
from tenure.publish import vcs_reporter
from tenure.publish.check_states import JOB_PREFIX, find_places, make_external_id, read_annotations
from tenure.publish.vcs_settings import parse_vcs_settings
from tenure.shapes.reports import VcsTarget
from tenure.store.vcs_reports import VcsReports
from tenure.testing.doubles import GitHubDouble, pull_request_event, push_event
from tests.server.stage import problem
from tests.server.vcs_stage import (
    REPO,
    SHA,
    TARGET,
    check_order,
    start_github,
    vcs_site,
    wait_until,
)
from tests.server.webhook_senders import SECRET, SECRET_NAME, make_hook, register


@pytest.fixture
def github(tmp_path: Path) -> Iterator[tuple[GitHubDouble, Path]]:
    yield from start_github(tmp_path)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are shorter; their order is the same."""
    monkeypatch.setattr(vcs_reporter, "DELAYS_SECONDS", (0.2, 0.2, 0.2, 0.2, 0.2))
    monkeypatch.setattr(vcs_reporter, "MERGE_SECONDS", 0.05)
    monkeypatch.setattr(vcs_reporter, "IN_FLIGHT_SECONDS", 0.2)


# ------------------------------------------------------------------------------------------------ the story


async def test_every_job_has_one_check_run_that_follows_it_to_its_end(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(url, github, more="statuses: true") as v:
        run = await v.start()
        await v.check(run, "job:build", "queued")
        await v.check(run, "job:test", "queued")
        assert v.github.statuses[0]["state"] == "pending"
        lease = await v.claim()
        build = await v.check(run, "job:build", "in_progress")
        assert build["output"]["title"] == "Attempt 1 of 3"
        assert [action["identifier"] for action in build["actions"]] == ["cancel"]
        await v.check(run, "run", "in_progress")
        await v.complete(lease)
        build = await v.check(run, "job:build", "completed")
        assert (build["conclusion"], build["name"]) == ("success", "ci / build")
        assert build["details_url"] == f"https://ci.example.com/runs/{run}/page"
        assert (await v.run(run)).shown == "RUNNING"
        await v.fail(await v.claim(), message=b"undefined name")
        done = await v.reported(run)
        assert (done.status, done.shown) == ("failed", "REPORTED")
        test = await v.check(run, "job:test", "completed")
        assert test["conclusion"] == "failure"
        assert "COMPILE_ERROR" in test["output"]["summary"]
        assert "    undefined name" in test["output"]["summary"]
        whole = await v.check(run, "run", "completed")
        assert (whole["conclusion"], whole["name"], whole["actions"]) == ("failure", "ci", [])
        assert v.github.statuses[0]["state"] == "failure"
        assert v.github.statuses[0]["context"] == "tenure/ci"
        assert [one["state"] for one in v.github.statuses] == ["failure", "pending"]
        check_order(v.github.check_writes)
        assert v.github.check_writes[-1].external_id == f"{run}:run"
        assert (await v.report(run, "reported")).next_try_at is None


async def test_a_timeout_is_reported_as_a_failure(url: str, github: tuple[GitHubDouble, Path]) -> None:
    async with vcs_site(url, github, more="statuses: true") as v:
        run = await v.start("build", timeout=0.2)
        await v.claim()
        done = await v.reported(run)
        assert done.status == "timed_out"
        assert (await v.check(run, "run", "completed"))["conclusion"] == "timed_out"
        assert v.github.statuses[0]["state"] == "failure"


async def test_a_canceled_run_and_its_jobs_are_cancelled(url: str, github: tuple[GitHubDouble, Path]) -> None:
    async with vcs_site(url, github) as v:
        run = await v.start()
        await v.engine.cancel(run)
        await v.reported(run)
        for part in ("run", "job:build", "job:test"):
            assert (await v.check(run, part, "completed"))["conclusion"] == "cancelled"
        assert v.github.statuses == []


async def test_a_job_that_is_tried_again_stays_in_progress(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(url, github) as v:
        run = await v.start("build")
        await v.fail(await v.claim(), "INFRA_DOWN")

        async def look() -> bool:
            check = await v.check(run, "job:build", "in_progress")
            return bool(check["output"]["title"] == "Attempt 1 of 3")

        await wait_until(look, "the first attempt to be shown")
        await v.engine.cancel(run)
        await v.reported(run)
        check_order(v.github.check_writes)


async def test_a_job_that_is_not_required_is_neutral(url: str, github: tuple[GitHubDouble, Path]) -> None:
    async with vcs_site(url, github) as v:
        run = await v.start({"name": "lint", "required": False})
        await v.fail(await v.claim())
        assert (await v.reported(run)).status == "succeeded"
        assert (await v.check(run, "job:lint", "completed"))["conclusion"] == "neutral"


async def test_a_failed_plan_is_shown_with_its_place(url: str, github: tuple[GitHubDouble, Path]) -> None:
    async with vcs_site(url, github) as v:
        run = await v.engine.create("ci", planner={"tool": "ci.plan"}, profile="delta-ci", vcs_target=TARGET)
        planning = await v.check(run, "run", "queued")
        assert planning["output"]["title"] == "Planning"
        message = b".tenure/ci.yaml:3:5: jobs.build: unknown key 'need'"
        await v.fail(await v.claim(), "PLAN_FAILED", message)
        await v.reported(run)
        check = await v.check(run, "run", "completed")
        assert (check["conclusion"], check["output"]["title"]) == ("failure", "Planning failed")
        [place] = check["output"]["annotations"]
        assert (place["path"], place["start_line"]) == (".tenure/ci.yaml", 3)
        assert place["message"] == "jobs.build: unknown key 'need'"


async def test_annotations_of_a_job_are_shown_once_even_if_the_answer_is_lost(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(url, github) as v:
        run = await v.start("test")
        await v.check(run, "job:test", "queued")
        lease = await v.claim()
        await v.check(run, "job:test", "in_progress")
        await v.check(run, "run", "in_progress")
        v.github.trouble(drop="after")
        listed = [{"path": "a.py", "line": n, "message": f"test {n} failed"} for n in range(1, 61)]
        await v.complete(lease, json.dumps({"annotations": [*listed, {"path": "/etc/passwd"}]}).encode())
        await v.reported(run)
        output = (await v.check(run, "job:test", "completed"))["output"]
        assert [one["start_line"] for one in output["annotations"]] == [*range(1, 51)]
        assert "10 more annotations are not shown" in output["summary"]


# ------------------------------------------------------------------------------- crashes, outages, limits


async def test_nothing_is_lost_or_doubled_when_answers_are_lost(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(url, github, more="statuses: true") as v:
        for _ in range(4):  # handled with a lost answer, refused, not handled at all
            v.github.trouble(drop="after")
            v.github.trouble(status=502)
            v.github.trouble(drop="before")
        run = await v.start()
        await v.work_off(None, None)
        await v.reported(run)
        check_order(v.github.check_writes)
        assert sorted(check["external_id"] for check in v.github.checks.values()) == sorted(
            f"{run}:{part}" for part in ("run", "job:build", "job:test")
        )
        assert {check["conclusion"] for check in v.github.checks.values()} == {"success"}
        assert v.github.statuses[0]["state"] == "success"
        assert len({(one["state"], one["description"]) for one in v.github.statuses}) == len(
            v.github.statuses
        )


async def test_an_outage_is_waited_for(url: str, github: tuple[GitHubDouble, Path]) -> None:
    async with vcs_site(url, github) as v:
        v.github.outage = True
        run = await v.start()
        await v.work_off(None, None)

        async def tried() -> bool:
            return any(one.tries >= 2 for one in await v.engine.reports.list(state="open"))

        await wait_until(tried, "two tries")
        assert v.github.checks == {}
        assert (await v.run(run)).reported_at is None
        v.github.outage = False
        await v.reported(run)
        # The states in between were merged: every check run was created in its final state.
        assert [write.status for write in v.github.check_writes] == ["completed"] * 3


async def test_a_rate_limit_pauses_its_installation_and_nobody_else(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    double, _ = github
    double.install_app("globex/app", installation=88)
    other = "- {tenant: acme, installation: 88, repositories: [globex/app]}"
    async with vcs_site(url, github, more=f"statuses: false\n    {other}") as v:
        double.limit_rate(1, 3_600.0)
        limited = [await v.start("build"), await v.start("lint")]

        async def paused() -> bool:
            errors = [one.error or "" for one in await v.engine.reports.list(state="open")]
            return len([error for error in errors if "rate limit" in error]) == 2

        await wait_until(paused, "the rate limit")
        free = await v.start("docs", target=VcsTarget(repository="globex/app", head_sha=SHA))
        await v.engine.cancel(free)
        await v.reported(free)
        late = await v.start("more")

        async def seen() -> bool:
            return len([one for one in await v.engine.reports.list(state="open") if one.error]) == 3

        await wait_until(seen, "the new run")
        assert double.refused_by_limit <= 2, "it kept asking during the pause"
        for run in (*limited, late):
            await v.engine.cancel(run)
            assert (await v.run(run)).reported_at is None


async def test_a_report_goes_on_when_the_rate_limit_is_over(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(url, github) as v:
        v.github.limit_rate(1, 2.0)
        run = await v.start("build")
        await v.engine.cancel(run)
        await v.reported(run)
        check_order(v.github.check_writes)


async def test_a_secondary_rate_limit_is_waited_for(url: str, github: tuple[GitHubDouble, Path]) -> None:
    async with vcs_site(url, github) as v:
        v.github.limit(second=True, seconds=1)
        run = await v.start("build")
        await v.work_off(None)
        await v.reported(run)
        check_order(v.github.check_writes)


# --------------------------------------------------------------------------------------------- refusals


@pytest.mark.clause("DCI-24")
async def test_a_refused_report_is_listed_and_never_reported_until_a_person_retries_it(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(url, github) as v:
        v.github.set_permissions(77, checks="read")
        run = await v.start("build")
        await v.work_off(None)
        viewer, operator = await v.s.as_("viewer"), await v.s.as_("operator")

        async def refused() -> dict[str, Any] | None:
            items = (await viewer.get("/reports", params={"state": "refused"})).json()["items"]
            return items[0] if items else None

        listed = await wait_until(refused, "the refusal")
        assert listed["error"] == "HTTP 403: Resource not accessible by integration"
        assert (listed["run_id"], listed["next_try_at"]) == (run, None)
        # A person's statement does not make it REPORTED.
        stated = await operator.post(f"/runs/{run}/reported")
        assert stated.json()["reported"] is False
        assert (await v.run(run)).shown == "SUCCESS"
        assert (await viewer.post(f"/reports/{run}/retry")).status_code == 403
        assert problem(await viewer.get("/reports/run_2026-02-14_080000_abc123")) == "RUN_NOT_FOUND"
        v.github.set_permissions(77, checks="write")
        assert (await operator.post(f"/reports/{run}/retry")).json()["state"] == "open"
        assert (await v.reported(run)).shown == "REPORTED"
        await v.report(run, "reported")
        assert problem(await operator.post(f"/reports/{run}/retry")) == "REPORT_NOT_RETRYABLE"
        other = await v.s.as_("viewer", tenant="globex")
        assert (await other.get("/reports")).json()["items"] == []
        assert problem(await other.get(f"/reports/{run}")) == "RUN_NOT_FOUND"


@pytest.mark.parametrize(
    ("target", "error"),
    [
        (VcsTarget(repository=REPO, head_sha="f" * 40), "No commit found"),
        (VcsTarget(repository="globex/secret", head_sha=SHA), "may not report to globex/secret"),
    ],
)
async def test_a_target_that_is_wrong_is_refused_for_good(
    tmp_path: Path, github: tuple[GitHubDouble, Path], target: VcsTarget, error: str
) -> None:
    async with vcs_site(f"sqlite:{tmp_path / 'x.db'}", github) as v:
        run = await v.start("build", target=target)
        assert error in ((await v.report(run, "refused")).error or "")
        await v.work_off(None)
        assert (await v.run(run)).reported_at is None


async def test_only_the_reporter_of_the_target_makes_a_run_reported(
    tmp_path: Path, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(f"sqlite:{tmp_path / 'x.db'}", github) as v:
        v.github.outage = True
        run = await v.start("build")
        await v.work_off(None)
        number = ids.run_int(run)
        for command in (
            MarkReported(run_id=number, context=Context("ada", "user", "x")),
            MarkReported(run_id=number),
            MarkReported(run_id=number, target='{"head_sha":"x"}'),
        ):
            with pytest.raises(TenureError) as refused:
                await v.engine.orchestrator.send(command)
            assert refused.value.code == "FORBIDDEN"
        await v.engine.runs.mark_reported(run)
        assert (await v.run(run)).shown == "SUCCESS"


async def test_a_state_that_github_does_not_show_is_written_again_before_the_run_is_reported(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(url, github) as v:
        double = v.github
        run = await v.start("build")
        await v.check(run, "run", "queued")
        tampered: list[int] = []

        def overwrite(_number: int) -> None:
            """Somebody else changes the check run of the job when the run's is completed."""
            last = double.check_writes[-1]
            if last.external_id == f"{run}:run" and last.status == "completed" and not tampered:
                [check] = double.find_checks(f"{run}:job:build")
                check["conclusion"] = "success"
                tampered.append(check["id"])

        double.on_write = overwrite
        await v.fail(await v.claim())
        await v.reported(run)
        assert tampered
        assert (await v.check(run, "job:build", "completed"))["conclusion"] == "failure"


# ------------------------------------------------------------------------------------------------- order


async def test_a_holder_that_was_too_slow_writes_nothing_more(
    tmp_path: Path, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(f"sqlite:{tmp_path / 'x.db'}", github) as v:
        reports = VcsReports(v.engine.store)
        reporter = v.s.service.reporter
        assert reporter is not None
        await reporter.stop()
        run = ids.run_int(await v.start("build"))
        await reporter._open_after(0)
        [first] = await reports.take("one", 0.0, 10)
        [second] = await reports.take("two", 60.0, 10)
        assert (first.run_id, second.fence) == (run, first.fence + 1)
        assert not await reports.keep(first, 60.0)
        assert not await reports.put(msgspec.structs.replace(first, state="reported"), None)
        assert await reports.take("three", 60.0, 10) == []
        assert await reports.put(msgspec.structs.replace(second, seen=99), 0.0)


async def test_reports_of_one_commit_are_finished_in_the_order_of_their_runs(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(url, github, more="statuses: true") as v:
        v.github.outage = True
        first = await v.start("build")
        await v.fail(await v.claim())
        second = await v.engine.runs.rerun(first)
        await v.work_off(None)
        assert (await v.engine.store.read("get_spec", ids.run_int(second)))[0].vcs_target is not None
        v.github.outage = False
        await v.reported(first)
        await v.reported(second)
        runs = [write.external_id.partition(":")[0] for write in v.github.check_writes]
        assert runs == sorted(runs, key=[first, second].index)
        # The older run's failure must not hide the newer run's success.
        assert [one["state"] for one in v.github.statuses] == ["success"]


async def test_states_that_follow_each_other_quickly_are_merged(
    url: str, github: tuple[GitHubDouble, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vcs_reporter, "MERGE_SECONDS", 30.0)
    async with vcs_site(url, github) as v:
        run = await v.start("build")
        await v.check(run, "job:build", "queued")

        async def given_back() -> bool:
            row = await VcsReports(v.engine.store).find(ids.run_int(run))
            return row is not None and row.holder == "" and row.seen > 0

        await wait_until(given_back, "the first round to end")
        await v.work_off(None)
        assert [write.status for write in v.github.check_writes] == ["queued", "queued"]
        await v.engine.reports.retry(run)
        await v.reported(run)
        assert [write.status for write in v.github.check_writes] == ["queued"] * 2 + ["completed"] * 2


async def test_runs_without_a_target_are_not_reported(url: str, github: tuple[GitHubDouble, Path]) -> None:
    async with vcs_site(url, github) as v:
        run = await v.start("build", target=None)
        other = await v.start("lint")
        await v.work_off(None, None)
        await v.reported(other)
        assert (await v.run(run)).shown == "SUCCESS"
        assert [one.run_id for one in await v.engine.reports.list()] == [other]
        with pytest.raises(TenureError) as missing:
            await v.engine.reports.get(run)
        assert missing.value.code == "REPORT_NOT_FOUND"


# ------------------------------------------------------------------------------------------------- hooks


async def test_only_a_hook_that_reports_sets_a_target_and_only_for_a_commit(
    tmp_path: Path, github: tuple[GitHubDouble, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    async with vcs_site(f"sqlite:{tmp_path / 'x.db'}", github) as v:
        await register(v.s, "review")

        async def target_of(settings: dict[str, Any], event: str, payload: dict[str, Any]) -> str | None:
            hook = await make_hook(v.s, "github", {"workflow": "review"}, settings=settings)
            answer = await asyncio.to_thread(
                v.github.send_event, v.s.address + hook["address"], event, payload, secret=SECRET
            )
            row = (await v.engine.store.read("get_spec", ids.run_int(answer.json["run_id"])))[0]
            found: str | None = row.vcs_target
            return found

        on: dict[str, Any] = {"reports": True}
        assert await target_of({}, "push", push_event(REPO, SHA)) is None
        pushed = await target_of(on, "push", push_event(REPO, SHA))
        assert pushed == msgspec.json.encode(TARGET, order="sorted").decode()
        opened = await target_of(on, "pull_request", pull_request_event(REPO, 7, SHA))
        assert msgspec.json.decode(opened or "", type=VcsTarget).pull_request == 7
        # A deleted branch, and an event without a commit.
        assert await target_of(on, "push", push_event(REPO, "0" * 40, ref="refs/heads/old")) is None
        assert await target_of(on, "star", {"repository": {"full_name": REPO}}) is None


async def test_a_button_reaches_only_runs_of_the_hooks_tenant(
    tmp_path: Path, github: tuple[GitHubDouble, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_SECRET_globex_HOOK", SECRET)
    monkeypatch.setenv(SECRET_NAME, SECRET)
    async with vcs_site(f"sqlite:{tmp_path / 'x.db'}", github) as v:
        run = await v.start("build")
        check = await v.check(run, "run", "queued")
        press = v.github.check_run_event(check["id"], "requested_action", identifier="cancel")
        outcomes = []
        for tenant, settings in (("globex", {"reports": True}), ("acme", {}), ("acme", {"reports": True})):
            hook = await make_hook(v.s, "github", tenant=tenant, settings=settings)
            answer = await asyncio.to_thread(
                v.github.send_event, v.s.address + hook["address"], "check_run", press, secret=SECRET
            )
            outcomes.append((answer.json["status"], (await v.run(run)).status))
        assert outcomes == [("ignored", "queued"), ("ignored", "queued"), ("done", "canceled")]


async def test_the_page_of_a_run_escapes_what_users_wrote(
    tmp_path: Path, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(f"sqlite:{tmp_path / 'x.db'}", github) as v:
        run = await v.start("<script>alert(1)</script>")
        await v.fail(await v.claim(), message=b"<img src=x>")
        page = await (await v.s.as_("viewer")).get(f"/runs/{run}/page")
        assert page.status_code == 200
        assert "&lt;script&gt;" in page.text
        assert "<script" not in page.text
        assert "<img" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        other = await v.s.as_("viewer", tenant="globex")
        assert problem(await other.get(f"/runs/{run}/page")) == "RUN_NOT_FOUND"


async def test_reports_are_listed_and_retried_on_the_command_line(
    tmp_path: Path, github: tuple[GitHubDouble, Path]
) -> None:
    path = tmp_path / "x.db"
    async with vcs_site(f"sqlite:{path}", github) as v:
        v.github.set_permissions(77, checks="read")
        run = await v.start("build")
        await v.report(run, "refused")

        async def tenure(*words: str) -> str:
            running = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tenure.cli", "ci", "reports", *words, "--tenant", "acme", "--db", str(path),
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            output, _ = await running.communicate()
            assert running.returncode == 0
            return output.decode()

        [listed] = json.loads(await tenure("list", "--state", "refused", "--json"))
        assert (listed["run_id"], listed["repository"]) == (run, REPO)
        assert "not accessible" in await tenure("show", run)
        v.github.set_permissions(77, checks="write")
        assert "is open" in await tenure("retry", run)
        await v.check(run, "run", "queued")


# ------------------------------------------------------------------------------------------------- texts


def test_places_in_errors_become_annotations() -> None:
    [one] = find_places("ci.yaml:3:5: unknown key")
    assert (one.path, one.line, one.message) == ("ci.yaml", 3, "unknown key")
    [two] = find_places({"file": "a/b.yaml", "line": 7, "message": "wrong"})
    assert (two.path, two.line, two.message) == ("a/b.yaml", 7, "wrong")
    for nothing in (None, "no place", "/etc/passwd:1: x", "../x:1: y", {"file": "x", "line": "3"}, b"\xff"):
        assert find_places(nothing) == ()


def test_annotations_are_bounded_and_cleaned() -> None:
    given = [
        {"path": "./a.py", "line": 1, "message": "x" * 9_000, "title": "t\n<b>"},
        {"path": "a.py", "line": 0, "message": "x"},
        {"path": "../a.py", "line": 1, "message": "x"},
        {"path": "a.py", "line": 1, "message": "x", "level": "fatal"},
        "text",
    ]
    [one] = read_annotations({"annotations": given})
    assert (one.path, len(one.message), one.title) == ("a.py", 4_000, "t <b>")
    assert read_annotations({"annotations": "text"}) == read_annotations(None) == ()


def test_external_ids_begin_with_the_run_and_differ() -> None:
    run = ids.run_int("run_2026-02-14_080000_abc123")
    parts = [f"{JOB_PREFIX}{name}" for name in ("a", "ä", "x" * 300, "x" * 301)]
    made = [make_external_id(run, part) for part in parts]
    assert len(set(made)) == 4
    assert all(one.startswith("run_2026-02-14_080000_abc123:") and len(one) <= 120 for one in made)
    assert all(one.isascii() for one in made)


@pytest.mark.parametrize(
    ("text", "problem_text"),
    [
        ("github: {}", "app_id"),
        ("github: {app_id: 1, private_key: abc, targets: []}", "must be a reference"),
        (
            "github: {app_id: 1, private_key: 'env:K', base_url: 'http://x', targets: []}",
            "must be an https URL",
        ),
        ("gitlab: {}", "gitlab"),
    ],
)
def test_the_settings_file_is_checked(text: str, problem_text: str) -> None:
    with pytest.raises(TenureError, match=problem_text) as refused:
        parse_vcs_settings(text)
    assert refused.value.code == "VCS_SETTINGS_INVALID"
