"""Which methods an address has: what OPTIONS answers, and what a 405 lists.

Law: the table of roles is the list of routes. HEAD goes wherever GET does, and OPTIONS everywhere.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tenure.server.auth.roles import ALLOWED

_PLACE = re.compile(r"\{\w+\}")


@lru_cache(maxsize=1)
def _table() -> list[tuple[re.Pattern[str], str]]:
    """What an address looks like, and its methods. Those that are written out come before those with places in them."""
    methods: dict[str, set[str]] = {}
    for route in ALLOWED:
        method, _, path = route.partition(" ")
        methods.setdefault(path, {"OPTIONS"}).update({method, "HEAD"} if method == "GET" else {method})
    return [
        (re.compile("[^/]+".join(map(re.escape, _PLACE.split(path)))), ", ".join(sorted(methods[path])))
        for path in sorted(methods, key=lambda path: path.count("{"))
    ]


def methods_at(path: str) -> str | None:
    """The methods of an address, as `Allow` lists them; None: there is no such address."""
    return next((allow for looks, allow in _table() if looks.fullmatch(path)), None)
