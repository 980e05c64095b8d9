"""`python -m bench.ci_plan`: how long a delta takes to plan in a repository of 20,000 files and 500 jobs, with a warm mirror.

    python -m bench.ci_plan [--files 20000] [--jobs 500] [--rounds 7]

Laws:
1. A round is a whole plan step over a new commit: real git fetches it into a mirror that has the commits before it, and a planner process of its
   own plans it. Nothing of an earlier plan is reused.
2. Every plan is checked: exactly the jobs of the changed project and of what depends on it are in. A wrong one ends the bench with 2.
3. It prints a JSON line for each figure: the name, the seconds (median of the rounds), and the bar.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from bench.report import print_json
from tenure.ci.change import Change
from tenure.ci.mirror import GitMirror, GitSettings
from tenure.ci.plan_step import execute_plan_step
from tenure.ci.settings import JobBounds, RepositorySettings

BAR_SECONDS = 1.5
PROJECTS_PER_JOB = 2
"""Half of the jobs are about a project; the others have paths and inputs."""
_GIT = {
    "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "bench", "GIT_AUTHOR_EMAIL": "bench@example.com",
    "GIT_COMMITTER_NAME": "bench", "GIT_COMMITTER_EMAIL": "bench@example.com",
}  # fmt: skip


def pipeline(jobs: int) -> str:
    """Projects in a row, each depending on the one before in groups of ten, with a job each; and jobs with inputs."""
    projects = jobs // PROJECTS_PER_JOB
    lines = ["projects:"]
    for n in range(projects):
        needs = f"packages/p{n - 1}" if n % 10 else ""
        lines.append(f"  packages/p{n}: [{needs}]")
    lines.append("jobs:")
    lines += [
        f"  test-{n}: {{project: packages/p{n}, inputs: ['packages/p{n}/**'], run: pytest packages/p{n}}}"
        for n in range(projects)
    ]
    condition = 'change.branch == "main" || change.event == "pull_request"'
    for n in range(jobs - projects):
        lines.append(
            f"  lint-{n}: {{paths: ['packages/p{n}/**/*.py'], inputs: ['packages/p{n}/**/*.py', setup.cfg], if: '{condition}', run: ruff check}}"
        )
    return "\n".join(lines) + "\n"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=_GIT, check=True, capture_output=True, text=True).stdout.strip()


def make_repository(folder: Path, files: int, jobs: int) -> str:
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / ".tenure").mkdir()
    (folder / ".tenure/ci.yaml").write_text(pipeline(jobs))
    projects = jobs // PROJECTS_PER_JOB
    for n in range(files - 1):
        path = folder / f"packages/p{n % projects}/src/part{n % 7}/file{n}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"X = {n}\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Begin")
    return git(folder, "rev-parse", "HEAD")


def main(
    files: Annotated[int, typer.Option(help="Files of the repository.")] = 20_000,
    jobs: Annotated[int, typer.Option(help="Jobs of the pipeline.")] = 500,
    rounds: Annotated[int, typer.Option(help="Plans; the median counts.")] = 7,
) -> None:
    """Measure the planning of a delta."""
    with tempfile.TemporaryDirectory() as scratch:
        work, cache = Path(scratch, "work"), Path(scratch, "cache")
        base = make_repository(work, files, jobs)
        settings = RepositorySettings(
            name="bench",
            url=str(work),
            protocols=("file",),
            trusted_branches=("main",),
            allow=JobBounds(jobs=jobs),
        )
        owner = GitSettings(protocols=("file",))
        mirror = GitMirror(cache, settings, owner)
        mirror.fetch_change("refs/heads/main", base)
        seconds = []
        for n in range(rounds):
            changed = (
                n * 20 % (jobs // PROJECTS_PER_JOB) // 10 * 10 + 7
            )  # three projects of its group are reached: 7, 8, 9
            path = work / f"packages/p{changed}/src/new{n}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"Y = {n}\n")
            git(work, "add", "--all")
            git(work, "commit", "--quiet", "--message", f"Change {n}")
            head = git(work, "rev-parse", "HEAD")
            change = Change(
                repository=settings, event="push", ref="refs/heads/main", head=head, base=base, trusted=True
            )
            begun = time.perf_counter()
            planned = execute_plan_step(change, cache, owner)
            seconds.append(time.perf_counter() - begun)
            expected = {f"test-{changed + n}" for n in range(3)} | {f"lint-{changed}"}
            if {step.name for step in planned.steps} != expected:
                print(
                    f"wrong plan: {[step.name for step in planned.steps]}, expected {sorted(expected)}",
                    file=sys.stderr,
                )
                sys.exit(2)
            base = head
    median = statistics.median(seconds)
    print_json(
        {"figure": "ci plan", "files": files, "jobs": jobs, "seconds": round(median, 3), "bar_seconds": BAR_SECONDS,
         "met": median < BAR_SECONDS, "load": round(os.getloadavg()[0], 1)}
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
