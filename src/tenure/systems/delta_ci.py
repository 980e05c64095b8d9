"""The system of delta-ci.md: pushes are planned, run in a sandbox and reported.

A repository is served by `git http-backend`. Each push is reported by a double of GitHub to the server's hook; a runner, in a
process of its own, plans the change and runs its jobs; the reporter writes the check runs that GitHub would show.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import httpx

from tenure.engine.engine import Engine
from tenure.private_files import make_folder, write_file
from tenure.publish.vcs_settings import load_vcs_settings
from tenure.server.http_server import serving
from tenure.server.settings import Settings
from tenure.systems import delta_ci_files as files
from tenure.systems.stage import SERVER, TENANT, Stage, expect_json
from tenure.testing.doubles import GitHubDouble
from tenure.testing.doubles.github_checks import push_event
from tenure.testing.git_host import GitHost, Push, git

REPOSITORY, GITHUB = "shop", "acme/shop"
MAIN, TOPIC = "refs/heads/main", "refs/heads/topic"
AUTHOR = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "Ada"), ("EMAIL", "ada@example.com"))
}

WHOLE_PLAN = "the first push plans every job"
ONE_PACKAGE = "a push that touches one package plans the jobs of that package"
ONLY_DOCS = "a push that touches only the documentation plans one job"
REASONS = "each job says why it is in the plan or not"
REUSED = "a job whose inputs were tested before is reused, without an attempt"
RETRIED = "an infrastructure failure is classified and tried again"
LOGGED = "the log of a job can be read"
TESTED = "the tests of a job are shown"
STORED = "the artifact of a job can be downloaded"
SUPERSEDED = "a newer push cancels the run of the older one"
REPORTED = "every check at GitHub has its final state, and then the run is REPORTED"
RERUN = "the button Re-run of a check starts the run again"
PARTS = (
    WHOLE_PLAN,
    REASONS,
    RETRIED,
    LOGGED,
    TESTED,
    STORED,
    REPORTED,
    ONE_PACKAGE,
    ONLY_DOCS,
    RERUN,
    REUSED,
    SUPERSEDED,
)

CI_SETTINGS = """\
repositories:
  {name}:
    url: {url}
    tenant: {tenant}
    github: {github}
    protocols: [http]
    trusted_branches: [main]
    supersede: refs
"""
VCS_SETTINGS = """\
github:
  app_id: 1
  private_key: file:{key}
  base_url: {url}
  allow_private: [127.0.0.1]
  targets:
    - tenant: {tenant}
      installation: 77
      repositories: [{github}]
