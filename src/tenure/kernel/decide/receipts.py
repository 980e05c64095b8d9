"""How the rows of receipts and of a run's spending change.
Laws:
1. A receipt changes its state by an edge of its machine, which the event records like every other edge.
2. A write is counted when it is intended, and given back when it is known not to have happened.
3. A step that ends leaves no receipt in `intent`: a call without an answer becomes unknown, and people are asked.
"""

from __future__ import annotations

import msgspec

from tenure.artifacts import is_reference
from tenure.canonical import canonical
from tenure.kernel.act_rows import ReceiptRow, RunSpendRow
from tenure.kernel.draft import Draft
from tenure.kernel.machines import RECEIPT


def change_receipt(d: Draft, receipt: ReceiptRow, given: str) -> ReceiptRow:
    """Take an edge of a receipt. Returns the changed row."""
    edge = RECEIPT.take(receipt.state, given)
    changed = d.edit(receipt)
    changed.state = edge.next
    taken = msgspec.Raw(msgspec.json.encode([("receipt", edge.state, edge.next, edge.owner)]))
    d.edges.append({"receipt": changed.no, "move": edge.input, "edges": taken})
    return changed


def current_run_spend(d: Draft) -> RunSpendRow:
    changed = d.changed.get(("run_spend",))
    return changed if isinstance(changed, RunSpendRow) else d.snap.find_run_spend()


def edit_run_spend(d: Draft) -> RunSpendRow:
    return d.edit(current_run_spend(d))


def give_back_write(d: Draft) -> None:
    run_spend = edit_run_spend(d)
    run_spend.writes = max(0, run_spend.writes - 1)


def lose_intended_receipts(d: Draft, idx: int) -> None:
    """Apply law 3 to a step that ends."""
    for row in d.snap.open_receipts():
        row = d.current_row(row)
        if row.idx == idx and row.state == "intent":
            change_receipt(d, row, "lose_answer")


def is_same_request(d: Draft, request: bytes | None, holder: ReceiptRow, theirs: bytes | None) -> bool:
    """Whether the holder of a key made the same request, as far as its payloads are not erased. `theirs` is the
    request of another run."""
    if holder.run_id == d.run.id:
        kept = None if holder.request_ref is None else d.snap.find_payload(holder.request_ref)
        theirs = None if kept is None else kept.body
    return theirs is None or request is None or _asked(theirs) == _asked(request)


def _asked(request: bytes) -> bytes:
    value = msgspec.json.decode(request)
    if isinstance(value, dict) and is_reference(request):
        value.pop("run", None)  # each run keeps its own copy
    return canonical(value)
