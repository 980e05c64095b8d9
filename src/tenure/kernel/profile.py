"""A profile: the vocabulary, tables, timing and failure rules of one document, as data.

Laws:
1. A profile is read strictly: an unknown key, a missing word or an impossible number is refused with PROFILE_INVALID,
   which names every problem and its place.
2. A profile never changes what the kernel does. It chooses words, numbers and one of two recoveries. `refinement.py`
   proves that its words change only along its own table.
3. The word for a state is fixed, or depends on how the last attempt ended, or stays the word that was shown before.
4. Two lost heartbeats never cost a lease: an interval over a third of the lease is HEARTBEAT_TOO_SLOW.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from itertools import product
from typing import Literal, get_args

import msgspec

from tenure.errors import Detail, TenureError
from tenure.kernel.machines import ATTEMPT, LEASE, RUN, STEP
from tenure.kernel.retry import KERNEL_RULES, Backoff, FailureRule, is_retryable
from tenure.kernel.state_machine import ORCHESTRATOR, PERSON, REPORTER, RUNNER, Machine
from tenure.limits import HEARTBEATS_PER_LEASE_MIN

Entity = Literal["run", "step", "attempt", "lease"]
ENTITIES: tuple[Entity, ...] = get_args(Entity)
MACHINE_OF: dict[Entity, Machine] = {"run": RUN, "step": STEP, "attempt": ATTEMPT, "lease": LEASE}
OWNERS = (ORCHESTRATOR, RUNNER, REPORTER, PERSON)

NAME_PATTERN = "[a-z][a-z0-9-]{0,62}"
_NAME = re.compile(NAME_PATTERN)


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a profile file. Unknown keys are refused."""


Words = str | tuple[str, ...]


class _Arrow(_Data, frozen=True):
    """Words to words: every pair of the two sides is one edge."""

    source: Words = msgspec.field(name="from")
    target: Words = msgspec.field(name="to")
    owner: str = ""
    """Who makes the transition, in the document's words. Empty: the document does not say."""

    def pairs(self) -> Iterator[tuple[str, str]]:
        sides = ((words,) if isinstance(words, str) else words for words in (self.source, self.target))
        yield from product(*sides)


class DocumentEdge(_Arrow, frozen=True, kw_only=True):
    """One line of the document's transition table."""

    trigger: str = ""


class ExtraEdge(_Arrow, frozen=True, kw_only=True):
    """An edge that is shown although the document does not have it."""

    reason: str


class IndirectEdge(_Arrow, frozen=True, kw_only=True):
    """An edge of the document that no change of state makes, and what makes it instead: `moves` that lead, one after
    another, from one word to the other (or to the word of the next object), or a `fact`, which is a column of the run."""

    how: str
    moves: tuple[str, ...] = ()
    fact: str = ""
    trigger: str = ""


class VariableWord(_Data, frozen=True):
    """A word that depends on how the attempt ended; otherwise the last word stays."""

    keep: bool = False
    by_attempt: dict[str, str] = {}


class Vocabulary(_Data, frozen=True):
    """The words for the states of a run, step, attempt or lease, and how they may change."""

    source: str = ""
    """The place in the document."""
    kernel: str = ""
    """Why the kernel's own words and table are shown: the document has none for this object."""
    states: tuple[str, ...] = ()
    terminal: tuple[str, ...] = ()
    words: dict[str, str | VariableWord] = {}
    edges: tuple[DocumentEdge, ...] = ()
    indirect: tuple[IndirectEdge, ...] = ()
    extra: tuple[ExtraEdge, ...] = ()


class Timing(_Data, frozen=True, kw_only=True):
    """The defaults of runs under this profile. None: no limit."""

    retries: int
    backoff: Backoff
    jitter: float = 0.2
    lease_seconds: float
    heartbeat_seconds: float
    step_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None
    planning_seconds: float
    cancel_grace_seconds: float
    approval_seconds: float | None = None
    external_seconds: float | None = None

    @property
    def attempts_max(self) -> int:
        return 1 + self.retries

    def check_heartbeat(self) -> None:
        """Refuse an interval that one lost heartbeat could turn into a lost lease."""
        if self.heartbeat_seconds > self.lease_seconds / HEARTBEATS_PER_LEASE_MIN:
            raise TenureError(
                "HEARTBEAT_TOO_SLOW",
                f"a heartbeat every {self.heartbeat_seconds:g} s is too slow for a lease of {self.lease_seconds:g} s;"
                f" it may be at most {self.lease_seconds / HEARTBEATS_PER_LEASE_MIN:g} s",
                (Detail("timing.heartbeat_seconds", "must be at most a third of timing.lease_seconds"),),
            )


