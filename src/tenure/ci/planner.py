"""The planner: which jobs a change needs, and why.

Laws:
1. Pure: a request in, an answer out. The request has everything (the pipeline's text, the changed paths, the files of the commit); if the contents
   of files are missing, the answer asks for them, and the planner is asked again. So it can run in a sandbox without git and network.
2. A job is in if nothing limits it, if a changed file matches its `paths` or `inputs`, if one of its projects is reached, if its own definition
   changed, or if a job that is in needs it. A job whose `if` is false is out, and so are the jobs that need it.
3. Every job has at least one reason, whether it is in or out.
4. The work is linear in files, jobs and edges: each glob is matched once, over the files that begin with its literal beginning.
5. Everything that the pipeline asks for is within the bounds of the settings, or the answer is PIPELINE_INVALID with line and column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tenure.ci.bounds import check_bounds, choose_limits, find_label_problems
from tenure.ci.change import Change
from tenure.ci.globs import PathIndex, compile_glob
from tenure.ci.job import (
    JOB_TOOL,
    CiJob,
    JobCache,
    JobCheckout,
    JobCommand,
    JobDownload,
    JobReuse,
    JobService,
    queue_for,
)
from tenure.ci.pipeline import ROOTS, Combination, Pipeline, PipelineJob, load_pipeline
from tenure.ci.project_graph import ProjectGraph, ReachedProject, build_python_graph
from tenure.ci.python_imports import PACKAGING_FILES, Imports, read_imports
from tenure.ci.reuse_digest import FileDigests, compute_job_digest
from tenure.errors import Detail, TenureError
from tenure.expressions import templates
from tenure.expressions.expression import MalformedExpression, shared_budget
from tenure.expressions.templates import format_value
from tenure.expressions.yaml_document import FileProblems, YamlPath
from tenure.kernel import capability as cap
from tenure.kernel.commands import BackoffSpec, ReuseSpec, StepSpec
from tenure.limits import CI_NEEDS_MAX, CI_PLAN_BYTES_MAX, CI_PYTHON_FILES_MAX, PAYLOAD_BYTES_MAX

REGULAR_MODES = ("100644", "100755")
REASONS_MAX = 3
"""Reasons of one kind that are shown for a job."""
CACHE_DIGEST_DIGITS = 16


class CommitFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    path: str
    mode: str
    blob: str


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plan is made from."""

    change: Change
    head: str
    base: str = ""
    """The commit that the head was compared with. Empty: there is none, and everything is planned."""
    config: str
    base_config: str | None = None
    """The pipeline of the base. None: there is none that could be read."""
    changed: tuple[str, ...] | None = None
    """Changed, added and deleted paths. None: everything is planned."""
    whole: str = ""
    """Why everything is planned."""
    files: tuple[CommitFile, ...] = ()
    imports: dict[str, Imports | None] = {}
    """Blob -> the imports of a Python file, as far as they are known."""
    blobs: dict[str, bytes] = {}
    """Contents that an earlier answer asked for."""


class JobExplanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job is in a plan or not."""

    name: str
    job: str
    included: bool
    reasons: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Ids of jobs in the file."""


class PlannedChange(msgspec.Struct, frozen=True, kw_only=True, tag="plan"):
    steps: tuple[StepSpec, ...]
    """The jobs that are in, as the kernel takes them. Empty: the change needs no job."""
    jobs: tuple[JobExplanation, ...]
    """All jobs of the pipeline with the reasons."""
    head: str
    base: str
    config_digest: str
    """SHA-256 of the pipeline's text. An approval is bound to it and to the head."""
    withheld: tuple[str, ...] = ()
    """Secrets that jobs ask for and this change does not get."""
    projects: dict[str, tuple[str, ...]] = {}
    """The project graph, if a job uses it."""
    imports: dict[str, Imports | None] = {}
    """Imports that were read for this plan, for the next one."""


class BlobsNeeded(msgspec.Struct, frozen=True, kw_only=True, tag="blobs"):
    """The planner needs the contents of files. Ask again with them."""

    blobs: tuple[str, ...]


class PlanRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    code: str
    message: str
    details: tuple[Detail, ...] = ()

    def error(self) -> TenureError:
        return TenureError(self.code, self.message, self.details)


PlanAnswer = PlannedChange | BlobsNeeded | PlanRefused


