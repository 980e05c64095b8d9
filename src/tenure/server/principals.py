"""Who asks: a client, a person, the installation's operator, or the holder of a lease."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["viewer", "operator", "approver", "admin", "runner"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "approver", "admin", "runner")
OPERATOR_TENANT = ""
"""The installation's operator belongs to no tenant."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A caller whose credential was checked."""

    kind: Literal["client", "person", "operator"]
    tenant: str
    id: str
    """Opaque; unique within the tenant."""
    roles: frozenset[str]
    groups: frozenset[str] = frozenset()
    key_id: str
    owner: str | None = None
    """Of a client: the person who answers for it."""
    by_cookie: bool = False

    @property
    def actor(self) -> str:
        """How histories name it."""
        return f"{self.kind}:{self.id}"