class Profile(_Data, frozen=True, kw_only=True):
    """The lifecycle of one document."""

    name: str
    title: str
    document: str
    """The title of the document that this profile follows."""
    recovery: Literal["requeue", "resume_or_fail"]
    optional_steps: bool
    strict_sequence: bool = False
    checkpoint_inputs: bool = False
    """Whether a checkpoint stores its arguments, besides their digest."""
    reported_word: str | None = None
    """The word for a finished run whose outcome was reported. None: reporting changes no word."""
    owners: dict[str, str] = {}
    """The document's names of the owners -> the kernel's."""
    default_retryable: bool
    timing: Timing
    rules: tuple[FailureRule, ...] = ()
    run: Vocabulary
    step: Vocabulary
    attempt: Vocabulary
    lease: Vocabulary

    def vocabulary(self, entity: str) -> Vocabulary:
        if entity not in ENTITIES:
            raise TenureError("INVALID_INPUT", f"a profile has no words for '{entity}'")
        found: Vocabulary = getattr(self, entity)
        return found

    def word(
        self, entity: str, state: str, attempt_outcome: str | None = None, last: str | None = None
    ) -> str:
        """The word for a state. `last` is the word shown before, for states that keep it; without one it is the first word."""
        words = self.vocabulary(entity).words
        given = words.get(state)
        if isinstance(given, str):
            return given
        if given is None:
            raise TenureError("INVALID_INPUT", f"'{state}' is not a state of a {entity}")
        if attempt_outcome is not None and attempt_outcome in given.by_attempt:
            return given.by_attempt[attempt_outcome]
        return str(next(iter(words.values()))) if last is None else last

    def retryable(self, code: str) -> bool:
        return is_retryable((*KERNEL_RULES, *self.rules), self.default_retryable, code)


# --------------------------------------------------------------------------------------------- parsing


