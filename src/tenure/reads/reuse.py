"""Earlier results of steps: the key of a result, the step that has it, and whether its outputs are still there.

Laws:
1. A key covers the scope, the digest that the planner made, and how each needed step ended, with its output, which
   names the digests of what it made. Two steps with the same key have the same result, so it does not matter which one is found.
2. Only a step that ran has a result to reuse, so that a link always names the original. Its run must exist, and so must its
   output and every file that it uploaded: a result that is not complete is not used.
   A result that says `isolation: none` is not used either: a job without a sandbox may have read more than its digest covers.
3. Looking is an optimization. If the artifact store does not answer, the result counts as gone, and the step runs.
4. A tenant finds only its own results.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from tenure.artifacts import ArtifactReference, ArtifactStore, is_reference
from tenure.canonical import canonical
from tenure.errors import TenureError
from tenure.kernel.commands import ReuseTerms
from tenure.kernel.run_rows import PayloadRow, StepRow
from tenure.limits import REUSE_CANDIDATES_MAX
from tenure.reads.file_stream import is_stored
from tenure.store.artifacts import ArtifactDetail
from tenure.store.port import Store

_decode_terms = msgspec.json.Decoder(ReuseTerms).decode


class ReusableResult(msgspec.Struct, frozen=True):
    run_id: int
    step: str
    output: bytes | None


class _JobResult(msgspec.Struct):
    """What is read of the output of a CI job."""

    isolation: str = ""


def read_terms(step: StepRow) -> ReuseTerms | None:
    return None if step.reuse is None else _decode_terms(step.reuse)


def reuse_key(terms: ReuseTerms, scope: str, needed: list[list[str | None]]) -> bytes:
    """The key of a result (law 1). `needed` has the name, the state and the output's digest of each needed step."""
    facts = {"scope": scope, "digest": terms.digest.lower(), "needed": sorted(needed, key=str)}
    return sha256(canonical(facts)).digest()


def output_digest(body: bytes | None) -> str | None:
    """The digest of an output, wherever it is stored."""
    if body is None:
        return None
    if is_reference(body):
        return msgspec.json.decode(body, type=ArtifactReference).digest
    return f"sha256:{sha256(body).hexdigest()}"


async def describe_needed(store: Store, run_id: int, needs: tuple[int, ...]) -> list[list[str | None]] | None:
    """How the needed steps ended, for a key. None: an output has been erased, so nothing can be said about the result."""
    if not needs:
        return []
    steps: list[StepRow] = await store.read("load_steps", rows=[(run_id, idx) for idx in needs])
    bodies = await _read_bodies(store, run_id, [s.output_ref for s in steps])
    if any(step.output_ref is not None and step.output_ref not in bodies for step in steps):
        return None
    return [[s.name, s.state, output_digest(bodies.get(s.output_ref or 0))] for s in steps]


async def find_result(
    store: Store, artifacts: ArtifactStore, tenant: str, keys: list[bytes]
) -> ReusableResult | None:
    """The newest complete result under the first of these keys that has one (law 2)."""
    for key in keys:
        found: list[StepRow] = await store.read("reusable_steps", tenant, key, REUSE_CANDIDATES_MAX)
        for step in found:
            try:
                output = await _complete_output(store, artifacts, step)
            except TenureError as fault:
                if fault.code == "STORE_UNAVAILABLE" or not fault.retryable:
                    continue
                raise
            if output is not None:
                return ReusableResult(step.run_id, step.name, output[0])
    return None


async def _complete_output(
    store: Store, artifacts: ArtifactStore, step: StepRow
) -> tuple[bytes | None] | None:
    """The output of a step, if nothing of its result is gone."""
    body = (await _read_bodies(store, step.run_id, [step.output_ref])).get(step.output_ref or 0)
    if (body is None and step.output_ref is not None) or (body is not None and _is_unisolated(body)):
        return None
    files: list[ArtifactDetail] = await store.read("artifacts_of_step", step.run_id, step.idx, step.attempt)
    if body is not None and is_reference(body) and not await artifacts.exists(body):
        return None
    for file in files:
        if not file.late and not await is_stored(store, artifacts, file):
            return None
    return (body,)


def _is_unisolated(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_JobResult).isolation == "none"
    except (msgspec.DecodeError, RecursionError):  # the output of another kind of step
        return False


async def _read_bodies(store: Store, run_id: int, refs: list[int | None]) -> Mapping[int, bytes]:
    rows = [(run_id, ref) for ref in dict.fromkeys(refs) if ref is not None]
    found: list[PayloadRow] = await store.read("load_payloads", rows=rows) if rows else []
    return {payload.ref: payload.body for payload in found}