def plan_change(request: PlanRequest) -> PlannedChange | BlobsNeeded:
    """The plan of a change. PIPELINE_INVALID names every problem of the pipeline with its line and column."""
    pipeline, problems = load_pipeline(request.config, request.change.repository.config)
    for job in pipeline.jobs.values():
        check_bounds(job, request.change.repository.allow, problems)
    problems.raise_any()
    files = {file.path: (file.mode, file.blob) for file in request.files}
    found = _build_graph(request, pipeline, files)
    if isinstance(found, BlobsNeeded):
        return found
    graph, imports = found
    with shared_budget():
        return _Planner(request, pipeline, problems, files, graph).plan(imports)


def _build_graph(
    request: PlanRequest, pipeline: Pipeline, files: Mapping[str, tuple[str, str]]
) -> tuple[ProjectGraph, dict[str, Imports | None]] | BlobsNeeded:
    if pipeline.discover != "python" or not any(job.projects for job in pipeline.jobs.values()):
        return ProjectGraph(pipeline.projects), {}
    python = {
        path: blob
        for path, (mode, blob) in files.items()
        if mode in REGULAR_MODES and (path.endswith(".py") or path.rpartition("/")[2] in PACKAGING_FILES)
    }
    sources = {blob for path, blob in python.items() if path.endswith(".py")}
    if len(sources) > CI_PYTHON_FILES_MAX:
        raise TenureError(
            "PIPELINE_INVALID",
            f"the commit has {len(sources)} Python files; imports are read from at most {CI_PYTHON_FILES_MAX}: declare `projects` instead",
        )
    unread = sources - request.imports.keys()
    if missing := unread - request.blobs.keys():
        return BlobsNeeded(blobs=tuple(sorted(missing)))
    imports = {blob: read_imports(request.blobs[blob]) for blob in unread}
    deleted = [path for path in request.changed or () if path not in files]
    return build_python_graph(pipeline.projects, python, deleted, {**request.imports, **imports}), imports


class _Instance(msgspec.Struct, frozen=True):
    job: PipelineJob
    combination: Combination
    name: str


