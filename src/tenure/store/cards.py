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
from tenure.kernel.governance import Card
from tenure.kernel.service import Hook
from tenure.store.beside import settled
from tenure.store.listing import Question
from tenure.store.port import Answer, Query, Store, Transaction

READS: dict[str, Answer] = {
    "card_hooks": Hook,  # () -> Slack's, of open tenants, that say where cards go; the oldest first
    "cards_wanted": Question,  # () ; tenant, limit -> open approvals without a card, the oldest first
}
"""Queries used on their own; `cards.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "new_card": Card,
    "take_cards": Card,
    "put_card": Card,
    "delete_orphan_cards": Card,
}
"""Statements of small transactions of their own."""

TAKEN_SECONDS = 60.0
"""Longer than a try takes: after this another process may try."""


class Cards:
    """See the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def hooks(self) -> list[Hook]:
        """Where cards go: of each tenant the oldest hook that says a channel."""
        found: dict[str, Hook] = {}
        for hook in await self._store.read("card_hooks"):
            found.setdefault(hook.tenant, hook)
        return list(found.values())

    async def wanted(self, tenant: str, limit: int) -> list[Question]:
        """Open approvals that nobody has made a card of."""
        return await self._store.read("cards_wanted", tenant, limit)

    async def begin(self, question: Question, hook: Hook, channel: str) -> bool:
        """Be the one who posts a question's card (law 1)."""

        def work() -> Transaction[list[Card]]:
            now = (yield Query("now"))[0].now_us
            row = Card(question.run_id, question.no, question.tenant, hook.id, channel, None, "", now)
            made: list[Card] = yield Query("new_card", scalars=msgspec.structs.astuple(row))
            return made

        return bool(await settled(self._store, work))

    async def take(self, limit: int) -> list[Card]:
        """Cards that do not show what they should, for so long the caller's (law 2)."""

        def work() -> Transaction[list[Card]]:
            now = (yield Query("now"))[0].now_us
            taken: list[Card] = yield Query("take_cards", scalars=(now, now + us(TAKEN_SECONDS), limit))
            return taken

        return await settled(self._store, work)

    async def put(self, card: Card, tries: int, *, again_us: int | None = 0) -> None:
        """How it went, by whoever took it at this try: to be looked at again in so long (None: never)."""

        def work() -> Transaction[None]:
            now = (yield Query("now"))[0].now_us
            due = None if again_us is None else now + again_us
            row = msgspec.structs.replace(card, due_at=due)
            yield Query("put_card", scalars=(*msgspec.structs.astuple(row), tries))

        await settled(self._store, work)

    async def forget(self) -> None:
        """Delete the cards of questions that are not there any more."""

        def work() -> Transaction[None]:
            yield Query("delete_orphan_cards")

        await settled(self._store, work)
