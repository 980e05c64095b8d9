"""The planner: which jobs are in or out, and why."""

import json
from typing import Any

import msgspec
import pytest

from tenure.ci.planner import BlobsNeeded, PlannedChange, PlanRequest, plan_change
from tenure.ci.planner_process import answer_request
from tenure.ci.settings import JobBounds, RepositorySettings, SecretGrant
from tenure.errors import TenureError
from tests.ci.plans import CONFIG, included, jobs, plan, reasons, request

PIPELINE = """\
projects:
  packages/a: []
  packages/b: [packages/a]
  packages/c: [packages/b]
jobs:
  lint:
    run: ruff check
  test-a:
    project: packages/a
    run: pytest packages/a
  test-b:
    project: packages/b
    run: pytest packages/b
  test-c:
    project: packages/c
    run: pytest packages/c
  docs:
    paths: [docs/**, "*.md"]
    run: mkdocs build
  deploy:
    needs: [test-c]
    if: change.branch == "release"
    run: deploy
"""


def test_a_change_plans_the_jobs_that_it_reaches_and_says_why() -> None:
    planned = plan(PIPELINE, ["packages/b/x.py"])
    assert included(planned) == ["lint", "test-b", "test-c"]
    assert reasons(planned) == {
        "lint": ("nothing limits it: it has no paths, project or inputs",),
        "test-a": ("nothing that packages/a depends on changed",),
        "test-b": ("packages/b changed: packages/b/x.py",),
        "test-c": ("packages/c depends on packages/b, which changed: packages/b/x.py",),
        "docs": ("paths match nothing that changed",),
        "deploy": ('if is false: change.branch == "release"',),
    }


def test_a_dependency_of_a_dependency_reaches_a_project_too() -> None:
    planned = plan(PIPELINE, ["packages/a/x.py"])
    assert reasons(planned)["test-c"] == (
        "packages/c depends on packages/a, which changed: packages/a/x.py (through packages/b)",
    )


def test_a_change_of_docs_plans_only_docs() -> None:
    assert included(plan(PIPELINE.replace("  lint:\n    run: ruff check\n", ""), ["docs/index.md"])) == [
        "docs"
    ]


def test_a_change_that_reaches_nothing_plans_no_job() -> None:
    planned = plan("jobs: {docs: {paths: [docs], run: build}}", ["src/x.py"])
    assert planned.steps == ()
    assert [job.included for job in planned.jobs] == [False]


def test_without_anything_to_compare_with_everything_is_planned() -> None:
    planned = plan(PIPELINE)
    assert included(planned) == ["lint", "test-a", "test-b", "test-c", "docs"]
    assert reasons(planned)["docs"] == ("everything is planned: there is nothing to compare with",)


def test_a_job_that_is_in_brings_the_jobs_that_it_needs() -> None:
    config = """\
jobs:
  build: {paths: [src/**], run: make, artifacts: [{name: out, paths: [build/**]}]}
  other: {paths: [other/**], run: make other}
  test: {needs: [build], paths: [tests/**], run: make test, downloads: [{job: build, artifact: out, to: build}]}
"""
    planned = plan(config, ["tests/x.py"])
    assert included(planned) == ["build", "test"]
    assert reasons(planned)["build"] == ("test needs it, which is in",)
    assert planned.steps[1].needs == ("build",)
    assert [(one.job, one.artifact, one.to) for one in jobs(planned)["test"].downloads] == [
        ("build", "out", "build")
    ]


def test_a_job_is_out_if_a_job_that_it_needs_is_out_for_good() -> None:
    config = "jobs: {a: {if: 'change.tag != \"\"', run: x}, b: {needs: [a], run: x}, c: {needs: [b], run: x}}"
    planned = plan(config, ["x"])
    assert planned.steps == ()
    assert reasons(planned)["c"][0].startswith("needs b, which is out: needs a, which is out: if is false")
    assert included(plan(config, ["x"], ref="refs/tags/v1")) == ["a", "b", "c"]


