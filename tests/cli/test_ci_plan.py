"""`tenure ci plan` and `tenure ci check` on a plain checkout."""

from pathlib import Path

import pytest

from tests.ci.repositories import WorkRepository
from tests.cli.shell import Tenure, in_folder

CONFIG = """\
projects: {packages/a: [], packages/b: [packages/a]}
jobs:
  lint: {run: ruff check}
  build: {paths: [src/**], run: make}
  test-a: {project: packages/a, needs: [build], run: pytest packages/a}
  test-b:
    project: packages/b
    needs: [build]
    matrix: {python: ["3.11", "3.12"]}
    if: matrix.python != "3.12" || change.branch == "main"
    run: pytest packages/b
  docs: {paths: ["docs/**"], run: mkdocs build}
"""


@pytest.fixture
def work(tmp_path: Path) -> WorkRepository:
    made = WorkRepository(tmp_path / "work")
    made.commit({".tenure/ci.yaml": CONFIG, "packages/a/x.py": "1", "packages/b/x.py": "1", "docs/x.md": "1"})
    made.commit({"packages/b/x.py": "2"})
    made.commit({"docs/x.md": "2"})
    return made


@pytest.fixture
def tenure(
    work: WorkRepository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tenure:
    return in_folder(work.folder, monkeypatch, capsys)


def test_a_table_says_why_each_job_is_in_or_out(tenure: Tenure) -> None:
    done = tenure("ci", "plan", "--base", "HEAD~2", "--head", "HEAD~1")
    assert done.code == 0
    lines = [line.split(maxsplit=2) for line in done.out.splitlines()]
    assert lines[1] == ["lint", "in", "nothing limits it: it has no paths, project or inputs"]
    assert [line.rstrip() for line in done.out.splitlines()][2:] == [
        "build          in    test-b needs it, which is in",
        "test-a         out   nothing that packages/a depends on changed",
        "test-b (3.11)  in    packages/b changed: packages/b/x.py",
        "test-b (3.12)  in    packages/b changed: packages/b/x.py",
        "docs           out   paths match nothing that changed",
        done.out.splitlines()[-1].rstrip(),
    ]
    assert done.out.splitlines()[-1].startswith("4 jobs of 6 for ")


def test_a_graph_draws_the_jobs_beneath_what_they_need(tenure: Tenure) -> None:
    done = tenure(
        "ci", "plan", "--base", "HEAD~2", "--head", "HEAD~1", "--format", "graph", "--ref", "feature"
    )
    assert done.out.splitlines()[:-1] == [
        "lint  in: nothing limits it: it has no paths, project or inputs",
        "build  in: test-b needs it, which is in",
        "├─ test-a  out: nothing that packages/a depends on changed",
        "└─ test-b x2  in 1 of 2: packages/b changed: packages/b/x.py",
        "docs  out: paths match nothing that changed",
    ]
    mermaid = tenure("ci", "plan", "--base", "HEAD~1", "--format", "mermaid").out
    assert 'j1["build  out: paths match nothing that changed"]:::out' in mermaid
    assert "j1 --> j2" in mermaid


def test_json_has_the_whole_plan(tenure: Tenure, work: WorkRepository) -> None:
    told = tenure("ci", "plan", "--base", "HEAD~1", "--json").json()
    assert told["head"] == work.git("rev-parse", "HEAD")
    assert [job["name"] for job in told["jobs"] if job["in"]] == ["lint", "docs"]
    docs = next(job for job in told["jobs"] if job["name"] == "docs")
    assert docs["reasons"] == ["docs/x.md changed"]
    assert docs["input"]["commands"] == [{"run": "mkdocs build"}]
    assert told["projects"] == {"packages/a": [], "packages/b": ["packages/a"]}


def test_without_a_base_everything_is_planned(tenure: Tenure) -> None:
    done = tenure("ci", "plan")
    assert "docs           in    everything is planned: no --base was given" in done.out


def test_a_commit_or_a_folder_that_is_not_there_is_named(tenure: Tenure, tmp_path: Path) -> None:
    done = tenure("ci", "plan", "--base", "gone")
    assert done.code == 1
    assert "there is no commit 'gone'" in done.err
    done = tenure("ci", "plan", "--repo", str(tmp_path))
    assert done.code == 1
    assert "is not in a git repository" in done.err


def test_the_bounds_of_settings_apply(tenure: Tenure, work: WorkRepository, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        "repositories: {shop: {path: /srv/shop.git, allow: {jobs: 3}}, other: {path: /srv/x.git}}"
    )
    done = tenure("ci", "plan", "--settings", str(settings))
    assert "choose one with --repository: shop, other" in done.err
    done = tenure("ci", "plan", "--settings", str(settings), "--repository", "shop")
    assert done.code == 1
    assert (
        ".tenure/ci.yaml:2:1: jobs: the plan has 6 jobs; the settings of the repository allow 3" in done.err
    )


def test_check_names_every_problem_with_its_place(
    tenure: Tenure, work: WorkRepository, tmp_path: Path
) -> None:
    assert tenure("ci", "check").out == ".tenure/ci.yaml: 6 jobs: fine\n"
    (work.folder / ".tenure/ci.yaml").write_text(
        "jobs:\n  a: {run: x, needs: [b]}\n  c: {run: x, paths: [/x]}\n"
    )
    done = tenure("ci", "check")
    assert done.code == 1
    assert ".tenure/ci.yaml:2:23: jobs.a.needs[0]: there is no job 'b'" in done.err
    assert ".tenure/ci.yaml:3:23: jobs.c.paths[0]: must be relative" in done.err
    settings = tmp_path / "settings.yaml"
    settings.write_text("repositories: {shop: {path: srv}}")
    done = tenure("ci", "check", "--settings", str(settings), "--json")
    assert done.code == 1
    assert "must be absolute" in done.out


def test_a_pull_request_is_told_which_secrets_it_does_not_get(
    tenure: Tenure, work: WorkRepository, tmp_path: Path
) -> None:
    work.commit({".tenure/ci.yaml": "jobs: {a: {run: x, secrets: [TOKEN]}}"})
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        "repositories: {shop: {path: /srv/shop.git, trusted_branches: [main], allow: {secrets: {TOKEN: {}}}}}"
    )
    done = tenure("ci", "plan", "--settings", str(settings), "--pull-request", "7")
    assert "withheld from this ref: TOKEN" in done.err
    assert "withheld" not in tenure("ci", "plan", "--settings", str(settings), "--ref", "main").err
