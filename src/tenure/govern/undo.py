"""Taking back what a run did, as far as its receipts say how.

Laws:
1. An undo is a run of its own (`undo_of` names the other one): its actions are governed, receipted and resumable like any
   others, newest first. What it undoes is what its row says, never what its input says.
2. Only what was known to have happened is taken back. What is not known to have ended, cannot be taken back, or belongs to
   another run is listed, with what a person should do.
3. A reversal is tried only while the target still is what we wrote; else it is a conflict, listed and not touched.
4. What says that it takes an action back is what the connector says takes it back, whoever asks. Its key is made from that action's
   receipt, so that two undos of one run take it back once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from tenure import ids
from tenure.artifacts import Artifacts, is_reference
from tenure.errors import TenureError
from tenure.govern.connector import Connector, Reversal
from tenure.kernel.governed import Receipt
from tenure.orchestrator.outbox import UNDO_QUEUE, UNDO_VERSION, UNDO_WORKFLOW
from tenure.sdk import ActionConflict, ActionFailed, Step, Workflow, act, current
from tenure.sdk.acting import Ask
from tenure.store.port import Store

Outcome = Literal["undone", "to_undo", "conflict", "failed", "cannot", "unsettled"]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a receipt says was done."""

    no: int
    step: str
    connector: str
    operation: str
    state: str
    target: dict[str, Any]
    fields: dict[str, Any]
    before: dict[str, Any] | None
    result: Any
    source: str | None = None
    """Of one that was reused: the run that did it."""