class _Planner:
    def __init__(
        self,
        request: PlanRequest,
        pipeline: Pipeline,
        problems: FileProblems,
        files: Mapping[str, tuple[str, str]],
        graph: ProjectGraph,
    ) -> None:
        self.request = request
        self.change = request.change
        self.bounds = request.change.repository.allow
        self.pipeline = pipeline
        self.problems = problems
        self.graph = graph
        self.changed = PathIndex(request.changed or ())
        self.reached: dict[tuple[str, ...], dict[str, ReachedProject]] = {}
        """Ignored globs -> the projects that the other changed files reach."""
        self.digests = FileDigests(PathIndex(files), files)
        self.facts = self.change.facts(self.changed.paths)
        self.reasons: dict[str, list[str]] = {}
        """Job -> why it is in."""
        self.blocked: dict[str, str] = {}
        """Job -> why it is out whatever changed."""
        self.instances: dict[str, list[_Instance]] = {}
        """Job -> its combinations whose `if` is true."""
        self.withheld: dict[str, None] = {}

    def plan(self, imports: dict[str, Imports | None]) -> PlannedChange:
        self._check_projects()
        self._decide_conditions()
        self.problems.raise_any()
        self._decide_changes()
        self._include_needed()
        self._check_counts()
        self.problems.raise_any()
        steps = tuple(self._build_steps())
        self.problems.raise_any()
        size = sum(len(step.input or b"") for step in steps)
        if size > CI_PLAN_BYTES_MAX:
            raise self.problems.stop(
                ("jobs",), f"the jobs of the plan have {size} bytes; at most {CI_PLAN_BYTES_MAX} are allowed"
            )
        return PlannedChange(
            steps=steps,
            jobs=tuple(self._explain()),
            head=self.request.head,
            base=self.request.base,
            config_digest=hashlib.sha256(self.request.config.encode()).hexdigest(),
            withheld=tuple(self.withheld),
            projects=self.graph.depends_on
            if any(job.projects for job in self.pipeline.jobs.values())
            else {},
            imports=imports,
        )

    # ------------------------------------------------------------------------------------- in or out

    def _check_projects(self) -> None:
        known = self.graph.depends_on
        for job in self.pipeline.jobs.values():
            for i, project in enumerate(job.projects):
                if project not in known:
                    at: YamlPath = ("jobs", job.id, "project")
                    guess = self.problems.close_to(project, known, "there are")
                    self.problems.add(
                        (*at, i) if len(job.projects) > 1 else at, f"there is no project {project!r}{guess}"
                    )
        for project, needs in self.pipeline.projects.items():
            for i, need in enumerate(needs):
                if need not in known:
                    guess = self.problems.close_to(need, known)
                    self.problems.add(("projects", project, i), f"there is no project {need!r}{guess}")

    def _decide_conditions(self) -> None:
        for job in map(self.pipeline.jobs.__getitem__, self.pipeline.order):
            self.instances[job.id] = [
                _Instance(job, combination, job.instance_name(combination))
                for combination in job.combinations
                if self._is_wanted(job, combination)
            ]
            blocker = next((need for need in job.needs if need in self.blocked), None)
            if not self.instances[job.id]:
                self.blocked[job.id] = f"if is false: {_shorten(job.condition or '')}"
            elif blocker is not None:
                self.blocked[job.id] = f"needs {blocker}, which is out: {self.blocked[blocker]}"

    def _is_wanted(self, job: PipelineJob, combination: Combination) -> bool:
        if job.condition is None:
            return True
        try:
            value = templates.parse_condition(job.condition, ROOTS).value(self._scope(combination))
        except (TenureError, MalformedExpression) as fault:
            why = fault.message if isinstance(fault, TenureError) else str(fault)
            self.problems.add(("jobs", job.id, "if"), why)
            return True
        if not isinstance(value, bool):
            problem = f"a condition must be true or false, not {format_value(value)[:60]}"
            self.problems.add(("jobs", job.id, "if"), problem)
        return value is not False

    def _scope(self, combination: Combination) -> dict[str, Any]:
        return {"change": self.facts, "matrix": combination}

    def _decide_changes(self) -> None:
        edited = self._find_edited_jobs()
        for job in self.pipeline.jobs.values():
            if job.id not in self.blocked and (why := [*self._find_reasons(job, edited)]):
                self.reasons[job.id] = why

    def _find_edited_jobs(self) -> dict[str, str]:
        """The jobs whose definition changed, each with how. If the base's pipeline cannot be read, all of them."""
        config = self.change.repository.config
        if self.request.changed is None or config not in self.changed.paths:
            return {}
        try:
            if self.request.base_config is None:
                raise TenureError("PIPELINE_NOT_FOUND")
            before, _ = load_pipeline(self.request.base_config, config)
        except TenureError:
            return dict.fromkeys(self.pipeline.jobs, f"config changed: {config} of the base cannot be read")
        if (before.projects, before.discover) != (self.pipeline.projects, self.pipeline.discover):
            return dict.fromkeys(self.pipeline.jobs, f"config changed: the projects in {config}")
        return {
            job.id: f"config changed: {job.id} is {'changed' if job.id in before.jobs else 'new'} in {config}"
            for job in self.pipeline.jobs.values()
            if before.jobs.get(job.id) != job
        }

    def _find_reasons(self, job: PipelineJob, edited: Mapping[str, str]) -> Iterator[str]:
        if self.request.changed is None:
            yield f"everything is planned: {self.request.whole or 'there is nothing to compare with'}"
            return
        if job.always:
            yield "always: true"
        if job.id in edited:
            yield edited[job.id]
        watched = job.paths or job.inputs
        if not watched and not job.projects:
            if not job.paths_ignore:
                if not job.always:
                    yield "nothing limits it: it has no paths, project or inputs"
                return
            watched = ("**",)
        yield from self._find_changed(job, watched)
        reached = self._reach(job.paths_ignore)
        for project in [one for one in job.projects if one in reached][:REASONS_MAX]:
            yield self.graph.explain(reached, project)

    def _find_changed(self, job: PipelineJob, watched: tuple[str, ...]) -> Iterator[str]:
        if not watched:
            return
        found = [self.changed.paths[at] for at in self.changed.find_all(watched)]
        if job.paths_ignore:
            ignored = [compile_glob(glob) for glob in job.paths_ignore]
            found = [path for path in found if not any(glob.fullmatch(path) for glob in ignored)]
        if found:
            shown = ", ".join(found[:REASONS_MAX])
            more = f" and {len(found) - REASONS_MAX} more" if len(found) > REASONS_MAX else ""
            yield f"{shown}{more} changed"

    def _reach(self, ignored: tuple[str, ...]) -> dict[str, ReachedProject]:
        """The projects that changed files reach, without the ignored files."""
        found = self.reached.get(ignored)
        if found is None:
            globs = [compile_glob(glob) for glob in ignored]
            counted = (path for path in self.changed.paths if not any(glob.fullmatch(path) for glob in globs))
            found = self.reached[ignored] = self.graph.reach(counted)
        return found

    def _include_needed(self) -> None:
        own = set(self.reasons)
        for job_id in reversed(self.pipeline.order):
            if job_id not in self.reasons:
                continue
            for need in self.pipeline.jobs[job_id].needs:
                why = self.reasons.setdefault(need, [])
                if need not in own and len(why) < REASONS_MAX:
                    why.append(f"{job_id} needs it, which is in")

    def _check_counts(self) -> None:
        jobs = sum(len(self.instances[job_id]) for job_id in self.reasons)
        if jobs > self.bounds.jobs:
            problem = f"the plan has {jobs} jobs; the settings of the repository allow {self.bounds.jobs}"
            self.problems.add(("jobs",), problem)
        needs = sum(
            len(self.instances[job_id])
            * sum(len(self.instances[need]) for need in self.pipeline.jobs[job_id].needs)
            for job_id in self.reasons
        )
        if needs > CI_NEEDS_MAX:
            problem = f"the jobs of the plan have {needs} needs, matrices included; at most {CI_NEEDS_MAX} are allowed"
            self.problems.add(("jobs",), problem)

    def _explain(self) -> Iterator[JobExplanation]:
        for job in self.pipeline.jobs.values():
            wanted = {instance.name for instance in self.instances[job.id]}
            reasons = tuple(self.reasons.get(job.id, ()))
            out = (self.blocked.get(job.id) or self._say_unchanged(job),)
            for combination in job.combinations:
                name = job.instance_name(combination)
                dropped = job.id in self.reasons and name not in wanted
                yield JobExplanation(
                    name=name,
                    job=job.id,
                    included=job.id in self.reasons and not dropped,
                    reasons=(f"if is false: {_shorten(job.condition or '')}",) if dropped else reasons or out,
                    needs=job.needs,
                )

    def _say_unchanged(self, job: PipelineJob) -> str:
        if job.projects:
            names = ", ".join(job.projects[:REASONS_MAX])
            return f"nothing that {names} {'depends' if len(job.projects) == 1 else 'depend'} on changed"
        if job.paths:
            return "paths match nothing that changed"
        if job.inputs:
            return "inputs match nothing that changed"
        return "everything that changed is in paths_ignore"

    # ----------------------------------------------------------------------------------------- steps

    def _build_steps(self) -> Iterator[StepSpec]:
        for job_id in (job_id for job_id in self.pipeline.jobs if job_id in self.reasons):
            job = self.pipeline.jobs[job_id]
            needs = tuple(one.name for need in job.needs for one in self.instances[need])
            for instance in self.instances[job_id]:
                built = self._build_ci_job(instance)
                try:
                    queue = cap.capability(queue_for(built.labels), cap.tool(JOB_TOOL))
                except TenureError as fault:
                    self.problems.add(("jobs", job_id, "labels"), fault.message)
                    continue
                encoded = msgspec.json.encode(built)
                if len(encoded) > PAYLOAD_BYTES_MAX:
                    problem = f"the job has {len(encoded)} bytes; at most {PAYLOAD_BYTES_MAX} are allowed"
                    self.problems.add(("jobs", job_id), problem)
                yield StepSpec(
                    name=instance.name,
                    tool=JOB_TOOL,
                    needs=needs,
                    required=not job.allow_failure,
                    queue=queue,
                    retries=job.retry.max,
                    backoff=_backoff(job),
                    timeout_seconds=self.bounds.timeout_seconds
                    if job.timeout_seconds is None
                    else job.timeout_seconds,
                    input=encoded,
                    reuse=choose_reuse(built),
                )

    def _build_ci_job(self, instance: _Instance) -> CiJob:
        job, texts = instance.job, _TextEvaluator(self, instance)
        change, settings = self.change, self.change.repository
        built = CiJob(
            checkout=JobCheckout(
                repository=settings.name,
                url=settings.url,
                commit=self.request.head,
                ref=change.ref,
                paths=job.inputs or None,
            ),
            commands=tuple(
                JobCommand(
                    run=texts.run(command.run, self._command_place(job, i)),
                    name=command.name,
                    cwd=command.cwd,
                )
                for i, command in enumerate(job.commands)
            ),
            env={name: texts.text(value, ("env", name)) for name, value in job.env.items()},
            labels=self._build_labels(job, texts),
            services=tuple(
                JobService(
                    name=service.name,
                    run=texts.run(service.run, ("services", service.name, "run")),
                    ready=None
                    if service.ready is None
                    else texts.run(service.ready, ("services", service.name, "ready")),
                    ready_seconds=service.ready_seconds,
                )
                for service in job.services
            ),
            network=tuple(dict.fromkeys(host.lower() for host in job.network)),
            secrets=tuple(name for name in job.secrets if self._grants(name)),
            trusted=change.trusted or change.approved,
            scope=change.scope,
            caches=tuple(
                JobCache(
                    key=self._cache_key(texts.text(cache.key, ("caches", i, "key")), cache.files),
                    paths=cache.paths,
                    fallback=tuple(
                        texts.text(prefix, ("caches", i, "fallback", n))
                        for n, prefix in enumerate(cache.fallback)
                    ),
                )
                for i, cache in enumerate(job.caches)
            ),
            artifacts=tuple(
                msgspec.structs.replace(
                    artifact,
                    retention_seconds=self.bounds.retention_seconds
                    if artifact.retention_seconds is None
                    else artifact.retention_seconds,
                )
                for artifact in job.artifacts
            ),
            downloads=tuple(
                JobDownload(job=one.name, artifact=download.artifact, to=download.to)
                for download in job.downloads
                for one in self.instances[download.job]
            ),
            reports=job.reports,
            toolchain={name: texts.text(value, ("toolchain", name)) for name, value in job.toolchain.items()},
            limits=choose_limits(job.limits, self.bounds),
            failure_rules=settings.failure_rules,
            why="; ".join(self.reasons[job.id][:REASONS_MAX])[:1_000],
        )
        if not job.inputs:
            return built
        digest = compute_job_digest(built, self.digests.digest(job.inputs))
        return msgspec.structs.replace(built, reuse=JobReuse(digest=digest, scope=change.scope))

    def _command_place(self, job: PipelineJob, i: int) -> YamlPath:
        root = self.problems.root
        written = root.entries["jobs"][1].entries[job.id][1].entries if root is not None else {}
        return ("run",) if "run" in written else ("commands", i, "run")

    def _build_labels(self, job: PipelineJob, texts: _TextEvaluator) -> tuple[str, ...]:
        labels = [texts.text(label, ("labels", i)) for i, label in enumerate(job.labels)]
        for i, label in enumerate(labels):
            if label != job.labels[i]:
                for problem in find_label_problems(label, self.bounds):
                    self.problems.add(("jobs", job.id, "labels", i), problem)
        return tuple(sorted(set(labels)))

    def _grants(self, secret: str) -> bool:
        """Whether a job of this change may name a secret. The runner gives it only if the job is trusted."""
        change = self.change
        granted = "*" in self.bounds.secrets or change.repository.grants_secret(
            secret, change.branch, change.event == "pull_request"
        )
        if not granted or not (change.trusted or change.approved):
            self.withheld[secret] = None
        return granted

    def _cache_key(self, key: str, files: tuple[str, ...]) -> str:
        return f"{key}-{self.digests.digest(files)[:CACHE_DIGEST_DIGITS]}" if files else key


