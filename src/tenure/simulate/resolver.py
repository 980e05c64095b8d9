"""Who makes the inputs of steps here: without expressions, a template says what becomes of its step.

Law: a step whose template says `false` is never begun (I61), and one that says `each` is begun with the input of its own try.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import TenureError
from tenure.kernel.commands import Resolution
from tenure.kernel.run_rows import PayloadRow, StepRow
from tenure.store.port import AmbiguousCommit, Store, WriteConflict


class PlainResolver:
    """See the law above. It reads as the real one does, so that whatever can happen in between does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def resolve(self, run_id: int, wanted: Sequence[tuple[int, int]]) -> tuple[Resolution, ...]:
        """What becomes of these steps."""
        try:
            rows: list[StepRow] = await self._store.read(
                "load_steps", rows=[(run_id, idx) for idx, _ in wanted]
            )
            steps = {step.idx: step for step in rows}
            refs = [(run_id, step.template_ref) for step in rows if step.template_ref is not None]
            found: list[PayloadRow] = await self._store.read("load_payloads", rows=refs) if refs else []
        except (WriteConflict, AmbiguousCommit) as fault:
            raise TenureError("STORE_UNAVAILABLE", repr(fault)) from fault
        bodies = {payload.ref: payload.body for payload in found}
        return tuple(
            _made(idx, n, bodies.get(steps[idx].template_ref or 0, b"fails"))
            for idx, n in wanted
            if idx in steps
        )


def _made(idx: int, n: int, template: bytes) -> Resolution:
    if template == b"false":
        return Resolution(idx=idx, n=n, skipped=True)
    if template == b"fails":
        return Resolution(idx=idx, n=n, code="EXPRESSION_FAILED", message=b"it has no value")
    return Resolution(idx=idx, n=n, input=b"for try %d" % n, each_try=template == b"each")