def test_ignored_files_do_not_count() -> None:
    config = """\
projects: {lib: []}
jobs:
  all: {paths_ignore: ["**/*.md"], run: x}
  some: {paths: [src/**], paths_ignore: [src/*.md], run: x}
  lib: {project: lib, paths_ignore: ["lib/*.md"], run: x}
"""
    assert included(plan(config, ["src/a.md", "lib/a.md"])) == []
    assert included(plan(config, ["src/a.md", "lib/a.py"])) == ["all", "lib"]
    assert included(plan(config, ["src/a.py"])) == ["all", "some"]


def test_a_job_whose_definition_changed_is_in() -> None:
    before = "jobs: {a: {paths: [a], run: x}, b: {paths: [b], run: x}}"
    after = "jobs: {a: {paths: [a], run: x}, b: {paths: [b], run: y}, c: {paths: [c], run: x}}"
    planned = plan(after, [CONFIG], base_config=before)
    assert included(planned) == ["b", "c"]
    assert reasons(planned)["b"] == (f"config changed: b is changed in {CONFIG}",)
    assert reasons(planned)["c"] == (f"config changed: c is new in {CONFIG}",)
    assert included(plan(after, [CONFIG], base_config="jobs: [")) == ["a", "b", "c"]
    assert included(plan(after, [CONFIG])) == ["a", "b", "c"]


def test_a_matrix_makes_a_job_of_each_combination() -> None:
    config = """\
jobs:
  test:
    matrix:
      python: ["3.11", "3.12"]
      os: [linux, mac]
      exclude: [{python: "3.11", os: mac}]
      include: [{python: "3.13", os: linux}]
    if: matrix.os == "linux"
    labels: ["${{ matrix.os }}"]
    env: {PYTHON: "${{ matrix.python }}"}
    run: [pytest, "--python=${{ matrix.python }}"]
  all: {needs: [test], run: echo}
"""
    planned = plan(config, ["x"])
    assert included(planned) == ["test (3.11, linux)", "test (3.12, linux)", "test (3.13, linux)", "all"]
    assert reasons(planned)["test (3.12, mac)"] == ('if is false: matrix.os == "linux"',)
    assert planned.steps[-1].needs == ("test (3.11, linux)", "test (3.12, linux)", "test (3.13, linux)")
    made = jobs(planned)["test (3.13, linux)"]
    assert (made.env, made.labels, made.commands[0].run) == (
        {"PYTHON": "3.13"},
        ("linux",),
        ("pytest", "--python=3.13"),
    )
    assert planned.steps[0].queue == "ci+linux|tool:ci.job"


def test_a_step_has_what_the_job_says() -> None:
    config = """\
jobs:
  test:
    commands: [{run: "make", name: build}, {run: [pytest, -x], cwd: src}]
    timeout: 10m
    retry: {max: 2, backoff: [1s, 5s]}
    allow_failure: true
    toolchain: {python: 3.12.1}
    reports: ["**/junit.xml"]
    limits: {memory: 2GiB, processes: 64}
    services: {db: {run: [postgres, -D, data], ready: pg_isready}}
    network: [pypi.org]
"""
    planned = plan(config, ["x"])
    step, job = planned.steps[0], jobs(planned)["test"]
    assert (step.timeout_seconds, step.retries, step.required, step.needs) == (600.0, 2, False, ())
    assert step.backoff is not None
    assert step.backoff.seconds == (1.0, 5.0)
    assert [(one.run, one.name, one.cwd) for one in job.commands] == [
        ("make", "build", ""),
        (("pytest", "-x"), "", "src"),
    ]
    assert (job.limits.memory_bytes, job.limits.processes, job.limits.disk_bytes) == (2 << 30, 64, 10 << 30)
    assert job.services[0].run == ("postgres", "-D", "data")
    assert job.toolchain == {"python": "3.12.1"}
    assert job.network == ("pypi.org",)
    assert job.checkout.commit == "a" * 40
    assert job.checkout.paths is None
    assert job.reuse is None


