"""A finished run once more: gone on with, or started afresh."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

from tenure import ids
from tenure.embedded.plan import payload
from tenure.kernel import again
from tenure.kernel import commands as c
from tenure.kernel.model import CLOSED_RUN, Run

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine


class OnceMore:
    """What an engine does with runs that have ended; another part of it."""

    async def resume(
        self, run_id: str, *, actor: str | None = None, happened: Mapping[str, Any] | None = None,
        repeat: Collection[str] = (),
    ) -> str:  # fmt: skip
        """Go on: a finished run as a new one that reuses what was done, a run that waits for an event or a time by ending
        that wait, never an approval; the id of the run that goes on. Of what was begun and may not simply be
        repeated, `happened` (step: what it returned) or `repeat` says what became of it."""
        command = await self.resumption(run_id, actor=actor, happened=happened, repeat=repeat)
        if command is None:
            return run_id
        return ids.run_text((await self._whole.orchestrator.create(command)).run_id)

    async def resumption(
        self, run_id: str, *, actor: str | None = None, happened: Mapping[str, Any] | None = None,
        repeat: Collection[str] = (), behind: str = "",
    ) -> c.CreateRun | None:  # fmt: skip
        """The run that goes on with a finished one, to be made; None: it was waiting, and its wait has been ended, which
        everybody in `behind` (`id id`) wanted besides whoever does it."""
        run = await self._whole.views.row(ids.run_int(run_id))
        if run.status not in CLOSED_RUN:
            whole = self._whole
            context = whole.context(actor)
            command = c.EndWait(run_id=run.id, tenant=whole.tenant, context=context, behind=behind)
            await whole.orchestrator.send(command)
            return None
        told = {
            name: await self._whole.kept(payload(said, aside=True), run_id)
            for name, said in (happened or {}).items()
        }
        old, new_id, context = (
            await self._finished(run),
            self._whole.orchestrator.new_id(run.tenant),
            self._whole.context(actor),
        )
        return again.resume(old, new_id, context, happened=told, repeat=repeat)

    async def rerun(self, run_id: str, *, actor: str | None = None) -> str:
        """A fresh run of the same plan, linked to the finished one; its id."""
        command = await self.repetition(run_id, actor=actor)
        return ids.run_text((await self._whole.orchestrator.create(command)).run_id)

    async def repetition(self, run_id: str, *, actor: str | None = None) -> c.CreateRun:
        """The fresh run of a finished one, to be made."""
        old = first = await self._finished(await self._whole.views.row(ids.run_int(run_id)))
        while first.spec.resumed_from is not None:
            first = await self._finished(await self._whole.views.row(first.spec.resumed_from))
        new_id = self._whole.orchestrator.new_id(old.run.tenant)
        return again.rerun(old, first, new_id, self._whole.context(actor))

    async def _finished(self, run: Run) -> again.Finished:
        read = self._whole.store.read
        return again.Finished(
            run,
            await self._whole.views.spec(run.id),
            await read("steps_of", run.id),
            await read("checkpoints_of", run.id),
            await read("payloads_of", run.id),
        )

    @property
    def _whole(self) -> Engine:
        return cast("Engine", self)
