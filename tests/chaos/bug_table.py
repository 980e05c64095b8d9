"""The table of planted bugs: what Tenure promises, the bugs that break each promise, and what catches them.

`python -m tests.chaos.bug_table` writes docs/planted-bugs.md; with `--check` it writes nothing and fails when the page is stale.
The bugs themselves are in `tests/simulation/planted_bugs.py` and `tests/chaos/story_bugs.py`. A new bug gets its place here.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from tests.chaos.story_bugs import PLANTED_BUGS
from tests.simulation.planted_bugs import BUGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planted-bugs.md"

TWO_PEOPLE = "What is approved is what is done, by two people"
FENCES = "What a lease and a command can reach"
FAILURES = "Crashes, restarts, clocks and scale"

TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "Leases": {
        "A message counts only under the lease that stands": (
            "fence",
            "expired-lease",
            "checkpoint-after-lease",
        ),
        "A repeated message gets the first answer": ("duplicate-not-known", "answer-by-heartbeat"),
        "A heartbeat that was answered extends the lease": ("unwritten-heartbeat", "cached-tick"),
        "An attempt is charged when it is claimed, and not when it is given back": (
            "uncharged-claim",
            "release-charged",
        ),
    },
    "Commits": {
        "A save names what it expects and changes nothing else": ("no-version", "quick-way-without-head"),
        "A commit of unknown fate is settled by its event": ("ambiguous-is-success", "ambiguous-again"),
        "Every event's hash covers the history before it": ("hash-chain",),
    },
    "Limits": {
        "Leases never exceed a cap": ("cap-without-lock", "eager-over-cap"),
        "Runs begin no faster than their rate": ("rate-not-counted",),
        "One run at a time holds a concurrency key, and the next one gets it": (
            "key-shared",
            "key-never-again",
        ),
    },
    "Waits and approvals": {
        "What a run waits for wakes it": ("lost-wake-up", "early-event", "child-not-settled"),
        "An event counts once": ("event-id",),
        "An approval is given by others than who asks, one vote each": ("own-approval", "voted-twice"),
        "A deadline stands still while a person is waited for": ("human-time",),
    },
    "Steps": {
        "A step begins when all that it needs has ended": ("needs-left", "needs-kept"),
        "A failed step is tried again after its backoff": ("retry-too-early",),
        "A cancel ends every step": ("leaseless-cancel",),
        "A step whose condition is false is skipped": ("skip-not-counted", "skipped-and-handed-out"),
        "A step is handed out with the input made for this try": (
            "input-of-the-last-try",
            "input-never-made",
        ),
        "A step whose input cannot be made fails": ("refused-input-forgotten",),
        "No step of a paused run is handed out": ("claimed-while-paused",),
    },
    "Timers and debts": {
        "Every timer is seen": ("sweeper-blind", "planner-for-ever"),
        "What a run owes another is delivered, once": ("outbox-forgotten", "outbox-not-deleted"),
    },
    "Acts": {
        "A call is repeated only where that is safe": ("act-repeated",),
        "A receipt says what became of the call": ("act-failed-unseen", "act-intended-for-ever"),
        "One act at a time holds its key": ("act-key-shared",),
        "A write counts if and only if it happened": ("act-write-not-given-back",),
        "An act that needs an approval waits for it": ("act-unapproved",),
    },
    TWO_PEOPLE: {
        "Two values have the same digest exactly if they are equal, integers to the last digit": (
            "rounded-integers",
        ),
        "Whoever caused, changed or fed a run does not approve it": (
            "signal-senders-uncounted",
            "schedule-editors-uncounted",
            "freezers-uncounted",
        ),
        "The facts that a verdict relied on hold in the commit that intends the call": ("outdated-verdict",),
        "An administrator and the people they made count as one until somebody else confirms": (
            "own-edit-confirmed",
            "second-name-is-a-second-person",
        ),
        "An answer names the question that it answers": (
            "digest-of-nothing-ignored",
            "decided-called-terminal",
        ),
        "A check of the ledger covers payloads, and each proof has one encoding": (
            "unchecked-payloads",
            "loose-base64",
        ),
    },
    FENCES: {
        "A lease that has ended changes no file of a run": ("artifact-not-fenced",),
        "A command sees no secret of its worker": ("command-sees-secrets", "command-sees-new-secrets"),
        "A command cannot change the program of its worker": ("command-changes-its-worker",),
        "A person's statement changes no status": ("statement-shown-as-reported",),
        "Files are private whatever the umask says": ("database-for-everybody",),
    },
    FAILURES: {
        "A worker that is asked to end begins no step": ("drain-begins-steps",),
        "A lease counts from the moment of asking": ("lease-counts-from-its-answer",),
        "Starting and collecting children costs the same for each, however many there are": (
            "all-waits-for-each-answer",
            "children-one-by-one",
        ),
        "A SQLite file's time follows no clock that is far from it": ("fastest-clock-wins",),
        "A run that reaches its limit of recorded steps goes on where more is allowed": (
            "fails-at-the-limit",
        ),
        "A dead worker's leases end on proof, and nobody else's": ("proof-without-fence",),
        "A call that was certainly not made is tried again": ("late-for-good",),
        "The lock of a server that is silent is free": ("lock-of-the-dead",),
        "What is due is done by the store's time": ("sweeps-by-the-hosts-clock",),
        "A refusal that nobody waits for is no error": ("answer-nobody-asked-for",),
    },
}
"""By section and promise: the names of the bugs that break it."""

HEAD = """# Planted bugs

