"""The tokens of leases: who may speak for one.

Laws:
1. A message is believed for the token of its own lease alone, compared in constant time. A token that is unknown, wrong or
   another lease's is UNAUTHENTICATED, whatever is wrong with it.
2. A lease that has ended is still recognised; that it has ended is the kernel's to say.
3. What is known of a lease does not change while its run is there, so it is remembered without an end.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable

from tenure.errors import TenureError
from tenure.orchestrator.claims import token_hash
from tenure.orchestrator.heartbeats import LeaseKey
from tenure.store.port import Store
from tenure.store.remote import Ticket
from tenure.worker.values import lease_ints

_TOKEN = re.compile(r"tl_[A-Za-z0-9_-]{43}")
_BEARER = re.compile(r"[Bb]earer +(\S+)")
TICKETS_KEPT_MAX = 50_000
_NOBODY = b"\0" * 32


class Tickets:
    """See the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[LeaseKey, Ticket] = {}

    def keep(self, ticket: Ticket) -> None:
        """Remember a lease that was granted or looked up."""
        kept = self._kept
        while len(kept) >= TICKETS_KEPT_MAX:
            del kept[next(iter(kept))]
        kept[ticket.run_id, ticket.idx, ticket.n] = ticket

    async def look_up(self, keys: Iterable[LeaseKey]) -> None:
        """Ask for those of which nothing is known yet."""
        unknown = [key for key in dict.fromkeys(keys) if key not in self._kept]
        if unknown:
            for ticket in await self._store.read("remote_tickets", rows=unknown):
                self.keep(ticket)

    def check(self, key: LeaseKey, token: str) -> Ticket:
        """The ticket of a lease that was looked up, for whoever has its token."""
        ticket = self._kept.get(key)
        fits = hmac.compare_digest(token_hash(token), _NOBODY if ticket is None else ticket.token_hash)
        if ticket is None or not fits:
            raise TenureError("UNAUTHENTICATED")
        return ticket

    async def by_header(self, lease: str, header: str | None, before_asking: Callable[[], None]) -> Ticket:
        """The ticket of a lease, for a request with this Authorization; `before_asking` may refuse to ask the database
        about one of which nothing is known."""
        found = _BEARER.fullmatch((header or "").strip())
        if found is None or not _TOKEN.fullmatch(found[1]):
            raise TenureError("UNAUTHENTICATED", "the lease's token is needed")
        key = lease_ints(lease)
        if key not in self._kept:
            before_asking()
            await self.look_up([key])
        return self.check(key, found[1])
