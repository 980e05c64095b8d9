"""Pipelines: the file `.tenure/ci.yaml` of a commit, after it was read and checked.

Laws:
1. The text is untrusted. It is bounded before it is parsed, parsed as data, and nothing of it is executed here.
2. Every problem has a line and a column: those of the file here, those of bounds and expressions in `tenure.ci.planner`, which adds them to the
   same `FileProblems`.
3. Every path in a pipeline stays inside the workspace (`tenure.ci.globs`).
4. A script contains no expressions. Branch names and file names are chosen by others, so they reach a shell only as variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from tenure.ci.change import CHANGE_FACTS
from tenure.ci.globs import find_glob_problem, find_path_problem
from tenure.ci.job import JobArtifact, JobCommand, JobService
from tenure.ci.settings import job_limits
from tenure.declared.model import RetrySettings
from tenure.declared.pipeline_grammar import PIPELINE, RESERVED_AXES
from tenure.declared.validation import NO_EXPRESSIONS, find_script
from tenure.expressions import templates
from tenure.expressions.expression import ExpressionReference, MalformedExpression
from tenure.expressions.schema import MISSING, VariantValue
from tenure.expressions.templates import format_value
from tenure.expressions.yaml_document import FileProblems, YamlNode, YamlPath, read_yaml, read_yaml_text
from tenure.limits import CI_JOBS_MAX, MATRIX_COMBINATIONS_MAX, NAME_CHARS_MAX

ROOTS = ("change", "matrix")
"""What expressions of a pipeline can use."""

Combination = dict[str, Any]


class PipelineCache(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    paths: tuple[str, ...]
    files: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()


class PipelineDownload(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    artifact: str
    to: str = "."


class PipelineJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the file. Its texts may contain expressions, which are evaluated for each combination of its matrix."""

    id: str
    commands: tuple[JobCommand, ...]
    needs: tuple[str, ...] = ()
    condition: str | None = None
    paths: tuple[str, ...] = ()
    paths_ignore: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    always: bool = False
    combinations: tuple[Combination, ...] = ({},)
    env: dict[str, str] = {}
    labels: tuple[str, ...] = ()
    services: tuple[JobService, ...] = ()
    network: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    caches: tuple[PipelineCache, ...] = ()
    artifacts: tuple[JobArtifact, ...] = ()
    downloads: tuple[PipelineDownload, ...] = ()
    reports: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    retry: RetrySettings = RetrySettings()
    allow_failure: bool = False
    toolchain: dict[str, str] = {}
    limits: dict[str, int] = {}

    def instance_name(self, combination: Combination) -> str:
        """The name of the job for one combination: `test (3.12, linux)`."""
        if not combination:
            return self.id
        return f"{self.id} ({', '.join(format_value(value) for value in combination.values())})"


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    jobs: dict[str, PipelineJob]
    """In the order of the file."""
    order: tuple[str, ...]
    """The ids of the jobs, each after those that it needs."""
    projects: dict[str, tuple[str, ...]]
    """Folder -> the folders that it depends on."""
    discover: str = ""


def load_pipeline(text: str, source: str) -> tuple[Pipeline, FileProblems]:
    """A pipeline from the text of its file, and the place for further problems. PIPELINE_INVALID names every problem with its line and
    column."""
    problems = FileProblems(source, "PIPELINE_INVALID", "pipeline", "jobs")
    root = read_yaml(text, problems)
    data = PIPELINE.read(root, (), problems)
    if data is MISSING:
        raise problems.error()
    problems.raise_any()
    check = _PipelineValidator(root, data, problems)
    order = check.check()
    problems.raise_any()
    defaults = data.get("defaults", {})
    return (
        Pipeline(
            jobs={job_id: _build_job(job_id, job, defaults) for job_id, job in data["jobs"].items()},
            order=tuple(order),
            projects={
                _folder(folder): tuple(map(_folder, needs))
                for folder, needs in data.get("projects", {}).items()
            },
            discover=data.get("discover", ""),
        ),
        problems,
    )


def load_pipeline_file(path: Path) -> Pipeline:
    return load_pipeline(read_yaml_text(path, "PIPELINE_INVALID"), str(path))[0]


def _folder(path: str) -> str:
    return path.rstrip("/") or "."


def count_combinations(matrix: dict[str, list[Any]]) -> int:
    """How many combinations a matrix can have, without making them."""
    axes = [values for axis, values in matrix.items() if axis not in RESERVED_AXES]
    return (prod(map(len, axes)) if axes else 0) + len(matrix.get("include", ()))