# ------------------------------------------------------------------------------------------- reuse

REUSABLE = """\
jobs:
  test:
    inputs: [src/**, tests/**]
    env: {MODE: quick}
    caches: [{key: pip, files: [requirements.txt], paths: [.cache]}]
    run: pytest
"""
FILES = {"src/a.py": "1" * 40, "tests/a.py": "2" * 40, "requirements.txt": "3" * 40, "README.md": "4" * 40}


def digest(config: str = REUSABLE, files: dict[str, str] | None = None, **rest: Any) -> str:
    made = jobs(plan(config, None, FILES if files is None else files, **rest))["test"].reuse
    assert made is not None
    return made.digest


def test_the_digest_of_a_job_follows_its_inputs_and_nothing_else() -> None:
    assert digest() == digest()
    assert digest(files={**FILES, "README.md": "5" * 40}) == digest()
    assert digest(ref="refs/heads/other") == digest()
    different = [
        digest(files={**FILES, "src/a.py": "5" * 40}),
        digest(files={**FILES, "src/b.py": "1" * 40}),
        digest(files={**FILES, "requirements.txt": "5" * 40}),
        digest(REUSABLE.replace("quick", "slow")),
        digest(REUSABLE.replace("run: pytest", "run: pytest -x")),
        digest(REUSABLE + "    toolchain: {python: 3.12.1}\n"),
        digest(REUSABLE + "    network: [pypi.org]\n"),
        digest(REUSABLE + "    labels: [gpu]\n"),
        digest(REUSABLE + "    services: {db: {run: postgres}}\n"),
        digest(REUSABLE + "    secrets: [TOKEN]\n"),
        digest(REUSABLE + "    secrets: [TOKEN]\n", trusted=True),
        digest(REUSABLE + "    artifacts: [{name: out, paths: [out]}]\n"),
    ]
    assert len({digest(), *different}) == 1 + len(different)
    assert digest(REUSABLE + "    limits: {memory: 1GiB}\n    timeout: 5m\n    retry: {max: 1}\n") == digest()


def test_the_mode_of_a_file_is_part_of_the_digest() -> None:
    asked = request(REUSABLE, None, FILES)
    files = tuple(type(file)(file.path, "100755", file.blob) for file in asked.files)
    one, two = (plan_change(one) for one in (asked, _replace(asked, files=files)))
    assert isinstance(one, PlannedChange)
    assert isinstance(two, PlannedChange)
    assert jobs(one)["test"].reuse != jobs(two)["test"].reuse


def _replace(asked: PlanRequest, **fields: Any) -> PlanRequest:
    return msgspec.structs.replace(asked, **fields)


def test_results_of_untrusted_changes_serve_only_themselves() -> None:
    def scope(**change: Any) -> str:
        made = jobs(plan(REUSABLE, None, FILES, **change))["test"].reuse
        assert made is not None
        return made.scope

    assert scope(trusted=True) == "trusted:local"
    assert scope(event="pull_request", ref="refs/pull/7/head", pull_request=7) == "pull:local:7"
    assert scope(ref="refs/heads/feature") == "ref:local:refs/heads/feature"


def test_a_job_with_inputs_gets_only_these_files_and_is_in_if_one_changed() -> None:
    assert jobs(plan(REUSABLE, ["src/a.py"], FILES))["test"].checkout.paths == ("src/**", "tests/**")
    assert included(plan(REUSABLE, ["README.md"], FILES)) == []
    assert included(plan(REUSABLE + "    always: true\n", ["README.md"], FILES)) == ["test"]


# ------------------------------------------------------------------------------------------- bounds

BOUNDED = RepositorySettings(
    name="shop",
    url="https://example.com/shop.git",
    trusted_branches=("main",),
    allow=JobBounds(
        labels=("linux",),
        network=("pypi.org", "*.example.com:8443"),
        secrets={
            "TOKEN": SecretGrant(),
            "REVIEW": SecretGrant(pull_requests=True),
            "DEPLOY": SecretGrant(branches=("main",)),
        },
        caches=False,
        timeout_seconds=600.0,
        jobs=4,
        retries=1,
    ),
)

