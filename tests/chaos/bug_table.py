"""The table of planted bugs: the guarantees of Tenure, the bugs that break each guarantee, and the test that catches each bug.

`python -m tests.chaos.bug_table` writes docs/planted-bugs.md; with `--check` it writes nothing, and it fails if the page is stale.
The bugs themselves are in `tests/simulation/planted_bugs.py` and `tests/chaos/story_bugs.py`. Add each new bug to `TABLE`.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from tests.chaos.story_bugs import PLANTED_BUGS
from tests.simulation.planted_bugs import BUGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planted-bugs.md"

TWO_PEOPLE = "Approvals and separation of duties"
FENCES = "Fencing and confinement"
FAILURES = "Crashes, restarts, clocks and scale"

TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "Leases": {
        "Only the current lease of a step can change the step": (
            "fence",
            "expired-lease",
            "checkpoint-after-lease",
        ),
        "A repeated message gets the reply to the first one": ("duplicate-not-known", "answer-by-heartbeat"),
        "A successful heartbeat extends the lease": ("unwritten-heartbeat", "cached-tick"),
        "Claiming a step uses up one try, and releasing it returns the try": (
            "uncharged-claim",
            "release-charged",
        ),
    },
    "Commits": {
        "A save writes only to the versions that it expects": ("no-version", "quick-way-without-head"),
        "If the outcome of a commit is unknown, its event shows whether it succeeded": (
            "ambiguous-is-success",
            "ambiguous-again",
        ),
        "The hash of an event covers all earlier events": ("hash-chain",),
    },
    "Limits": {
        "Leases never exceed a cap": ("cap-without-lock", "eager-over-cap"),
        "Runs start no faster than their rate limit": ("rate-not-counted",),
        "One run at a time holds a concurrency key, and then the next run gets it": (
            "key-shared",
            "key-never-again",
        ),
    },
    "Waits and approvals": {
        "A run wakes up when one of its waits settles": ("lost-wake-up", "early-event", "child-not-settled"),
        "An event is delivered only once": ("event-id",),
        "Only other people approve a request, and each has one vote": ("own-approval", "voted-twice"),
        "The deadline of a run is paused during an approval": ("human-time",),
    },
    "Steps": {
        "A step starts when all steps that it needs have ended": ("needs-left", "needs-kept"),
        "A failed step is retried after its backoff": ("retry-too-early",),
        "Canceling a run ends all of its steps": ("leaseless-cancel",),
        "A step whose condition is false is skipped": ("skip-not-counted", "skipped-and-handed-out"),
        "A step gets the input that was resolved for its current attempt": (
            "input-of-the-last-try",
            "input-never-made",
        ),
        "A step whose input cannot be resolved fails": ("refused-input-forgotten",),
        "No step of a paused run can be claimed": ("claimed-while-paused",),
        "A plan step is leased like other steps, plans, and counts nowhere": (
            "plan-step-counted",
            "plan-step-left-open",
            "cancel-while-planning",
            "planner-records",
        ),
    },
    "Timers and outbox": {
        "Every due timer is handled": ("sweeper-blind", "planner-for-ever"),
        "An outbox row is delivered to its run exactly once": ("outbox-forgotten", "outbox-not-deleted"),
    },
    "Acts": {
        "A call is repeated only if that is safe": ("act-repeated",),
        "A receipt records the outcome of the call": ("act-failed-unseen", "act-intended-for-ever"),
        "One act at a time holds an idempotency key": ("act-key-shared",),
        "The write limit counts exactly the writes that happened": ("act-write-not-given-back",),
        "An act that needs an approval waits for it": ("act-unapproved",),
    },
    TWO_PEOPLE: {
        "Two values have the same digest only if they are equal, including large integers": (
            "rounded-integers",
        ),
        "A person involved in a run cannot approve it": (
            "signal-senders-uncounted",
            "schedule-editors-uncounted",
            "freezers-uncounted",
        ),
        "The facts behind a verdict still hold in the commit that records the intention": (
            "outdated-verdict",
        ),
        "An administrator and the accounts they created count as one person until someone else confirms": (
            "own-edit-confirmed",
            "second-name-is-a-second-person",
        ),
        "A decision applies only to the approval that it names": (
            "digest-of-nothing-ignored",
            "decided-called-terminal",
        ),
        "A ledger check covers payloads, and each proof has exactly one encoding": (
            "unchecked-payloads",
            "loose-base64",
        ),
    },
    FENCES: {
        "An ended lease cannot change the artifacts of a run": ("artifact-not-fenced",),
        "A command cannot read the secrets of its worker": (
            "command-sees-secrets",
            "command-sees-new-secrets",
        ),
        "A command cannot change the code of its worker": ("command-changes-its-worker",),
        "A statement that a run was reported does not change its status": ("statement-shown-as-reported",),
        "Files are private under any umask": ("database-for-everybody",),
    },
    FAILURES: {
        "A draining worker starts no step": ("drain-begins-steps",),
        "A worker counts its lease from the moment it sent the claim": ("lease-counts-from-its-answer",),
        "The cost per child run does not grow with the number of children": (
            "all-waits-for-each-answer",
            "children-one-by-one",
        ),
        "One wrong clock does not move the time of a SQLite file": ("fastest-clock-wins",),
        "A run at its limit of recorded steps continues under a higher limit": ("fails-at-the-limit",),
        "A proven death ends only the leases of the dead worker": ("proof-without-fence",),
        "A call that was never sent is retried": ("late-for-good",),
        "Another server takes over the request lock of a dead server": ("lock-of-the-dead",),
        "Timers follow the time of the store": ("sweeps-by-the-hosts-clock",),
        "A refused message whose sender has gone is not logged as an error": ("answer-nobody-asked-for",),
    },
}
"""Section -> guarantee -> names of the bugs that break it."""

HEAD = """# Planted bugs

