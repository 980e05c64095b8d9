"""Cards: messages in Slack that show open approvals, read and written.

Laws:
1. An approval has at most one card. Whoever writes its row first posts it.
2. A card is taken for a while before anything is sent about it; whoever took it says how it went under the number of the try, so
   that one who is late changes nothing, and one who dies leaves it to be taken again.
3. A card that shows how its question ended is done with.
"""

from __future__ import annotations

import msgspec

from tenure.clock import us
from tenure.kernel.governance_rows import SlackCardRow
from tenure.kernel.server_rows import HookRow
from tenure.store.approvals import ApprovalDetail
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.transactions import run_transaction, write_row

READS: dict[str, RowType] = {
    "card_hooks": HookRow,  # () -> Slack's, of open tenants, that say where cards go; the oldest first
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


class SlackCards:
    """The cards of a store; see the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def hooks(self) -> list[HookRow]:
        """Where cards go: for each tenant, its oldest hook that names a channel."""
        found: dict[str, HookRow] = {}
        for hook in await self._store.read("card_hooks"):
            found.setdefault(hook.tenant, hook)
        return list(found.values())

    async def wanted(self, tenant: str, limit: int) -> list[ApprovalDetail]:
        """Open approvals without a card."""
        return await self._store.read("cards_wanted", tenant, limit)

    async def begin(self, question: ApprovalDetail, hook: HookRow, channel: str) -> bool:
        """Take the posting of a question's card (law 1); False: somebody else has it."""

        def work() -> Transaction[list[SlackCardRow]]:
            now = (yield Query("now"))[0].now_us
            row = SlackCardRow(question.run_id, question.no, question.tenant, hook.id, channel, None, "", now)
            made: list[SlackCardRow] = yield Query("new_card", scalars=msgspec.structs.astuple(row))
            return made

        return bool(await run_transaction(self._store, work))

    async def take(self, limit: int) -> list[SlackCardRow]:
        """Take cards that are out of date; nobody else takes them for TAKEN_SECONDS (law 2)."""

        def work() -> Transaction[list[SlackCardRow]]:
            now = (yield Query("now"))[0].now_us
            taken: list[SlackCardRow] = yield Query(
                "take_cards", scalars=(now, now + us(TAKEN_SECONDS), limit)
            )
            return taken

        return await run_transaction(self._store, work)

    async def put(self, card: SlackCardRow, tries: int, *, again_us: int | None = 0) -> None:
        """Write the outcome of this try. `again_us`: when to look at the card again (None: never)."""

        def work() -> Transaction[None]:
            now = (yield Query("now"))[0].now_us
            due = None if again_us is None else now + again_us
            row = msgspec.structs.replace(card, due_at=due)
            yield Query("put_card", scalars=(*msgspec.structs.astuple(row), tries))

        await run_transaction(self._store, work)

    async def forget(self) -> None:
        """Delete the cards of questions that no longer exist."""
        await write_row(self._store, "delete_orphan_cards", timed=False)
