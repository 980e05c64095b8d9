"""The answer to a request that created a run. Requests and the scheduler record it under the run's idempotency key."""

from __future__ import annotations

from tenure import ids
from tenure.clock import to_datetime
from tenure.kernel import profiles
from tenure.kernel.commands import CreateRun
from tenure.shapes.runs import RunCreated


def show_created(command: CreateRun, run_id: int, status: str, at: int) -> RunCreated:
    """The run that a command created, as its requester sees it. `at` is the time of creation."""
    return RunCreated(
        id=ids.run_text(run_id),
        workflow=command.workflow,
        version=command.code_version,
        profile=command.profile,
        workspace=command.workspace,
        status=status,
        shown=profiles.get(command.profile).word("run", status),
        created_at=to_datetime(at),
    )
