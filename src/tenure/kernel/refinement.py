"""The proof that every profile is a view of the kernel.

Laws, each checked for run, step, attempt and lease:
1. Whatever the kernel does, a profile's word stays the same, or takes an edge of the document's table or an edge that the
   profile lists as extra. The edge's owner is the one that the document names.
2. Every edge of the document is taken, by a change of state, or indirectly as the profile lists.
3. Every extra edge occurs: a stale entry is an error.
4. Every word of the document is shown somewhere, and a terminal word only by what has ended.
5. A new attempt and a new lease are new objects: no edge leads to them from the word of the last one.

The run is walked over `RUN_PATHS`, the other three over `MOVES` as one joint machine. Both walks are breadth first and
carry the last word along, because a state may keep it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from tenure.kernel.machines import ATTEMPT, LEASE, LIVE_LEASE, MOVES, RUN, RUN_PATHS, STEP, JointState, Move
from tenure.kernel.profile import ENTITIES, MACHINE_OF, Entity, IndirectEdge, Profile, Vocabulary
from tenure.kernel.run_rows import RunRow
from tenure.kernel.state_machine import Edge

START = JointState(STEP.first)
MOVE_NAMES = frozenset(name for name, _ in MOVES)

Pair = tuple[str, str]


class ChangeCause(msgspec.Struct, frozen=True, order=True):
    """The move or the change of status that changes a word, and the owner of its edge."""

    name: str
    owner: str


class WordChanges(msgspec.Struct):
    """The words of one kind of object under one profile."""

    changes: dict[Pair, set[ChangeCause]]
    """Each change of word, and its causes."""
    shown: set[Pair]
    """Each (state of the kernel, its word)."""


class ProvenExtraEdge(msgspec.Struct, frozen=True):
    """An extra edge that the kernel takes."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    reason: str
    by: tuple[str, ...]


class EntityProof(msgspec.Struct, frozen=True):
    entity: Entity
    kernel_table: bool
    """Whether the kernel's own table is shown, because the document has none."""
    edges_total: int
    edges_realised: int
    indirect: int
    """How many of the realised edges are made by something other than a change of state."""
    extra: tuple[ProvenExtraEdge, ...]
    problems: tuple[str, ...]


