"""Where chance comes from outside of tests: the operating system."""

from __future__ import annotations

import os
from random import Random

_SALT_BYTES = 16
_POOL_BYTES = 4096


class SystemChance:
    """Salts nobody can guess, and jitter that need not be secret."""

    def __init__(self) -> None:
        self._random = Random(os.urandom(16))
        self._pool = b""
        self._at = 0

    def random(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()

    def salt(self) -> bytes:
        """Sixteen fresh bytes; drawn from a pool because a system call per payload is dear."""
        at = self._at
        if at + _SALT_BYTES > len(self._pool):
            self._pool, at = os.urandom(_POOL_BYTES), 0
        self._at = at + _SALT_BYTES
        return self._pool[at : at + _SALT_BYTES]


class SeededChance:
    """The same chance again for the same seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = Random(seed)

    def random(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()

    def salt(self) -> bytes:
        """Sixteen bytes."""
        return self._random.randbytes(_SALT_BYTES)
