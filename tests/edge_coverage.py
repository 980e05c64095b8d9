"""The edges that the kernel and the idempotency records have taken in this process, and the edges that are missing."""

import sys

from tenure.kernel import decide, draft
from tenure.kernel.machines import APPROVAL, IDEMPOTENCY, MOVES, RECEIPT, RUN_PATHS
from tenure.kernel.state_machine import Edge, Machine
from tenure.store import idempotency

NEVER = {
    (
        "created",
        "canceled",
    ): "A run leaves `created` in the commit that creates it, so a cancel finds it in `planning`.",
}
"""Paths that the tables have and no test can take, each with the reason."""

Walked = dict[str, list[str]]
"""`moves`, `paths` and `edges` as texts, so that they can be sent to another process."""


class RecordingMachine(Machine):
    """A machine that records the edges that it takes."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.name, machine.first, machine.terminal, machine.edges)
        self.walked: set[Edge] = set()

    def take(self, state: str, given: str) -> Edge:
        edge = super().take(state, given)
        self.walked.add(edge)
        return edge


_ALONE = (APPROVAL, RECEIPT, IDEMPOTENCY)
"""Machines that take one edge at a time, outside of moves."""
_RECORDING = {machine.name: RecordingMachine(machine) for machine in _ALONE}


def note_walks() -> None:
    """Let the kernel of this process record the edges that it takes."""
    draft.walked_moves, draft.walked_paths = set(), set()
    for name, module in list(sys.modules.items()):
        if name.startswith((decide.__name__, idempotency.__name__)):
            for attribute, value in list(vars(module).items()):
                if any(value is machine for machine in _ALONE):
                    vars(module)[attribute] = _RECORDING[value.name]


def walked_here() -> Walked:
    """The edges that were taken in this process so far."""
    assert draft.walked_moves is not None
    assert draft.walked_paths is not None
    return {
        "moves": sorted(f"{name} from {place}" for name, place in draft.walked_moves),
        "paths": sorted(f"{old} -> {new}" for old, new in draft.walked_paths),
        "edges": sorted(
            f"{name}'s {edge}" for name, machine in _RECORDING.items() for edge in machine.walked
        ),
    }


def missing(walked: Walked) -> list[str]:
    """A line for each edge that no test has taken, and for each path that should not exist."""
    moves = {f"{name} from {place}" for name, place in MOVES}
    paths = {f"{old} -> {new}" for old, new in RUN_PATHS.keys() - NEVER.keys()}
    edges = {f"{machine.name}'s {edge}" for machine in _ALONE for edge in machine.edges}
    return [
        *(f"no test makes the move {move}" for move in sorted(moves.difference(walked["moves"]))),
        *(f"no test takes the path {path}" for path in sorted(paths.difference(walked["paths"]))),
        *(
            f"a test takes the path {path}, which should not exist"
            for path in sorted(set(walked["paths"]) - paths)
        ),
        *(f"no test takes the {edge}" for edge in sorted(edges.difference(walked["edges"]))),
    ]
