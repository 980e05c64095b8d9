"""The status of a run in the words of a profile, and the statuses that a word stands for.

Law: a list filtered by a word shows exactly the runs that are shown with that word, although several of the kernel's statuses share a word,
some keep the word that was shown before, and a reported run has a word of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from tenure.errors import Detail, TenureError
from tenure.kernel import history, profiles
from tenure.kernel.machines import RUN
from tenure.kernel.profile import Profile
from tenure.kernel.run_rows import CLOSED_RUN, EventRow, RunRow
from tenure.store.port import Store
from tenure.store.run_lists import RunGlance


def run_word(profile: Profile, run: RunRow | RunGlance, events: Iterable[EventRow] = ()) -> str:
    """The profile's word for the run's status; `events` are needed only if the word depends on the one before."""
    if run.reported_at is not None and profile.reported_word is not None:
        return profile.reported_word
    if isinstance(profile.run.words[run.status], str):
        return profile.word("run", run.status)
    last: str | None = None
    for event in events:
        for entry in history.decode_body(event).get("edges", ()):
            for _, _, after, _ in entry["edges"] if "run" in entry else ():
                last = profile.word("run", after, last=last)
    return profile.word("run", run.status, last=last)


async def read_run_word(store: Store, run: RunRow | RunGlance, profile: Profile) -> str:
    """The profile's word for the run's status. The history is read only if the word depends on the one before."""
    is_fixed = isinstance(profile.run.words[run.status], str)
    return run_word(profile, run, () if is_fixed else await store.read("events_of", run.id))


def statuses_of_word(word: str, profile_name: str | None, field: str = "status") -> tuple[str, ...]:
    """The kernel's statuses that a run shown with this word can have. Without a profile, the words are the kernel's.

    Refuses a word that no run can have: an empty list would look like an answer.
    """
    profile = None if profile_name is None else profiles.get(profile_name)
    words = RUN.states if profile is None else profile.run.states
    if word not in words:
        language = "" if profile is None else f" in the profile {profile.name}"
        raise TenureError(
            "INVALID_INPUT",
            f"{word!r} is not a status of a run{language}: use one of {', '.join(words)}",
            (Detail(field, f"must be one of {', '.join(words)}"),),
        )
    if profile is None:
        return (word,)
    if word == profile.reported_word:
        return tuple(sorted(CLOSED_RUN))
    return tuple(
        state for state, given in profile.run.words.items() if not isinstance(given, str) or given == word
    )


def is_word_exact(word: str, profile_name: str | None) -> bool:
    """Whether every run with one of the word's statuses is shown with this word."""
    if profile_name is None:
        return True
    profile = profiles.get(profile_name)
    statuses = statuses_of_word(word, profile_name)
    is_fixed = all(isinstance(profile.run.words[state], str) for state in statuses)
    return is_fixed and not (profile.reported_word is not None and CLOSED_RUN & set(statuses))
