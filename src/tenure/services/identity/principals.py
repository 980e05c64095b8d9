"""Principals: the clients, people and operators that make requests, and their secrets.

Law: a secret has 32 random bytes. It is shown once, and only its SHA-256 is stored.
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
    """An authenticated caller."""

    kind: Kind
    tenant: str
    id: str
    """An opaque id, unique within the tenant."""
    roles: frozenset[str]
    groups: frozenset[str] = frozenset()
    key_id: str
    owner: str | None = None
    """The person who owns a client."""
    unconfirmed: str = ""
    """Who has created or changed this credential or its owner since a second person confirmed it, as `id id`."""
    by_cookie: bool = False
    session: bytes = b""
    """The hash of the session cookie."""

    @property
    def actor(self) -> str:
        """The principal's name in histories."""
        return f"{self.kind}:{self.id}"

    @property
    def person(self) -> str | None:
        """The person who makes the request, or who owns the client."""
        return self.id if self.kind == "person" else self.owner

    @property
    def requester(self) -> str:
        """The requester, who cannot approve the request: the person, if there is one."""
        return self.actor if self.person is None else f"person:{self.person}"

    @property
    def people(self) -> str:
        """Everybody who is involved in the request, as `id id`: the person and the credential."""
        return join_people(self.requester, self.actor, self.unconfirmed)


OPERATOR = Principal(kind="operator", tenant=OPERATOR_TENANT, id=OPERATOR_ID, roles=frozenset(), key_id="")


class NewCredential(msgspec.Struct, frozen=True):
    id: str
    secret: str
    hash: bytes

    @property
    def text(self) -> str:
        return f"tn_{self.id}_{self.secret}"


def new_id(prefix: str, chars: int = 12) -> str:
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(chars))


def new_secret(prefix: str = "") -> str:
    return prefix + secrets.token_urlsafe(32)


def new_key() -> NewCredential:
    secret = new_secret()
    return NewCredential(new_id(""), secret, hash_secret(secret))
