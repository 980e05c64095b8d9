"""Places in the feed as tenants see them: ids of events in a stream, of messages that could not be delivered.

Laws:
1. The feed is one for all tenants, so a position in it, and a part of a commit, would tell a tenant how much others do. What leaves the
   server is enciphered under a key of the database, for each tenant by a key of its own.
2. A place can be read back by every server of the database. What is not one of the tenant's places reads as nonsense, which is a position
   that is not kept: nobody is told the difference.
3. With chance in it, two texts of one place differ: that nothing has happened meanwhile is not told either.

The cipher is a Feistel network of four rounds over 128 bits with keyed BLAKE2b, a pseudorandom permutation (Luby and Rackoff).
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b

KEY_BYTES = 32
PATTERN = r"[A-Za-z0-9_-]{22}"
_TEXT = re.compile(PATTERN)
_ROUNDS = (b"0", b"1", b"2", b"3")


class FeedPlaces:
    """See the laws above."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._of = lru_cache(maxsize=1024)(self._tenant_key)

    def _tenant_key(self, tenant: str) -> bytes:
        return blake2b(tenant.encode(), key=self._key, digest_size=KEY_BYTES).digest()

    def hide(self, tenant: str, pos: int, part: int, chance: int = 0) -> str:
        """A position and a part as the tenant sees them; `chance` is 32 bits that make no difference to the place."""
        key = self._of(tenant)
        left, right = pos, part << 32 | chance
        for number in _ROUNDS:
            left, right = right, left ^ _mixed(key, number, right)
        return urlsafe_b64encode(left.to_bytes(8, "big") + right.to_bytes(8, "big"))[:22].decode()

    def reveal(self, tenant: str, text: str) -> tuple[int, int] | None:
        """The position and the part behind a text; None: it has not the form of one."""
        if _TEXT.fullmatch(text) is None:
            return None
        body = urlsafe_b64decode(text + "==")
        key = self._of(tenant)
        left, right = int.from_bytes(body[:8], "big"), int.from_bytes(body[8:], "big")
        for number in reversed(_ROUNDS):
            left, right = right ^ _mixed(key, number, left), left
        return left, right >> 32


def _mixed(key: bytes, number: bytes, half: int) -> int:
    digest = blake2b(half.to_bytes(8, "big"), key=key, digest_size=8, person=number).digest()
    return int.from_bytes(digest, "big")