<!-- Made by `make docs` from tests/chaos/bug_table.py, tests/simulation/planted_bugs.py and tests/chaos/story_bugs.py. -->

This page shows what the simulator, the doctor and the stories of the test suite notice. We plant each bug below into the real code, as
a change of a line or two. Something must catch it:

- `tenure simulate --seed N`: the simulator, whose doctor examines every run after every commit. A test runs each seed with the bug, where
  it must fail, and without it, where it must pass.
- a story: a short test on a real store with real workers that checks what is visible from outside. It must fail with the bug and pass
  without it.

The test plants the bug. Without it, the seed passes: `tenure simulate --seed 23` finds nothing wrong. To see one bug of each kind caught
(the test passes if the bug is noticed), run:

```text
.venv/bin/python -m pytest "tests/simulation/test_planted_bugs.py::test_a_planted_bug_is_found[fence]"
.venv/bin/python -m pytest "tests/chaos/test_planted_bugs.py::test_a_story_notices_its_bug[quick-way-without-head]"
```

If you change code into which a bug is planted, adapt the bug.
"""


def page() -> str:
    """The page as it should be."""
    lines = [HEAD]
    for title, promises in TABLE.items():
        lines += [f"## {title}", "", "| promise | bug | what it breaks | caught by |", "|---|---|---|---|"]
        for promise, names in promises.items():
            for name in names:
                lines.append(f"| {promise} | `{name}` | {_what(name)} | {_catcher(name)} |")
        lines.append("")
    return "\n".join(lines)


def _what(name: str) -> str:
    return BUGS[name].what if name in BUGS else PLANTED_BUGS[name].what


def _catcher(name: str) -> str:
    if name in BUGS:
        return f"`tenure simulate --seed {BUGS[name].seed}`"
    story = PLANTED_BUGS[name].story
    told = " ".join((inspect.getdoc(story) or "").split())
    return f"`{getattr(story, '__name__', '')}`: {told}"


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m tests.chaos.bug_table [--check]")
        return 2
    fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
    if arguments:
        print(
            "docs/planted-bugs.md is up to date"
            if fresh
            else "docs/planted-bugs.md is stale: run `make docs`"
        )
        return 0 if fresh else 1
    PAGE.write_text(page(), encoding="utf-8")
    print(f"docs/planted-bugs.md: {'as it was' if fresh else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
