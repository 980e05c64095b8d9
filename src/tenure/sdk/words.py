"""The vocabulary of workflows: what code may say besides calling steps.

Laws:
1. A word's key is given when it is called. In an async workflow every word is awaited; in a plain one it answers
   at once, as a plain step does.
2. A wait that is short enough is waited for in memory; every other one lets the run go until it is settled.
"""

from __future__ import annotations

import asyncio
import random as _random
import uuid as _uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, Literal, NoReturn, TypeVar

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.commands import ApprovalSpec, StartChild, WaitSpec
from tenure.kernel.costs import Cost
from tenure.kernel.decide.checks import is_name
from tenure.limits import COST_COUNT_MAX, COST_CURRENCY_CHARS_MAX, COST_WORD_CHARS_MAX, SPENT_MICROS_MAX
from tenure.sdk import codec, here
from tenure.sdk.body import Body
from tenure.sdk.definitions import Step, Workflow, registry
from tenure.sdk.faults import ChildFailed, WaitExpired
from tenure.sdk.frame import Frame
from tenure.sdk.options import Duration, in_seconds
from tenure.sdk.outcomes import refusal
from tenure.sdk.past import PATCHED
from tenure.sdk.scope import Scope
from tenure.sdk.trying import left
from tenure.sdk.waiting import SHORT_SECONDS, Opening
from tenure.store.port import Waited

T = TypeVar("T")
Tier = Literal["low", "med", "high"]


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's answer."""

    approved: bool
    approver: str | None = None
    reason: str | None = None
    at: datetime | None = None


def _length(word: str, length: Duration | None, option: str = "within") -> float | None:
    """A word's length of time in seconds."""
    return in_seconds(f"tenure.{word}", option, length)


def _moment(us: int | None) -> datetime | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC)


# ----------------------------------------------------------------------------------------------- people


def approve(
    action: str,
    *,
    tier: Tier = "low",
    people: int = 1,
    group: str = "",
    within: Duration | None = None,
    show: Any = None,
) -> Coroutine[Any, Any, Decision]:
    """Ask people, and wait for their answer. `show` is what they are shown beside the question; with a `group` only those
    who belong to it may say yes or no.

    Raises ApprovalRejected or ApprovalExpired; uncaught, these fail the run.
    """
    scope = here.scope("approve")
    spec = ApprovalSpec(action, tier, people, _length("approve", within), group=group)
    key = scope.key("approve")
    return scope.say(key, _approve(scope.body, key, spec, show))


async def _approve(body: Body, key: str, spec: ApprovalSpec, show: Any) -> Decision:
    question = await body.aside(codec.encode(show, "what is shown"))
    known = body.past.waits.get(key)
    if known is not None and known.name != spec.action:
        body.misfit(f"the code asks {spec.action!r} where people were asked {known.name!r}")
    row = await body.wait(key, check=True, approval=spec, question=question)
    refused = refusal(row, spec.action)
    if refused is not None:
        raise refused
    return _decision(row)


def _decision(row: Waited) -> Decision:
    reason = None if row.reason is None else msgspec.json.decode(row.reason)
    return Decision(row.outcome == "approved", row.decided_by, reason, _moment(row.settled_at))


class Proposal(msgspec.Struct, frozen=True):
    """A proposal that was made. The run goes on; people decide about it when they do."""

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
    """Propose something without waiting for the answer. It can be decided after the run has succeeded, too."""
    scope = here.scope("propose")
    spec = ApprovalSpec(action, tier, people, _length("propose", within), group=group)
    key = scope.key("propose")
    return scope.say(key, _propose(scope.body, key, spec, content))


async def _propose(body: Body, key: str, spec: ApprovalSpec, content: Any) -> Proposal:
    question = await body.aside(codec.encode(content, "a proposal"))
    return Proposal(body.run_id, await body.open(key, proposal=spec, question=question))


# ------------------------------------------------------------------------------------- events and time


