"""What workflow code may call besides its steps: `tenure.approve`, `tenure.wait`, `tenure.sleep` and so on.

Laws:
1. A primitive gets its key when it is called. In an async workflow it is awaited; in a plain one it returns its result, as a plain step
   does.
2. A short wait is spent in memory. A longer one suspends the run until it settles.
"""

from __future__ import annotations

import asyncio
import random as _random
import uuid as _uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, Generic, Literal, NoReturn, ParamSpec, TypeVar

import msgspec

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime, us
from tenure.errors import TenureError
from tenure.kernel.commands import ApprovalSpec, WaitSpec
from tenure.kernel.costs import Cost
from tenure.kernel.decide.validation import is_name
from tenure.limits import COST_COUNT_MAX, COST_CURRENCY_CHARS_MAX, COST_WORD_CHARS_MAX, SPENT_MICROS_MAX
from tenure.sdk import codec, context
from tenure.sdk.attempts import exit_failure
from tenure.sdk.definitions import StepFunction, Workflow, registry
from tenure.sdk.errors import ApprovalExpired, ApprovalRejected, WaitExpired
from tenure.sdk.execution import WorkflowExecution
from tenure.sdk.execution_waits import SHORT_SECONDS, Opening
from tenure.sdk.exits import Restart
from tenure.sdk.frame import Frame
from tenure.sdk.options import Duration, to_seconds
from tenure.sdk.outcomes import check_child
from tenure.sdk.replay_log import PATCH_PREFIX
from tenure.sdk.scope import CallScope

P = ParamSpec("P")
T = TypeVar("T")
Tier = Literal["low", "med", "high"]


class ApprovalDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    approved: bool
    approver: str | None = None
    reason: str | None = None
    at: datetime | None = None


def _seconds(primitive: str, duration: Duration | None, option: str = "within") -> float | None:
    return to_seconds(f"tenure.{primitive}", option, duration)


