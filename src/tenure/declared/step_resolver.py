"""Resolves steps that are due: their inputs from their templates, and earlier results (`Orchestrator.resolver`).

Laws:
1. A template reads only values that no longer change: the run's input and the outputs of steps that have ended. So no lock is
   needed, and every process gets the same result.
2. Templates are parsed and evaluated in a thread, a few runs at a time, over values of a bounded size. An expression that cannot be
   evaluated fails only its own step.
3. If a value cannot be read now (the database or the artifact store does not answer), the step does not fail: the error is raised,
   and the caller tries again.
4. An earlier result is looked for (`tenure.reads.reuse`) before the first attempt of a step whose condition is not false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from tenure.artifacts import ArtifactReference, ArtifactStore, is_reference
from tenure.declared.step_inputs import (
    RESERVED_KEYS,
    PreparedStep,
    needed_steps,
    prepare_step,
    template_references,
)
from tenure.errors import TenureError
from tenure.expressions.expression import ExpressionReference, MalformedExpression
from tenure.ids import run_text
from tenure.kernel.commands import Resolution
from tenure.kernel.run_rows import PayloadRow, RunRow, RunSpecRow, StepRow
from tenure.limits import EXPRESSION_VALUE_BYTES_MAX, PAYLOAD_BYTES_MAX
from tenure.logs import get_logger
from tenure.reads.reuse import describe_needed, find_result, read_terms, reuse_key
from tenure.store.port import Store

log = get_logger(__name__)

AT_ONCE_MAX = 2
"""Runs whose templates are evaluated concurrently: more threads would compete for one processor."""

T = TypeVar("T")
WantedSteps = Sequence[tuple[int, int]]
"""Steps by index, each with the number of the attempt that the input is for."""


class StepResolver:
    def __init__(self, store: Store, artifacts: ArtifactStore, *, threads: bool = True) -> None:
        self._store = store
        self._artifacts = artifacts
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._threads = threads
        """Without threads templates are evaluated in the calling thread, as the simulator needs."""

    async def resolve(self, run_id: int, wanted: WantedSteps) -> tuple[Resolution, ...]:
        """The resolution of each of these steps. Steps that no longer exist are left out."""
        runs: list[RunRow] = await self._store.read("get_run", run_id)
        rows: list[StepRow] = await self._store.read("load_steps", rows=[(run_id, idx) for idx, _ in wanted])
        templates = await self._payloads((run_id, s.template_ref) for s in rows if s.template_ref is not None)
        steps = {step.idx: step for step in rows if step.resolution == "due"}
        if not runs or not steps:
            return ()
        plain = [
            Resolution(idx=idx, n=n) for idx, n in wanted if idx in steps and steps[idx].template_ref is None
        ]
        due = [
            _DueStep(idx, n, steps[idx].name, templates.get((run_id, steps[idx].template_ref or 0)))
            for idx, n in wanted
            if idx in steps and steps[idx].template_ref is not None
        ]
        made = [*plain, *(await self._resolve_templates(runs[0], due) if due else ())]
        return tuple([await self._with_result(runs[0], steps[one.idx], one) for one in made])

    async def _resolve_templates(self, run: RunRow, due: list[_DueStep]) -> list[Resolution]:
        run_id = run.id
        refers = await self._in_thread(_references, due)
        try:
            scope, first = await self._scope(run, refers)
        except TenureError as fault:
            if fault.retryable:
                raise
            return [_failed(one, fault) for one in due]
        ready = await self._in_thread(_prepare_all, run_id, due, scope, first)
        return [await self._resolution(run_id, *pair) for pair in zip(due, ready, strict=True)]

    async def _with_result(self, run: RunRow, step: StepRow, made: Resolution) -> Resolution:
        """The resolution with the key of the step's result and, if there is one, an earlier result (law 4)."""
        terms = read_terms(step)
        if terms is None or step.attempt or made.skipped or made.code:
            return made
        needed = await describe_needed(self._store, run.id, terms.needs)
        if needed is None:
            return made
        keys = [reuse_key(terms, scope, needed) for scope in (terms.scope, *terms.also)]
        made = msgspec.structs.replace(made, reuse_key=keys[0])
        found = await find_result(self._store, self._artifacts, run.tenant, keys)
        if found is None:
            return made
        return msgspec.structs.replace(made, reused=(found.run_id, found.step), output=found.output)

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        if not self._threads:
            return work(*given)
        async with self._turns:
            return await asyncio.to_thread(work, *given)

    async def _resolution(self, run_id: int, due: _DueStep, made: PreparedStep | TenureError) -> Resolution:
        if isinstance(made, TenureError):
            return _failed(due, made)
        if made.skipped:
            return Resolution(idx=due.idx, n=due.n, skipped=True)
        body = made.input
        if len(body) > PAYLOAD_BYTES_MAX or body.startswith(RESERVED_KEYS):
            try:
                body = await self._artifacts.put(body, run_text(run_id))
            except TenureError as fault:
                if fault.retryable:
                    raise
                return _failed(due, fault)
        return Resolution(
            idx=due.idx,
            n=due.n,
            input=body,
            idempotency_key=made.idempotency_key,
            each_try=made.each_try,
        )

    # ------------------------------------------------------------------------------------------- scope

    async def _scope(self, run: RunRow, refers: set[ExpressionReference]) -> tuple[dict[str, Any], str]:
        """The values that templates can use, except the attempt number; and the run id for idempotency keys: that of the first run in a
        chain of resumed runs, so that an effect that has happened is recognised.
        """
        specs: list[RunSpecRow] = await self._store.read("get_spec", run.id)
        spec, names = specs[0], needed_steps(refers)
        first, outputs = run.id, await self._outputs(run.id, names)
        before = spec.resumed_from
        while before is not None:  # steps that a resumed run skips were done by the run it resumes
            first = before
            outputs = {**await self._outputs(before, names - outputs.keys()), **outputs}
            older: list[RunSpecRow] = await self._store.read("get_spec", before)
            before = older[0].resumed_from if older else None
        body = None
        if spec.input_ref is not None and any(reference.root == "inputs" for reference in refers):
            body = (await self._payloads([(run.id, spec.input_ref)])).get((run.id, spec.input_ref))
            if body is None:
                raise TenureError("EXPRESSION_FAILED", "the run's input has been erased")
        scope = {
            "inputs": await self._decoded(body) or {},
            "steps": {name: {"output": await self._decoded(output)} for name, output in outputs.items()},
            "run": {
                "id": run_text(run.id),
                "workflow": run.workflow,
                "version": run.code_version,
                "tenant": run.tenant,
                "repo": run.repo,
            },
            "trigger": {"type": spec.trigger_type, "ref": spec.trigger_ref, "repo": run.repo},
            "slot": _slot(spec.trigger_ref or "") if spec.trigger_type == "scheduled" else None,
        }
        return scope, run_text(first)

    async def _outputs(self, run_id: int, names: set[str]) -> dict[str, bytes | None]:
        """The outputs of those of these steps that have succeeded."""
        if not names:
            return {}
        steps: list[StepRow] = await self._store.read(
            "load_named_steps", rows=[(run_id, name) for name in sorted(names)]
        )
        done = [step for step in steps if step.state == "succeeded"]
        bodies = await self._payloads((run_id, s.output_ref) for s in done if s.output_ref is not None)
        return {
            step.name: None if step.output_ref is None else bodies.get((run_id, step.output_ref))
            for step in done
            if step.output_ref is None or (run_id, step.output_ref) in bodies
        }

    async def _payloads(self, refs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        rows = list(dict.fromkeys(refs))
        found: list[PayloadRow] = await self._store.read("load_payloads", rows=rows) if rows else []
        return {(p.run_id, p.ref): p.body for p in found}

    async def _decoded(self, body: bytes | None) -> Any:
        if body is not None and is_reference(body):
            if not self._artifacts.is_configured:
                raise TenureError("STORE_UNAVAILABLE", "this process has no artifact store")
            size = msgspec.json.decode(body, type=ArtifactReference).size
            if size > EXPRESSION_VALUE_BYTES_MAX:
                raise TenureError(
                    "EXPRESSION_FAILED",
                    (
                        f"an expression uses a value of {size} bytes; at most {EXPRESSION_VALUE_BYTES_MAX} are allowed:"
                        " pass its name instead, and read it where it is needed"
                    ),
                )
            body = await self._artifacts.get(body)
        return None if body is None else await self._in_thread(_value, body)


class _DueStep(msgspec.Struct, frozen=True):
    idx: int
    n: int
    name: str
    template: bytes | None


def _references(due: list[_DueStep]) -> set[ExpressionReference]:
    """The references of all templates. A malformed template is reported later."""
    refers: set[ExpressionReference] = set()
    for one in due:
        with suppress(TenureError, MalformedExpression):
            refers |= template_references(one.template or b"{}")
    return refers


def _prepare_all(
    run_id: int, due: list[_DueStep], scope: Mapping[str, Any], first: str
) -> list[PreparedStep | TenureError]:
    """Each evaluated template, or its error: one failure does not affect other steps."""
    return [_prepare(run_id, one, scope, first) for one in due]


def _prepare(run_id: int, due: _DueStep, scope: Mapping[str, Any], first: str) -> PreparedStep | TenureError:
    mine = {**scope, "run": {**scope["run"], "attempt": due.n}}
    keys = {**mine, "run": {**mine["run"], "id": first}}
    if due.template is None:
        return TenureError("EXPRESSION_FAILED", "the step's template has been erased")
    try:
        return prepare_step(due.template, mine, keys)
    except TenureError as fault:
        return fault
    except Exception as broken:  # a step that can never be evaluated must not be retried for ever
        log.error("resolution_failed", run=run_text(run_id), step=due.name, error=repr(broken))
        return TenureError("EXPRESSION_FAILED", f"it cannot be evaluated: {broken!r}")


def _value(body: bytes) -> Any:
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(body)
    return body.decode(errors="replace")


def _failed(due: _DueStep, fault: TenureError) -> Resolution:
    code = fault.code if fault.code in ("ARTIFACT_LOST", "PAYLOAD_TOO_LARGE") else "EXPRESSION_FAILED"
    return Resolution(idx=due.idx, n=due.n, code=code, message=fault.message.encode())


def _slot(ref: str) -> str:
    """The time in a scheduled run's reference, `NAME@SLOT`. A run that was started by hand has `:MARK` after it."""
    return ref.rpartition("@")[2].partition("Z")[0] + "Z"
