"""A cached snapshot drops rows that a long run no longer needs, and knows what it dropped."""

import pytest

from tenure.kernel.act_rows import ReceiptRow
from tenure.kernel.run_rows import InboxRow
from tenure.kernel.snapshot import RECEIPTS_KEPT_MAX, STEPS_KEPT_MAX, NotLoaded, Snapshot
from tests.kernel.act_story import ActStory


def receipts_of(story: ActStory) -> list[ReceiptRow]:
    return list(story.snap.receipts.values())


def test_a_snapshot_keeps_only_open_receipts() -> None:
    story = ActStory()
    story.claim()
    for number in range(RECEIPTS_KEPT_MAX):
        story.settle(story.intend(story.act(f"done#{number}")).no or 0, "succeeded")
    left_open = story.intend(story.act("open#1"))
    snap = Snapshot.of_new_run(story.run_id)
    for row in receipts_of(story):
        snap.put(("receipt", row.no), row)
    snap.trim()
    assert [row.no for row in snap.receipts.values()] == [left_open.no]
    assert [row.no for row in snap.open_receipts()] == [left_open.no]
    assert snap.receipts_of(0, "new#1") == []  # known not to exist
    first, second, *_ = receipts_of(story)
    for row, need, ask in (
        (first, ("act", first.idx, first.label), lambda: snap.receipts_of(first.idx, first.label)),
        (second, ("receipt", second.no), lambda: [snap.find_receipt(second.no)]),
    ):
        with pytest.raises(NotLoaded) as asked:
            ask()
        assert asked.value.keys == (need,)
        snap.add(row)
        snap.known.add(need)
        assert ask() == [row]


def test_a_snapshot_keeps_only_events_that_were_not_taken() -> None:
    snap = Snapshot.of_new_run(1)
    snap.know(("buffered", "go"))
    for no in range(STEPS_KEPT_MAX + 2):
        taken = None if no == 7 else no
        snap.put(("inbox", no), InboxRow(1, no, "go", f"event-{no}", "test", None, 5, taken))
    snap.trim()
    assert list(snap.inbox) == [7]
    assert snap.find_event_id("event-7") is snap.inbox[7] is snap.first_buffered_event("go", set())
    with pytest.raises(NotLoaded) as asked:
        snap.find_event_id("event-8")
    assert asked.value.keys == (("inbox_id", "event-8"),)


def test_a_snapshot_reloads_only_attempts() -> None:
    snap = Snapshot.of_new_run(1)
    for key in (("attempt", 0, 1), ("step", 3)):
        snap.know(key)
    assert (snap.find_attempt(0, 1), snap.find_step(3)) == (None, None)
    snap.forget_attempts()
    assert snap.find_step(3) is None
    with pytest.raises(NotLoaded):
        snap.find_attempt(0, 1)