def wait(
    event: str,
    *,
    within: Duration | None = None,
    source: str = "",
    type: Any = Any,  # noqa: A002 - reads best
) -> Coroutine[Any, Any, Any]:
    """Wait for an event, and answer what it brought. One that came before is taken at once.

    `type` is what it is converted to. Raises WaitExpired.
    """
    scope = here.scope("wait")
    spec = WaitSpec(event, source, _length("wait", within))
    key = scope.key(f"wait:{_plain(event)}")
    return scope.say(key, _wait(scope.body, key, spec, type))


def _plain(event: str) -> str:
    """An event's name as part of a key."""
    return "".join("_" if c in "/#[]!" else c for c in event)


async def _wait(body: Body, key: str, spec: WaitSpec, declared: Any) -> Any:
    row = await body.wait(key, check=True, event=spec)
    if row.outcome == "expired":
        raise WaitExpired(spec.event)
    return codec.Codec(declared, f"event {spec.event!r}").decode(await body.fetched(row.result))


def sleep(duration: Duration) -> Coroutine[Any, Any, None]:
    """Let time pass: seconds, or a text such as `1h30m`. A long sleep holds neither memory nor a worker."""
    scope = here.scope("sleep")
    length = _length("sleep", duration, "") or 0.0
    key = scope.key("sleep")
    return scope.say(key, _sleep(scope.body, key, length))


async def _sleep(body: Body, key: str, length: float) -> None:
    if length < SHORT_SECONDS:
        until = await body.recall(key, lambda: body.line.now_us() + round(length * 1e6))
        left = (until - body.line.now_us()) / 1e6
        if left > 0:
            await body.busy(body.line.sleep(left))
        return
    await body.wait(key, check=True, until=body.line.now_us() + round(length * 1e6))


def now() -> Coroutine[Any, Any, datetime]:
    """The time by the store's clock; recorded, so that a replay sees the same."""
    scope = here.scope("now")
    key = scope.key("now")
    return scope.say(key, _now(scope.body, key))


async def _now(body: Body, key: str) -> datetime:
    us: int = await body.recall(key, body.line.now_us)
    return datetime.fromtimestamp(us / 1e6, UTC)


def uuid() -> Coroutine[Any, Any, _uuid.UUID]:
    """A random UUID; recorded."""
    scope = here.scope("uuid")
    key = scope.key("uuid")
    return scope.say(key, _make_uuid(scope.body, key))


async def _make_uuid(body: Body, key: str) -> _uuid.UUID:
    return _uuid.UUID(await body.recall(key, lambda: str(_uuid.uuid4())))


def random() -> Coroutine[Any, Any, float]:
    """A random number from 0 to 1; recorded."""
    scope = here.scope("random")
    key = scope.key("random")
    return scope.say(key, scope.body.recall(key, _random.random))


# -------------------------------------------------------------------------------------- side by side


def gather(
    *work: Awaitable[T], limit: int | None = None, return_exceptions: bool = False
) -> Coroutine[Any, Any, list[Any]]:
    """Do several things at once, `limit` at a time, and answer their results in order.

    Waits among them are waited for together: the run is let go when nothing else is left. The first failure stops
    the others, unless `return_exceptions`.
    """
    scope = here.scope("gather")
    _check_limit(limit, work)
    if scope.plain:
        raise TenureError(
            "INVALID_INPUT", "tenure.gather is for async workflows; in a plain one use tenure.map"
        )
    branches = [scope.branch("gather") for _ in work]
    return _gather(scope.body, [_Once(each) for each in work], branches, limit, return_exceptions)


def map(  # noqa: A001 - what it is
    function: Callable[..., Any],
    items: Iterable[Any],
    *,
    limit: int | None = None,
    return_exceptions: bool = False,
) -> Coroutine[Any, Any, list[Any]]:
    """Call a step (or a function of the workflow) once per item, `limit` at a time."""
    scope = here.scope("map")
    _check_limit(limit, ())
    things = list(items)
    branches = [scope.branch("map") for _ in things]
    work = [partial(_mapped, function, each, branch) for each, branch in zip(things, branches, strict=True)]
    key = branches[0].path + "map" if branches else "map"
    return scope.say(key, _gather(scope.body, work, branches, limit, return_exceptions))


