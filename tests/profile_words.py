"""The life of a run in the words of its profile, read from its events.

The events have every edge that a run, its steps, their attempts and their leases took, in order. A profile has a word for
each state. So a test can derive every change that a user of the profile saw, and compare it with the table of the
profile's source document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tenure.kernel import profiles
from tenure.kernel.history import decode_body
from tenure.kernel.profile import Entity
from tenure.kernel.run_rows import EventRow


class Taken(NamedTuple):
    """An edge in the history."""

    machine: str
    state: str
    next: str
    owner: str
    idx: int | None
    kind: str
    """The kind of its event."""


def edges(events: Iterable[EventRow]) -> Iterator[Taken]:
    """Every edge that was taken, in order."""
    for event in events:
        for entry in decode_body(event).get("edges", ()):
            for machine, state, following, owner in entry["edges"]:
                yield Taken(machine, state, following, owner, entry.get("step"), event.kind)


def run_states(events: Iterable[EventRow]) -> list[str]:
    """The kernel's states of the run, beginning with the first."""
    return ["created", *(edge.next for edge in edges(events) if edge.machine == "run")]


def run_words(profile: str, events: Iterable[EventRow]) -> list[str]:
    """The words for the run, each change once. Words such as REPORTED come from an event, not from a state."""
    events = list(events)
    given = profiles.get(profile)
    words: list[str] = []
    for state in run_states(events):
        _show(words, given.word("run", state, last=words[-1] if words else None))
    if given.reported_word is not None and any(event.kind == "reported" for event in events):
        _show(words, given.reported_word)
    return words


def step_words(profile: str, events: Iterable[EventRow], idx: int = 0) -> list[str]:
    """The words for a step, each change once."""
    given = profiles.get(profile)
    words = [given.word("step", "pending")]
    outcome: str | None = None
    for event in events:
        for entry in decode_body(event).get("edges", ()):
            if entry.get("step") != idx:
                continue
            for machine, state, following, _ in entry["edges"]:
                if machine == "attempt":
                    outcome = None if state == "created" else following
            for machine, _, following, _ in entry["edges"]:
                if machine == "step":
                    _show(words, given.word("step", following, outcome, words[-1]))
    return words


def lives(profile: str, entity: Entity, events: Iterable[EventRow], idx: int = 0) -> list[list[str]]:
    """The words for each attempt (or lease) of a step, one list per attempt."""
    given = profiles.get(profile)
    first = "created" if entity == "attempt" else "granted"
    found: list[list[str]] = []
    for event in events:
        for entry in decode_body(event).get("edges", ()):
            if entry.get("step") != idx:
                continue
            if entity == "lease" and entry["move"] in ("claim", "claim_and_ack"):
                found.append([given.word(entity, first)])
            for machine, state, following, _ in entry["edges"]:
                if machine == entity == "attempt" and state == first:
                    found.append([given.word(entity, first)])
                if machine == entity:
                    _show(found[-1], given.word(entity, following, last=found[-1][-1]))
    return found


def changes(words: Iterable[str]) -> set[tuple[str, str]]:
    """Each change as (from, to)."""
    return set(pairwise(words))


def table(profile: str, entity: Entity) -> set[tuple[str, str]]:
    """Every change that the profile allows: the document's edges and the profile's additions."""
    vocabulary = profiles.get(profile).vocabulary(entity)
    lines = [*vocabulary.edges, *vocabulary.indirect, *vocabulary.extra]
    return {pair for line in lines for pair in line.pairs()}


def document(profile: str, entity: Entity) -> set[tuple[str, str]]:
    """The document's own edges."""
    vocabulary = profiles.get(profile).vocabulary(entity)
    return {pair for line in (*vocabulary.edges, *vocabulary.indirect) for pair in line.pairs()}


def _show(words: list[str], word: str) -> None:
    if not words or words[-1] != word:
        words.append(word)
