"""Moves and run paths made ready for use: where each ends, and its edges as an event has them."""

from __future__ import annotations

import msgspec

from tenure.kernel.machines import LIVE_LEASE, MOVES, RUN_PATHS, JointState, Move


def _edges_json(pairs: list[tuple[str, str, str, str]]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(pairs))


class CompiledMove(msgspec.Struct, gc=False, frozen=True):
    """A move, made ready for use."""

    joint: JointState
    step: str
    """The step's state at the end."""
    attempt: str
    lease: str
    """Where the attempt and lease that it began with end; a new attempt may have begun since."""
    ended: bool
    edges: msgspec.Raw


def _stride(move: Move) -> CompiledMove:
    closing = move.start
    for place in move.path:
        if place.attempt == "created":
            break
        closing = place
    ended = closing.lease not in LIVE_LEASE
    edges = _edges_json([(machine, e.state, e.next, e.owner) for machine, e in move.edges])
    return CompiledMove(move.start, move.end.step, closing.attempt, closing.lease, ended, edges)


COMPILED_MOVES: dict[tuple[str, str, str, str], CompiledMove] = {
    (name, start.step, start.attempt, start.lease): _stride(move) for (name, start), move in MOVES.items()
}
COMPILED_PATHS = {
    pair: _edges_json([("run", e.state, e.next, e.owner) for e in path]) for pair, path in RUN_PATHS.items()
}
