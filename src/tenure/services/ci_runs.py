"""CI runs: a change of a repository becomes a run that is planned, executed and reported.

Laws:
1. The repository's settings, which are on the server, decide what is fetched, whom to trust and what a newer change cancels. A request
   names a repository and a ref, and nothing else.
2. A repository belongs to one tenant. To every other tenant it looks like a missing one.
3. The run begins with a plan step whose input is the change. It shows its states at GitHub, if the repository is there. So its commit
   must be known when it starts: a ref is resolved first, in a thread, within seconds, and at most a few at a time.
"""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.ci.change import NO_COMMIT, Change, build_manual_change
from tenure.ci.git_commands import COMMIT, check_ref
from tenure.ci.job import PLAN_TOOL, queue_for
from tenure.ci.mirror import find_remote_commit
from tenure.ci.settings import RepositorySettings
from tenure.errors import TenureError, field_error
from tenure.kernel import capability
from tenure.kernel.commands import CreateRun, build_plan_step
from tenure.kernel.new_run import with_request_hash
from tenure.kernel.run_rows import PLAN_IDX, StepRow
from tenure.services.run_creation import RunCaller, build_command
from tenure.services.scope import Scope, Service
from tenure.shapes.ci import CiTrigger, PlanExplanation
from tenure.shapes.reports import VcsTarget
from tenure.shapes.runs import RunTrigger, StartRun
from tenure.work_pool import WorkPool

WORKFLOW = "ci"
PROFILE = "delta-ci"
PLAN_RETRIES = 2
RESOLVE_SECONDS = 10.0
"""How long a git host may take to say which commit a ref has."""
_GIT_HOSTS = WorkPool(threads=4, waiting_max=16)
"""Threads of their own, because a host that does not answer must not hold up other work."""


class CiRuns(Service):
    """CI runs of a scope's tenant."""

    async def trigger(self, trigger: CiTrigger) -> str:
        """Start a run for a ref of a repository. Returns its id."""
        return await self._scope.create(with_request_hash(await build_triggered_run(self._scope, trigger)))

    async def plan(self, run_id: str) -> PlanExplanation:
        """Why each job of the pipeline is in the run's plan or not. PLAN_NOT_FOUND before the plan is made."""
        run = await self._scope.reader.row(ids.run_int(run_id))
        steps: list[StepRow] = await self._scope.store.read("load_steps", rows=[(run.id, PLAN_IDX)])
        if not steps or steps[0].tool != PLAN_TOOL:
            raise TenureError("PLAN_NOT_FOUND", f"run {run_id} is not a CI run")
        body = await self._scope.read_payload(run.id, steps[0].output_ref)
        if body is None:
            raise TenureError("PLAN_NOT_FOUND", f"run {run_id} is {run.status} and has no plan")
        return msgspec.json.decode(body, type=PlanExplanation)


def find_repository(scope: Scope, name: str) -> RepositorySettings:
    """The settings of a repository of the tenant, by its name or its name at GitHub."""
    settings = scope.runtime.ci
    if settings is None:
        raise TenureError("REPOSITORY_UNKNOWN", "this process has no CI settings: start it with --ci FILE")
    return settings.find(name, scope.tenant)


async def build_triggered_run(scope: Scope, trigger: CiTrigger) -> CreateRun:
    """The command that starts a run for a ref of a repository."""
    settings = find_repository(scope, trigger.repository)
    ref = _full_ref(trigger.ref or settings.default_branch)
    head, base = _check_commit("head", trigger.head), _check_commit("base", trigger.base)
    if settings.github and not head:
        head = await _resolve(settings, ref)
    change = build_manual_change(settings, ref=ref, head=head, base=base)
    return build_ci_run(scope, change, RunCaller(context=scope.context()))


def build_ci_run(scope: Scope, change: Change, caller: RunCaller) -> CreateRun:
    """The command that starts the run of a change."""
    settings, number = change.repository, change.pull_request
    asked = StartRun(
        workflow=WORKFLOW,
        labels={"repository": settings.name},
        concurrency_key=f"ci:{change.supersede_key}" if change.supersede_key else None,
        supersede=bool(change.supersede_key),
        trigger=RunTrigger(
            type="api" if change.event == "manual" else "webhook",
            ref=change.ref,
            repo=settings.github or settings.name,
            commit=change.head or None,
            pr_id=number,
        ),
    )
    if settings.github and change.head:
        target = VcsTarget(repository=settings.github, head_sha=change.head, pull_request=number)
        caller = msgspec.structs.replace(caller, vcs_target=target)
    body = msgspec.json.encode(change)
    plan_step = build_plan_step(
        PLAN_TOOL,
        queue=capability.capability(queue_for(()), capability.tool(PLAN_TOOL)),
        input=body,
        timeout_seconds=settings.planning_seconds,
        retries=PLAN_RETRIES,
    )
    return build_command(scope, asked, caller, version="1", profile=PROFILE, plan=(plan_step,), body=None)


async def _resolve(settings: RepositorySettings, ref: str) -> str:
    """The commit that a ref has now (law 3)."""
    try:
        return await _GIT_HOSTS.run(find_remote_commit, settings, ref, RESOLVE_SECONDS)
    except TenureError as refused:
        if refused.code not in ("NETWORK_FETCH_FAILED", "REPOSITORY_REFUSED", "SECRET_UNAVAILABLE"):
            raise
        raise TenureError(
            refused.code,
            f"{refused.message}. The commit of {ref} must be known for the run's checks at GitHub: try again, or name it (head)",
        ) from refused


def _full_ref(ref: str) -> str:
    try:
        return check_ref(ref if ref.startswith("refs/") else f"refs/heads/{ref}")
    except TenureError as refused:
        raise field_error("ref", refused.message) from refused


def _check_commit(field: str, text: str) -> str:
    if text and (not COMMIT.fullmatch(text) or (field == "head" and text == NO_COMMIT)):
        raise field_error(field, f"{text[:80]!r} is not the id of a commit: give all of its digits")
    return text
