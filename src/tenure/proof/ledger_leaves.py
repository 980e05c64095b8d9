"""The contents of ledger leaves, byte for byte.

Laws:
1. A leaf is canonical JSON (RFC 8785): the same facts always give the same bytes, and so the same hash.
2. A leaf contains ids, hashes and counts. It contains no payload, no name and no secret.
3. A run has two leaves: `created_leaf`, with the hash of its first event, and `seal_leaf`, with the length and head of its
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
    return _run_leaf("created", tenant, run_id, 0, {"hash": first.hex()})


def seal_leaf(tenant: str, run_id: int, part: int, head: bytes, events: int, outcome: str) -> LedgerEntry:
    """`head` is the hash of the last of `events` events. Part 0 is the first seal of a run, and later parts are supplements."""
    more = {"head": head.hex(), "events": events, "outcome": outcome}
    return _run_leaf("supplement" if part else "sealed", tenant, run_id, part, more)


def admin_leaf(tenant: str, seq: int, head: bytes) -> LedgerEntry:
    """The admin chain has reached line `seq`."""
    return _entry("admin", tenant, None, seq, {"seq": seq, "head": head.hex()})


def key_leaf(action: str, key_id: str, public: bytes, at: int, **more: Any) -> LedgerEntry:
    """`action` is `added`, `rotated` or `revoked`. These leaves are in the installation's own ledger."""
    return _entry(
        "key",
        "",
        None,
        0,
        {"action": action, "key": key_id, "public": encode_base64(public), "at": at, **more},
    )


def leaf_problem(leaf: LedgerLeafRow) -> str | None:
    """Why a stored leaf is not valid: its body must be canonical, and its columns must agree with its body."""
    try:
        facts = msgspec.json.decode(leaf.body)
        canon = canonical(facts)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return "it cannot be decoded"
    if not isinstance(facts, dict) or canon != leaf.body or facts.get("format") != FORMAT:
        return "it does not have the format of a leaf"
    columns = {
        "tenant": leaf.tenant,
        "kind": leaf.kind,
        "run": None if leaf.run_id is None else ids.run_text(leaf.run_id),
    }
    part = facts.get("seq" if leaf.kind == "admin" else "no", 0)
    same = part == leaf.part and all(facts.get(name) == value for name, value in columns.items())
    return None if same else "its columns differ from its body"


def leaf_facts(leaf: LedgerLeafRow) -> dict[str, Any]:
    return msgspec.json.decode(leaf.body, type=dict[str, Any])


def _run_leaf(kind: str, tenant: str, run_id: int, part: int, more: dict[str, Any]) -> LedgerEntry:
    return _entry(
        kind, tenant, run_id, part, {"run": ids.run_text(run_id), **({"no": part} if part else {}), **more}
    )


def _entry(kind: str, tenant: str, run_id: int | None, part: int, more: dict[str, Any]) -> LedgerEntry:
    body = canonical({"format": FORMAT, "kind": kind, "tenant": tenant, **more})
    return LedgerEntry(kind=kind, run_id=run_id, part=part, body=body)
