"""Delivers outbox rows: what one run owes another, and the inputs of steps that are made from templates. Each row is a command of
its own, delivered at least once; the kernel recognises repeats."""

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
from tenure.store.transactions import read_first, read_rows

if TYPE_CHECKING:
    from tenure.orchestrator.core import Orchestrator

log = get_logger(__name__)

MESSAGE_CHARS_MAX = 1_000
_create = msgspec.msgpack.Decoder(CreateRun)


async def deliver_outbox(
    orchestrator: Orchestrator, rows: Iterable[OutboxRow], lacking: list[OutboxRow] | None = None
) -> int:
    """Deliver these rows; how many were delivered. Rows whose profile or resolver this process lacks are added to `lacking`.

    Commands are submitted without waiting for each answer: those of a thousand children share a few commits."""
    done = 0
    under_way: list[tuple[OutboxRow, asyncio.Future[Any]]] = []
    unmade: dict[int, set[int | None]] = {}
    for row in rows:
        # A run's first cancel must see the runs that were created before it.
        if len(under_way) >= BATCH_COMMANDS_MAX or (row.topic == "cancel" and row.run_id not in unmade):
            done += await _await_answers(orchestrator, under_way, lacking)
        submitted = await _submit_row(orchestrator, row, lacking, unmade)
        if isinstance(submitted, asyncio.Future):
            under_way.append((row, submitted))
        else:
            done += submitted
    return done + await _await_answers(orchestrator, under_way, lacking)


async def _submit_row(
    orchestrator: Orchestrator,
    row: OutboxRow,
    lacking: list[OutboxRow] | None,
    unmade: dict[int, set[int | None]],
) -> asyncio.Future[Any] | int:
    """Submit a row's command. Returns the future of its answer; without a command, 1 if the row is finished, else 0. `unmade`: for
    each run that cancels others, the runs that it has not created yet."""
    key = (row.run_id, row.seq, row.part)
    try:
        if row.topic == "cancel" and row.run_id not in unmade:
            owed = await read_rows(orchestrator.store, OutboxRow, "outbox_of", row.run_id)
            unmade[row.run_id] = {other.target_id for other in owed if other.topic == "create"}
        if row.topic == "cancel" and row.target_id in unmade[row.run_id]:
            return 0  # there is no run to cancel yet: the sweeper tries again
        if row.topic == "resolve" and orchestrator.resolver is None:
            if lacking is not None:
                lacking.append(row)
            return 0
        command = await _command(orchestrator, row)
        if isinstance(command, CreateRun):
            profiles.for_run(command.profile)  # another process has this profile, and can create the run
        if command is not None:
            return orchestrator.submit(command, delivery=key)
        await orchestrator.store.transact(partial(_delete_row, key))
    except Exception as fault:
        return await _handle_failure(orchestrator, row, fault, lacking)
    return 1


async def _await_answers(
    orchestrator: Orchestrator,
    under_way: list[tuple[OutboxRow, asyncio.Future[Any]]],
    lacking: list[OutboxRow] | None,
) -> int:
    """Wait for the answers to the submitted commands; how many rows are finished."""
    done = 0
    rows, under_way[:] = under_way[:], []
    if rows:
        await asyncio.wait([answer for _, answer in rows])
    for row, answer in rows:
        fault = answer.exception()
        if fault is None:
            done += 1
        elif isinstance(fault, Exception):
            done += await _handle_failure(orchestrator, row, fault, lacking)
        else:
            raise fault
    return done


async def _handle_failure(
    orchestrator: Orchestrator, row: OutboxRow, fault: Exception, lacking: list[OutboxRow] | None
) -> int:
    """Keep a row that could not be delivered, or give it up; 1 if the row is finished, else 0."""
    if isinstance(fault, WriteConflict | AmbiguousCommit):
        log.warning("delivery_failed", topic=row.topic, error=repr(fault))
    elif isinstance(fault, TenureError):
        # A parent chooses the id of its child, so no other id is tried. Any other run is created with a new id.
        taken = fault.code == "RUN_ID_TAKEN" and row.topic == "create"
        if fault.code == "PROFILE_NOT_HERE" and lacking is not None:
            lacking.append(row)
        elif (fault.retryable and not taken) or fault.code == "INTERNAL_ERROR":
            log.warning("delivery_failed", topic=row.topic, error=fault.code)
        else:
            return await _give_up(orchestrator, row, fault)
    else:  # a defect that affects this row alone: the row is kept, and blocks no other
        log.error(
            "delivery_failed",
            topic=row.topic,
            run=row.run_id,
            traceback="".join(traceback.format_exception(fault)),
        )
    return 0