"""


class DeltaCi:
    """The parts of the system while it runs."""

    def __init__(self, stage: Stage, github: GitHubDouble, host: GitHost) -> None:
        self.stage = stage
        self.github = github
        self.host = host
        self.secret = secrets.token_hex(16)
        self.work = stage.folder / "work"
        self.hook_url = ""
        self.http: httpx.AsyncClient
        self.answers: list[dict[str, Any]] = []
        """What the server answered to each webhook."""

    # ----------------------------------------------------------------------------------------- starting

    async def start(self) -> None:
        stage = self.stage
        secrets_folder = stage.write_secrets(hook=self.secret)
        url = self.host.create(REPOSITORY)
        engine, address = await self._start_server(url)
        await stage.create_tenant(engine)
        admin = await stage.connect(address, await stage.create_person(engine, "ada", "admin", "viewer"))
        self.http = await stage.connect(
            address, await stage.create_client(engine, "cli", "operator", "viewer")
        )
        hook = {
            "kind": "github",
            "name": REPOSITORY,
            "secrets": [f"file:{secrets_folder / 'hook'}"],
            "rules": [{"when": "event in ['push', 'pull_request']", "ci": True}],
            "settings": {"reports": True},
        }
        self.hook_url = address + (await expect_json(admin.post("/hooks", json=hook)))["address"]
        self.host.on_push = self._report_push
        key_file = stage.folder / "runner.key"
        write_file(key_file, await stage.create_client(engine, "runner", "runner"))
        runner = await stage.start(
            "runner", "ci", "runner", "--server", address, "--key-file", str(key_file), "--slots", "3",
            "--folder", str(stage.folder / "runner"), "--git-protocol", "http",
        )  # fmt: skip
        await stage.until_printed(runner, "ci_runner_started")
        stage.addresses.update({SERVER: address, "The repository": url, "GitHub (a double)": self.github.url})
        git_init(self.work)

    async def _start_server(self, url: str) -> tuple[Engine, str]:
        folder = self.stage.folder
        write_file(folder / "app.pem", self.github.install_app(GITHUB))
        write_file(
            folder / "ci.yaml",
            CI_SETTINGS.format(name=REPOSITORY, url=url, tenant=TENANT, github=GITHUB),
        )
        write_file(
            folder / "vcs.yaml",
            VCS_SETTINGS.format(key=folder / "app.pem", url=self.github.url, tenant=TENANT, github=GITHUB),
        )
        engine = Engine(self.stage.database, ci=folder / "ci.yaml")
        await self.stage.exits.enter_async_context(engine)
        settings = Settings(
            port=self.stage.port,
            log_runs=False,
            secrets_folder=str(self.stage.secrets_folder),
            vcs=load_vcs_settings(str(folder / "vcs.yaml")),
        )
        _, address = await self.stage.exits.enter_async_context(serving(engine, settings))
        return engine, address

    def _report_push(self, push: Push) -> None:
        """GitHub's part of a push. A thread of the git host calls it."""
        self.github.commits.setdefault(GITHUB, set()).add(push.after)
        event = push_event(GITHUB, push.after, ref=push.ref, before=push.before)
        answer = self.github.send_event(self.hook_url, "push", event, secret=self.secret)
        self.answers.append({"status": answer.status, **(answer.json or {})})

    # ------------------------------------------------------------------------------------------ actions

    async def push(self, changes: dict[str, str], message: str, ref: str = MAIN) -> str:
        """Commit files and push them. Returns the run that the push started."""
        before = len(self.answers)
        await asyncio.to_thread(commit_and_push, self.work, changes, message, self.host.url, ref)
        found = await self.stage.until(
            "GitHub to report the push", lambda: self.answers[before] if len(self.answers) > before else None
        )
        return str(found["run_id"])

    async def run(self, run_id: str) -> dict[str, Any]:
        return dict(await expect_json(self.http.get(f"/runs/{run_id}")))

    async def steps(self, run_id: str) -> dict[str, dict[str, Any]]:
        items = (await expect_json(self.http.get(f"/runs/{run_id}/steps")))["items"]
        return {step["name"]: step for step in items}

    async def until_shown(self, run_id: str, *words: str) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            found = await self.run(run_id)
            return found if found["shown"] in words else None

        return await self.stage.until(f"{run_id} to be {' or '.join(words)}", look)

    async def until_step(self, run_id: str, name: str, word: str) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            found = (await self.steps(run_id)).get(name)
            return found if found is not None and found["shown"] == word else None

        return await self.stage.until(f"{name} of {run_id} to be {word}", look)

    def conclusions(self, run_id: str) -> dict[str, str]:
        """The conclusions of a run's checks at GitHub, by what they are about."""
        return {
            str(check["external_id"]).partition(":")[2] or "run": str(check["conclusion"])
            for check in self.github.checks.values()
            if str(check["external_id"]).startswith(run_id)
        }


