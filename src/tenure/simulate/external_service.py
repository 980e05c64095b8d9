"""The world outside that acts are done to: a service that keeps its own log.

Laws:
1. It does what it is told. Under `native_key` and `sets_state` the same call twice is one effect; under `marker` and `none` it is
   two, which nobody may ever see.
2. It answers, refuses before it has done anything, or loses its answer.
3. Nothing is called that has no receipt (I36), and of one key there is at most one effect (I37).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tenure.kernel.act_commands import SAFE_TO_REPEAT
from tenure.kernel.act_rows import ReceiptRow

if TYPE_CHECKING:
    from tenure.simulate.world import World

ServiceAnswer = Literal["done", "refused", "lost"]
Key = tuple[str, str]


class ExternalService:
    """See the laws above."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("service")
        self._effects: dict[Key, list[int]] = {}
        """Tenant and key -> the runs by which it was done, once for each effect."""
        self._until: dict[tuple[int, int], float] = {}
        self.calls = 0

    def awaits(self, run_id: int, no: int, until: float) -> None:
        """Somebody is going to call under a receipt, or not, until this moment."""
        self._until[run_id, no] = max(until, self._until.get((run_id, no), 0.0))

    def is_quiet(self, receipt: ReceiptRow) -> bool:
        """Whether nobody calls under a receipt any more: only then a person can know how it ended."""
        return self._world.loop.time() > self._until.get((receipt.run_id, receipt.no), 0.0)

    def call(self, receipt: ReceiptRow) -> ServiceAnswer:
        """Somebody calls under the key of a receipt."""
        world, rng = self._world, self._rng
        self.calls += 1
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
        """A run was deleted with its receipts: its keys are free, and what it did may be done again."""
        for done in self._effects.values():
            done[:] = [run for run in done if run != run_id]

    def at_the_end(self, receipts: list[ReceiptRow]) -> None:
        """What the receipts say is what happened."""
        for receipt in receipts:
            if receipt.state == "succeeded" and not self.has(receipt.tenant, receipt.name):
                self._world.violate(f"receipt {receipt.name} has succeeded, and nothing was done")
        held = {(row.tenant, row.name) for row in receipts if row.state != "failed"}
        for (tenant, name), done in self._effects.items():
            if done and (tenant, name) not in held:
                self._world.violate(f"{name} was done, and no receipt says so")
