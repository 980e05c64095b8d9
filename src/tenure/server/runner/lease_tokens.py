"""The tokens of remote leases.

Laws:
1. A message needs the token of its own lease, compared in constant time. Any other token is refused with UNAUTHENTICATED, whatever is
   wrong with it.
2. The token of an ended lease is still accepted: the kernel decides that the lease has ended.
3. The credential of a lease does not change while its run exists, so it is cached without an expiry.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable

from tenure.errors import TenureError
from tenure.kernel.lease_types import LeaseKey
from tenure.orchestrator.claims import hash_token
from tenure.store.port import Store
from tenure.store.remote_leases import LeaseCredential
from tenure.worker.protocol_codec import parse_lease_id

_TOKEN = re.compile(r"tl_[A-Za-z0-9_-]{43}")
_BEARER = re.compile(r"[Bb]earer +(\S+)")
CREDENTIALS_CACHED_MAX = 50_000
_NO_HASH = b"\0" * 32


class LeaseTickets:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: dict[LeaseKey, LeaseCredential] = {}

    def keep(self, credential: LeaseCredential) -> None:
        while len(self._cache) >= CREDENTIALS_CACHED_MAX:
            del self._cache[next(iter(self._cache))]
        self._cache[credential.run_id, credential.idx, credential.n] = credential

    async def look_up(self, keys: Iterable[LeaseKey]) -> None:
        unknown = [key for key in dict.fromkeys(keys) if key not in self._cache]
        if unknown:
            for credential in await self._store.read("lease_credentials", rows=unknown):
                self.keep(credential)

    def check(self, key: LeaseKey, token: str) -> LeaseCredential:
        """The cached credential of a lease. Raises UNAUTHENTICATED for a wrong token."""
        credential = self._cache.get(key)
        matches = hmac.compare_digest(
            hash_token(token), _NO_HASH if credential is None else credential.token_hash
        )
        if credential is None or not matches:
            raise TenureError("UNAUTHENTICATED")
        return credential

    async def by_header(
        self, lease: str, header: str | None, before_asking: Callable[[], None]
    ) -> LeaseCredential:
        """The credential of a lease for a request with this Authorization header. `before_asking` may refuse to read one from the database
        that is not cached."""
        found = _BEARER.fullmatch((header or "").strip())
        if found is None or not _TOKEN.fullmatch(found[1]):
            raise TenureError("UNAUTHENTICATED", "the lease's token is missing or malformed")
        key = parse_lease_id(lease)
        if key not in self._cache:
            before_asking()
            await self.look_up([key])
        return self.check(key, found[1])