def expand_matrix(matrix: dict[str, list[Any]]) -> tuple[Combination, ...]:
    axes = {axis: values for axis, values in matrix.items() if axis not in RESERVED_AXES}
    excluded = matrix.get("exclude", ())
    made = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())] if axes else []
    kept = [
        one for one in made if not any(all(one.get(k) == v for k, v in rule.items()) for rule in excluded)
    ]
    return (*kept, *matrix.get("include", ()))


def _build_job(job_id: str, written: VariantValue, defaults: dict[str, Any]) -> PipelineJob:
    values = written.values
    if written.kind == "run":
        commands: tuple[JobCommand, ...] = (
            _build_command({k: values[k] for k in ("run", "cwd") if k in values}),
        )
    else:
        commands = tuple(map(_build_command, values["commands"]))
    project = values.get("project", [])
    return PipelineJob(
        id=job_id,
        commands=commands,
        needs=tuple(dict.fromkeys(values.get("needs", ()))),
        condition=values.get("if"),
        projects=tuple(map(_folder, [project] if isinstance(project, str) else project)),
        combinations=expand_matrix(values["matrix"]) if "matrix" in values else ({},),
        env={**defaults.get("env", {}), **values.get("env", {})},
        labels=tuple(values.get("labels", defaults.get("labels", ()))),
        services=tuple(
            JobService(
                name=name,
                run=_argv(service["run"]),
                ready=_argv(service["ready"]) if "ready" in service else None,
                ready_seconds=service.get("ready_within", 30.0),
            )
            for name, service in values.get("services", {}).items()
        ),
        caches=tuple(msgspec.convert(cache, PipelineCache) for cache in values.get("caches", ())),
        artifacts=tuple(
            JobArtifact(
                name=artifact["name"],
                paths=tuple(artifact["paths"]),
                retention_seconds=None if "retention" not in artifact else int(artifact["retention"]),
                always=artifact.get("always", False),
            )
            for artifact in values.get("artifacts", ())
        ),
        downloads=tuple(
            msgspec.convert(download, PipelineDownload) for download in values.get("downloads", ())
        ),
        timeout_seconds=values.get("timeout", defaults.get("timeout")),
        retry=RetrySettings.merge(values.get("retry"), defaults.get("retry")),
        toolchain=values.get("toolchain", {}),
        limits=job_limits({**defaults.get("limits", {}), **values.get("limits", {})}),
        always=values.get("always", False),
        allow_failure=values.get("allow_failure", False),
        paths=tuple(values.get("paths", ())),
        paths_ignore=tuple(values.get("paths_ignore", ())),
        inputs=tuple(values.get("inputs", ())),
        network=tuple(values.get("network", ())),
        secrets=tuple(dict.fromkeys(values.get("secrets", ()))),
        reports=tuple(values.get("reports", ())),
    )


def _argv(run: str | list[str]) -> str | tuple[str, ...]:
    return run if isinstance(run, str) else tuple(run)


def _build_command(values: dict[str, Any]) -> JobCommand:
    return JobCommand(run=_argv(values["run"]), name=values.get("name", ""), cwd=values.get("cwd", ""))


_GLOBS = ("paths", "paths_ignore", "inputs", "reports")
_TEMPLATES = ("run", "commands", "env", "labels", "services", "caches", "toolchain")
"""The keys of a job whose texts may contain expressions."""