def _check_limit(limit: int | None, work: Iterable[Awaitable[Any]]) -> None:
    if limit is not None and limit < 1:
        for each in work:
            _Once(each).close()
        raise TenureError("INVALID_INPUT", f"a limit is at least 1, not {limit}")


class _Once:
    """Work of a branch: awaited once, or closed if it never is."""

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


async def _mapped(function: Callable[..., Any], item: Any, branch: Scope) -> Any:
    if isinstance(function, Step):
        return await branch.body.call(branch.key(function.name), function, (item,), {})
    if branch.plain:
        return await branch.body.in_thread_of(branch, partial(function, item))
    value = function(item)
    return await value if isinstance(value, Awaitable) else value


async def _gather(
    body: Body,
    work: Sequence[Callable[[], Awaitable[Any]]],
    branches: list[Scope],
    limit: int | None,
    return_exceptions: bool,
) -> list[Any]:
    room = asyncio.Semaphore(limit) if limit is not None else None

    async def branch(scope: Scope, begin: Callable[[], Awaitable[Any]]) -> Any:
        scope.task = asyncio.current_task()
        here.enter(scope)  # in this task's own context
        async with room or nullcontext():
            body.strand_begins()
            try:
                return await begin()
            except (SystemExit, KeyboardInterrupt) as how:  # a task may not take the whole loop along
                raise left(how) from how
            finally:
                body.strand_ends()

    tasks = [asyncio.ensure_future(branch(s, each)) for s, each in zip(branches, work, strict=True)]
    away = False
    try:
        # Branches begin a moment later: until then this strand still counts, so that nothing is let go too early.
        await asyncio.sleep(0)
        away = True
        body.strand_ends()
        if not tasks:
            return []
        when = asyncio.ALL_COMPLETED if return_exceptions else asyncio.FIRST_EXCEPTION
        await asyncio.wait(tasks, return_when=when)
    finally:
        if away:
            body.strand_begins()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in work:
            if isinstance(each, _Once):
                each.close()
    body.check()
    if return_exceptions:
        return [task.exception() or task.result() for task in tasks]
    for task in tasks:
        if not task.cancelled() and (fault := task.exception()) is not None:
            raise fault
    return [task.result() for task in tasks]


# ------------------------------------------------------------------------------------------- children


class Child(Generic[T]):
    """A run that this one started."""

    def __init__(
        self, body: Body, scope: Scope, opening: Opening, run_id: str, workflow: Workflow[..., Any] | None
    ) -> None:
        self._body = body
        self._scope = scope
        self._opening = opening
        self._workflow = workflow
        self.run_id = run_id

    def result(self) -> Coroutine[Any, Any, T]:
        """Wait for its end; its output, or ChildFailed."""
        return self._scope.say(f"result:{self.run_id}", self._result())

    async def _result(self) -> Any:
        row = await self._body.wait_for(await self._body.opened(self._opening))
        if row.child_outcome != "succeeded":
            error = None if row.child_error is None else row.child_error.decode(errors="replace")
            raise ChildFailed(self.run_id, row.child_outcome or "ended", row.child_code or "?", error)
        body = await self._body.fetched(row.child_output)
        if self._workflow is not None:
            return self._workflow.codec.decode(body)
        return None if body is None else msgspec.json.decode(body)


def start(
    workflow: Workflow[..., Any] | str,
    *args: Any,
    on_close: Literal["cancel", "leave", "wait"] = "cancel",
    **kwargs: Any,
) -> Coroutine[Any, Any, Child[Any]]:
    """Start a run of another workflow and go on; `await child.result()` waits for it. The code goes on before the child is durable, so
    that many are started in one commit; no step, act or wait begins before it is. A child that the store refuses (a limit) fails the run.

    `on_close` says what happens to it when this run ends first: it is canceled, left alone, or waited for.
    """
    scope = here.scope("start")
    name = workflow if isinstance(workflow, str) else workflow.name
    known = registry.workflows.get(workflow) if isinstance(workflow, str) else workflow
    if known is None:
        raise TenureError(
            "INVALID_INPUT", f"there is no workflow {name!r} here; import the module that defines it"
        )
    key = scope.key(f"start:{name}")
    return scope.say(key, _start(scope, key, known, args, kwargs, on_close))