TOO_MUCH = {
    "labels: [gpu]": "label 'gpu' is not allowed",
    "network: [evil.com]": "host 'evil.com' is not allowed",
    "network: ['pypi.org:22']": "host 'pypi.org:22' is not allowed",
    "network: ['*.org']": "host '*.org' is not allowed",
    "secrets: [OTHER]": "secret 'OTHER' is not in the settings",
    "caches: [{key: a, paths: [b]}]": "allow no caches",
    "services: {db: {run: postgres}}": "allow no services",
    "timeout: 11m": "longer than the 600",
    "retry: {max: 2}": "at most 1 retries",
    "limits: {memory: 5GiB}": "is above the",
    "artifacts: [{name: a, paths: [a], retention: 31d}]": "keep artifacts for at most",
    "matrix: {n: [1, 2, 3, 4, 5]}": "the plan has 5 jobs; the settings of the repository allow 4",
    'matrix: {n: [gpu]}\n    labels: ["${{ matrix.n }}"]': "label 'gpu' is not allowed",
}


@pytest.mark.parametrize("asked", TOO_MUCH)
def test_a_job_that_asks_for_more_than_the_settings_allow_fails_the_plan_with_its_place(asked: str) -> None:
    with pytest.raises(TenureError) as failed:
        plan(f"jobs:\n  test:\n    run: x\n    {asked}\n", ["x"], settings=BOUNDED)
    assert failed.value.code == "PIPELINE_INVALID"
    assert TOO_MUCH[asked] in failed.value.message
    place, line, column = failed.value.details[0].path.split(":")
    assert place == CONFIG
    assert int(line) >= 1
    assert int(column) >= 1


def test_hosts_within_the_bounds_are_allowed() -> None:
    config = "jobs: {test: {run: x, network: [pypi.org, 'pypi.org:443', 'a.example.com:8443']}}"
    assert len(jobs(plan(config, ["x"], settings=BOUNDED))["test"].network) == 3


def test_a_secret_that_a_ref_does_not_get_is_withheld() -> None:
    config = "jobs: {test: {run: x, secrets: [TOKEN, REVIEW, DEPLOY]}}"

    def secrets(**change: Any) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
        planned = plan(config, ["x"], settings=BOUNDED, **change)
        job = jobs(planned)["test"]
        return job.secrets, job.trusted, planned.withheld

    assert secrets(trusted=True) == (("TOKEN", "REVIEW", "DEPLOY"), True, ())
    assert secrets(trusted=True, ref="refs/heads/next") == (("TOKEN", "REVIEW"), True, ("DEPLOY",))
    pull: dict[str, Any] = {
        "event": "pull_request",
        "ref": "refs/pull/7/head",
        "pull_request": 7,
        "fork": True,
    }
    assert secrets(**pull) == (("REVIEW",), False, ("TOKEN", "REVIEW", "DEPLOY"))
    assert secrets(**pull, approved=True) == (("REVIEW",), True, ("TOKEN", "DEPLOY"))


def test_only_pushes_to_listed_branches_are_trusted() -> None:
    assert BOUNDED.trusts("push", "refs/heads/main")
    assert not BOUNDED.trusts("push", "refs/heads/main/evil")
    assert not BOUNDED.trusts("push", "refs/tags/main")
    assert not BOUNDED.trusts("push", "main")
    assert not BOUNDED.trusts("pull_request", "refs/heads/main")


# ---------------------------------------------------------------------------------------- discovery