class UndoLine(msgspec.Struct, frozen=True, kw_only=True):
    """What became, or would become, of one action."""

    receipt: int
    step: str
    action: str
    outcome: Outcome
    by: str = ""
    """The operation that takes it back."""
    note: str = ""
    """Why not, or what a person should do."""


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """What an undo came to: the compensation log."""

    run: str
    lines: tuple[UndoLine, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing is left that a person has to look at."""
        return all(line.outcome in ("undone", "to_undo") for line in self.lines)


async def done_by(store: Store, artifacts: Artifacts, run_id: int, step: str | None = None) -> list[Done]:
    """What a run did to the world and has not been taken back, newest first; of one step where it is named."""
    receipts: Sequence[Receipt] = await store.read("receipts_of", run_id)
    held = [row for row in receipts if row.state in ("intent", "unknown", "succeeded", "reused")]
    if not held:
        return []
    names = {row.idx: row.name for row in await store.read("steps_of", run_id)}
    found = []
    for row in sorted(held, key=lambda row: (row.intent_at, row.no), reverse=True):
        place = names.get(row.idx, str(row.idx))
        if step is None or step in (place, row.label):
            found.append(await _done(store, artifacts, row, place))
    return found


async def _done(store: Store, artifacts: Artifacts, row: Receipt, place: str) -> Done:
    request = await _decoded(store, artifacts, row.run_id, row.request_ref) or {}
    return Done(
        no=row.no,
        step=place,
        connector=row.connector,
        operation=row.operation,
        state=row.state,
        target=request.get("target", {}),
        fields=request.get("fields", {}),
        before=await _decoded(store, artifacts, row.run_id, row.before_ref),
        result=await _decoded(store, artifacts, row.run_id, row.result_ref),
        source=None if row.source_run is None else ids.run_text(row.source_run),
    )


async def check_reversal(
    store: Store, artifacts: Artifacts, connectors: Mapping[str, Connector], run_id: int, no: int, ask: Ask
) -> str | None:
    """Law 4, for an action that says it takes back receipt `no` of a run; the conflict, where somebody else has done so."""
    row = next((row for row in await store.read("receipts_of", run_id) if row.no == no), None)
    if row is not None and row.state == "reversed":
        return "it was taken back already"
    way = None if row is None else reversal_of(await _done(store, artifacts, row, ""), connectors)
    if row is not None and isinstance(way, Reversal):
        said = [f"{row.connector}.{way.operation}", way.target, way.fields, way.expects]
        if _plain(said) == _plain([ask.action, ask.target, ask.fields, ask.expects]):
            return None
    raise TenureError("INVALID_INPUT", f"{ask.action} is not what takes back action {no} of that run")


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


async def _decoded(store: Store, artifacts: Artifacts, run_id: int, ref: int | None) -> Any:
    if ref is None:
        return None
    rows = await store.read("payload", run_id, ref)
    if not rows:
        raise TenureError(
            "PAYLOAD_ERASED", f"what {ids.run_text(run_id)} did was erased: it cannot be taken back"
        )
    body = rows[0].body
    return msgspec.json.decode(await artifacts.get(body) if is_reference(body) else body)


def reversal_of(done: Done, connectors: Mapping[str, Connector]) -> Reversal | UndoLine:
    """How an action is taken back, or the line that says why it is not."""

    def left(outcome: Outcome, note: str) -> UndoLine:
        return UndoLine(
            receipt=done.no,
            step=done.step,
            action=f"{done.connector}.{done.operation}",
            outcome=outcome,
            note=note,
        )

    if done.state in ("intent", "unknown"):
        return left("unsettled", "it is not known whether it happened: settle its receipt, then undo again")
    if done.state == "reused":
        return left("cannot", f"its effect is that of {done.source}: undo that run")
    connector = connectors.get(done.connector)
    operation = None if connector is None else connector.operations.get(done.operation)
    if connector is None or operation is None:
        return left("cannot", f"no connector here knows {done.connector}.{done.operation}")
    found = connector.reverse(done.operation, done.target, done.fields, done.before, done.result)
    if found is None:
        return left("cannot", operation.undo_hint or "it cannot be taken back: look at the target by hand")
    return found


async def foresee(
    store: Store,
    artifacts: Artifacts,
    connectors: Mapping[str, Connector],
    run_id: int,
    step: str | None = None,
) -> Undone:
    """What an undo would do; nothing is called."""
    lines = []
    for done in await done_by(store, artifacts, run_id, step):
        way = reversal_of(done, connectors)
        lines.append(
            way
            if isinstance(way, UndoLine)
            else UndoLine(
                receipt=done.no,
                step=done.step,
                action=f"{done.connector}.{done.operation}",
                outcome="to_undo",
                by=f"{done.connector}.{way.operation}",
            )
        )
    return Undone(run=ids.run_text(run_id), lines=tuple(lines))


def undo_workflow(
    store: Store, artifacts: Artifacts, connectors: Mapping[str, Connector]
) -> Workflow[..., Awaitable[Undone]]:
    """The workflow of undo runs, for workers beside this database."""

    async def read_receipts(run: str, step: str | None) -> list[Done]:
        mine = await store.read("get_spec", ids.run_int(current().run_id))
        if not mine or mine[0].undo_of != ids.run_int(run):
            raise TenureError(
                "INVALID_INPUT", f"{UNDO_WORKFLOW} is started by `tenure undo` and by cancellations only"
            )
        return await done_by(store, artifacts, mine[0].undo_of, step)

    look: Callable[..., Any] = Step(read_receipts, name="receipts")

    async def undo(run: str, step: str | None = None) -> Undone:
        lines: list[UndoLine] = []
        for done in await look(run, step):
            way = reversal_of(done, connectors)
            if isinstance(way, UndoLine):
                lines.append(way)
                continue
            outcome: Outcome = "undone"
            note = ""
            try:
                await act(
                    f"{done.connector}.{way.operation}",
                    target=way.target,
                    fields=way.fields,
                    reverses=(run, done.no),
                    expects=way.expects,
                    why=f"undoes action {done.no} of {run}",
                )
            except ActionConflict as conflict:
                outcome, note = "conflict", str(conflict)
            except ActionFailed as failed:
                outcome, note = "failed", str(failed)
            lines.append(
                UndoLine(
                    receipt=done.no,
                    step=done.step,
                    action=f"{done.connector}.{done.operation}",
                    outcome=outcome,
                    by=f"{done.connector}.{way.operation}",
                    note=note,
                )
            )
        return Undone(run=run, lines=tuple(lines))

    return Workflow(undo, name=UNDO_WORKFLOW, version=UNDO_VERSION, queue=UNDO_QUEUE)