def _submit(
    name: str,
    begin: Callable[Concatenate[CallScope, str, P], Coroutine[Any, Any, T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Coroutine[Any, Any, T]:
    """Make the durable call of a primitive. Its key is `name`, which begins with the primitive's name."""
    scope = context.require_scope(name.partition(":")[0])
    key = scope.key(name)
    return scope.submit(key, begin(scope, key, *args, **kwargs))


# ----------------------------------------------------------------------------------------------- people


def approve(
    action: str,
    *,
    tier: Tier = "low",
    people: int = 1,
    group: str = "",
    within: Duration | None = None,
    show: Any = None,
) -> Coroutine[Any, Any, ApprovalDecision]:
    """Ask people for approval and wait for their decision. `show` is shown with the question. With a `group`, only its members may
    decide.

    Raises ApprovalRejected or ApprovalExpired, which fail the run if the code does not catch them.
    """
    spec = ApprovalSpec(action, tier, people, _seconds("approve", within), group=group)
    return _submit("approve", _approve, spec, show)


async def _approve(scope: CallScope, key: str, spec: ApprovalSpec, show: Any) -> ApprovalDecision:
    execution = scope.execution
    question = await execution.waits.store_payload(codec.encode(show, "`show` of tenure.approve"))
    known = execution.journal.replay_log.waits.get(key)
    if known is not None and known.name != spec.action:
        execution.journal.fail_replay(
            f"the code asks for approval of {spec.action!r} where {known.name!r} was recorded"
        )
    row = await execution.waits.wait(key, check=True, approval=spec, question=question)
    reason = None if row.reason is None else msgspec.json.decode(row.reason)
    if row.outcome == "rejected":
        raise ApprovalRejected(spec.action, reason)
    if row.outcome == "expired":
        raise ApprovalExpired(spec.action)
    return ApprovalDecision(
        row.outcome == "approved", row.decided_by, reason, to_optional_datetime(row.settled_at)
    )


class Proposal(msgspec.Struct, frozen=True):
    """A proposal. The run continues, and people decide about it later."""

    run_id: str
    no: int


def propose(
    action: str,
    content: Any = None,
    *,
    tier: Tier = "low",
    people: int = 1,
    group: str = "",
    within: Duration | None = None,
) -> Coroutine[Any, Any, Proposal]:
    """Propose something without waiting for the decision, which may come after the run has succeeded."""
    spec = ApprovalSpec(action, tier, people, _seconds("propose", within), group=group)
    return _submit("propose", _propose, spec, content)


async def _propose(scope: CallScope, key: str, spec: ApprovalSpec, content: Any) -> Proposal:
    execution = scope.execution
    question = await execution.waits.store_payload(codec.encode(content, "`content` of tenure.propose"))
    return Proposal(execution.run_id, await execution.waits.open(key, proposal=spec, question=question))


# ------------------------------------------------------------------------------------- events and time


def wait(
    event: str,
    *,
    within: Duration | None = None,
    source: str = "",
    type: Any = Any,  # noqa: A002 - reads best
) -> Coroutine[Any, Any, Any]:
    """Wait for an event and return its payload, converted to `type`. An event that came earlier is taken at once. Raises WaitExpired."""
    spec = WaitSpec(event, source, _seconds("wait", within))
    return _submit(f"wait:{_key_part(event)}", _wait, spec, type)


def _key_part(name: str) -> str:
    """A name without the characters that have a meaning in keys."""
    return "".join("_" if c in "/#[]!" else c for c in name)


async def _wait(scope: CallScope, key: str, spec: WaitSpec, declared: Any) -> Any:
    waits = scope.execution.waits
    row = await waits.wait(key, check=True, event=spec)
    if row.outcome == "expired":
        raise WaitExpired(spec.event)
    return codec.Codec(declared, f"event {spec.event!r}").decode(await waits.load_payload(row.result))


def sleep(duration: Duration) -> Coroutine[Any, Any, None]:
    """Sleep for some seconds, or a text such as `1h30m`. A long sleep holds neither memory nor a worker."""
    return _submit("sleep", _sleep, _seconds("sleep", duration, "") or 0.0)


async def _sleep(scope: CallScope, key: str, seconds: float) -> None:
    execution, now_us = scope.execution, scope.execution.journal.lease_port.now_us
    if seconds >= SHORT_SECONDS:
        await execution.waits.wait(key, check=True, until=now_us() + us(seconds))
        return
    until = await execution.record_once(key, lambda: now_us() + us(seconds))
    left = (until - now_us()) / 1e6
    if left > 0:
        await execution.waits.sleep(left)


def now() -> Coroutine[Any, Any, datetime]:
    """The time by the store's clock. It is recorded, so that a replay sees the same."""
    return _submit("now", _now)


async def _now(scope: CallScope, key: str) -> datetime:
    return to_datetime(await scope.execution.record_once(key, scope.execution.journal.lease_port.now_us))


def uuid() -> Coroutine[Any, Any, _uuid.UUID]:
    """A random UUID. It is recorded."""
    return _submit("uuid", _make_uuid)


async def _make_uuid(scope: CallScope, key: str) -> _uuid.UUID:
    return _uuid.UUID(await scope.execution.record_once(key, lambda: str(_uuid.uuid4())))


def random() -> Coroutine[Any, Any, float]:
    """A random number from 0 to 1. It is recorded."""
    return _submit("random", lambda scope, key: scope.execution.record_once(key, _random.random))


# -------------------------------------------------------------------------------------- side by side


def gather(
    *work: Awaitable[T], limit: int | None = None, return_exceptions: bool = False
) -> Coroutine[Any, Any, list[Any]]:
    """Run several awaitables concurrently, `limit` at a time, and return their results in order.

    The run suspends when only waits are left. The first failure cancels the others, unless `return_exceptions` is set.
    """
    scope = context.require_scope("gather")
    _check_limit(limit, work)
    if scope.plain:
        raise TenureError(
            "INVALID_INPUT", "tenure.gather is for async workflows: use tenure.map in a plain one"
        )
    branches = [scope.branch("gather") for _ in work]
    return _gather(scope.execution, [_Once(each) for each in work], branches, limit, return_exceptions)


def map(  # noqa: A001 - it is `tenure.map`
    function: Callable[..., Any],
    items: Iterable[Any],
    *,
    limit: int | None = None,
    return_exceptions: bool = False,
) -> Coroutine[Any, Any, list[Any]]:
    """Call a step (or another function) once per item, `limit` at a time, and return the results in order."""
    scope = context.require_scope("map")
    _check_limit(limit, ())
    things = list(items)
    branches = [scope.branch("map") for _ in things]
    work = [partial(_mapped, function, each, branch) for each, branch in zip(things, branches, strict=True)]
    key = branches[0].path + "map" if branches else "map"
    return scope.submit(key, _gather(scope.execution, work, branches, limit, return_exceptions))


def _check_limit(limit: int | None, work: Iterable[Awaitable[Any]]) -> None:
    if limit is not None and limit < 1:
        for each in work:
            _Once(each).close()
        raise TenureError("INVALID_INPUT", f"limit must be at least 1, not {limit}")


class _Once:
    """The awaitable of a branch: awaited once, or closed."""

    __slots__ = ("_work",)

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work: Awaitable[Any] | None = work

    def __call__(self) -> Awaitable[Any]:
        work, self._work = self._work, None
        assert work is not None
        return work

    def close(self) -> None:
        if isinstance(self._work, Coroutine):
            self._work.close()


async def _mapped(function: Callable[..., Any], item: Any, branch: CallScope) -> Any:
    if isinstance(function, StepFunction):
        return await branch.execution.steps.call(branch.key(function.name), function, (item,), {})
    if branch.plain:
        return await branch.execution.run_in_thread(branch, partial(function, item))
    value = function(item)
    return await value if isinstance(value, Awaitable) else value


async def _gather(
    execution: WorkflowExecution,
    work: Sequence[Callable[[], Awaitable[Any]]],
    branches: list[CallScope],
    limit: int | None,
    return_exceptions: bool,
) -> list[Any]:
    room = asyncio.Semaphore(limit) if limit is not None else None

    async def branch(scope: CallScope, begin: Callable[[], Awaitable[Any]]) -> Any:
        scope.task = asyncio.current_task()
        context.enter(scope)  # in this task's own context
        async with room or nullcontext():
            execution.waits.add_branch()
            try:
                return await begin()
            except (SystemExit, KeyboardInterrupt) as how:  # in a task they would end the whole loop
                raise exit_failure(how) from how
            finally:
                execution.waits.remove_branch()

    tasks = [asyncio.ensure_future(branch(s, each)) for s, each in zip(branches, work, strict=True)]
    waiting = False
    try:
        # The branches begin in the loop's next turn. Until then this branch counts, so that the run does not suspend too early.
        await asyncio.sleep(0)
        waiting = True
        execution.waits.remove_branch()
        if not tasks:
            return []
        when = asyncio.ALL_COMPLETED if return_exceptions else asyncio.FIRST_EXCEPTION
        await asyncio.wait(tasks, return_when=when)
    finally:
        if waiting:
            execution.waits.add_branch()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in work:
            if isinstance(each, _Once):
                each.close()
    execution.journal.check()
    if return_exceptions:
        return [task.exception() or task.result() for task in tasks]
    for task in tasks:
        if not task.cancelled() and (fault := task.exception()) is not None:
            raise fault
    return [task.result() for task in tasks]


# ------------------------------------------------------------------------------------------- children


class ChildHandle(Generic[T]):
    """A child run that this run started."""

    def __init__(self, scope: CallScope, opening: Opening, run_id: str, workflow: Workflow[..., Any]) -> None:
        self._scope = scope
        self._opening = opening
        self._workflow = workflow
        self.run_id = run_id

    def result(self) -> Coroutine[Any, Any, T]:
        """Wait for the child's end and return its output. Raises ChildFailed."""
        return self._scope.submit(f"result:{self.run_id}", self._result())

    async def _result(self) -> Any:
        waits = self._scope.execution.waits
        row = await waits.wait_for(await waits.opened(self._opening))
        check_child(row, self.run_id)
        return self._workflow.codec.decode(await waits.load_payload(row.child_output))


def start(
    workflow: Workflow[..., Any] | str,
    *args: Any,
    on_close: Literal["cancel", "leave", "wait"] = "cancel",
    **kwargs: Any,
) -> Coroutine[Any, Any, ChildHandle[Any]]:
    """Start a run of another workflow; `await child.result()` waits for it. The code continues before the child is durable, so that many
    children are started in one commit, but no step, act or wait begins before that. If the store refuses the child (a limit), the run fails.

    `on_close` says what happens to the child if this run ends first: it is canceled, left alone, or waited for.
    """
    known = registry.workflows.get(workflow) if isinstance(workflow, str) else workflow
    if known is None:
        raise TenureError(
            "INVALID_INPUT", f"workflow {workflow!r} is not registered: import the module that defines it"
        )
    return _submit(f"start:{known.name}", _start, known, args, kwargs, on_close)


async def _start(
    scope: CallScope,
    key: str,
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    on_close: Literal["cancel", "leave", "wait"],
) -> ChildHandle[Any]:
    execution = scope.execution
    input_ = await execution.waits.store_payload(workflow.parameters.bind(args, kwargs))
    child = workflow.child(execution.journal.lease_port.new_run_id(), input_, on_close)
    opening = await execution.waits.begin_open(key, child=child)
    known = execution.journal.replay_log.waits.get(key)
    run_id = ids.run_text(child.run_id if known is None else int(known.name))
    return ChildHandle(scope, opening, run_id, workflow)


# ------------------------------------------------------------------------------- versions and restarts


def patched(name: str) -> Coroutine[Any, Any, bool]:
    """Whether a run takes the new code path: true if it comes here for the first time, false if it had passed here before the change.
    `if await tenure.patched("use-v2"): …`"""
    scope = context.require_scope("patched")
    key = f"{PATCH_PREFIX}{_key_part(name)}"
    return scope.submit(key, _patched(scope, key))


async def _patched(scope: CallScope, key: str) -> bool:
    """A run has one recorded answer per name: it takes the same path wherever it asks."""
    execution = scope.execution
    if key in execution.patches:
        return execution.patches[key]
    known = execution.journal.replay_log.checkpoints.get(key)
    taken = known.output == b"true" if known is not None else not execution.journal.replay_log.is_replaying
    execution.patches[key] = taken
    if known is None:
        execution.journal.record(key, output=b"true" if taken else b"false")
    return taken


def restart(*args: Any, **kwargs: Any) -> NoReturn:
    """End this run and continue as a new run of the same workflow with these arguments: for endless work, and before the limit on recorded
    steps. Callers that wait for this run get the new run's result."""
    execution = context.require_scope("restart").execution
    execution.journal.leave(Restart(execution.workflow.parameters.bind(args, kwargs)))


# ------------------------------------------------------------------------------------------ inside steps


def current() -> Frame:
    """The step that is running: its run, attempt and idempotency key, `progress()`, `canceled`."""
    frame = context.current_frame()
    if frame is None:
        raise TenureError("INVALID_INPUT", "tenure.current() can only be used inside a step")
    return frame


def log(text: str, *, level: Literal["debug", "info", "warning", "error"] = "info", **fields: Any) -> None:
    """Add a line to the run's log, from a step or from the workflow itself (a replay may repeat that one)."""
    if (frame := context.current_frame()) is not None:
        frame.log(level, text, fields)
    else:
        context.require_scope("log").execution.journal.lease_port.log("", level, text, fields)


def report_cost(
    provider: str,
    model: str,
    *,
    tokens_in: int = 0,
    tokens_out: int = 0,
    money: float | str | None = None,
    currency: str = "USD",
) -> None:
    """Report what a call to a provider cost. It is shown with the step, and counts against the run's budget if that is in the same
    currency. Can only be used inside a step."""
    frame = current()
    micros = 0 if money is None else round(float(money) * 1_000_000)
    if tokens_in < 0 or tokens_out < 0 or micros < 0:
        raise TenureError("INVALID_INPUT", "tenure.report_cost: tokens and money must not be negative")
    if max(tokens_in, tokens_out) > COST_COUNT_MAX or micros > SPENT_MICROS_MAX:
        raise TenureError(
            "INVALID_INPUT",
            f"tenure.report_cost: at most {COST_COUNT_MAX} tokens and {SPENT_MICROS_MAX // 1_000_000} units of money per call",
        )
    for word, most in (
        (provider, COST_WORD_CHARS_MAX),
        (model, COST_WORD_CHARS_MAX),
        (currency, COST_CURRENCY_CHARS_MAX),
    ):
        if not is_name(word, 1, most):
            raise TenureError(
                "INVALID_INPUT",
                f"tenure.report_cost: {word[:40]!r} is not a name of 1 to {most} printable characters",
            )
    frame.spend(Cost(provider, model, tokens_in, tokens_out, micros, currency))
