"""A state machine as data: rows of (state, input, next state, owner), checked when they are made.
Laws:
1. A table is a function: one next state per (state, input).
2. Every state is reachable from the first one, and every state that is not terminal can reach a terminal one.
3. Terminal states have no rows.
4. An input that a state does not have raises RUN_TERMINAL_STATE or RUN_INVALID_TRANSITION, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tenure.errors import TenureError

ORCHESTRATOR = "orchestrator"
RUNNER = "runner"
REPORTER = "status_reporter"
PERSON = "person"


class Edge(msgspec.Struct, frozen=True):
    state: str
    input: str
    next: str
    owner: str = ORCHESTRATOR


class BrokenMachine(ValueError):
    """A table breaks one of the laws above."""


class Machine:
    def __init__(self, name: str, first: str, terminal: Iterable[str], edges: Iterable[Edge]) -> None:
        self.name = name
        self.first = first
        self.terminal = frozenset(terminal)
        self.edges = tuple(edges)
        self.states = tuple(dict.fromkeys([first, *(s for e in self.edges for s in (e.state, e.next))]))
        self._rows: dict[tuple[str, str], Edge] = {}
        for edge in self.edges:
            if (edge.state, edge.input) in self._rows:
                raise BrokenMachine(f"{name}: two rows for ({edge.state}, {edge.input})")
            self._rows[edge.state, edge.input] = edge
        self._check()

    def _check(self) -> None:
        leaving = {e.state for e in self.edges}
        states = set(self.states)
        for problem, bad in (
            ("terminal states with a way out", self.terminal & leaving),
            ("dead ends", states - leaving - self.terminal),
            ("unreachable states", states - self._reach({self.first}, forward=True)),
            ("states that can never end", states - self._reach(set(self.terminal), forward=False)),
            ("terminal states no edge leads to", self.terminal - states),
        ):
            if bad:
                raise BrokenMachine(f"{self.name}: {problem}: {sorted(bad)}")

    def _reach(self, seen: set[str], *, forward: bool) -> set[str]:
        todo = list(seen)
        while todo:
            here = todo.pop()
            for e in self.edges:
                source, target = (e.state, e.next) if forward else (e.next, e.state)
                if source == here and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return seen

    def take(self, state: str, given: str) -> Edge:
        """The row for (state, input); see law 4."""
        edge = self._rows.get((state, given))
        if edge is None:
            code = "RUN_TERMINAL_STATE" if state in self.terminal else "RUN_INVALID_TRANSITION"
            raise TenureError(code, f"a {self.name} that is {state} does not accept '{given}'")
        return edge


def parse_edges(text: str) -> list[Edge]:
    """Read a table written as `state, state: input -> next [owner]`, one line per arrow."""
    out: list[Edge] = []
    for line in text.strip().splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        left, right = line.split("->")
        states, given = left.rsplit(":", 1)
        target, _, owner = right.strip().partition(" ")
        out += [
            Edge(state.strip(), given.strip(), target, owner.strip(" []") or ORCHESTRATOR)
            for state in states.split(",")
        ]
    return out
