"""The table of planted bugs is complete, and its page is up to date. Other tests check that each bug is caught."""

from tests.chaos.bug_table import FAILURES, FENCES, PAGE, TABLE, TWO_PEOPLE, page
from tests.chaos.story_bugs import PLANTED_BUGS
from tests.simulation.planted_bugs import BUGS

BUGS_MIN = 61
GUARANTEES = {TWO_PEOPLE: 6, FENCES: 5, FAILURES: 10}
"""Number of guarantees in the sections that came from reviews of security and chaos tests."""


def test_every_bug_is_listed_once_in_the_table() -> None:
    listed = [name for guarantees in TABLE.values() for names in guarantees.values() for name in names]
    assert len(listed) == len(set(listed)), "a bug is listed twice"
    assert not BUGS.keys() & PLANTED_BUGS.keys(), "two bugs have the same name"
    assert set(listed) == BUGS.keys() | PLANTED_BUGS.keys(), "list each bug in tests/chaos/bug_table.py"
    assert len(listed) >= BUGS_MIN


def test_every_guarantee_has_a_bug_that_breaks_it() -> None:
    assert {title: len(TABLE[title]) for title in GUARANTEES} == GUARANTEES
    without = {
        guarantee for guarantees in TABLE.values() for guarantee, names in guarantees.items() if not names
    }
    assert not without


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
