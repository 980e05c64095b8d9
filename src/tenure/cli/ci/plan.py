"""`tenure ci plan`: explain which jobs a change needs, on a plain checkout and without a server."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.common.console import count_noun, print_json, say, warn
from tenure.cli.common.options import AsJson
from tenure.cli.common.tables import make_table
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.ci.git_commands import LocalRepository
    from tenure.ci.planner import JobExplanation, PlannedChange
    from tenure.ci.settings import RepositorySettings

app = typer.Typer()


class PlanFormat(StrEnum):
    table = "table"
    graph = "graph"
    mermaid = "mermaid"
    json = "json"


@app.command(
    epilog="""
    Examples:

    tenure ci plan --base main -- the commits of this branch since it left main

    tenure ci plan --base HEAD~1 -- the last commit

    tenure ci plan --base v1.0 --head v1.1 --format graph

    tenure ci plan --base main --settings ci-settings.yaml --repository shop -- with the bounds of a server's settings

    tenure ci plan --base main --pull-request 7 -- as a pull request sees it
    """
)
def plan(
    base: Annotated[
        str | None,
        typer.Option(metavar="COMMIT", help="Compare with this commit. Without it, everything is planned."),
    ] = None,
    head: Annotated[str, typer.Option(metavar="COMMIT", help="Plan this commit.")] = "HEAD",
    repo: Annotated[Path, typer.Option(metavar="PATH", help="A checkout or a bare repository.")] = Path(),
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="CI settings of a server. Without them, a pipeline may ask for anything."
        ),
    ] = None,
    repository: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The repository in the settings.  \\[default: the only one]",
            show_default=False,
        ),
    ] = None,
    ref: Annotated[
        str | None,
        typer.Option(
            metavar="REF", help="The ref for `if`.  \\[default: the current branch]", show_default=False
        ),
    ] = None,
    pull_request: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Plan as this pull request.")
    ] = None,
    style: Annotated[PlanFormat, typer.Option("--format", help="How the plan is shown.")] = PlanFormat.table,
    as_json: AsJson = False,
) -> None:
    """Explain which jobs a change needs, and why each one is in or out.

    The difference is that of `git diff BASE...HEAD`: what HEAD changed since it left BASE. Only committed files count. Nothing is executed.
    """
    from tenure.ci.change import Change
    from tenure.ci.git_commands import find_repository
    from tenure.ci.plan_step import plan_commits, plan_in_process

    git = find_repository(repo)
    chosen = _choose_settings(settings, repository, repo)
    event: Any = "push" if pull_request is None else "pull_request"
    full_ref = _full_ref(git, ref, pull_request)
    change = Change(
        repository=chosen,
        event=event,
        ref=full_ref,
        pull_request=pull_request,
        trusted=chosen.trusts(event, full_ref),
        base_ref=f"refs/heads/{chosen.default_branch}" if pull_request is not None else "",
    )
    head_id = git.find_commit(head)
    base_id, whole = None, "no --base was given"
    if base is not None:
        base_id, whole = (
            git.find_merge_base(git.find_commit(base), head_id),
            f"{base} and {head} have no common history",
        )
    planned = plan_commits(
        git,
        change,
        head_id,
        base_id,
        whole,
        until=monotonic() + chosen.planning_seconds,
        launch=plan_in_process,
    )
    _show(planned, PlanFormat.json if as_json else style, chosen.config)


def _choose_settings(file: Path | None, name: str | None, repo: Path) -> RepositorySettings:
    from tenure.ci.settings import load_settings_file, local_settings

    if file is None:
        if name is not None:
            raise TenureError("INVALID_INPUT", "--repository needs --settings")
        return local_settings(str(repo.absolute()))
    loaded = load_settings_file(file)
    if name is not None:
        return loaded.find(name)
    if len(loaded.repositories) != 1:
        names = ", ".join(loaded.repositories)
        raise TenureError(
            "INVALID_INPUT", f"{file} has several repositories; choose one with --repository: {names}"
        )
    return next(iter(loaded.repositories.values()))


def _full_ref(git: LocalRepository, ref: str | None, pull_request: int | None) -> str:
    if ref is None:
        return (
            f"refs/pull/{pull_request}/head"
            if pull_request is not None
            else f"refs/heads/{git.current_branch() or 'HEAD'}"
        )
    return ref if ref.startswith("refs/") else f"refs/heads/{ref}"


def _show(planned: PlannedChange, style: PlanFormat, config: str) -> None:
    if style is PlanFormat.json:
        import msgspec

        from tenure.ci.job import CiJob

        inputs = {step.name: msgspec.json.decode(step.input or b"{}", type=CiJob) for step in planned.steps}
        print_json(
            {
                "head": planned.head,
                "base": planned.base or None,
                "config_digest": planned.config_digest,
                "withheld": planned.withheld,
                "projects": planned.projects,
                "jobs": [
                    {
                        "name": job.name,
                        "in": job.included,
                        "reasons": job.reasons,
                        "needs": job.needs,
                        "input": inputs.get(job.name),
                    }
                    for job in planned.jobs
                ],
            }
        )
        return
    if style is PlanFormat.mermaid:
        print("\n".join(draw_mermaid(planned.jobs)))
        return
    if style is PlanFormat.graph:
        for line in draw_tree(planned.jobs):
            say(line)
    else:
        table = make_table("job", "plan", "why")
        for job in planned.jobs:
            table.add_row(
                _cell(job.name), _cell("in" if job.included else "out"), _cell("; ".join(job.reasons))
            )
        say(table)
    count = sum(job.included for job in planned.jobs)
    compared = f"since {planned.base[:12]}" if planned.base else "compared with nothing"
    say(f"{count_noun(count, 'job')} of {len(planned.jobs)} for {planned.head[:12]}, {compared}, by {config}")
    if planned.withheld:
        warn(f"withheld from this ref: {', '.join(planned.withheld)}")


def _cell(value: str) -> Any:
    from tenure.cli.common.console import safe_text

    return safe_text(value)


def group_jobs(jobs: tuple[JobExplanation, ...]) -> dict[str, list[JobExplanation]]:
    """Job id -> its combinations."""
    grouped: dict[str, list[JobExplanation]] = {}
    for job in jobs:
        grouped.setdefault(job.job, []).append(job)
    return grouped


def describe_job(name: str, combinations: list[JobExplanation]) -> str:
    """One job in a line: its name, whether it is in, and why."""
    chosen = [one for one in combinations if one.included]
    times = f" x{len(combinations)}" if len(combinations) > 1 else ""
    part = f" {len(chosen)} of {len(combinations)}" if chosen and len(chosen) < len(combinations) else ""
    return f"{name}{times}  {'in' if chosen else 'out'}{part}: {(chosen or combinations)[0].reasons[0]}"


def draw_tree(jobs: tuple[JobExplanation, ...]) -> list[str]:
    """The jobs as a tree: beneath each job those that need it. A job that several need is drawn once."""
    grouped = group_jobs(jobs)
    below: dict[str, list[str]] = {}
    for name, combinations in grouped.items():
        for need in combinations[0].needs:
            below.setdefault(need, []).append(name)
    lines: list[str] = []
    drawn: set[str] = set()
    # Last in, first out: a job's line is followed by those beneath it. Pipelines are long, so it does not recurse.
    left = [(name, "", "") for name in reversed(grouped) if not grouped[name][0].needs]
    while left:
        name, branch, indent = left.pop()
        again = name in drawn and bool(below.get(name))
        lines.append(f"{branch}{describe_job(name, grouped[name])}{' (its jobs are above)' if again else ''}")
        if name in drawn:
            continue
        drawn.add(name)
        children = below.get(name, [])
        for i, child in reversed(list(enumerate(children))):
            last = i == len(children) - 1
            left.append((child, f"{indent}{'└─ ' if last else '├─ '}", f"{indent}{'   ' if last else '│  '}"))
    return lines


def draw_mermaid(jobs: tuple[JobExplanation, ...]) -> list[str]:
    """The jobs as a Mermaid flow chart. Jobs that are out are dashed."""
    grouped = group_jobs(jobs)
    ids = {name: f"j{n}" for n, name in enumerate(grouped)}
    lines = ["flowchart LR", "  classDef out stroke-dasharray: 4,color:#888"]
    for name, combinations in grouped.items():
        text = re.sub(r'["\[\]{}()<>|`;#]', " ", describe_job(name, combinations))
        lines.append(
            f'  {ids[name]}["{text}"]{"" if any(one.included for one in combinations) else ":::out"}'
        )
    for name, combinations in grouped.items():
        lines += [f"  {ids[need]} --> {ids[name]}" for need in combinations[0].needs]
    return lines