<!-- Made by `make docs` from tests/chaos/bug_table.py, tests/simulation/planted_bugs.py and tests/chaos/story_bugs.py. -->

This page shows which bugs the simulator, the doctor and the stories of the test suite catch. A test plants each bug below into the real
code, as a change of one or two lines, and checks that it is caught in one of two ways:

- `tenure simulate --seed N`: the simulator, whose doctor examines every run after every commit. The seed must fail with the bug and pass
  without it.
- A story: a short test on a real store with real workers that checks what a user can see. It must fail with the bug and pass without it.

Only the test plants the bug: `tenure simulate --seed 23` on its own finds nothing wrong. To see one bug of each kind caught, run these two
tests, which pass if the bug is caught:

```text
.venv/bin/python -m pytest "tests/simulation/test_planted_bugs.py::test_a_planted_bug_is_found[fence]"
.venv/bin/python -m pytest "tests/chaos/test_planted_bugs.py::test_a_story_detects_its_planted_bug[quick-way-without-head]"
```

If you change code that a bug replaces, adapt the bug.
"""


def page() -> str:
    """Return the text of the page."""
    lines = [HEAD]
    for title, guarantees in TABLE.items():
        lines += [
            f"## {title}",
            "",
            "| guarantee | bug | effect of the bug | caught by |",
            "|---|---|---|---|",
        ]
        for guarantee, names in guarantees.items():
            for name in names:
                lines.append(f"| {guarantee} | `{name}` | {_what(name)} | {_catcher(name)} |")
        lines.append("")
    return "\n".join(lines)


def _what(name: str) -> str:
    return BUGS[name].what if name in BUGS else PLANTED_BUGS[name].what


def _catcher(name: str) -> str:
    if name in BUGS:
        return f"`tenure simulate --seed {BUGS[name].seed}`"
    story = PLANTED_BUGS[name].story
    description = " ".join((inspect.getdoc(story) or "").split())
    return f"`{getattr(story, '__name__', '')}`: {description}"


def main(arguments: list[str]) -> int:
    """Write the page. With `--check`, only compare it."""
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
    print(f"docs/planted-bugs.md: {'unchanged' if fresh else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