def git_init(folder: Path) -> None:
    make_folder(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")


def commit_and_push(folder: Path, changes: dict[str, str], message: str, host: str, ref: str) -> None:
    for name, text in changes.items():
        make_folder((folder / name).parent)
        write_file(folder / name, text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message, **AUTHOR)
    git(folder, "push", "--quiet", f"{host}/{REPOSITORY}.git", f"HEAD:{ref}")


# ------------------------------------------------------------------------------------------------ the story


async def play(stage: Stage) -> None:
    github = stage.exits.enter_context(GitHubDouble())
    host = stage.exits.enter_context(GitHost(stage.folder / "git"))
    ci = DeltaCi(stage, github, host)
    await ci.start()
    await _push_first(ci)
    await _push_less(ci)
    await _rerun(ci)
    await _supersede(ci)


async def _push_first(ci: DeltaCi) -> None:
    stage = ci.stage
    first = await ci.push(files.FIRST, "Begin")
    await ci.until_shown(first, "REPORTED")
    steps = await ci.steps(first)
    stage.check(WHOLE_PLAN, set(steps) == {"test-prices", "test-shop", "install", "docs"}, ", ".join(steps))
    plan = await expect_json(ci.http.get(f"/ci/runs/{first}/plan"))
    reasons = {job["name"]: "; ".join(job["reasons"]) for job in plan["jobs"]}
    stage.check(REASONS, set(reasons) == set(steps) and all(reasons.values()), reasons["docs"])
    install = steps["install"]
    stage.check(
        RETRIED,
        install["shown"] == "SUCCEEDED" and install["attempt"] == 2,
        f"{install['last_error']}, then success",
    )
    log = (await ci.http.get(f"/runs/{first}/steps/test-shop/log")).text
    stage.check(LOGGED, "packages/shop is fine" in log, f"{len(log)} bytes")
    [tests] = (await expect_json(ci.http.get(f"/runs/{first}/steps/test-shop/tests")))["items"]
    stage.check(TESTED, tests["report"]["passed"] == 2, "2 tests")
    shop = await ci.http.get(f"/runs/{first}/artifacts/shop", params={"step": "test-shop", "attempt": 1})
    stage.check(STORED, shop.is_success and shop.content, f"{len(shop.content)} bytes")
    found = ci.conclusions(first)
    stage.check(REPORTED, found and set(found.values()) == {"success"}, f"{len(found)} checks are green")


async def _push_less(ci: DeltaCi) -> None:
    second = await ci.push(files.SECOND, "Add a checkout")
    await ci.until_shown(second, "REPORTED")
    steps = await ci.steps(second)
    ci.stage.check(ONE_PACKAGE, set(steps) == {"test-prices", "test-shop", "install"}, ", ".join(steps))
    third = await ci.push(files.THIRD, "Write more")
    await ci.until_shown(third, "REPORTED")
    steps = await ci.steps(third)
    ci.stage.check(ONLY_DOCS, set(steps) == {"docs"}, ", ".join(steps))


async def _rerun(ci: DeltaCi) -> None:
    """Somebody presses Re-run of the second push's check: what its inputs have tested before is not tested again."""
    stage, github = ci.stage, ci.github
    check = [one for one in github.checks.values() if str(one["external_id"]).endswith(":job:test-prices")][
        -1
    ]
    event = github.check_run_event(check["id"], "rerequested")
    answer = await asyncio.to_thread(github.send_event, ci.hook_url, "check_run", event, secret=ci.secret)
    again = str(answer.json["run_id"])
    await ci.until_shown(again, "REPORTED")
    stage.happened(RERUN, again)
    step = (await ci.steps(again))["test-prices"]
    stage.check(
        REUSED,
        step["reused_from"] and step["attempt"] == 0,
        f"from {step['reused_from'] and step['reused_from']['run']}",
    )


async def _supersede(ci: DeltaCi) -> None:
    pipeline = files.PIPELINE + files.SLOW_JOB
    slow = await ci.push({".tenure/ci.yaml": pipeline}, "Add a slow job", TOPIC)
    await ci.until_step(slow, "slow", "RUNNING")
    await ci.push({".tenure/ci.yaml": files.PIPELINE}, "Remove it again", TOPIC)
    await ci.until_shown(slow, "REPORTED")
    outcome = (await ci.run(slow))["status"]
    found = ci.conclusions(slow)
    ci.stage.check(SUPERSEDED, outcome == "canceled", f"GitHub shows {found.get('run')}")
