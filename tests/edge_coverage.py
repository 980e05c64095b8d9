"""What the kernel and the records of keys have walked in this process, and what nobody has."""

from tenure.kernel import draft
from tenure.kernel.decide import acts, receipts, termination, ticks, waits
from tenure.kernel.machines import APPROVAL, IDEMPOTENCY, MOVES, RECEIPT, RUN_PATHS
from tenure.kernel.state_machine import Edge, Machine
from tenure.store import idempotency

NEVER = {
    (
        "created",
        "canceled",
    ): "A run leaves `created` in the commit that makes it: whoever cancels finds it planning.",
}
"""Paths that the tables have and no story can walk, each with its reason."""

Walked = dict[str, list[str]]
"""`moves`, `paths` and `edges` as texts, so that they can be sent to another process."""


class NotingMachine(Machine):
    """A machine that notes the rows it is asked for."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.name, machine.first, machine.terminal, machine.edges)
        self.walked: set[Edge] = set()

    def take(self, state: str, given: str) -> Edge:
        edge = super().take(state, given)
        self.walked.add(edge)
        return edge


_ALONE = (APPROVAL, RECEIPT, IDEMPOTENCY)
"""Machines that move by themselves, an edge at a time."""
_NOTING = {machine.name: NotingMachine(machine) for machine in _ALONE}


def note_walks() -> None:
    """Have the kernel of this process note what it walks."""
    draft.walked_moves, draft.walked_paths = set(), set()
    for module in (waits, ticks, termination, acts):
        vars(module)["APPROVAL"] = _NOTING["approval"]
    vars(receipts)["RECEIPT"] = _NOTING["receipt"]
    vars(idempotency)["IDEMPOTENCY"] = _NOTING["idempotency record"]


def walked_here() -> Walked:
    """What was walked in this process so far."""
    assert draft.walked_moves is not None
    assert draft.walked_paths is not None
    return {
        "moves": sorted(f"{name} from {place}" for name, place in draft.walked_moves),
        "paths": sorted(f"{old} -> {new}" for old, new in draft.walked_paths),
        "edges": sorted(f"{name}'s {edge}" for name, noting in _NOTING.items() for edge in noting.walked),
    }


def missing(walked: Walked) -> list[str]:
    """What nobody has walked, and what nobody should have."""
    moves = {f"{name} from {place}" for name, place in MOVES}
    paths = {f"{old} -> {new}" for old, new in RUN_PATHS.keys() - NEVER.keys()}
    edges = {f"{machine.name}'s {edge}" for machine in _ALONE for edge in machine.edges}
    return [
        *(f"no test makes the move {move}" for move in sorted(moves.difference(walked["moves"]))),
        *(f"no test takes the path {path}" for path in sorted(paths.difference(walked["paths"]))),
        *(f"a test takes the path {path}, which is none" for path in sorted(set(walked["paths"]) - paths)),
        *(f"no test takes the {edge}" for edge in sorted(edges.difference(walked["edges"]))),
    ]