def parse_profile(text: str) -> Profile:
    """Read a profile from TOML (law 1)."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise _invalid([Detail("", f"not TOML: {e}")]) from e
    try:
        profile = msgspec.convert(raw, Profile)
    except msgspec.ValidationError as e:
        problem, _, place = str(e).partition(" - at ")
        raise _invalid([Detail(place.strip("`").removeprefix("$").removeprefix("."), problem)]) from e
    if problems := list(_problems(profile)):
        raise _invalid(problems, profile.name)
    profile.timing.check_heartbeat()
    return _completed(profile)


def _invalid(problems: list[Detail], name: str = "") -> TenureError:
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    where = f"{first.path}: " if first.path else ""
    return TenureError(
        "PROFILE_INVALID",
        f"the profile{f' {name}' if name else ''} is malformed: {where}{first.problem}{more}",
        tuple(problems),
    )


def _completed(profile: Profile) -> Profile:
    """Use the kernel's words if the document has none, and put the words into the order of the kernel's states."""
    full = {}
    for entity in ENTITIES:
        vocabulary, machine = profile.vocabulary(entity), MACHINE_OF[entity]
        if vocabulary.kernel:
            full[entity] = Vocabulary(
                kernel=vocabulary.kernel,
                states=machine.states,
                terminal=tuple(s for s in machine.states if s in machine.terminal),
                words={state: state for state in machine.states},
                edges=tuple(
                    DocumentEdge(e.state, e.next, owner=e.owner, trigger=e.input) for e in machine.edges
                ),
            )
        else:
            full[entity] = msgspec.structs.replace(
                vocabulary, words={state: vocabulary.words[state] for state in machine.states}
            )
    owners = {**{owner: owner for owner in OWNERS}, **profile.owners}
    return msgspec.structs.replace(profile, owners=owners, **full)


def _problems(profile: Profile) -> Iterator[Detail]:
    if not _NAME.fullmatch(profile.name):
        yield Detail(
            "name", "must consist of lower-case letters, digits and hyphens, and begin with a letter"
        )
    for key in ("title", "document"):
        if not getattr(profile, key).strip():
            yield Detail(key, "must not be empty")
    for theirs, ours in profile.owners.items():
        if ours not in OWNERS:
            yield Detail(f"owners.{theirs}", f"'{ours}' is not one of {', '.join(OWNERS)}")
    for i, rule in enumerate(profile.rules):
        if not rule.pattern.strip():
            yield Detail(f"rules[{i}].pattern", "must not be empty")
    yield from _timing_problems(profile.timing)
    for entity in ENTITIES:
        yield from _vocabulary_problems(profile, entity)
    if profile.reported_word is not None and profile.reported_word not in profile.run.states:
        yield Detail("reported_word", f"'{profile.reported_word}' is not among run.states")


def _timing_problems(timing: Timing) -> Iterator[Detail]:
    if not 0 <= timing.retries <= 1000:
        yield Detail("timing.retries", "must be 0 to 1000")
    if not 0 <= timing.jitter <= 1:
        yield Detail("timing.jitter", "must be 0 to 1")
    for key in Timing.__struct_fields__:
        value = getattr(timing, key)
        if key.endswith("_seconds") and value is not None and not (math.isfinite(value) and value > 0):
            yield Detail(f"timing.{key}", "must be a number over 0")


def _vocabulary_problems(profile: Profile, entity: Entity) -> Iterator[Detail]:
    vocabulary, machine = profile.vocabulary(entity), MACHINE_OF[entity]
    if vocabulary.kernel:
        if vocabulary != Vocabulary(kernel=vocabulary.kernel):
            yield Detail(
                entity, "'kernel' shows the kernel's own words, so it cannot be combined with words or edges"
            )
        return
    states = vocabulary.states
    if len(set(states)) != len(states):
        yield Detail(f"{entity}.states", "must not list a word twice")
    for word in sorted(set(vocabulary.terminal) - set(states)):
        yield Detail(f"{entity}.terminal", f"'{word}' is not among {entity}.states")
    yield from _word_problems(vocabulary, entity, machine)
    seen: set[tuple[str, str]] = set()
    tables = {"edges": vocabulary.edges, "indirect": vocabulary.indirect, "extra": vocabulary.extra}
    lines = [(f"{entity}.{name}[{i}]", row) for name, rows in tables.items() for i, row in enumerate(rows)]
    for path, line in lines:
        for pair in line.pairs():
            if pair in seen:
                yield Detail(path, f"{pair[0]} -> {pair[1]} is listed twice")
            seen.add(pair)
            for word in sorted(set(pair) - set(states)):
                yield Detail(path, f"'{word}' is not among {entity}.states")
            # Moves may lead from a finished object to its successor; nothing else leaves a terminal word.
            if pair[0] in vocabulary.terminal and not (isinstance(line, IndirectEdge) and line.moves):
                yield Detail(path, f"'{pair[0]}' is terminal and has no way out")
        if line.owner and line.owner not in {*profile.owners, *OWNERS}:
            yield Detail(f"{path}.owner", f"'{line.owner}' is not among owners")
        if isinstance(line, ExtraEdge) and not line.reason.strip():
            yield Detail(f"{path}.reason", "an extra edge needs a reason")
        if isinstance(line, IndirectEdge) and not line.moves and not line.fact:
            yield Detail(path, "must name the 'moves' or the 'fact' that makes it")


def _word_problems(vocabulary: Vocabulary, entity: Entity, machine: Machine) -> Iterator[Detail]:
    for state in machine.states:
        if state not in vocabulary.words:
            yield Detail(f"{entity}.words", f"no word for the kernel's state '{state}'")
    for state, given in vocabulary.words.items():
        path = f"{entity}.words.{state}"
        if state not in machine.states:
            yield Detail(path, f"the kernel's {entity} has no such state; it has {', '.join(machine.states)}")
        if isinstance(given, str):
            words = {given}
        else:
            words = set(given.by_attempt.values())
            if not given.keep and not given.by_attempt:
                yield Detail(path, "must be a word, { keep = true }, or { by_attempt = { outcome = word } }")
            if state == machine.first:
                yield Detail(
                    path, "the first state must have a fixed word, because there is no earlier word to keep"
                )
            if given.by_attempt and entity != "step":
                yield Detail(path, "only a step's word can depend on its attempt")
            for outcome in sorted(set(given.by_attempt) - set(ATTEMPT.states)):
                yield Detail(path, f"an attempt has no state '{outcome}'")
        for word in sorted(words - set(vocabulary.states)):
            yield Detail(path, f"'{word}' is not among {entity}.states")
