"""Receipts and the purse: how their rows change, whoever asks for it.

Laws:
1. A receipt changes its state by an edge of its machine, which is written into the event like every other edge.
2. A write is counted when it is intended, and given back when it is known not to have happened.
3. A step that ends leaves nothing intended behind: what nobody has heard of again is unknown, and stands in people's inbox.
"""

from __future__ import annotations

import msgspec

from tenure.artifacts import is_reference
from tenure.canonical import canonical
from tenure.kernel.draft import Draft
from tenure.kernel.governed import Purse, Receipt
from tenure.kernel.machine import Edge
from tenure.kernel.machines import RECEIPT


def change(d: Draft, receipt: Receipt, given: str) -> Receipt:
    """Take an edge of a receipt; the changed row."""
    edge = RECEIPT.take(receipt.state, given)
    changed = d.edit(receipt)
    changed.state = edge.next
    note(d, changed, edge)
    return changed


def note(d: Draft, receipt: Receipt, edge: Edge) -> None:
    """Write an edge into the event."""
    taken = msgspec.Raw(msgspec.json.encode([("receipt", edge.state, edge.next, edge.owner)]))
    d.edges.append({"receipt": receipt.no, "move": edge.input, "edges": taken})


def purse_of(d: Draft) -> Purse:
    """The run's purse as it is by now."""
    changed = d.changed.get(("purse",))
    return changed if isinstance(changed, Purse) else d.snap.the_purse()


def edit_purse(d: Draft) -> Purse:
    """The run's purse, to be changed."""
    return d.edit(purse_of(d))


def give_back(d: Draft) -> None:
    """A write that was counted did not happen."""
    purse = edit_purse(d)
    purse.writes = max(0, purse.writes - 1)


def lose_intended(d: Draft, idx: int) -> None:
    """Law 3, for a step that ends."""
    for row in d.snap.open_receipts():
        row = d.now_of(row)
        if row.idx == idx and row.state == "intent":
            change(d, row, "lose_answer")


def asks_the_same(d: Draft, request: bytes | None, holder: Receipt, theirs: bytes | None) -> bool:
    """Whether what holds a key was asked for the same thing, as far as that was not erased: else "done" would be said of something
    that nobody did. `theirs` is its request where it is another run's."""
    if holder.run_id == d.run.id:
        kept = None if holder.request_ref is None else d.snap.find_payload(holder.request_ref)
        theirs = None if kept is None else kept.body
    return theirs is None or request is None or _asked(theirs) == _asked(request)


def _asked(request: bytes) -> bytes:
    said = msgspec.json.decode(request)
    if isinstance(said, dict) and is_reference(request):
        said.pop("run", None)  # each run keeps its own copy
    return canonical(said)
