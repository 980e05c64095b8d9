"""Plan steps: a change is fetched from a real git host and planned by a process of its own."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure.ci.change import (
    NO_COMMIT,
    Change,
    build_manual_change,
    build_pull_request_change,
    build_push_change,
)
from tenure.ci.job import CiJob
from tenure.ci.mirror import GitSettings
from tenure.ci.plan_step import PlannerLauncher, execute_plan_step, launch_planner, plan_in_process
from tenure.ci.planner import PlannedChange
from tenure.ci.settings import JobBounds, RepositorySettings, SecretGrant
from tenure.errors import TenureError
from tenure.testing.git_host import GitHost
from tests.ci.plans import included, jobs, reasons
from tests.ci.repositories import WorkRepository

OWNER = GitSettings(protocols=("file", "http"))
CONFIG = """\
discover: python
jobs:
  test-base: {project: libs/base, inputs: [libs/base/**], run: pytest libs/base}
  test-web: {project: libs/web, run: pytest libs/web}
  docs: {paths: [docs/**], run: mkdocs build}
"""
FILES: dict[str, str | None] = {
    ".tenure/ci.yaml": CONFIG,
    "libs/base/pyproject.toml": "",
    "libs/base/src/base/__init__.py": "",
    "libs/web/pyproject.toml": "",
    "libs/web/src/web/__init__.py": "import base",
    "docs/index.md": "",
}


@pytest.fixture
def work(tmp_path: Path) -> WorkRepository:
    return WorkRepository(tmp_path / "git" / "shop")


class Host:
    """Plans changes of a repository on a git host."""

    def __init__(self, cache: Path, **settings: Any) -> None:
        self.cache = cache
        self.settings = RepositorySettings(name="shop", **settings)

    def plan(self, launch: PlannerLauncher = plan_in_process, **change: Any) -> PlannedChange:
        facts = {"event": "push", "ref": "refs/heads/main", "trusted": True, **change}
        return execute_plan_step(Change(repository=self.settings, **facts), self.cache, OWNER, launch)


@pytest.fixture
def host(work: WorkRepository, tmp_path: Path) -> Host:
    return Host(tmp_path / "cache", url=str(work.folder), protocols=("file",))


def test_three_commits_are_planned_from_a_git_host(work: WorkRepository, tmp_path: Path) -> None:
    first = work.commit(FILES)
    second = work.commit({"libs/base/src/base/__init__.py": "X = 1"})
    third = work.commit({"docs/index.md": "text"})
    with GitHost(work.folder.parent) as git_host:
        host = Host(tmp_path / "cache", url=f"{git_host.url}/shop/.git", protocols=("http",))
        planned = host.plan(launch_planner, base=NO_COMMIT, head=first)
        assert included(planned) == ["test-base", "test-web", "docs"]
        assert reasons(planned)["docs"][0].startswith("everything is planned")
        planned = host.plan(launch_planner, base=first, head=second)
        assert reasons(planned) == {
            "test-base": (
                "libs/base/src/base/__init__.py changed",
                "libs/base changed: libs/base/src/base/__init__.py",
            ),
            "test-web": ("libs/web depends on libs/base, which changed: libs/base/src/base/__init__.py",),
            "docs": ("paths match nothing that changed",),
        }
        planned = host.plan(launch_planner, base=second, head=third)
        assert included(planned) == ["docs"]
        assert (planned.base, planned.head) == (second, third)


def test_the_digest_of_a_job_is_that_of_its_files_in_any_commit(work: WorkRepository, host: Host) -> None:
    first = work.commit(FILES)
    second = work.commit({"docs/index.md": "text", "libs/web/src/web/__init__.py": "import base  # more"})
    third = work.commit({"libs/base/src/base/__init__.py": "X = 1"})

    def digest(head: str) -> str:
        reuse = jobs(host.plan(head=head, base=NO_COMMIT))["test-base"].reuse
        assert reuse is not None
        assert reuse.scope == "trusted:shop"
        return reuse.digest

    assert digest(first) == digest(second) != digest(third)
    (work.folder / "libs/base/src/base/__init__.py").chmod(0o755)
    assert digest(work.commit({})) != digest(third)


def test_a_pull_request_is_compared_with_the_place_where_it_left_its_branch(
    work: WorkRepository, host: Host
) -> None:
    work.commit(FILES)
    work.git("checkout", "--quiet", "-b", "feature")
    head = work.commit({"docs/index.md": "feature"})
    work.git("update-ref", "refs/pull/7/head", head)
    work.git("checkout", "--quiet", "main")
    base = work.commit({"libs/base/src/base/__init__.py": "main goes on"})
    pull: dict[str, Any] = {
        "event": "pull_request", "ref": "refs/pull/7/head", "pull_request": 7, "trusted": False, "base_ref": "refs/heads/main",
    }  # fmt: skip
    for given in (base, ""):
        planned = host.plan(**pull, head=head, base=given)
        assert included(planned) == ["docs"]
    assert host.plan(**pull).head == head


def test_a_new_branch_is_compared_with_the_default_branch(work: WorkRepository, host: Host) -> None:
    work.commit(FILES)
    work.git("checkout", "--quiet", "-b", "feature")
    head = work.commit({"docs/index.md": "feature"})
    planned = host.plan(ref="refs/heads/feature", head=head, base=NO_COMMIT)
    assert included(planned) == ["docs"]


def test_a_base_that_a_force_push_removed_plans_everything_and_says_so(
    work: WorkRepository, host: Host
) -> None:
    head = work.commit(FILES)
    planned = host.plan(head=head, base="1" * 40)
    assert len(planned.steps) == 3
    assert "is not in the repository any more" in reasons(planned)["docs"][0]
    work.git("checkout", "--quiet", "--orphan", "other")
    other = work.commit(FILES, "An unrelated history")
    assert (
        "have no common history"
        in reasons(host.plan(ref="refs/heads/other", head=other, base=head))["docs"][0]
    )


def test_a_config_that_is_a_link_or_lies_behind_one_is_refused(work: WorkRepository, host: Host) -> None:
    work.commit({"real.yaml": CONFIG, "real/ci.yaml": CONFIG})
    work.link(".tenure/ci.yaml", "../real.yaml")
    head = work.commit({})
    with pytest.raises(
        TenureError, match=r"\.tenure/ci\.yaml:1:1: \.tenure/ci\.yaml is a symbolic link"
    ) as failed:
        host.plan(head=head)
    assert failed.value.code == "PIPELINE_INVALID"
    (work.folder / ".tenure/ci.yaml").unlink()
    (work.folder / ".tenure").rmdir()
    work.link(".tenure", "real")
    with pytest.raises(TenureError, match=r"\.tenure is a symbolic link"):
        host.plan(head=work.commit({}))


def test_a_missing_too_large_or_unreadable_config_is_named(work: WorkRepository, host: Host) -> None:
    with pytest.raises(TenureError, match=r"has no \.tenure/ci\.yaml") as failed:
        host.plan(head=work.commit({"x": "1"}))
    assert failed.value.code == "PIPELINE_NOT_FOUND"
    with pytest.raises(TenureError, match=r"\.tenure/ci\.yaml:1:1: 1 files have 300000 bytes"):
        host.plan(head=work.commit({".tenure/ci.yaml": "#" * 300_000}))
    (work.folder / ".tenure/ci.yaml").write_bytes(b"jobs:\n  a: \xff\n")
    with pytest.raises(TenureError, match=r"\.tenure/ci\.yaml:2:6: the file is not UTF-8"):
        host.plan(head=work.commit({}))
    with pytest.raises(TenureError, match=r"\.tenure/ci\.yaml:3:5: jobs\.a\.pahts") as failed:
        host.plan(head=work.commit({".tenure/ci.yaml": "jobs:\n  a:\n    pahts: [x]\n    run: x\n"}))
    assert failed.value.details[0].path == ".tenure/ci.yaml:3:5"


def test_a_repository_that_refuses_us_fails_for_good_and_one_that_is_down_may_work_later(
    work: WorkRepository, tmp_path: Path
) -> None:
    head = work.commit(FILES)
    with GitHost(work.folder.parent, credentials="Basic other") as git_host:
        host = Host(tmp_path / "cache", url=f"{git_host.url}/shop/.git", protocols=("http",))
        with pytest.raises(TenureError) as failed:
            host.plan(head=head)
        assert failed.value.code == "REPOSITORY_REFUSED"
    with pytest.raises(TenureError) as failed:
        host.plan(head=head)
    assert (failed.value.code, failed.value.retryable) == ("NETWORK_FETCH_FAILED", True)


def test_only_trusted_plans_add_to_the_kept_imports(work: WorkRepository, host: Host) -> None:
    head = work.commit(FILES)
    host.plan(head=head, trusted=False)
    assert not list(host.cache.glob("*.imports"))
    host.plan(head=head)
    (kept,) = host.cache.glob("*.imports")
    known = msgspec.json.decode(kept.read_bytes())
    assert ["base"] in known.values()
    # What is kept is believed: planning again reads no contents.
    kept.write_bytes(msgspec.json.encode({blob: [] for blob in known}))
    planned = host.plan(head=work.commit({"libs/base/x.txt": "1"}), base=head)
    assert included(planned) == ["test-base"]
    # Another tenant, which may trust other branches of the same URL, has its own.
    other = Host(host.cache, url=str(work.folder), protocols=("file",), tenant="other")
    planned = other.plan(head=work.commit({"libs/base/y.txt": "1"}), base=planned.head)
    assert included(planned) == ["test-base", "test-web"]
    assert len(list(host.cache.glob("*.git"))) == 1


def test_the_planner_sees_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PYTHONSTARTUP", "/nowhere/x.py")
    with pytest.raises(TenureError, match="the planner ended with 1") as failed:
        launch_planner(b"{}", 60.0)
    assert failed.value.code == "PLAN_FAILED"
    assert "required field" in failed.value.message


def test_a_planner_that_takes_too_long_or_lies_fails_the_plan(work: WorkRepository, host: Host) -> None:
    change = Change(repository=host.settings, event="push", ref="refs/heads/main", head=work.commit(FILES))
    with pytest.raises(TenureError, match="took longer than") as failed:
        launch_planner(b"{}", 0.001)
    assert failed.value.code == "PLAN_FAILED"
    for answer in (b"", b"{}", b'{"type": "other"}'):
        with pytest.raises(TenureError, match="gave no answer"):
            execute_plan_step(change, host.cache, OWNER, lambda _, __, answer=answer: answer)  # type: ignore[misc]  # a default
    greedy = msgspec.json.encode({"type": "blobs", "blobs": ["1" * 40]})
    with pytest.raises(TenureError, match="more and more files"):
        execute_plan_step(change, host.cache, OWNER, lambda _, __: greedy)
    refused = msgspec.json.encode({"type": "refused", "code": "PIPELINE_INVALID", "message": "no"})
    with pytest.raises(TenureError, match="no"):
        execute_plan_step(change, host.cache, OWNER, lambda _, __: refused)


def test_a_manual_change_takes_the_commit_that_its_ref_has(work: WorkRepository, host: Host) -> None:
    work.commit(FILES)
    head = work.commit({"docs/index.md": "2"})
    planned = host.plan(event="manual")
    assert planned.head == head
    assert len(planned.steps) == 3


def test_a_manual_change_of_a_trusted_branch_cannot_name_a_commit_of_another(
    work: WorkRepository, host: Host
) -> None:
    first = work.commit(FILES)
    work.commit({"docs/index.md": "2"})
    assert host.plan(event="manual", head=first).head == first
    work.git("checkout", "--quiet", "-b", "evil")
    evil = work.commit({"docs/index.md": "evil"})
    with pytest.raises(TenureError, match=f"refs/heads/main of shop does not contain {evil}"):
        host.plan(event="manual", head=evil)


def test_trust_is_decided_where_changes_are_built() -> None:
    settings = RepositorySettings(name="shop", url="https://example.com/x", trusted_branches=("main",))
    push = build_push_change(settings, ref="refs/heads/main", before=NO_COMMIT, head="1" * 40)
    assert push is not None
    assert (push.trusted, push.base, push.scope, push.supersede_key) == (True, "", "trusted:shop", "")
    other = build_push_change(settings, ref="refs/heads/other", before="2" * 40, head="1" * 40)
    assert other is not None
    assert (other.trusted, other.base) == (False, "2" * 40)
    assert build_push_change(settings, ref="refs/heads/other", before="2" * 40, head=NO_COMMIT) is None
    pull = build_pull_request_change(
        settings, number=7, head="1" * 40, base="2" * 40, base_branch="main", fork=False, approved=True
    )
    assert (pull.trusted, pull.approved, pull.scope) == (False, True, "pull:shop:7")
    assert pull.supersede_key == "shop:refs/pull/7/head"
    assert build_manual_change(settings, ref="main").trusted
    assert not build_manual_change(settings, ref="refs/tags/main").trusted
    never = msgspec.structs.replace(settings, supersede="never")
    assert build_manual_change(never, ref="main").supersede_key == ""
    refs = msgspec.structs.replace(settings, supersede="refs")
    assert build_manual_change(refs, ref="main").supersede_key == "shop:refs/heads/main"


def test_the_answer_of_the_planner_is_checked(work: WorkRepository, host: Host) -> None:
    head = work.commit(FILES)
    change = Change(repository=host.settings, event="push", ref="refs/heads/main", head=head)

    def lie(asked: bytes, seconds: float) -> bytes:
        return launch_planner(asked, seconds).replace(head.encode(), b"1" * 40)

    with pytest.raises(TenureError, match="it is for another commit"):
        execute_plan_step(change, host.cache, OWNER, lie)


SECRETS = """\
jobs:
  build: {run: make}
  upload: {needs: [build], run: make upload, secrets: [TOKEN, DEPLOY_KEY]}
"""


def test_jobs_of_a_pull_request_that_name_secrets_wait_for_an_approval_of_head_and_pipeline(
    work: WorkRepository, tmp_path: Path
) -> None:
    allowed = {"TOKEN": SecretGrant(pull_requests=True), "DEPLOY_KEY": SecretGrant()}
    host = Host(
        tmp_path / "cache", url=str(work.folder), protocols=("file",), allow=JobBounds(secrets=allowed)
    )
    work.commit({".tenure/ci.yaml": SECRETS})
    head = work.commit({"a.txt": "1"})
    asked: dict[str, Any] = {
        "event": "pull_request",
        "trusted": False,
        "pull_request": 7,
        "head": head,
        "base_ref": "refs/heads/main",
        "author": "eve",
        "fork": True,
    }
    planned = host.plan(**asked)
    gate, build, upload = planned.steps
    assert (gate.name, gate.kind, gate.needs) == ("secrets", "approval", ())
    assert (build.needs, upload.needs) == ((), ("build", "secrets"))
    question = msgspec.json.decode(gate.input or b"")
    assert (question["head"], question["secrets"], question["author"]) == (head, ["TOKEN"], "eve")
    built, uploaded = (msgspec.json.decode(step.input or b"", type=CiJob) for step in (build, upload))
    assert (built.trusted, built.secrets) == (False, ())
    assert (uploaded.trusted, uploaded.secrets) == (True, ("TOKEN",))
    assert planned.withheld == ("DEPLOY_KEY",)

    other = host.plan(**{**asked, "head": work.commit({"a.txt": "2"})}).steps[0]
    edited = work.commit({".tenure/ci.yaml": SECRETS.replace("make upload", "make publish")})
    changed = host.plan(**{**asked, "head": edited}).steps[0]
    digests = {step.approval.digest for step in (gate, other, changed) if step.approval is not None}
    assert len(digests) == 3, "another commit and another pipeline are other questions"
    assert [step.name for step in host.plan(**{**asked, "approved": True}).steps] == ["build", "upload"]
