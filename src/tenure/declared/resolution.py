"""Who makes the inputs of steps whose turn has come, from their templates: what the orchestrator asks (`Orchestrator.resolver`).

Laws:
1. What a template may look at does not change any more: the run's input and the outputs of steps that have ended. So it is
   read without a lock, and whoever evaluates it makes the same.
2. Templates are read and evaluated in a thread, never in the event loop, a few runs at a time, and look at values of a bounded size. What
   cannot be evaluated fails its step alone.
3. What cannot be read just now (a database or a place for artifacts that does not answer) is no failure of the step: it is
   raised, and asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from tenure.artifacts import Artifacts, Reference, is_reference
from tenure.declared.expressions import Malformed
from tenure.declared.expressions import Reference as Looked
from tenure.declared.resolving import RESERVED, Prepared, needed_steps, prepare, references
from tenure.errors import TenureError
from tenure.ids import run_text
from tenure.kernel.commands import Resolution
from tenure.kernel.model import Payload, Run, RunSpec, Step
from tenure.limits import EXPRESSION_VALUE_BYTES_MAX, PAYLOAD_BYTES_MAX
from tenure.logs import get_logger
from tenure.store.port import Store

log = get_logger(__name__)

AT_ONCE_MAX = 2
"""Runs whose templates are evaluated at a time: more threads would take turns on one processor."""

T = TypeVar("T")
Wanted = Sequence[tuple[int, int]]
"""Steps by their index, and the number of the try that the input is for."""


class StepResolver:
    """See the laws above."""

    def __init__(self, store: Store, artifacts: Artifacts, *, threads: bool = True) -> None:
        self._store = store
        self._artifacts = artifacts
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._threads = threads
        """Without threads everything is evaluated where it is asked for: the simulator has none."""

    async def resolve(self, run_id: int, wanted: Wanted) -> tuple[Resolution, ...]:
        """What was made for each of these steps; those that are gone are left out."""
        runs: list[Run] = await self._store.read("get_run", run_id)
        rows: list[Step] = await self._store.read("load_steps", rows=[(run_id, idx) for idx, _ in wanted])
        templates = await self._payloads((run_id, s.template_ref) for s in rows if s.template_ref is not None)
        steps = {step.idx: step for step in rows if step.resolution == "due"}
        if not runs or not steps:
            return ()
        due = [
            _Due(idx, n, steps[idx].name, templates.get((run_id, steps[idx].template_ref or 0)))
            for idx, n in wanted
            if idx in steps
        ]
        refers = await self._beside(_references, due)
        try:
            scope, first = await self._scope(runs[0], refers)
        except TenureError as fault:
            if fault.retryable:
                raise
            return tuple(_failed(one, fault) for one in due)
        ready = await self._beside(_prepare_all, run_id, due, scope, first)
        return tuple([await self._made(run_id, one, made) for one, made in zip(due, ready, strict=True)])

    async def _beside(self, work: Callable[..., T], *given: Any) -> T:
        if not self._threads:
            return work(*given)
        async with self._turns:
            return await asyncio.to_thread(work, *given)

    async def _made(self, run_id: int, due: _Due, made: Prepared | TenureError) -> Resolution:
        if isinstance(made, TenureError):
            return _failed(due, made)
        if made.skipped:
            return Resolution(idx=due.idx, n=due.n, skipped=True)
        try:
            body = await self._kept(made, run_text(run_id))
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

    async def _kept(self, ready: Prepared, run: str) -> bytes:
        body = ready.input
        if len(body) > PAYLOAD_BYTES_MAX or body.startswith(RESERVED):
            return await self._artifacts.put(body, run)
        return body

    # ------------------------------------------------------------------------------------------- scope

    async def _scope(self, run: Run, refers: set[Looked]) -> tuple[dict[str, Any], str]:
        """What templates may look at, but for the number of the try; and the id that keys are made with: that of the first run
        of those that go on from each other, so that an effect that had happened is recognised."""
        specs: list[RunSpec] = await self._store.read("get_spec", run.id)
        spec, names = specs[0], needed_steps(refers)
        first, outputs = run.id, await self._outputs(run.id, names)
        before = spec.resumed_from
        while before is not None:  # what a resumed run need not do again was done by the one it goes on from
            first = before
            outputs = {**await self._outputs(before, names - outputs.keys()), **outputs}
            older: list[RunSpec] = await self._store.read("get_spec", before)
            before = older[0].resumed_from if older else None
        body = None
        if spec.input_ref is not None and any(reference.root == "inputs" for reference in refers):
            given = await self._payloads([(run.id, spec.input_ref)])
            body = given.get((run.id, spec.input_ref))
            if body is None:
                raise TenureError("EXPRESSION_FAILED", "the run's input has been erased")
        trigger = {"type": spec.trigger_type, "ref": spec.trigger_ref, "repo": run.repo}
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
            "trigger": trigger,
            "slot": _slot(spec.trigger_ref or "") if spec.trigger_type == "scheduled" else None,
        }
        return scope, run_text(first)

    async def _outputs(self, run_id: int, names: set[str]) -> dict[str, bytes | None]:
        """What these steps of a run returned, as far as they have succeeded."""
        if not names:
            return {}
        steps: list[Step] = await self._store.read(
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
        if not rows:
            return {}
        found: list[Payload] = await self._store.read("load_payloads", rows=rows)
        return {(p.run_id, p.ref): p.body for p in found}

    async def _decoded(self, body: bytes | None) -> Any:
        if body is not None and is_reference(body):
            if not self._artifacts.is_somewhere:
                raise TenureError("STORE_UNAVAILABLE", "this process has no place for artifacts")
            size = msgspec.json.decode(body, type=Reference).size
            if size > EXPRESSION_VALUE_BYTES_MAX:
                raise TenureError(
                    "EXPRESSION_FAILED",
                    f"an expression looks at a value of {size} bytes; it may have at most {EXPRESSION_VALUE_BYTES_MAX}:"
                    " pass its name on instead, and read it where it is needed",
                )
            body = await self._artifacts.get(body)
        return None if body is None else await self._beside(_value, body)


class _Due(msgspec.Struct, frozen=True):
    """A step whose input is to be made."""

    idx: int
    n: int
    name: str
    template: bytes | None


def _references(due: list[_Due]) -> set[Looked]:
    """All that the templates look at; one that cannot be read is told of later."""
    refers: set[Looked] = set()
    for one in due:
        with suppress(TenureError, Malformed):
            refers |= references(one.template or b"{}")
    return refers


def _prepare_all(
    run_id: int, due: list[_Due], scope: Mapping[str, Any], first: str
) -> list[Prepared | TenureError]:
    """What each template is worth, or why it is worth nothing: nobody's failure is another's."""
    return [_prepare(run_id, one, scope, first) for one in due]


def _prepare(run_id: int, due: _Due, scope: Mapping[str, Any], first: str) -> Prepared | TenureError:
    mine = {**scope, "run": {**scope["run"], "attempt": due.n}}
    keys = {**mine, "run": {**mine["run"], "id": first}}
    if due.template is None:
        return TenureError("EXPRESSION_FAILED", "the step's template has been erased")
    try:
        return prepare(due.template, mine, keys)
    except TenureError as fault:
        return fault
    except Exception as broken:  # a step that can never be evaluated must not be tried for ever
        log.error("resolution_failed", run=run_text(run_id), step=due.name, error=repr(broken))
        return TenureError("EXPRESSION_FAILED", f"it cannot be evaluated: {broken!r}")


def _value(body: bytes) -> Any:
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(body)
    return body.decode(errors="replace")


def _failed(due: _Due, fault: TenureError) -> Resolution:
    code = fault.code if fault.code in ("ARTIFACT_LOST", "PAYLOAD_TOO_LARGE") else "EXPRESSION_FAILED"
    return Resolution(idx=due.idx, n=due.n, code=code, message=fault.message.encode())


def _slot(ref: str) -> str:
    """The moment in a scheduled run's reference, `NAME@SLOT`; one that was asked for by hand has `:MARK` behind it."""
    return ref.rpartition("@")[2].partition("Z")[0] + "Z"
