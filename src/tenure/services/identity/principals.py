"""Who asks: a client, a person, the installation's operator, or the holder of a lease; and what their secrets look like.

Law: a secret has 32 random bytes. Whoever makes one here shows it once and keeps its SHA-256.
"""

from __future__ import annotations

import secrets
from typing import Literal

import msgspec

from tenure.kernel.separation_of_duties import join_people
from tenure.store.identity import hash_secret

Kind = Literal["client", "person", "operator"]
Role = Literal["viewer", "operator", "approver", "admin", "runner"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "approver", "admin", "runner")
OPERATOR_TENANT = ""
"""The installation's operator belongs to no tenant."""
OPERATOR_ID = "operator"
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A caller whose credential was checked."""

    kind: Kind
    tenant: str
    id: str
    """Opaque; unique within the tenant."""
    roles: frozenset[str]
    groups: frozenset[str] = frozenset()
    key_id: str
    owner: str | None = None
    """Of a client: the person who answers for it."""
    unconfirmed: str = ""
    """Who has made or changed this credential and whose it is since a second person confirmed that, as `id id`."""
    by_cookie: bool = False
    session: bytes = b""
    """The hash of the cookie it came with."""

    @property
    def actor(self) -> str:
        """How histories name it."""
        return f"{self.kind}:{self.id}"

    @property
    def person(self) -> str | None:
        """The person who asks, or who answers for the client that does."""
        return self.id if self.kind == "person" else self.owner

    @property
    def requester(self) -> str:
        """Who has asked for what it asks, and does not approve it: that person, where there is one."""
        return self.actor if self.person is None else f"person:{self.person}"

    @property
    def people(self) -> str:
        """Everybody who stands behind what it asks, as `id id`: by person, and by credential too."""
        return join_people(self.requester, self.actor, self.unconfirmed)


OPERATOR = Principal(kind="operator", tenant=OPERATOR_TENANT, id=OPERATOR_ID, roles=frozenset(), key_id="")
"""The installation's operator, for programs that set an installation up."""


class NewCredential(msgspec.Struct, frozen=True):
    """A fresh credential: shown once, kept as a hash."""

    id: str
    secret: str
    hash: bytes

    @property
    def text(self) -> str:
        """As its owner sends it."""
        return f"tn_{self.id}_{self.secret}"


def new_id(prefix: str, chars: int = 12) -> str:
    """An opaque id."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(chars))


def new_secret(prefix: str = "") -> str:
    """A secret nobody has had before."""
    return prefix + secrets.token_urlsafe(32)


def new_key() -> NewCredential:
    """A credential nobody has had before."""
    secret = new_secret()
    return NewCredential(new_id(""), secret, hash_secret(secret))
