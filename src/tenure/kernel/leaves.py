"""What the leaves of a ledger say, byte for byte.

Laws:
1. A leaf is canonical JSON (RFC 8785): whoever has the facts makes the same bytes, and so the same hash.
2. It has ids, hashes and counts: no payload, no name, no secret.
3. A run has two: `created`, with the hash of its first event, and `sealed`, with the chain's length and head at its last one.
   What came later is sealed by numbered supplements. `part` tells those of one run (or chain) apart.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from tenure import ids
from tenure.canonical import canonical
from tenure.kernel.governance import Leaf

FORMAT = "tenure-leaf-1"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf that is not in its ledger yet."""

    kind: str
    run_id: int | None
    part: int
    body: bytes


def created(tenant: str, run_id: int, first: bytes) -> Entry:
    """A run is there; `first` is the hash of its first event."""
    return _of_run("created", tenant, run_id, 0, {"hash": first.hex()})


def sealed(tenant: str, run_id: int, head: bytes, events: int, outcome: str) -> Entry:
    """A run has ended: with so many events, the last of which has this hash."""
    return _of_run("sealed", tenant, run_id, 0, _chain(head, events, outcome))


def supplement(tenant: str, run_id: int, no: int, head: bytes, events: int, outcome: str) -> Entry:
    """Its history went on after that: the no-th time that it is sealed again."""
    return _of_run("supplement", tenant, run_id, no, _chain(head, events, outcome))


def admin(tenant: str, seq: int, head: bytes) -> Entry:
    """The chain of changes to people, keys, policies and the like has come to this line."""
    body = _body("admin", tenant, {"seq": seq, "head": head.hex()})
    return Entry(kind="admin", run_id=None, part=seq, body=body)


def key(action: str, key_id: str, public: bytes, at: int, **more: Any) -> Entry:
    """A signing key was `added`, `rotated` in or `revoked`; all of them are in the installation's own ledger."""
    said = {"action": action, "key": key_id, "public": base64_of(public), "at": at, **more}
    return Entry(kind="key", run_id=None, part=0, body=_body("key", "", said))


def problem(leaf: Leaf) -> str | None:
    """What is wrong with a leaf as it is stored: its columns say what its body says."""
    try:
        said = msgspec.json.decode(leaf.body)
        canon = canonical(said)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return "it cannot be read"
    if not isinstance(said, dict) or canon != leaf.body or said.get("format") != FORMAT:
        return "it is not in the form of a leaf"
    run = None if leaf.run_id is None else ids.run_text(leaf.run_id)
    part = said.get("seq" if leaf.kind == "admin" else "no", 0)
    if (said.get("tenant"), said.get("kind"), said.get("run"), part) != (
        leaf.tenant,
        leaf.kind,
        run,
        leaf.part,
    ):
        return "its columns are not what its body says"
    return None


def base64_of(body: bytes) -> str:
    """Bytes as a leaf has those that are no hash."""
    return base64.b64encode(body).decode()


def facts(leaf: Leaf) -> dict[str, Any]:
    """What a leaf that has no problem says."""
    said: dict[str, Any] = msgspec.json.decode(leaf.body)
    return said


def _of_run(kind: str, tenant: str, run_id: int, part: int, more: dict[str, Any]) -> Entry:
    said = {"run": ids.run_text(run_id), **({"no": part} if part else {}), **more}
    return Entry(kind=kind, run_id=run_id, part=part, body=_body(kind, tenant, said))


def _chain(head: bytes, events: int, outcome: str) -> dict[str, Any]:
    return {"head": head.hex(), "events": events, "outcome": outcome}


def _body(kind: str, tenant: str, more: dict[str, Any]) -> bytes:
    return canonical({"format": FORMAT, "kind": kind, "tenant": tenant, **more})
