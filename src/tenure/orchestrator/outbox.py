"""What runs owe each other, and what a run's steps wait for (their inputs, made from templates), carried out as commands of
their own: at least once, deduplicated by the kernel."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.act_commands import MarkReversed
from tenure.kernel.capability import capability, flow
from tenure.kernel.commands import (
    Admit,
    Command,
    Context,
    CreateRun,
    FinishChild,
    RequestCancel,
    Resolution,
    ResolveSteps,
    RunRequest,
    StepSpec,
    Trigger,
)
from tenure.kernel.new_run import build_create_run
from tenure.kernel.run_rows import OutboxRow, RunRow, RunSpecRow
from tenure.limits import BATCH_COMMANDS_MAX, KEY_HORIZON_SECONDS
from tenure.logs import get_logger
from tenure.store.port import AmbiguousCommit, ConcurrencyKeyQueue, Query, Save, Transaction, WriteConflict

if TYPE_CHECKING:
    from tenure.orchestrator.core import Orchestrator

log = get_logger(__name__)

MESSAGE_CHARS_MAX = 1_000
_create = msgspec.msgpack.Decoder(CreateRun)


async def deliver_outbox(
    orchestrator: Orchestrator, rows: Iterable[OutboxRow], lacking: list[OutboxRow] | None = None
) -> int:
    """Carry out what these rows say; how many were. Rows that are for a process with another profile go to `lacking`.

    Commands are submitted one after the other without waiting for each: those of a thousand children share a few commits."""
    done = 0
    under_way: list[tuple[OutboxRow, asyncio.Future[Any]]] = []
    unmade: dict[int, set[int | None]] = {}
    for row in rows:
        # A run's first cancel must see what was made before it.
        if len(under_way) >= BATCH_COMMANDS_MAX or (row.topic == "cancel" and row.run_id not in unmade):
            done += await _carried_out(orchestrator, under_way, lacking)
        submitted = await _submitted(orchestrator, row, lacking, unmade)
        if isinstance(submitted, asyncio.Future):
            under_way.append((row, submitted))
        else:
            done += submitted
    return done + await _carried_out(orchestrator, under_way, lacking)


async def _submitted(
    orchestrator: Orchestrator,
    row: OutboxRow,
    lacking: list[OutboxRow] | None,
    unmade: dict[int, set[int | None]],
) -> asyncio.Future[Any] | int:
    """The answer to come to a row's command; where there is none, whether the row is done with. `unmade`: of each run that cancels others,
    the runs that it still owes the making of."""
    key = (row.run_id, row.seq, row.part)
    try:
        if row.topic == "cancel" and row.run_id not in unmade:
            owed: list[OutboxRow] = await orchestrator.store.read("outbox_of", row.run_id)
            unmade[row.run_id] = {other.target_id for other in owed if other.topic == "create"}
        if row.topic == "cancel" and row.target_id in unmade[row.run_id]:
            return 0  # else it would find nobody to cancel, and be gone; the sweeper comes back to it
        if row.topic == "resolve" and orchestrator.resolver is None:
            if lacking is not None:
                lacking.append(row)
            return 0
        command = await _command(orchestrator, row)
        if isinstance(command, CreateRun):
            profiles.for_run(command.profile)  # whoever owes it has it: the run can be made, only not here
        if command is not None:
            return orchestrator.submit(command, delivery=key)
        await orchestrator.store.transact(partial(_forget, key))
    except Exception as fault:
        return await _failed(orchestrator, row, fault, lacking)
    return 1


async def _carried_out(
    orchestrator: Orchestrator,
    under_way: list[tuple[OutboxRow, asyncio.Future[Any]]],
    lacking: list[OutboxRow] | None,
) -> int:
    """Wait for the answers to commands that were submitted; how many rows are done with."""
    done = 0
    rows, under_way[:] = under_way[:], []
    if rows:
        await asyncio.wait([answer for _, answer in rows])
    for row, answer in rows:
        fault = answer.exception()
        if fault is None:
            done += 1
        elif isinstance(fault, Exception):
            done += await _failed(orchestrator, row, fault, lacking)
        else:
            raise fault
    return done


async def _failed(
    orchestrator: Orchestrator, row: OutboxRow, fault: Exception, lacking: list[OutboxRow] | None
) -> int:
    """A row that could not be carried out: it stays owed, or nothing is owed any more; whether it is done with."""
    if isinstance(fault, WriteConflict | AmbiguousCommit):
        log.warning("delivery_failed", topic=row.topic, error=repr(fault))
    elif isinstance(fault, TenureError):
        # A child's id is its parent's choice: another is not taken. Whatever else is owed is made with another one.
        taken = fault.code == "RUN_ID_TAKEN" and row.topic == "create"
        if fault.code == "PROFILE_NOT_HERE" and lacking is not None:
            lacking.append(row)
        elif (fault.retryable and not taken) or fault.code == "INTERNAL_ERROR":
            log.warning("delivery_failed", topic=row.topic, error=fault.code)
        else:
            return await _give_up(orchestrator, row, fault)
    else:  # a defect, met by this row alone: it stays owed, and holds up no other
        told = "".join(traceback.format_exception(fault))
        log.error("delivery_failed", topic=row.topic, run=row.run_id, traceback=told)
    return 0


async def _give_up(orchestrator: Orchestrator, row: OutboxRow, refused: TenureError) -> int:
    """A row that is refused for good. The other run is gone or finished, so nothing is owed any more; but a child that cannot be
    made has failed, and its parent is told so, and steps whose inputs cannot be brought in fail, so that nobody waits for them."""
    key = (row.run_id, row.seq, row.part)
    if refused.code != "RUN_TERMINAL_STATE":  # a run that has ended needs to hear nothing
        log.warning("delivery_given_up", topic=row.topic, run=ids.run_text(row.run_id), error=refused.code)
    told = _failure(row, refused)
    try:
        if told is not None:
            await orchestrator.submit(told, delivery=key)
        await orchestrator.store.transact(partial(_forget, key))
    except (WriteConflict, AmbiguousCommit, TenureError) as fault:
        log.warning("delivery_failed", topic=row.topic, error=repr(fault))
        return 0
    return 1


def _failure(row: OutboxRow, refused: TenureError) -> Command | None:
    """What is to be told of a row that is refused for good; None: it concerns nobody."""
    if row.topic == "create" and row.target_id is not None:
        return FinishChild(context=_cause(row), run_id=row.run_id, child_id=row.target_id, outcome="failed")
    if row.topic == "resolve" and refused.code != "RUN_NOT_FOUND":
        message = f"{refused.code}: {refused.message}"[:MESSAGE_CHARS_MAX].encode()
        steps: list[tuple[int, int]] = msgspec.msgpack.decode(row.body)["steps"]
        failed = [Resolution(idx=idx, n=n, code="EXPRESSION_FAILED", message=message) for idx, n in steps]
        return ResolveSteps(context=_cause(row), run_id=row.run_id, steps=tuple(failed))
    return None


def _cause(row: OutboxRow) -> Context:
    return Context(actor="system:outbox", initiator="system", cause=f"{row.run_id}/{row.seq}/{row.part}")


def _forget(key: tuple[int, int, int]) -> Transaction[None]:
    yield Save(delivered=[key])


async def _command(orchestrator: Orchestrator, row: OutboxRow) -> Command | None:
    """The command behind a row; None when nobody is concerned any more."""
    cause = _cause(row)
    if row.topic == "create":
        return msgspec.structs.replace(_create.decode(row.body), context=cause)
    if row.topic == "compensate":
        return await _compensation(orchestrator, cause, row.run_id)
    body: dict[str, Any] = msgspec.msgpack.decode(row.body)
    if row.topic == "resolve":
        return await _resolved(orchestrator, row, body["steps"])
    if row.topic == "key_freed":
        return await _next_for_key(orchestrator, cause, body["tenant"], body["key"])
    assert row.target_id is not None
    if row.topic == "reversed":
        return MarkReversed(context=cause, run_id=row.target_id, **body)
    if row.topic == "child_finished":
        return FinishChild(context=cause, run_id=row.target_id, **body)
    assert row.topic == "cancel", f"unknown topic {row.topic}"
    return RequestCancel(context=cause, run_id=row.target_id, reason=body["reason"])


async def _resolved(
    orchestrator: Orchestrator, row: OutboxRow, steps: list[tuple[int, int]]
) -> ResolveSteps | None:
    """What steps waited for: their inputs, made from their templates."""
    assert orchestrator.resolver is not None
    made = await orchestrator.resolver.resolve(row.run_id, [(idx, n) for idx, n in steps])
    return ResolveSteps(context=_cause(row), run_id=row.run_id, steps=made) if made else None


async def _next_for_key(orchestrator: Orchestrator, cause: Context, tenant: str, key: str) -> Admit | None:
    now = orchestrator.store.estimate_us()
    horizon = (1 << 62) if now is None else now + us(KEY_HORIZON_SECONDS)

    def look() -> Transaction[ConcurrencyKeyQueue]:
        rows: list[ConcurrencyKeyQueue] = yield Query("key_queue", (), (tenant, key, horizon))
        return rows[0]

    queue = await orchestrator.store.transact(look)
    if queue.first_waiting_id is None or queue.holder_id is not None:
        return None
    return Admit(context=cause, run_id=queue.first_waiting_id, gate_tenant=tenant)


UNDO_WORKFLOW, UNDO_VERSION = "tenure.undo", "1"
UNDO_QUEUE = "default"


def build_undo_run(run: RunRow, spec: RunSpecRow, run_id: int, context: Context, **given: Any) -> CreateRun:
    """The run that takes back what another one did to the world, on behalf of whoever asked for that one. `given`: whatever is to
    be otherwise."""
    text = ids.run_text(run.id)
    queue = capability(UNDO_QUEUE, flow(UNDO_WORKFLOW, UNDO_VERSION))
    asked: dict[str, Any] = {
        "requester": spec.requester,
        "involved": spec.involved,
        "input": msgspec.json.encode({"run": text}),
        "trigger": Trigger("child", text),
        "source": "undo",
        **given,
    }
    request = RunRequest(
        context=context,
        workflow=UNDO_WORKFLOW,
        code_version=UNDO_VERSION,
        profile=run.profile,
        plan=(StepSpec(name="main", kind="body", queue=queue),),
        over_rate="delay",
        undo_of=run.id,
        trace=run.trace,
        **asked,
    )
    return build_create_run(request, run_id=run_id, tenant=run.tenant, workspace=run.workspace)


async def _compensation(orchestrator: Orchestrator, cause: Context, run_id: int) -> CreateRun | None:
    """What a canceled run asked for: made once, however often it is delivered, by its key."""
    runs: list[RunRow] = await orchestrator.store.read("get_run", run_id)
    specs: list[RunSpecRow] = await orchestrator.store.read("get_spec", run_id)
    if not runs or not specs:
        return None
    key = f"compensation/{ids.run_text(run_id)}"
    turn = f"tenure.undo/{ids.run_text(run_id)}"  # as of an undo that somebody asks for: one at a time
    new_id = orchestrator.new_id(runs[0].tenant)
    return build_undo_run(runs[0], specs[0], new_id, cause, idempotency_key=key, concurrency_key=turn)