async def _give_up(orchestrator: Orchestrator, row: OutboxRow, refused: TenureError) -> int:
    """Delete a row that is refused permanently: the other run is deleted or finished. A child that cannot be created has failed, and
    so have steps whose inputs cannot be made: a command records that, so that no run waits for them."""
    key = (row.run_id, row.seq, row.part)
    if refused.code != "RUN_TERMINAL_STATE":  # that is usual: the other run has ended
        log.warning("delivery_given_up", topic=row.topic, run=ids.run_text(row.run_id), error=refused.code)
    command = _failure(row, refused)
    try:
        if command is not None:
            await orchestrator.submit(command, delivery=key)
        await orchestrator.store.transact(partial(_delete_row, key))
    except (WriteConflict, AmbiguousCommit, TenureError) as fault:
        log.warning("delivery_failed", topic=row.topic, error=repr(fault))
        return 0
    return 1


def _failure(row: OutboxRow, refused: TenureError) -> Command | None:
    """The command that records the failure of a row that is refused permanently; None: no run has to know."""
    if row.topic == "create" and row.target_id is not None:
        return FinishChild(context=_cause(row), run_id=row.run_id, child_id=row.target_id, outcome="failed")
    if row.topic == "resolve" and refused.code != "RUN_NOT_FOUND":
        message = f"{refused.code}: {refused.message}"[:MESSAGE_CHARS_MAX].encode()
        failed = tuple(
            Resolution(idx=idx, n=n, code="EXPRESSION_FAILED", message=message)
            for idx, n in msgspec.msgpack.decode(row.body)["steps"]
        )
        return ResolveSteps(context=_cause(row), run_id=row.run_id, steps=failed)
    return None


def _cause(row: OutboxRow) -> Context:
    return Context(actor="system:outbox", initiator="system", cause=f"{row.run_id}/{row.seq}/{row.part}")


def _delete_row(key: tuple[int, int, int]) -> Transaction[None]:
    yield Save(delivered=[key])


async def _command(orchestrator: Orchestrator, row: OutboxRow) -> Command | None:
    """The command of a row; None: no run needs it any more."""
    cause = _cause(row)
    if row.topic == "create":
        return msgspec.structs.replace(_create.decode(row.body), context=cause)
    if row.topic == "compensate":
        return await _compensation(orchestrator, cause, row.run_id)
    body: dict[str, Any] = msgspec.msgpack.decode(row.body)
    if row.topic == "resolve":
        assert orchestrator.resolver is not None
        made = await orchestrator.resolver.resolve(row.run_id, [(idx, n) for idx, n in body["steps"]])
        return ResolveSteps(context=cause, run_id=row.run_id, steps=made) if made else None
    if row.topic == "key_freed":
        return await _next_for_key(orchestrator, cause, body["tenant"], body["key"])
    assert row.target_id is not None
    if row.topic == "reversed":
        return MarkReversed(context=cause, run_id=row.target_id, **body)
    if row.topic == "child_finished":
        return FinishChild(context=cause, run_id=row.target_id, **body)
    assert row.topic == "cancel", f"unknown topic {row.topic}"
    return RequestCancel(context=cause, run_id=row.target_id, reason=body["reason"])


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
    """The run that undoes the acts of another run, for the requester of that run. `given` replaces fields of the request."""
    text = ids.run_text(run.id)
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
        plan=(
            StepSpec(
                name="main", kind="body", queue=capability(UNDO_QUEUE, flow(UNDO_WORKFLOW, UNDO_VERSION))
            ),
        ),
        over_rate="delay",
        undo_of=run.id,
        trace=run.trace,
        **asked,
    )
    return build_create_run(request, run_id=run_id, tenant=run.tenant, workspace=run.workspace)


async def _compensation(orchestrator: Orchestrator, cause: Context, run_id: int) -> CreateRun | None:
    """The undo run that a canceled run asked for. Its idempotency key makes repeated deliveries harmless."""
    run = await read_first(orchestrator.store, RunRow, "get_run", run_id)
    spec = await read_first(orchestrator.store, RunSpecRow, "get_spec", run_id)
    if run is None or spec is None:
        return None
    key = f"compensation/{ids.run_text(run_id)}"
    turn = f"tenure.undo/{ids.run_text(run_id)}"  # like an undo that a person asks for: one at a time
    new_id = orchestrator.new_id(run.tenant)
    return build_undo_run(run, spec, new_id, cause, idempotency_key=key, concurrency_key=turn)