PYTHON = {
    "libs/base/pyproject.toml": "",
    "libs/base/src/base/__init__.py": "",
    "libs/base/src/base/core.py": "import os",
    "libs/web/pyproject.toml": "",
    "libs/web/src/web/__init__.py": "from base.core import x",
    "libs/web/src/web/views.py": "from . import models\nfrom .models import y",
    "libs/web/src/web/models.py": "",
    "tools/__init__.py": "import web.views as views",
    "other/__init__.py": "import json",
    "other/broken.py": "def (",
}
DISCOVERED = """\
discover: python
jobs:
  base: {project: libs/base, run: x}
  web: {project: libs/web, run: x}
  tools: {project: tools, run: x}
"""


def discover(sources: dict[str, str], changed: list[str], config: str = DISCOVERED) -> PlannedChange:
    blobs = {path: f"{n:040x}" for n, path in enumerate(sources)}
    asked = request(config, changed, blobs)
    need = plan_change(asked)
    assert isinstance(need, BlobsNeeded)
    contents = {blobs[path]: text.encode() for path, text in sources.items() if blobs[path] in need.blobs}
    planned = plan_change(_replace(asked, blobs=contents))
    assert isinstance(planned, PlannedChange)
    again = plan_change(_replace(asked, imports=planned.imports))
    assert isinstance(again, PlannedChange)
    assert again.steps == planned.steps
    return planned


def test_imports_are_dependencies_between_discovered_projects() -> None:
    planned = discover(PYTHON, ["libs/base/src/base/core.py"])
    assert planned.projects["libs/web"] == ("libs/base",)
    assert planned.projects["tools"] == ("libs/web",)
    assert included(planned) == ["base", "web", "tools"]
    assert included(discover(PYTHON, ["libs/web/src/web/models.py"])) == ["web", "tools"]
    assert included(discover(PYTHON, ["tools/__init__.py"])) == ["tools"]


def test_whoever_imports_a_deleted_module_is_reached() -> None:
    left = {path: text for path, text in PYTHON.items() if not path.startswith("libs/base")}
    config = DISCOVERED.replace("  base: {project: libs/base, run: x}\n", "")
    assert included(
        discover(left, ["libs/base/src/base/core.py", "libs/base/src/base/__init__.py"], config)
    ) == ["web", "tools"]


def test_a_file_that_cannot_be_parsed_may_depend_on_anything() -> None:
    config = DISCOVERED + "  other: {project: other, run: x}\n"
    planned = discover(PYTHON, ["tools/__init__.py"], config)
    assert included(planned) == ["tools", "other"]
    assert reasons(planned)["other"] == (
        "the imports of other/broken.py cannot be read, so other may depend on what changed",
    )


def test_discovered_code_is_never_executed(tmp_path: Any) -> None:
    trap = tmp_path / "executed"
    code = f"import pathlib\npathlib.Path({str(trap)!r}).touch()\nimport base"
    discover({**PYTHON, "tools/__init__.py": code}, ["tools/__init__.py"])
    assert not trap.exists()


def test_imports_connect_declared_folders() -> None:
    config = """\
discover: python
projects: {src/app/core: [], src/app/web: []}
jobs: {web: {project: src/app/web, run: x}}
"""
    sources = {
        "src/app/__init__.py": "",
        "src/app/core/__init__.py": "",
        "src/app/core/x.py": "",
        "src/app/web/__init__.py": "from ..core import x",
    }
    assert included(discover(sources, ["src/app/core/x.py"], config)) == ["web"]
    assert included(discover({**sources, "src/app/web/__init__.py": ""}, ["src/app/core/x.py"], config)) == []


# ------------------------------------------------------------------------------------------ process


def test_the_process_answers_with_a_plan_or_with_a_refusal() -> None:
    good = json.loads(answer_request(msgspec.json.encode(request(PIPELINE, ["docs/x.md"]))))
    assert good["type"] == "plan"
    assert [step["name"] for step in good["steps"]] == ["lint", "docs"]
    bad = json.loads(answer_request(msgspec.json.encode(request("jobs: {a: {needs: [a], run: x}}", ["x"]))))
    assert (bad["type"], bad["code"]) == ("refused", "PIPELINE_INVALID")
    assert bad["details"][0]["path"] == f"{CONFIG}:1:20"
