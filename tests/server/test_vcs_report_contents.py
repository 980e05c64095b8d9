"""What checks say besides states, over a double of GitHub: failed tests, reused jobs, approvals of secrets, jobs without a check."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure import ids
from tenure.ci.change import build_pull_request_change
from tenure.ci.planner import PlannedChange
from tenure.ci.secrets_gate import add_secrets_gate
from tenure.ci.settings import RepositorySettings
from tenure.kernel.commands import StepSpec
from tenure.publish import check_states, vcs_reporter
from tenure.publish.check_states import find_test_place
from tenure.services import ci_runs
from tenure.shapes.reports import VcsTarget
from tenure.shapes.test_reports import FailedCase
from tenure.testing.doubles import GitHubDouble
from tenure.testing.git_host import GitHost, git
from tests.server.job_files import COMMIT, job, lease, step
from tests.server.stage import problem
from tests.server.vcs_stage import PATIENCE_SECONDS, REPO, SHA, TARGET, start_github, vcs_site, wait_until
from tests.server.webhook_senders import SECRET, SECRET_NAME, make_hook

OTHER_SHA = "9" * 40
CI_SETTINGS = """\
repositories:
  app: {{url: "{url}", tenant: acme, github: acme/app, protocols: [http]}}
  gone: {{url: "{gone}", tenant: acme, github: acme/gone, protocols: [http]}}
  inside: {{url: "{gone}", tenant: acme, protocols: [http]}}
"""


@pytest.fixture
def github(tmp_path: Path) -> Iterator[tuple[GitHubDouble, Path]]:
    yield from start_github(tmp_path)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are shorter; their order is the same."""
    monkeypatch.setattr(vcs_reporter, "MERGE_SECONDS", 0.05)


# ------------------------------------------------------------------------------------------------ tests


def failed_case(n: int, **more: Any) -> dict[str, Any]:
    return {"test": f"tests.test_cart.test_{n}", "message": f"{n} != 0", **more}