async def _start(
    scope: Scope,
    key: str,
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    on_close: Literal["cancel", "leave", "wait"],
) -> Child[Any]:
    body = scope.body
    child = StartChild(
        run_id=body.line.new_run_id(),
        workflow=workflow.name,
        code_version=workflow.version,
        profile=workflow.profile.name,
        input=await body.aside(workflow.parameters.bind(args, kwargs)),
        plan=workflow.plan,
        on_close=on_close,
        timeout_seconds=workflow.timeout_seconds,
        terms=workflow.terms,
    )
    opening = await body.begin_open(key, child=child)
    known = body.past.waits.get(key)
    run_id = child.run_id if known is None else int(known.name)
    return Child(body, scope, opening, ids.run_text(run_id), workflow)


# ------------------------------------------------------------------------------- versions and restarts


def patched(name: str) -> Coroutine[Any, Any, bool]:
    """Whether a run takes the new way: true for runs that come here for the first time, false for those that had
    passed here before the change. `if await tenure.patched("use-v2"): …`"""
    scope = here.scope("patched")
    key = f"{PATCHED}{_plain(name)}"
    return scope.say(key, _patched(scope, key))


async def _patched(scope: Scope, key: str) -> bool:
    """One answer per run and name, recorded: whichever way a run takes first, it takes wherever it is asked."""
    body = scope.body
    if key in body.patches:
        return body.patches[key]
    known = body.past.checkpoints.get(key)
    taken = known.output == b"true" if known is not None else not body.past.is_before("")
    body.patches[key] = taken
    if known is None:
        body.record(key, output=b"true" if taken else b"false")
    return taken


def restart(*args: Any, **kwargs: Any) -> NoReturn:
    """End this run and go on as a new one of the same workflow with these arguments: for work without an end, and
    before the limit on checkpoints. Whoever waits for this run is given the new one's result."""
    scope = here.scope("restart")
    body = scope.body
    body.restart(body.workflow.parameters.bind(args, kwargs))


# ------------------------------------------------------------------------------------------ inside steps


def current() -> Frame:
    """The step that runs now: its run, its try, its idempotency key, `progress()`, `canceled`."""
    frame = here.frame()
    if frame is None:
        raise TenureError("INVALID_INPUT", "tenure.current() is used inside a step")
    return frame


def log(text: str, *, level: Literal["debug", "info", "warning", "error"] = "info", **fields: Any) -> None:
    """A line beside the run's history: from a step, or from the workflow itself (then a replay may repeat it)."""
    frame = here.frame()
    if frame is not None:
        frame.log(level, text, fields)
        return
    scope = here.scope("log")
    scope.body.line.log("", level, text, fields)


def report_cost(
    provider: str,
    model: str,
    *,
    tokens_in: int = 0,
    tokens_out: int = 0,
    money: float | str | None = None,
    currency: str = "USD",
) -> None:
    """Tell what a call to a provider cost; shown with the step that made it, and counted against the run's budget where that is in
    the same currency. Used inside a step."""
    frame = current()
    micros = 0 if money is None else round(float(money) * 1_000_000)
    if tokens_in < 0 or tokens_out < 0 or micros < 0:
        raise TenureError("INVALID_INPUT", "costs are not negative")
    if max(tokens_in, tokens_out) > COST_COUNT_MAX or micros > SPENT_MICROS_MAX:
        raise TenureError("INVALID_INPUT", "that is more than one call can cost")
    for word, most in (
        (provider, COST_WORD_CHARS_MAX),
        (model, COST_WORD_CHARS_MAX),
        (currency, COST_CURRENCY_CHARS_MAX),
    ):
        if not is_name(word, 1, most):
            raise TenureError(
                "INVALID_INPUT",
                f"{word[:40]!r}: a provider, a model and a currency have a name of at most {most} printable characters",
            )
    frame.spend(Cost(provider, model, tokens_in, tokens_out, micros, currency))
