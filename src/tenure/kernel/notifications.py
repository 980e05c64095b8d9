"""Notifications for subscribers, made from feed lines: a status, a step, a question.

Laws:
1. There are five types (`NOTIFICATION_TYPES`). A status is given in the words of the run's profile, and only if that word
   has changed: two states with one word are one status to readers of that profile.
2. The number of a notification within its commit does not depend on those words, so it never changes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from functools import lru_cache

import msgspec

from tenure import ids
from tenure.kernel import profiles
from tenure.kernel.feed import REPORTED, FeedItem

STATUS_CHANGED, STEP_COMPLETED = "run.status.changed", "run.step.completed"
PROPOSAL_CREATED, APPROVAL_REQUESTED, APPROVAL_REMINDER = (
    "proposal.created",
    "approval.requested",
    "approval.reminder",
)
NOTIFICATION_TYPES = (STATUS_CHANGED, STEP_COMPLETED, PROPOSAL_CREATED, APPROVAL_REQUESTED, APPROVAL_REMINDER)


class Notification(msgspec.Struct, frozen=True, gc=False):
    part: int
    """Its number within its commit, from 1."""
    type: str
    item: FeedItem
    word: str = ""
    """For a status: the profile's word for it."""
    no: int = 0
    """For a question: its number in its run."""

    @property
    def run(self) -> str:
        return ids.run_text(self.item.run_id)

    @property
    def question(self) -> str:
        return ids.question_text(
            "proposal" if self.type == PROPOSAL_CREATED else "approval", self.item.run_id, self.no
        )


@lru_cache(maxsize=4096)
def changed_status_word(profile: str, before: str | None, status: str, kind: str) -> str | None:
    """The word for a new status. None: the word has not changed."""
    known = profiles.find(profile)
    if known is None:  # without its profile a run is shown in the kernel's words
        return None if before == status else status
    if kind == REPORTED:
        return known.reported_word
    word = known.run.words.get(status, status)
    if not isinstance(word, str) or before == status:  # the last word stays
        return None
    return None if before is not None and known.run.words.get(before, before) == word else word


def build_notifications(
    lines: Iterable[FeedItem], tenants: Container[str] | None = None
) -> Iterator[Notification]:
    """The notifications of a commit, in order. With `tenants`, only theirs."""
    part = 0
    for item in lines:
        begins = part
        part += (item.before != item.status or item.kind == REPORTED) + item.grew
        part += len(item.proposed) + len(item.asked) + len(item.reminded)
        if tenants is None or item.tenant in tenants:
            yield from _line_notifications(item, begins)


def _line_notifications(item: FeedItem, part: int) -> Iterator[Notification]:
    if item.grew:  # before the status, because the last step ends the run
        part += 1
        yield Notification(part, STEP_COMPLETED, item)
    if item.before != item.status or item.kind == REPORTED:
        part += 1
        word = changed_status_word(item.profile, item.before, item.status, item.kind)
        if word is not None:
            yield Notification(part, STATUS_CHANGED, item, word=word)
    for type_, numbers in (
        (PROPOSAL_CREATED, item.proposed),
        (APPROVAL_REQUESTED, item.asked),
        (APPROVAL_REMINDER, item.reminded),
    ):
        for no in numbers:
            part += 1
            yield Notification(part, type_, item, no=no)
