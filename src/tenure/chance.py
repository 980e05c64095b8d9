"""Sources of randomness: the operating system, or a seed."""

from __future__ import annotations

import os
from random import Random

_SALT_BYTES = 16
_POOL_BYTES = 4096


class SystemChance:
    """Unpredictable salts, and jitter that need not be secret."""

    def __init__(self) -> None:
        self.random = Random(os.urandom(16)).random
        self._pool = b""
        self._at = 0

    def salt(self) -> bytes:
        """Random bytes from a pool: a system call for each payload would be slow."""
        at = self._at
        if at + _SALT_BYTES > len(self._pool):
            self._pool, at = os.urandom(_POOL_BYTES), 0
        self._at = at + _SALT_BYTES
        return self._pool[at : at + _SALT_BYTES]


class SeededChance:
    """The same sequence for the same seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = Random(seed)
        self.random = self._random.random

    def salt(self) -> bytes:
        return self._random.randbytes(_SALT_BYTES)
