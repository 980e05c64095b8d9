"""The tokens of remote leases.

Laws:
1. A message needs the token of its own lease, compared in constant time. Any other token is refused with UNAUTHENTICATED, whatever is
   wrong with it.
2. The token of an ended lease is still accepted: the kernel decides that the lease has ended.
3. The credential of a lease does not change while its run exists, so it is cached without an expiry.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from tenure.errors import TenureError
from tenure.kernel.lease_types import LeaseKey
from tenure.orchestrator.claims import hash_token
from tenure.store.port import Store
from tenure.store.remote_leases import LeaseCredential

__all__ = ["LeaseCredential", "LeaseCredentials"]

CREDENTIALS_CACHED_MAX = 50_000
_NO_HASH = b"\0" * 32


class LeaseCredentials:
    """The credentials of remote leases, with a cache; see the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: dict[LeaseKey, LeaseCredential] = {}

    def __contains__(self, key: LeaseKey) -> bool:
        return key in self._cache

    def add(self, credential: LeaseCredential) -> None:
        while len(self._cache) >= CREDENTIALS_CACHED_MAX:
            del self._cache[next(iter(self._cache))]
        self._cache[credential.run_id, credential.idx, credential.n] = credential

    async def load(self, keys: Iterable[LeaseKey]) -> None:
        """Read the credentials that are not cached yet."""
        unknown = [key for key in dict.fromkeys(keys) if key not in self._cache]
        if unknown:
            for credential in await self._store.read("lease_credentials", rows=unknown):
                self.add(credential)

    def check(self, key: LeaseKey, token: str) -> LeaseCredential:
        """The cached credential of a lease. Raises UNAUTHENTICATED for a wrong token."""
        credential = self._cache.get(key)
        matches = hmac.compare_digest(
            hash_token(token), _NO_HASH if credential is None else credential.token_hash
        )
        if credential is None or not matches:
            raise TenureError("UNAUTHENTICATED")
        return credential