class _PipelineValidator:
    """The rules that span several places of the file."""

    def __init__(self, root: YamlNode, data: dict[str, Any], problems: FileProblems) -> None:
        self.root = root
        self.data = data
        self.jobs: dict[str, VariantValue] = data["jobs"]
        self.problems = problems

    def check(self) -> list[str]:
        """Add every problem. The ids of the jobs, each after those that it needs."""
        if not self.jobs:
            self.problems.add(("jobs",), "a pipeline needs at least one job")
        total = sum(
            count_combinations(job.values["matrix"]) if "matrix" in job.values else 1
            for job in self.jobs.values()
        )
        if total > CI_JOBS_MAX:
            self.problems.add(("jobs",), f"the pipeline has {total} jobs; at most {CI_JOBS_MAX} are allowed")
            return []
        self._check_projects()
        for path, values in (
            (("defaults",), self.data.get("defaults", {})),
            *((job.path, job.values) for job in self.jobs.values()),
        ):
            axes = self._check_matrix(path, values)
            self._check_expressions(path, values, axes)
        for job_id, job in self.jobs.items():
            self._check_paths(job)
            self._check_commands(job)
            self._check_needs(job_id, job)
            self._check_artifacts(job)
            retry = RetrySettings.merge(job.values.get("retry"), self.data.get("defaults", {}).get("retry"))
            if retry.jitter is not None and retry.backoff is None and "retry" in job.values:
                self.problems.add(
                    (*job.path, "retry", "jitter"), "jitter needs a backoff; set its delays too"
                )
        return self._order()

    def _order(self) -> list[str]:
        needs = {
            job_id: [name for name in job.values.get("needs", ()) if name in self.jobs and name != job_id]
            for job_id, job in self.jobs.items()
        }
        try:
            return [*TopologicalSorter(needs).static_order()]
        except CycleError as found:
            ring = found.args[1][:0:-1]  # each job needs the next one
            first = ring.index(min(ring))
            names = " -> ".join([*ring[first:], *ring[:first], ring[first]])
            self.problems.add(("jobs", ring[first], "needs"), f"the needs form a cycle: {names}")
            return []

    def _check_projects(self) -> None:
        projects: dict[str, list[str]] = self.data.get("projects", {})
        known = {_folder(folder) for folder in projects}
        for folder, needs in projects.items():
            self._check_folder(("projects", folder), folder)
            for i, need in enumerate(needs):
                at: YamlPath = ("projects", folder, i)
                if (
                    self._check_folder(at, need)
                    and _folder(need) not in known
                    and not self.data.get("discover")
                ):
                    guess = self.problems.close_to(_folder(need), known)
                    self.problems.add(at, f"there is no project {need!r}{guess}")

    def _check_folder(self, at: YamlPath, folder: str) -> bool:
        problem = find_path_problem(folder)
        if problem:
            self.problems.add(at, problem)
        return not problem

    def _check_paths(self, job: VariantValue) -> None:
        values, path = job.values, job.path
        globs: list[tuple[YamlPath, str]] = [
            ((key, i), glob) for key in _GLOBS for i, glob in enumerate(values.get(key, ()))
        ]
        for key, inside in (("caches", ("files", "paths")), ("artifacts", ("paths",))):
            globs += [
                ((key, n, name, i), glob)
                for n, one in enumerate(values.get(key, ()))
                for name in inside
                for i, glob in enumerate(one.get(name, ()))
            ]
        for at, glob in globs:
            if problem := find_glob_problem(glob):
                self.problems.add((*path, *at), problem)
        folders: list[tuple[YamlPath, str]] = [
            (("downloads", i, "to"), download["to"])
            for i, download in enumerate(values.get("downloads", ()))
            if "to" in download
        ]
        if "cwd" in values:
            folders.append((("cwd",), values["cwd"]))
        folders += [
            (("commands", i, "cwd"), command["cwd"])
            for i, command in enumerate(values.get("commands", ()))
            if "cwd" in command
        ]
        project = values.get("project", [])
        if isinstance(project, str):
            folders.append((("project",), project))
        else:
            folders += [(("project", i), folder) for i, folder in enumerate(project)]
        for at, folder in folders:
            self._check_folder((*path, *at), folder)

    def _check_commands(self, job: VariantValue) -> None:
        runs: list[tuple[YamlPath, Any]] = [(("run",), job.values["run"])] if "run" in job.values else []
        runs += [(("commands", i, "run"), one["run"]) for i, one in enumerate(job.values.get("commands", ()))]
        for name, service in job.values.get("services", {}).items():
            runs += [(("services", name, key), service[key]) for key in ("run", "ready") if key in service]
        for at, run in runs:
            if isinstance(run, str):
                if templates.OPEN in run:
                    self.problems.add((*job.path, *at), NO_EXPRESSIONS)
                continue
            if not run[0]:
                self.problems.add((*job.path, *at), "a command needs a program to start")
            if (script := find_script(tuple(run))) and templates.OPEN in run[script]:
                self.problems.add((*job.path, *at, script), NO_EXPRESSIONS)

    def _check_needs(self, job_id: str, job: VariantValue) -> None:
        for i, name in enumerate(job.values.get("needs", ())):
            if name == job_id:
                self.problems.add((*job.path, "needs", i), "a job cannot need itself")
            elif name not in self.jobs:
                guess = self.problems.close_to(name, self.jobs)
                self.problems.add((*job.path, "needs", i), f"there is no job {name!r}{guess}")

    def _check_artifacts(self, job: VariantValue) -> None:
        first: dict[str, int] = {}
        for i, artifact in enumerate(job.values.get("artifacts", ())):
            if first.setdefault(artifact["name"], i) != i:
                self.problems.add(
                    (*job.path, "artifacts", i, "name"), f"the job has two artifacts {artifact['name']!r}"
                )
        for i, download in enumerate(job.values.get("downloads", ())):
            at: YamlPath = (*job.path, "downloads", i)
            if download["job"] not in job.values.get("needs", ()):
                self.problems.add((*at, "job"), f"job {download['job']!r} must be in the needs of this job")
            elif download["job"] in self.jobs:
                offered = [one["name"] for one in self.jobs[download["job"]].values.get("artifacts", ())]
                if download["artifact"] not in offered:
                    guess = self.problems.close_to(download["artifact"], offered, "it has")
                    problem = f"job {download['job']!r} has no artifact {download['artifact']!r}{guess}"
                    self.problems.add((*at, "artifact"), problem)

    # ---------------------------------------------------------------------------------------- matrices

    def _check_matrix(self, path: YamlPath, values: dict[str, Any]) -> set[str]:
        """Check a matrix, and return its axes."""
        matrix: dict[str, list[Any]] = values.get("matrix", {})
        at: YamlPath = (*path, "matrix")
        axes = {axis for axis in matrix if axis not in RESERVED_AXES}
        for axis, items in matrix.items():
            for i, item in enumerate(items):
                if axis in RESERVED_AXES:
                    if not isinstance(item, dict) or not item or not all(map(_is_plain, item.values())):
                        self.problems.add((*at, axis, i), "must be a map of axes and plain values")
                        return axes
                    if axis == "exclude" and (unknown := item.keys() - axes):
                        self.problems.add((*at, axis, i), f"the matrix has no axis {min(unknown)!r}")
                elif not _is_plain(item):
                    self.problems.add((*at, axis, i), "must be a string, a number or a boolean")
                    return axes
        if matrix and (count := count_combinations(matrix)) > MATRIX_COMBINATIONS_MAX:
            self.problems.add(
                at, f"the matrix has {count} combinations; at most {MATRIX_COMBINATIONS_MAX} are allowed"
            )
            return axes
        if matrix:
            self._check_instances(path, matrix)
        return axes.union(*(item.keys() for item in matrix.get("include", ())))

    def _check_instances(self, path: YamlPath, matrix: dict[str, list[Any]]) -> None:
        job = PipelineJob(id=str(path[-1]), commands=())
        names: set[str] = set()
        combinations = expand_matrix(matrix)
        if not combinations:
            self.problems.add((*path, "matrix"), "the matrix has no combination left")
        for one in combinations:
            name = job.instance_name(one)
            if name in names:
                self.problems.add((*path, "matrix"), f"the matrix has the combination {name!r} twice")
            elif len(name) > NAME_CHARS_MAX or not name.isprintable():
                problem = f"the name {name[:60]!r} must have at most {NAME_CHARS_MAX} printable characters"
                self.problems.add((*path, "matrix"), problem)
            names.add(name)

    # -------------------------------------------------------------------------------------- expressions

    def _check_expressions(self, path: YamlPath, values: dict[str, Any], axes: set[str]) -> None:
        for key in _TEMPLATES:
            for place, text in templates.find_templates(values.get(key)):
                self._check_text((*path, key, *place), templates.parse_template, text, axes)
        if "if" in values:
            self._check_text((*path, "if"), templates.parse_condition, values["if"], axes)

    def _check_text(
        self, path: YamlPath, parse: Callable[[str, tuple[str, ...]], Any], text: str, axes: set[str]
    ) -> None:
        try:
            refers: tuple[ExpressionReference, ...] = parse(text, ROOTS).refers
        except MalformedExpression as fault:
            self.problems.add(path, str(fault))
            return
        for problem in (p for reference in refers for p in self._reference_problems(reference, path, axes)):
            self.problems.add(path, problem)

    def _reference_problems(
        self, reference: ExpressionReference, path: YamlPath, axes: set[str]
    ) -> Iterator[str]:
        if not reference.parts:
            return
        name = str(reference.parts[0])
        if reference.root == "change" and name not in CHANGE_FACTS:
            yield f"there is no change.{name}{self.problems.close_to(name, CHANGE_FACTS, 'there are')}"
        elif reference.root == "matrix" and path[0] == "jobs" and name not in axes:
            yield f"the job's matrix has no axis {name!r}{self.problems.close_to(name, axes)}"


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)