class ProfileProof(msgspec.Struct, frozen=True):
    profile: str
    entities: tuple[EntityProof, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{e.entity}: {problem}" for e in self.entities for problem in e.problems)


def prove_profile(profile: Profile) -> ProfileProof:
    """Compare the words that the kernel can show under this profile with its tables."""
    return ProfileProof(profile.name, tuple(_prove_entity(profile, entity) for entity in ENTITIES))


# --------------------------------------------------------------------------------------------- walking


def find_word_changes(profile: Profile, entity: Entity) -> WordChanges:
    return _walk_run(profile) if entity == "run" else _walk_joint(profile, entity)


def _walk_run(profile: Profile) -> WordChanges:
    changes: dict[Pair, set[ChangeCause]] = defaultdict(set)
    shown: set[Pair] = set()
    seen: set[Pair] = set()
    todo = deque([(RUN.first, profile.word("run", RUN.first))])
    while todo:
        here = todo.popleft()
        if here in seen:
            continue
        seen.add(here)
        shown.add(here)
        for (old, new), path in RUN_PATHS.items():
            if old != here[0]:
                continue
            now = here[1]
            for edge in path:
                then = profile.word("run", edge.next, last=now)
                if then != now:
                    changes[now, then].add(ChangeCause(f"{old} to {new}", edge.owner))
                now = then
                shown.add((edge.next, now))
            todo.append((new, now))
    return WordChanges(dict(changes), shown)


def _walk_joint(profile: Profile, entity: Entity) -> WordChanges:
    changes: dict[Pair, set[ChangeCause]] = defaultdict(set)
    shown: set[Pair] = set()
    seen: set[tuple[JointState, str | None]] = set()
    todo = deque([(START, _word(profile, entity, START, None))])
    while todo:
        here, word = todo.popleft()
        if (here, word) in seen:
            continue
        seen.add((here, word))
        if word is not None:
            shown.add((getattr(here, entity), word))
        for move in moves_from(here):
            now = word
            for joint, edge, fresh in project_move(move, entity):
                then = _word(profile, entity, joint, None if fresh else now)
                if then is not None:
                    shown.add((getattr(joint, entity), then))
                    if now is not None and then != now and not fresh:
                        changes[now, then].add(ChangeCause(move.name, edge.owner if edge else ""))
                now = then
            todo.append((move.end, now))
    return WordChanges(dict(changes), shown)


def moves_from(here: JointState) -> list[Move]:
    return [move for (_, start), move in MOVES.items() if start == here]


def project_move(move: Move, entity: Entity) -> Iterator[tuple[JointState, Edge | None, bool]]:
    """The parts of a move for one machine: the joint state, the edge taken, and whether it is a new object."""
    machine = MACHINE_OF[entity]
    taken = iter([edge for name, edge in move.edges if name == entity])
    before: str = getattr(move.start, entity)
    for joint in move.path:
        after: str = getattr(joint, entity)
        # No edge leads back to the first state of a table, so arriving there means a new object.
        # The lease is gone ('-') when the next attempt begins.
        fresh = after != before and after in (machine.first, "-")
        yield joint, next(taken) if after != before and not fresh else None, fresh
        before = after


def _word(profile: Profile, entity: Entity, joint: JointState, last: str | None) -> str | None:
    state: str = getattr(joint, entity)
    return None if state == "-" else profile.word(entity, state, joint.attempt, last)


# --------------------------------------------------------------------------------------------- proving


def _prove_entity(profile: Profile, entity: Entity) -> EntityProof:
    vocabulary = profile.vocabulary(entity)
    seen = find_word_changes(profile, entity)
    problems: list[str] = []
    document = {pair: row.owner for row in vocabulary.edges for pair in row.pairs()}
    extra = {pair: row for row in vocabulary.extra for pair in row.pairs()}
    indirect = {pair: row for row in vocabulary.indirect for pair in row.pairs()}

    owners = {**document, **{pair: row.owner for pair, row in extra.items()}}
    for pair, causes in sorted(seen.changes.items()):
        by = ", ".join(sorted({cause.name for cause in causes}))
        if pair not in owners:
            problems.append(
                f"{_arrow(pair)} is shown (by {by}) but is not in the table; list it as extra, with a reason"
            )
        elif owner := profile.owners.get(owners[pair]):
            strangers = sorted({cause.owner for cause in causes} - {owner})
            problems += [
                f"{_arrow(pair)} belongs to {owner} but is made by {stranger}" for stranger in strangers
            ]
    realised = set(document) & set(seen.changes)
    problems += [
        f"{_arrow(pair)} of the document is never taken" for pair in sorted(set(document) - realised)
    ]
    problems += [
        f"{_arrow(pair)} is listed as extra but never taken"
        for pair in sorted(set(extra) - set(seen.changes))
    ]
    made = 0
    for pair, row in sorted(indirect.items()):
        found = list(_indirect_problems(profile, entity, seen, pair, row))
        problems += found
        made += not found
    problems += _word_problems(profile, entity, vocabulary, seen)
    return EntityProof(
        entity=entity,
        kernel_table=bool(vocabulary.kernel),
        edges_total=len(document) + len(indirect),
        edges_realised=len(realised) + made,
        indirect=made,
        extra=tuple(
            ProvenExtraEdge(
                *pair, extra[pair].reason, tuple(sorted({cause.name for cause in seen.changes[pair]}))
            )
            for pair in sorted(set(extra) & set(seen.changes))
        ),
        problems=tuple(problems),
    )


def _word_problems(
    profile: Profile, entity: Entity, vocabulary: Vocabulary, seen: WordChanges
) -> Iterator[str]:
    machine = MACHINE_OF[entity]
    never = set(vocabulary.states) - {word for _, word in seen.shown}
    if entity == "run":
        never.discard(profile.reported_word or "")
    for word in sorted(never):
        yield f"{word} is never shown"
    for state, word in sorted(seen.shown):
        if word in vocabulary.terminal and state not in machine.terminal:
            yield f"{word} is terminal but is shown while the kernel's {entity} is still {state}"
    continues = {source for row in (*vocabulary.edges, *vocabulary.indirect) for source, _ in row.pairs()}
    for state, word in sorted(seen.shown):
        if state in machine.terminal and word not in continues.union(vocabulary.terminal):
            yield f"a {state} {entity} ends as {word}, but in the document {word} is neither terminal nor has an edge that leaves it"


def _indirect_problems(
    profile: Profile, entity: Entity, seen: WordChanges, pair: Pair, row: IndirectEdge
) -> Iterator[str]:
    arrow, words = _arrow(pair), {word for _, word in seen.shown}
    if pair in seen.changes:
        yield f"{arrow} is listed as indirect, but a change of state makes it: it belongs in the table"
    if row.fact:
        if row.fact not in RunRow.__struct_fields__:
            yield f"{arrow} rests on the fact '{row.fact}', which a run does not have"
        if pair[0] not in words:
            yield f"{arrow} starts from a word that is never shown"
        if pair[1] not in words.union({profile.reported_word}):
            yield f"{arrow} leads to a word that is never shown"
    unknown = [name for name in row.moves if name not in MOVE_NAMES]
    for name in unknown:
        yield f"{arrow} rests on the move '{name}', which the kernel does not have"
    # A run's words follow from its steps, so here the moves only have to exist.
    if row.moves and not unknown and entity != "run" and not _lead_to(profile, entity, pair, row.moves):
        yield f"{arrow} is not what the moves {', '.join(row.moves)} lead to"


def _lead_to(profile: Profile, entity: Entity, pair: Pair, names: tuple[str, ...]) -> bool:
    """Whether the moves lead, one after another, from a state with the first word to a state with the second."""
    ends = {here for here in joint_states() if _word(profile, entity, here, "") == pair[0]}
    for name in names:
        ends = {MOVES[name, here].end for here in ends if (name, here) in MOVES}
    return any(_word(profile, entity, here, "") == pair[1] for here in ends)


def _arrow(pair: Pair) -> str:
    return f"{pair[0]} -> {pair[1]}"


# --------------------------------------------------------------------------------- the kernel's own sanity


def joint_states() -> set[JointState]:
    """Every joint state of step, attempt and lease that moves can reach between two commits."""
    seen, todo = {START}, [START]
    while todo:
        for move in moves_from(todo.pop()):
            if move.end not in seen:
                seen.add(move.end)
                todo.append(move.end)
    return seen


def kernel_problems() -> list[str]:
    """The problems of the joint machine and of the run paths."""
    return [*_joint_problems(joint_states()), *_coverage_problems(), *_run_path_problems()]


def _joint_problems(reached: set[JointState]) -> Iterator[str]:
    for name, start in MOVES:
        if start not in reached:
            yield f"the move {name} starts in {_joint(start)}, which nothing reaches"
    ending = {here for here in reached if here.step in STEP.terminal}
    for here in sorted(reached - ending, key=_joint):
        if not any(moves_from(here)):
            yield f"{_joint(here)} is a dead end"
    can_end, grown = set(ending), True
    while grown:
        more = {here for here in reached - can_end if any(move.end in can_end for move in moves_from(here))}
        can_end |= more
        grown = bool(more)
    for here in sorted(reached - can_end, key=_joint):
        yield f"{_joint(here)} can never end"
    for here in sorted(ending, key=_joint):
        if any(moves_from(here)):
            yield f"{_joint(here)} has ended and still has a move"
        if here.lease in LIVE_LEASE:
            yield f"{_joint(here)} has ended with a live lease"
        if here.attempt != "-" and here.attempt not in ATTEMPT.terminal:
            yield f"{_joint(here)} has ended with an open attempt"


def _coverage_problems() -> Iterator[str]:
    taken = {(machine, edge) for move in MOVES.values() for machine, edge in move.edges}
    for entity in ENTITIES[1:]:
        for edge in MACHINE_OF[entity].edges:
            if (entity, edge) not in taken:
                yield f"no move takes the edge {edge.state} -{edge.input}-> {edge.next} of {entity}"
    # A new object replaces only one that has ended (or none): law 5.
    for move in MOVES.values():
        before = move.start
        for joint in move.path:
            if joint.attempt == ATTEMPT.first != before.attempt and before.attempt not in {
                "-",
                *ATTEMPT.terminal,
            }:
                yield f"the move {move.name} replaces an attempt that is {before.attempt}"
            if (
                joint.lease in (LEASE.first, "-")
                and joint.lease != before.lease
                and before.lease in LIVE_LEASE
            ):
                yield f"the move {move.name} replaces a lease that is {before.lease}"
            before = joint


def _run_path_problems() -> Iterator[str]:
    shown = {edge for path in RUN_PATHS.values() for edge in path}
    for edge in RUN.edges:
        if edge not in shown:
            yield f"no change of status shows the run's edge {edge.state} -{edge.input}-> {edge.next}"
    for (old, new), path in RUN_PATHS.items():
        states = [path[0].state, *(edge.next for edge in path)]
        if (states[0], states[-1]) != (old, new):
            yield f"the path from {old} to {new} leads from {states[0]} to {states[-1]}"
        if any(earlier.next != later.state for earlier, later in pairwise(path)):
            yield f"the path from {old} to {new} has a gap"
        if set(states[:-1]) & RUN.terminal:
            yield f"the path from {old} to {new} leaves a terminal state"


def _joint(here: JointState) -> str:
    return f"{here.step}/{here.attempt}/{here.lease}"
