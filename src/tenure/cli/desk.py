"""Where commands look after runs: an engine beside its database, or a server.

Law: whatever a command needs of runs is here, so that it works the same over both. (`embedded.Engine` and `client.Client`
both have it; a test compares them with this list.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from tenure.embedded import ApprovalView, EventView, RunPage, RunView, StepView, Why
    from tenure.embedded.confirmations import Confirmable, Confirmed
    from tenure.embedded.evidence import EvidenceView
    from tenure.embedded.looking import Delivered, LogView, WorkflowView
    from tenure.embedded.undoing import Undone, UndoView
    from tenure.orchestrator.artifact_views import ArtifactView
    from tenure.orchestrator.receipts import ReceiptView
    from tenure.orchestrator.spending import By, RunCosts, SpendingView
    from tenure.orchestrator.tries import TryView
    from tenure.orchestrator.views import Statement


class Desk(Protocol):
    """See the law above."""

    @property
    def schedules(self) -> Any:
        """What starts runs by the clock: see `embedded.schedules.Schedules`."""
        ...

    async def get(self, run_id: str, profile: str | None = None) -> RunView:
        """The run, with its input, output and error."""
        ...

    async def version(self, run_id: str) -> int:
        """How long its history is: whether there is something new."""
        ...

    async def list_runs(
        self,
        *,
        status: str | None = None,
        repo: str | None = None,
        workflow: str | None = None,
        labels: Mapping[str, str] | None = None,
        parked: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """The newest runs that fulfil all conditions; with the `next_cursor` of a list, those that follow it."""
        ...

    async def steps(self, run_id: str, profile: str | None = None) -> list[StepView]:
        """Its steps and checkpoints."""
        ...

    async def events(self, run_id: str, *, after: int = 0) -> list[EventView]:
        """Its history."""
        ...

    async def tries(self, run_id: str) -> list[TryView]:
        """The tries of it that did not succeed."""
        ...

    async def logs(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogView]:
        """What its code has logged."""
        ...

    async def document(self, run_id: str, profile: str, at: str | None = None) -> Any:
        """It as the document of a profile, or what lies below that."""
        ...

    async def approvals(self, run_id: str | None = None) -> list[ApprovalView]:
        """The questions of a run, or all that are open now."""
        ...

    async def receipts(self, run_id: str | None = None) -> list[ReceiptView]:
        """The receipts of a run, or of all runs those that nobody knows the end of."""
        ...

    async def costs(self, run_id: str) -> RunCosts:
        """What a run has spent."""
        ...

    async def spending(
        self, *, by: By = "workflow", since: datetime | None = None, until: datetime | None = None
    ) -> SpendingView:
        """What all runs have spent."""
        ...

    async def receipt(self, receipt_id: str) -> ReceiptView:
        """One of them."""
        ...

    async def settle_receipt(
        self,
        receipt_id: str,
        outcome: Literal["done", "not_done", "retry"],
        *,
        person: str,
        result: Any = None,
        reason: str | None = None,
    ) -> str:
        """Say how an unknown one ended; its state then."""
        ...

    async def why(self, run_id: str) -> Why:
        """Why it is not moving."""
        ...

    async def result(self, run_id: str, *, wait: float | None = 0.0) -> Any:
        """What it came to, or its error raised."""
        ...

    async def cancel(self, run_id: str, *, reason: str = "RUN_CANCELED", actor: str | None = None) -> str:
        """Request its cancellation; its status then."""
        ...

    async def cancel_step(self, run_id: str, name: str, *, actor: str | None = None) -> str:
        """Cancel one step; its state then."""
        ...

    async def pause(self, run_id: str, *, actor: str | None = None) -> None:
        """Give out no step of it."""
        ...

    async def unpause(self, run_id: str, *, actor: str | None = None) -> None:
        """Give out steps again."""
        ...

    async def approve(self, run_id: str, *, approver: str, **answer: Any) -> str:
        """Say yes to a question; the approval's status then."""
        ...

    async def reject(self, run_id: str, *, approver: str, **answer: Any) -> str:
        """Say no."""
        ...

    async def signal(
        self,
        run_id: str,
        event: str,
        data: Any = None,
        *,
        event_id: str | None = None,
        source: str = "",
        actor: str | None = None,
    ) -> Delivered:
        """Deliver an event, and say what became of it."""
        ...

    async def resume(
        self, run_id: str, *, actor: str | None = None, happened: Mapping[str, Any] | None = None,
        repeat: Collection[str] = (),
    ) -> str:  # fmt: skip
        """Go on; the run that goes on."""
        ...

    async def undo(self, run_id: str, *, step: str | None = None, actor: str | None = None) -> str:
        """Take back what it did; the run that does it."""
        ...

    async def foresee_undo(self, run_id: str, *, step: str | None = None) -> Undone:
        """What an undo would do."""
        ...

    async def undos(self, run_id: str) -> list[UndoView]:
        """What undos of it came to."""
        ...

    async def update(
        self,
        run_id: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Change its labels and metadata."""
        ...

    async def revoke(self, run_id: str, step: str | None = None, *, actor: str | None = None) -> str:
        """Take a step from the worker that has it; its state then."""
        ...

    async def mark_reported(self, run_id: str, *, actor: str | None = None) -> Statement:
        """Record somebody's word that the world was told how it ended."""
        ...

    async def list_artifacts(self, run_id: str) -> list[ArtifactView]:
        """The files of it."""
        ...

    async def artifact(
        self,
        run_id: str,
        name: str,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> bytes:
        """A file of it."""
        ...

    async def rerun(self, run_id: str, *, actor: str | None = None) -> str:
        """A fresh run of the same; its id."""
        ...

    async def delete(self, run_id: str, *, actor: str | None = None) -> None:
        """Delete a finished run."""
        ...

    async def evidence(self, run_id: str) -> list[EvidenceView]:
        """What was sealed of it."""
        ...

    async def newest_evidence(self, *, limit: int = 50) -> list[EvidenceView]:
        """The newest bundles of all runs."""
        ...

    async def confirm(
        self,
        kind: Confirmable,
        name: str,
        *,
        by: str,
        revision: int | None = None,
        version: str | None = None,
        digest: str | None = None,
    ) -> Confirmed:
        """Confirm what others have made or changed."""
        ...

    async def workflows(self) -> list[WorkflowView]:
        """What is registered."""
        ...

    async def workflow(self, name: str) -> list[WorkflowView]:
        """All registered versions of a workflow, newest first."""
        ...
