"""The contents of ledger leaves, byte for byte.

Laws:
1. A leaf is canonical JSON (RFC 8785): the same facts always give the same bytes, and so the same hash.
2. A leaf contains ids, hashes and counts. It contains no payload, no name and no secret.
3. A run has two leaves: `created_leaf`, with the hash of its first event, and `sealed_leaf`, with the length and head of its
   event chain. Numbered supplements seal later events. `part` distinguishes the leaves of one run or chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tenure import ids
from tenure.canonical import canonical, encode_base64

if TYPE_CHECKING:
    from tenure.kernel.governance_rows import LedgerLeafRow

FORMAT = "tenure-leaf-1"


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf that has not been appended yet."""

    kind: str
    run_id: int | None
    part: int
    body: bytes


def created_leaf(tenant: str, run_id: int, first: bytes) -> LedgerEntry:
    """`first` is the hash of the run's first event."""
    return _of_run("created", tenant, run_id, 0, {"hash": first.hex()})


def sealed_leaf(tenant: str, run_id: int, head: bytes, events: int, outcome: str) -> LedgerEntry:
    """`head` is the hash of the last of `events` events."""
    return _of_run("sealed", tenant, run_id, 0, _chain(head, events, outcome))


def supplement_leaf(tenant: str, run_id: int, no: int, head: bytes, events: int, outcome: str) -> LedgerEntry:
    """The `no`-th seal after the first one, for events that came later."""
    return _of_run("supplement", tenant, run_id, no, _chain(head, events, outcome))


def admin_leaf(tenant: str, seq: int, head: bytes) -> LedgerEntry:
    """The admin chain has reached line `seq`."""
    body = _body("admin", tenant, {"seq": seq, "head": head.hex()})
    return LedgerEntry(kind="admin", run_id=None, part=seq, body=body)


def key_leaf(action: str, key_id: str, public: bytes, at: int, **more: Any) -> LedgerEntry:
    """`action` is `added`, `rotated` or `revoked`. These leaves are in the installation's own ledger."""
    facts = {"action": action, "key": key_id, "public": encode_base64(public), "at": at, **more}
    return LedgerEntry(kind="key", run_id=None, part=0, body=_body("key", "", facts))


def leaf_problem(leaf: LedgerLeafRow) -> str | None:
    """Why a stored leaf is not valid: its body must be canonical, and its columns must agree with its body."""
    try:
        facts = msgspec.json.decode(leaf.body)
        canon = canonical(facts)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return "it cannot be decoded"
    if not isinstance(facts, dict) or canon != leaf.body or facts.get("format") != FORMAT:
        return "it does not have the format of a leaf"
    run = None if leaf.run_id is None else ids.run_text(leaf.run_id)
    part = facts.get("seq" if leaf.kind == "admin" else "no", 0)
    if (facts.get("tenant"), facts.get("kind"), facts.get("run"), part) != (
        leaf.tenant,
        leaf.kind,
        run,
        leaf.part,
    ):
        return "its columns differ from its body"
    return None


def leaf_facts(leaf: LedgerLeafRow) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.json.decode(leaf.body)
    return facts


def _of_run(kind: str, tenant: str, run_id: int, part: int, more: dict[str, Any]) -> LedgerEntry:
    facts = {"run": ids.run_text(run_id), **({"no": part} if part else {}), **more}
    return LedgerEntry(kind=kind, run_id=run_id, part=part, body=_body(kind, tenant, facts))


def _chain(head: bytes, events: int, outcome: str) -> dict[str, Any]:
    return {"head": head.hex(), "events": events, "outcome": outcome}


def _body(kind: str, tenant: str, more: dict[str, Any]) -> bytes:
    return canonical({"format": FORMAT, "kind": kind, "tenant": tenant, **more})
