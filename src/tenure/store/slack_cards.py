"""Slack cards: messages that show open approvals, as rows.

Laws:
1. An approval has at most one card. The process that writes its row first posts it.
2. A process takes a card for a while before it sends anything, and reports the outcome under the number of the try. So a late
   report changes nothing, and the card of a process that died is taken again.
3. A card that shows how its question ended is finished.
"""

from __future__ import annotations

from msgspec.structs import astuple, replace

from tenure.clock import us
from tenure.kernel.governance_rows import SlackCardRow
from tenure.kernel.server_rows import HookRow
from tenure.store.approvals import ApprovalDetail
from tenure.store.port import Query, RowType, Transaction
from tenure.store.transactions import Repository, timed_transaction, write_rows

READS: dict[str, RowType] = {
    "card_hooks": HookRow,  # () -> Slack hooks of open tenants that name a channel for cards; the oldest first
    "cards_wanted": ApprovalDetail,  # () ; tenant, limit -> open approvals without a card, the oldest first
}

WRITES: dict[str, RowType] = {
    "new_card": SlackCardRow,
    "take_cards": SlackCardRow,
    "put_card": SlackCardRow,
    "delete_orphan_cards": SlackCardRow,
}

TAKEN_SECONDS = 60.0
"""After this another process may try; longer than a try takes."""


class SlackCards(Repository):
    """The cards of a store; see the laws above."""

    async def hooks(self) -> list[HookRow]:
        """Where cards go: for each tenant, its oldest hook that names a channel."""
        found: dict[str, HookRow] = {}
        for hook in await self._store.read("card_hooks"):
            found.setdefault(hook.tenant, hook)
        return list(found.values())

    async def wanted(self, tenant: str, limit: int) -> list[ApprovalDetail]:
        """Open approvals without a card."""
        return await self._store.read("cards_wanted", tenant, limit)

    @timed_transaction
    def begin(self, now: int, question: ApprovalDetail, hook: HookRow, channel: str) -> Transaction[bool]:
        """Take the posting of a question's card (law 1); False: another process has it."""
        row = SlackCardRow(question.run_id, question.no, question.tenant, hook.id, channel, None, "", now)
        return bool((yield Query("new_card", scalars=astuple(row))))

    @timed_transaction
    def take(self, now: int, limit: int) -> Transaction[list[SlackCardRow]]:
        """Take cards that are out of date; no other process takes them for TAKEN_SECONDS (law 2)."""
        taken: list[SlackCardRow] = yield Query("take_cards", scalars=(now, now + us(TAKEN_SECONDS), limit))
        return taken

    @timed_transaction
    def put(self, now: int, card: SlackCardRow, tries: int, *, again_us: int | None = 0) -> Transaction[None]:
        """Write the outcome of this try. `again_us`: when to look at the card again (None: never)."""
        row = replace(card, due_at=None if again_us is None else now + again_us)
        yield Query("put_card", scalars=(*astuple(row), tries))

    async def delete_orphans(self) -> None:
        """Delete the cards of questions that no longer exist."""
        await write_rows(self._store, "delete_orphan_cards")
