"""What people say about a run, and take from it, by hand: its labels, that its end was reported, a lease of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tenure import ids
from tenure.embedded.plan import json_object
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.model import CLOSED_RUN, Attempt, Step
from tenure.orchestrator.step_views import moment
from tenure.orchestrator.views import Statement

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine


class ByHand:
    """See above; another part of an engine."""

    async def update(
        self,
        run_id: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Change a run's labels and metadata, also when it has ended: the names given are set, None takes one away. Whoever
        does that stands behind the run, and decides none of its questions."""
        engine = self._here
        command = c.UpdateMetadata(
            run_id=ids.run_int(run_id),
            tenant=engine.tenant,
            context=engine.context(actor),
            labels=None if labels is None else json_object(labels),
            metadata=None if metadata is None else json_object(metadata),
            merge=True,
        )
        await engine.orchestrator.send(command)

    async def revoke(
        self, run_id: str, step: str | None = None, *, actor: str | None = None, behind: str = ""
    ) -> str:
        """Take a step from the worker that has it; the state that led to. What that worker still says does not count.

        The step is given out again while tries are left: this one counts. `step` is needed where several are worked on. Whoever
        does that stands behind the run.
        """
        engine, number = self._here, ids.run_int(run_id)
        held = await self._held(number, step)
        command = c.RevokeLease(
            run_id=number, tenant=engine.tenant, context=engine.context(actor), idx=held.idx, n=held.n,
            behind=behind,
        )  # fmt: skip
        answer = await engine.orchestrator.send(command)
        for worker in engine.local:
            worker.hurry(number)
        return str(answer["state"])

    async def _held(self, number: int, name: str | None) -> Attempt:
        """The try that a worker holds: of this step, or the only one of the run."""
        engine = self._here
        run = await engine.views.row(number)
        if run.status in CLOSED_RUN:
            raise TenureError("RUN_TERMINAL_STATE", f"the run is {run.status} already")
        steps: list[Step] = await engine.store.read("steps_of", number)
        names = {step.idx: step.name for step in steps}
        if name is not None and name not in names.values():
            raise TenureError("STEP_NOT_FOUND", f"the run has no step {name!r} that workers are given")
        attempts: list[Attempt] = await engine.store.read("attempts_of", number)
        held = [a for a in attempts if a.lease in LIVE_LEASE and name in (None, names[a.idx])]
        if not held:
            what = "the run" if name is None else f"step {name!r}"
            raise TenureError("RUN_INVALID_TRANSITION", f"no worker has {what} now")
        if len(held) > 1:
            listed = ", ".join(names[attempt.idx] for attempt in held)
            raise TenureError("INVALID_INPUT", f"several steps are worked on; name one of {listed}")
        return held[0]

    async def mark_reported(self, run_id: str, *, actor: str | None = None) -> Statement:
        """Record somebody's word that the world has been told how a finished run ended. It is in the history and in
        `reported_statement` of the run; its status stays: only the status reporter makes that REPORTED. The first statement counts."""
        engine = self._here
        command = c.StateReported(
            run_id=ids.run_int(run_id), tenant=engine.tenant, context=engine.context(actor)
        )
        stated = await engine.orchestrator.send(command)
        return Statement(by=stated["by"], at=moment(stated["at"]))

    @property
    def _here(self) -> Engine:
        return cast("Engine", self)
