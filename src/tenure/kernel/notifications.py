"""What somebody outside is told of the feed's lines: a status, a step, a question.

Laws:
1. There are five kinds of news (`NOTIFICATION_TYPES`). A status is told in the words of the run's profile, and only where that word is
   another one than before: what a profile calls by one name is one thing to those who know it by that profile.
2. The number of a piece of news within its commit does not depend on those words, so that it is the same tomorrow.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from functools import lru_cache

import msgspec

from tenure import ids
from tenure.errors import TenureError
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
    """One thing somebody may want to hear of."""

    part: int
    """Its number within its commit, from 1."""
    type: str
    told: FeedItem
    word: str = ""
    """Of a status: the profile's word for it."""
    no: int = 0
    """Of a question: its number in its run."""

    @property
    def run(self) -> str:
        """The run's id."""
        return ids.run_text(self.told.run_id)

    @property
    def question(self) -> str:
        """The id of the approval or the proposal."""
        return ids.question_text(
            "proposal" if self.type == PROPOSAL_CREATED else "approval", self.told.run_id, self.no
        )


@lru_cache(maxsize=4096)
def changed_status_word(profile: str, before: str | None, status: str, kind: str) -> str | None:
    """The word for a new status; None where the word stays as it was."""
    try:
        known = profiles.get(profile)
    except TenureError:  # a profile that is not here: its runs are told in the kernel's words
        return None if before == status else status
    if kind == REPORTED:
        return known.reported_word
    word = known.run.words.get(status, status)
    if not isinstance(word, str) or before == status:  # it keeps the one shown before
        return None
    return None if before is not None and known.run.words.get(before, before) == word else word


def build_notifications(
    lines: Iterable[FeedItem], tenants: Container[str] | None = None
) -> Iterator[Notification]:
    """The news of a commit, in order; of these tenants only."""
    part = 0
    for told in lines:
        begins = part
        part += (told.before != told.status or told.kind == REPORTED) + told.grew
        part += len(told.proposed) + len(told.asked) + len(told.reminded)
        if tenants is None or told.tenant in tenants:
            yield from _of_line(told, begins)


def _of_line(told: FeedItem, part: int) -> Iterator[Notification]:
    if told.grew:  # before the status: a run has ended because its last step is done
        part += 1
        yield Notification(part, STEP_COMPLETED, told)
    if told.before != told.status or told.kind == REPORTED:
        part += 1
        word = changed_status_word(told.profile, told.before, told.status, told.kind)
        if word is not None:
            yield Notification(part, STATUS_CHANGED, told, word=word)
    for type_, numbers in (
        (PROPOSAL_CREATED, told.proposed),
        (APPROVAL_REQUESTED, told.asked),
        (APPROVAL_REMINDER, told.reminded),
    ):
        for no in numbers:
            part += 1
            yield Notification(part, type_, told, no=no)
