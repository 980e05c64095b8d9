"""Undoes the actions of a run, as far as its receipts allow.

Laws:
1. An undo is a run of its own (`undo_of` names the other run): its actions are governed, receipted and resumable like any others, newest
   first. The run's row says what it undoes, never its input.
2. Only actions that certainly happened are undone. An action that is unsettled, cannot be undone, or belongs to another run is listed, with
   what a person should do.
3. A reversal is tried only if the target is still as the run wrote it. Otherwise it is a conflict, which is listed and not touched.
4. The connector determines the action that reverses another one, not the requester. Its key is derived from the receipt, so that two
   undos of one run reverse an action once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from tenure import ids
from tenure.artifacts import ArtifactStore, is_reference
from tenure.errors import TenureError
from tenure.govern.connector import Connector, Reversal
from tenure.kernel.act_rows import ReceiptRow
from tenure.orchestrator.outbox import UNDO_QUEUE, UNDO_VERSION, UNDO_WORKFLOW
from tenure.sdk import ActionConflict, ActionFailed, StepFunction, Workflow, act, current
from tenure.sdk.act_request import ActRequest
from tenure.shapes.receipts import UndoLine, UndoOutcome, UndoResult
from tenure.store.port import Store


class UndoableAct(msgspec.Struct, frozen=True, kw_only=True):
    """An action, as recorded in a receipt."""

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
    """For a reused result: the run that did the action."""

    def line(self, outcome: UndoOutcome, note: str = "", reversal: Reversal | None = None) -> UndoLine:
        """What an undo did, or would do, about the action."""
        return UndoLine(
            receipt=self.no,
            step=self.step,
            action=f"{self.connector}.{self.operation}",
            outcome=outcome,
            by="" if reversal is None else f"{self.connector}.{reversal.operation}",
            note=note,
        )


async def load_undoable_acts(
    store: Store, artifacts: ArtifactStore, run_id: int, step: str | None = None
) -> list[UndoableAct]:
    """The actions of a run that were not undone yet, newest first. If `step` is given, only those of that step."""
    receipts: list[ReceiptRow] = await store.read("receipts_of", run_id)
    held = [row for row in receipts if row.state in ("intent", "unknown", "succeeded", "reused")]
    names = {row.idx: row.name for row in await store.read("steps_of", run_id)} if held else {}
    return [
        await _load_act(store, artifacts, row, name)
        for row in sorted(held, key=lambda row: (row.intent_at, row.no), reverse=True)
        if step in (None, row.label, name := names.get(row.idx, str(row.idx)))
    ]


async def _load_act(store: Store, artifacts: ArtifactStore, row: ReceiptRow, step: str) -> UndoableAct:
    request = await _decoded(store, artifacts, row.run_id, row.request_ref) or {}
    return UndoableAct(
        no=row.no,
        step=step,
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
    store: Store,
    artifacts: ArtifactStore,
    connectors: Mapping[str, Connector],
    run_id: int,
    no: int,
    ask: ActRequest,
) -> str | None:
    """Check a request to reverse receipt `no` of a run (law 4). Returns the conflict if it was reversed already."""
    row = next((row for row in await store.read("receipts_of", run_id) if row.no == no), None)
    if row is not None and row.state == "reversed":
        return "it was already undone"
    if row is not None:
        way = plan_reversal(await _load_act(store, artifacts, row, ""), connectors)
        if isinstance(way, Reversal):
            expected = [f"{row.connector}.{way.operation}", way.target, way.fields, way.expects]
            if _plain(expected) == _plain([ask.action, ask.target, ask.fields, ask.expects]):
                return None
    raise TenureError("INVALID_INPUT", f"{ask.action} does not reverse action {no} of that run")


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


async def _decoded(store: Store, artifacts: ArtifactStore, run_id: int, ref: int | None) -> Any:
    if ref is None:
        return None
    rows = await store.read("payload", run_id, ref)
    if not rows:
        raise TenureError(
            "PAYLOAD_ERASED",
            f"the recorded actions of {ids.run_text(run_id)} were erased: they cannot be undone",
        )
    body = rows[0].body
    return msgspec.json.decode(await artifacts.get(body) if is_reference(body) else body)


def plan_reversal(done: UndoableAct, connectors: Mapping[str, Connector]) -> Reversal | UndoLine:
    """How to undo an action, or the line that says why it is not undone."""
    if done.state in ("intent", "unknown"):
        return done.line("unsettled", "its outcome is unknown: settle its receipt, then undo again")
    if done.state == "reused":
        return done.line("cannot", f"it reused the effect of {done.source}: undo that run")
    connector = connectors.get(done.connector)
    operation = None if connector is None else connector.operations.get(done.operation)
    if connector is None or operation is None:
        return done.line("cannot", f"no connector here has {done.connector}.{done.operation}")
    return connector.reverse(done.operation, done.target, done.fields, done.before, done.result) or done.line(
        "cannot", operation.undo_hint or "it cannot be undone automatically: check the target by hand"
    )


async def preview_undo(
    store: Store,
    artifacts: ArtifactStore,
    connectors: Mapping[str, Connector],
    run_id: int,
    step: str | None = None,
) -> UndoResult:
    """What an undo would do. Nothing is called."""
    acts = await load_undoable_acts(store, artifacts, run_id, step)
    lines = (
        plan if isinstance(plan, UndoLine) else done.line("to_undo", reversal=plan)
        for done, plan in ((done, plan_reversal(done, connectors)) for done in acts)
    )
    return UndoResult(run=ids.run_text(run_id), lines=tuple(lines))


def undo_workflow(
    store: Store, artifacts: ArtifactStore, connectors: Mapping[str, Connector]
) -> Workflow[..., Awaitable[UndoResult]]:
    """The workflow of undo runs, for workers of this database."""

    async def read_receipts(run: str, step: str | None) -> list[UndoableAct]:
        mine = await store.read("get_spec", ids.run_int(current().run_id))
        if not mine or mine[0].undo_of != ids.run_int(run):
            raise TenureError(
                "INVALID_INPUT", f"{UNDO_WORKFLOW} can only be started by `tenure undo` or by a cancellation"
            )
        return await load_undoable_acts(store, artifacts, mine[0].undo_of, step)

    receipts: Callable[..., Any] = StepFunction(read_receipts, name="receipts")

    async def undo(run: str, step: str | None = None) -> UndoResult:
        lines: list[UndoLine] = []
        for done in await receipts(run, step):
            way = plan_reversal(done, connectors)
            if isinstance(way, UndoLine):
                lines.append(way)
                continue
            outcome: UndoOutcome = "undone"
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
            lines.append(done.line(outcome, note, way))
        return UndoResult(run=run, lines=tuple(lines))

    return Workflow(undo, name=UNDO_WORKFLOW, version=UNDO_VERSION, queue=UNDO_QUEUE)
