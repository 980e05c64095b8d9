"""The external service that acts change. It keeps its own log.

Laws:
1. A call repeated with `native_key` or `sets_state` has one effect. With `marker` or `none` it would have two, which is a violation.
2. It answers, refuses the call before any effect, or loses its answer.
3. Every call has a receipt (I36), and every key has at most one effect (I37).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tenure.kernel.act_commands import SAFE_TO_REPEAT
from tenure.kernel.act_rows import ReceiptRow

if TYPE_CHECKING:
    from tenure.simulate.world import World

ServiceAnswer = Literal["done", "refused", "lost"]


class ExternalService:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("service")
        self._effects: dict[tuple[str, str], list[int]] = {}
        """(tenant, key) -> the run of each effect."""
        self._until: dict[tuple[int, int], float] = {}

    def expect_call(self, run_id: int, no: int, until: float) -> None:
        """Expect that a receipt's call may come until this moment."""
        self._until[run_id, no] = max(until, self._until.get((run_id, no), 0.0))

    def is_quiet(self, receipt: ReceiptRow) -> bool:
        """Whether a receipt's call can no longer come. Only then can a person know how it ended."""
        return self._world.loop.time() > self._until.get((receipt.run_id, receipt.no), 0.0)

    def call(self, receipt: ReceiptRow) -> ServiceAnswer:
        """Carry out a call with the key of a receipt."""
        world, rng = self._world, self._rng
        world.note("world", f"{receipt.run_id & 0xFFFF:04x} calls {receipt.name} ({receipt.repeats})")
        there = [row for row in world.inspect("receipts_of", receipt.run_id) if row.no == receipt.no]
        if not there and world.inspect("get_run", receipt.run_id):
            world.violate(f"I36: {receipt.name} was called without an intent")
        luck = rng.random() if world.chaos else 1.0
        if luck < 0.15:
            return "refused"
        done = self._effects.setdefault((receipt.tenant, receipt.name), [])
        if not done or receipt.repeats not in SAFE_TO_REPEAT:
            done.append(receipt.run_id)
        if len(done) > 1:
            world.violate(f"I37: {receipt.name} was done {len(done)} times")
        return "lost" if luck < 0.35 else "done"

    def has(self, tenant: str, name: str) -> bool:
        """Whether the effect of a key is there."""
        return bool(self._effects.get((tenant, name)))

    def forget(self, run_id: int) -> None:
        """Forget the effects of a run that was deleted: its keys may be used again."""
        for done in self._effects.values():
            done[:] = [run for run in done if run != run_id]

    def check_end(self, receipts: list[ReceiptRow]) -> None:
        """Compare all receipts with the effects."""
        for receipt in receipts:
            if receipt.state == "succeeded" and not self.has(receipt.tenant, receipt.name):
                self._world.violate(f"receipt {receipt.name} has succeeded without an effect")
        held = {(row.tenant, row.name) for row in receipts if row.state != "failed"}
        for (tenant, name), done in self._effects.items():
            if done and (tenant, name) not in held:
                self._world.violate(f"{name} has an effect without a receipt")
