"""The table of planted bugs is complete, and its page fresh. That each bug is caught is shown where the bugs are."""

from tests.chaos.bug_table import FAILURES, FENCES, PAGE, TABLE, TWO_PEOPLE, page
from tests.chaos.story_bugs import PLANTED_BUGS
from tests.simulation.planted_bugs import BUGS

BUGS_MIN = 61
PROMISES = {TWO_PEOPLE: 6, FENCES: 5, FAILURES: 10}
"""How many promises the sections have that a review of security and chaos tests led to."""


def test_every_bug_breaks_one_promise_of_the_table() -> None:
    listed = [name for promises in TABLE.values() for names in promises.values() for name in names]
    assert len(listed) == len(set(listed)), "a bug is listed twice"
    assert not BUGS.keys() & PLANTED_BUGS.keys(), "two bugs have one name"
    assert set(listed) == BUGS.keys() | PLANTED_BUGS.keys(), (
        "give each bug its place in tests/chaos/bug_table.py"
    )
    assert len(listed) >= BUGS_MIN


def test_every_promise_has_a_bug_that_breaks_it() -> None:
    assert {title: len(TABLE[title]) for title in PROMISES} == PROMISES
    without = {promise for promises in TABLE.values() for promise, names in promises.items() if not names}
    assert not without


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