class _TextEvaluator:
    """Evaluates the texts of one job for one combination of its matrix."""

    def __init__(self, planner: _Planner, instance: _Instance) -> None:
        self._planner = planner
        self._job = instance.job.id
        self._combination = instance.combination

    def text(self, text: str, at: YamlPath) -> str:
        if templates.OPEN not in text:
            return text
        try:
            value = templates.parse_template(text, ROOTS).value(self._planner._scope(self._combination))
        except (TenureError, MalformedExpression) as fault:
            why = fault.message if isinstance(fault, TenureError) else str(fault)
            self._planner.problems.add(("jobs", self._job, *at), why)
            return text
        made = format_value(value)
        if "\0" in made:
            self._planner.problems.add(("jobs", self._job, *at), "the value contains a NUL character")
        return made

    def run(self, run: str | tuple[str, ...], at: YamlPath) -> str | tuple[str, ...]:
        return run if isinstance(run, str) else tuple(self.text(word, (*at, i)) for i, word in enumerate(run))


def choose_reuse(job: CiJob) -> ReuseSpec | None:
    """When an earlier result serves: one of the same scope, or a trusted one of the repository."""
    if job.reuse is None:
        return None
    trusted = f"trusted:{job.checkout.repository}"
    also = () if job.reuse.scope == trusted else (trusted,)
    return ReuseSpec(scope=job.reuse.scope, digest=job.reuse.digest, also=also)


def _backoff(job: PipelineJob) -> BackoffSpec | None:
    if job.retry.backoff is None:
        return None
    jitter = () if job.retry.jitter is None else (job.retry.jitter,)
    return BackoffSpec(job.retry.backoff, *jitter)


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:117]}..."