async def test_failed_tests_of_a_job_are_annotations_where_their_place_is_known(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(url, github) as v:
        run = await v.engine.create("ci", [step("unit", retries=0)], profile="delta-ci", vcs_target=TARGET)
        held = await lease(v.s)
        cases = [
            failed_case(1, file="tests/test_cart.py", line=11),
            failed_case(2, message="assert 3 == 4\n\ntests/test_cart.py:27: AssertionError"),
            failed_case(3, message="<b>@everybody</b>"),
            failed_case(4, file="/etc/passwd", line=1),
        ]
        report = {"passed": 9, "failed": 5, "skipped": 1, "failed_cases": cases}
        assert (await held.report(**report)).json() == {"late": False}
        assert (await held.say("fail", code="TEST_FAILED", message="5 tests failed")).status_code == 200
        assert (await v.reported(run)).status == "failed"
        check = await v.check(run, "job:unit", "completed")
        output = check["output"]
        assert [
            (one["path"], one["start_line"], one["title"], one["annotation_level"])
            for one in output["annotations"]
        ] == [
            ("tests/test_cart.py", 11, "tests.test_cart.test_1", "failure"),
            ("tests/test_cart.py", 27, "tests.test_cart.test_2", "failure"),
        ]
        assert output["annotations"][0]["message"] == "1 != 0"
        assert "Tests: 5 failed, 9 passed, 1 skipped." in output["summary"]
        assert "- tests.test\\_cart.test\\_3: \\<b\\>@\u200beverybody\\</b\\>" in output["summary"]
        assert "- tests.test\\_cart.test\\_4: 4 != 0".replace("!", "\\!") in output["summary"]
        assert "1 more failed tests are not shown." in output["summary"]


async def test_at_most_50_annotations_are_shown_and_none_for_a_line_twice(
    tmp_path: Path, github: tuple[GitHubDouble, Path]
) -> None:
    async with vcs_site(f"sqlite:{tmp_path / 'x.db'}", github) as v:
        run = await v.engine.create("ci", [step("unit")], profile="delta-ci", vcs_target=TARGET)
        held = await lease(v.s)
        cases = [failed_case(n, file="tests/test_cart.py", line=n) for n in range(1, 101)]
        await held.report(passed=1, failed=100, failed_cases=cases)
        own = {"path": "tests/test_cart.py", "line": 1, "message": "its own words", "level": "notice"}
        await held.say("complete", output={"annotations": [own]})
        assert (await v.reported(run)).status == "succeeded"
        output = (await v.check(run, "job:unit", "completed"))["output"]
        lines = [one["start_line"] for one in output["annotations"]]
        assert lines == [*range(1, 51)]
        levels = [one["annotation_level"] for one in output["annotations"]]
        assert levels == ["notice", *["warning"] * 49], "the job succeeded all the same"
        assert "50 more failed tests are not shown." in output["summary"]


def test_the_place_of_a_failed_test() -> None:
    def place(message: str = "", file: str = "", line: int | None = None) -> tuple[str, int] | None:
        return find_test_place(FailedCase(test="t", message=message, file=file, line=line))

    trace = "a.py:3: in test_x\n    help()\nlib/help.py:7: ValueError"
    assert place(trace) == ("lib/help.py", 7)
    assert place(trace, "a.py", 1) == ("a.py", 3), "the line that failed, not the line of the function"
    assert place("no place", "./a.py", 0) == ("a.py", 1), "counted from 0"
    assert place("no place", "a.py") is None
    assert place(f"{trace}\n/usr/lib/python3/json.py:9: KeyError") == ("lib/help.py", 7)
    assert place("E   see x:12: wrong\nhttp://host:80: no") is None
    assert place("", "../a.py", 3) is None


# ------------------------------------------------------------------------------------------------ reused jobs


async def test_a_reused_job_says_where_its_result_comes_from(
    url: str, github: tuple[GitHubDouble, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))
    async with vcs_site(url, github) as v:
        plan = [step("unit", reuse={"scope": "trusted:web", "digest": "ab" * 32})]
        first = await v.engine.create("ci", plan, profile="delta-ci", vcs_target=TARGET)
        held = await lease(v.s)
        await held.say("complete", output={"ok": True})
        await v.reported(first)
        second = await v.engine.create("ci", plan, profile="delta-ci", vcs_target=TARGET)
        assert (await v.reported(second)).status == "succeeded"
        check = await v.check(second, "job:unit", "completed")
        assert check["conclusion"] == "success"
        assert check["output"]["title"] == f"Reused from run {first} step unit"
        assert f"step unit of run `{first}` had the same inputs" in check["output"]["summary"]
        first_check = await v.check(first, "job:unit", "completed")
        assert first_check["output"]["title"] == "The job succeeded"


# ------------------------------------------------------------------------------------------------ approvals


def gated_plan() -> list[StepSpec]:
    """The plan of a pull request: `test` needs nothing, `deploy` needs a secret."""
    settings = RepositorySettings(name="web", url="https://example.com/web.git")
    change = build_pull_request_change(
        settings, number=7, head=COMMIT, base="b" * 40, base_branch="main", fork=True
    )
    jobs = (
        StepSpec(name="test", tool="ci.job", needs=(), input=msgspec.json.encode(job())),
        StepSpec(
            name="deploy", tool="ci.job", needs=(), input=msgspec.json.encode(job() | {"secrets": ["TOKEN"]})
        ),
    )
    planned = PlannedChange(steps=jobs, jobs=(), head=COMMIT, base="", config_digest="d" * 64)
    return list(add_secrets_gate(change, planned).steps)


async def test_a_run_that_waits_for_an_approval_of_secrets_says_so(
    url: str, github: tuple[GitHubDouble, Path]
) -> None:
    title = "Waiting for an approval of secrets"
    async with vcs_site(url, github) as v:
        run = await v.engine.create("ci", gated_plan(), profile="delta-ci", vcs_target=TARGET)
        held = await lease(v.s)
        assert held.lease["step"] == "test"
        await held.say("complete")

        async def shown() -> dict[str, Any] | None:
            found = await v.check(run, "run", "in_progress")
            return found if found["output"]["title"] == title else None

        whole = await wait_until(shown, "the title of the run's check")
        assert "decides about the approval secrets" in whole["output"]["summary"]
        await v.check(run, "job:test", "completed")
        behind = await v.check(run, "job:deploy", "queued")
        assert behind["output"]["title"] == title
        assert v.github.find_checks(f"{run}:secrets") == []
        assert v.github.find_checks(f"{run}:job:secrets") == []
        [asked] = [one for one in await v.engine.approvals.list() if one.run_id == run]
        await v.engine.approvals.approve(run, approver="eve", digest=asked.digest)
        held = await lease(v.s)
        assert held.lease["step"] == "deploy"
        await held.say("complete")
        assert (await v.reported(run)).status == "succeeded"
        final = await v.check(run, "run", "completed")
        assert final["output"]["title"] == "The run succeeded"
        assert (await v.check(run, "job:deploy", "completed"))["conclusion"] == "success"


# ------------------------------------------------------------------------------------------------ many jobs


async def test_jobs_without_a_check_of_their_own_are_counted_in_the_runs_check(
    url: str, github: tuple[GitHubDouble, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_states, "JOBS_MAX", 2)
    said = "3 more jobs have no check of their own: only the first 2 jobs of a run have."
    async with vcs_site(url, github) as v:
        run = await v.start(*[{"name": f"j{n}", "needs": []} for n in range(5)])
        whole = await v.check(run, "run", "queued")
        assert said in whole["output"]["summary"]
        await v.engine.cancel(run)
        await v.reported(run)
        whole = await v.check(run, "run", "completed")
        assert said in whole["output"]["summary"]
        assert "3 more jobs are not listed." in whole["output"]["summary"]
        assert sorted(check["external_id"] for check in v.github.checks.values()) == [
            f"{run}:{part}" for part in ("job:j0", "job:j1", "run")
        ]
        steps = await v.engine.store.read("steps_of", ids.run_int(run))
        assert len(steps) == 5


# ------------------------------------------------------------------------------------------- Re-run all checks


async def test_rerun_all_checks_reruns_the_newest_run_of_the_commit_once(
    url: str, github: tuple[GitHubDouble, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    monkeypatch.setenv("TENURE_SECRET_globex_HOOK", SECRET)
    async with vcs_site(url, github) as v:
        v.github.commits[REPO].add(OTHER_SHA)
        older, newer = await v.start("build"), await v.start("build")
        other = await v.start("build", target=VcsTarget(repository=REPO, head_sha=OTHER_SHA))
        for run in (older, newer, other):
            await v.engine.cancel(run)
            await v.reported(run)

        async def press(hook: dict[str, Any], delivery: str, sha: str = SHA, repo: str = REPO) -> Any:
            event = v.github.check_suite_event(repo, sha)
            where = v.s.address + hook["address"]
            sent = partial(v.github.send_event, secret=SECRET, delivery=delivery)
            return (await asyncio.to_thread(sent, where, "check_suite", event)).json

        hook = await make_hook(v.s, "github", settings={"reports": True})
        answers = [await press(hook, "all-1") for _ in range(2)]
        again = answers[0]["run_id"]
        assert [(one["status"], one["run_id"]) for one in answers] == [("done", again)] * 2
        found = await v.run(again)
        assert (found.rerun_of, found.status) == (newer, "queued")
        assert (await v.check(again, "run", "queued"))["name"] == "ci"
        # A process that crashed after it had made the run does the delivery again: the newest run is the delivery's own.
        intake = v.s.service.intake
        delivery = await intake.deliveries.get(hook["id"], "all-1")
        row = await intake.deliveries.hook(hook["id"])
        assert delivery is not None
        assert row is not None
        outcome = await intake._carry_out(row, delivery)
        assert (outcome.status, outcome.run_id) == ("done", ids.run_int(again))
        assert len(await v.engine.runs.list()) == 4

        for hook_settings, tenant in (({"reports": True}, "globex"), ({}, "acme")):
            foreign = await make_hook(v.s, "github", tenant=tenant, settings=hook_settings)
            assert (await press(foreign, f"{tenant}-1"))["status"] == "ignored"
        assert (await press(hook, "all-2", sha="f" * 40))["status"] == "ignored"
        assert (await press(hook, "all-3", repo="acme/other"))["status"] == "ignored"
        assert len(await v.engine.runs.list()) == 4


# ------------------------------------------------------------------------------------------- started by hand


@pytest.fixture
def git_host(tmp_path: Path) -> Iterator[tuple[GitHost, str]]:
    """A git host with a repository, and the commit of its branch and of its tag with a message."""
    with GitHost(tmp_path / "host") as host:
        address = host.create("app")
        work = tmp_path / "work"
        work.mkdir()
        git(work, "init", "--quiet", "--initial-branch=main")
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
        git(work, *who, "commit", "--quiet", "--allow-empty", "-m", "one")
        git(work, *who, "tag", "-a", "v1", "-m", "the first")
        git(work, "push", "--quiet", address, "main", "main:refs/heads/other/refs/heads/main", "v1")
        yield host, git(work, "rev-parse", "HEAD")


async def test_a_run_that_a_person_starts_without_a_commit_is_reported(
    url: str,
    github: tuple[GitHubDouble, Path],
    git_host: tuple[GitHost, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, head = git_host
    settings = tmp_path / "ci.yaml"
    settings.write_text(CI_SETTINGS.format(url=f"{host.url}/app.git", gone=f"{host.url}/gone.git"))
    monkeypatch.setenv("TENURE_CI", str(settings))
    async with vcs_site(url, github) as v:
        v.github.commits[REPO].add(head)
        operator = await v.s.as_("operator")
        for ref in ({}, {"ref": "refs/tags/v1"}):
            made = await operator.post("/ci/runs", json={"repository": "app", **ref})
            assert made.status_code == 201, made.text
            run = made.json()["id"]
            check = await v.check(run, "run", "queued")
            assert (check["head_sha"], check["output"]["title"]) == (head, "Planning")
            spec = (await v.engine.store.read("get_spec", ids.run_int(run)))[0]
            assert msgspec.json.decode(spec.vcs_target, type=VcsTarget).head_sha == head
        missing = await operator.post("/ci/runs", json={"repository": "app", "ref": "heads/main"})
        assert (missing.status_code, problem(missing)) == (404, "COMMIT_NOT_FOUND")
        gone = await operator.post("/ci/runs", json={"repository": "gone"})
        assert problem(gone) == "REPOSITORY_REFUSED"
        assert "name it (head)" in gone.json()["error"]["message"]
        # With a commit nobody asks the host, and a repository that is not at GitHub needs no commit.
        assert (await operator.post("/ci/runs", json={"repository": "gone", "head": head})).status_code == 201
        assert (await operator.post("/ci/runs", json={"repository": "inside"})).status_code == 201
        assert len(await v.engine.runs.list()) == 4


async def test_a_git_host_that_does_not_answer_refuses_the_run_and_stops_nothing(
    tmp_path: Path, github: tuple[GitHubDouble, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_SECONDS)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/app.git"
        settings = tmp_path / "ci.yaml"
        settings.write_text(CI_SETTINGS.format(url=address, gone=address))
        monkeypatch.setenv("TENURE_CI", str(settings))
        monkeypatch.setattr(ci_runs, "RESOLVE_SECONDS", 20.0)
        async with vcs_site(f"sqlite:{tmp_path / 'x.db'}", github) as v:
            operator, viewer = await v.s.as_("operator"), await v.s.as_("viewer")
            waiting = asyncio.ensure_future(operator.post("/ci/runs", json={"repository": "app"}))
            connection, _ = await asyncio.to_thread(silent.accept)
            assert (await viewer.get("/runs")).json()["items"] == []
            assert not waiting.done(), "the server answered another request meanwhile"
            connection.close()
            assert problem(await waiting) == "NETWORK_FETCH_FAILED"
            monkeypatch.setattr(ci_runs, "RESOLVE_SECONDS", 0.5)
            refused = await operator.post("/ci/runs", json={"repository": "app"})
            assert (refused.status_code, problem(refused)) == (502, "NETWORK_FETCH_FAILED")
            assert "took longer than 0.5 seconds" in refused.json()["error"]["message"]
            assert await v.engine.runs.list() == []
