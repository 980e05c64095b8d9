"""The files of a bundle, derived from the run's events, so that anyone with the events can rebuild them.

Laws:
1. Every file follows from the events alone. Columns are listed here one by one: a column that is added to a table is not in a bundle until it
   is listed here, under another format.
2. Bundles contain only metadata. A payload appears as its number and its salted digest; people are opaque ids. Users' own words (`meta` of
   checkpoints, labels, questions) are payloads or not part of the history, so they are not included.
3. What did not go through `act` is ungoverned: no policy was asked, and there is no receipt. It is listed, not hidden.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from tenure import ids
from tenure.kernel.act_rows import CostLineRow, ReceiptRow, RunSpendRow, VerdictRow
from tenure.kernel.row import Row
from tenure.kernel.run_rows import (
    ApprovalRow,
    AttemptRow,
    CheckpointRow,
    ChildRow,
    EventRow,
    InboxRow,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
)

Tables = dict[str, dict[str, dict[str, Any]]]
Json = dict[str, Any]

RUN_FACTS = (
    "id tenant workspace workflow code_version profile repo created_at status started_at finished_at duration_us reason "
    "cancel_at cancel_reason steps_total steps_done steps_skipped output error"
)
SPEC_FACTS = (
    "source trigger_type trigger_ref requester involved input parent_id resumed_from rerun_of undo_of attempt_no budget "
    "currency"
)


class TableFile(msgspec.Struct, frozen=True):
    row: type[Row]
    columns: str
    """In order. `X` stands for the payload of the column `X_ref`, if there is such a column."""


LISTS: dict[str, TableFile] = {
    "approvals.json": TableFile(
        ApprovalRow,
        "no tier people people_in requester digest revision requested_at expires_at status votes decided_at decided_by used_no "
        "question reason",
    ),
    "attempts.json": TableFile(
        AttemptRow, "idx n owner granted_at timeout_at state lease ended_at reason cost"
    ),
    "checkpoints.json": TableFile(
        CheckpointRow,
        "idx name no state n resumable idempotent arguments at tries next_at error input output",
    ),
    "children.json": TableFile(ChildRow, "child_id idx on_close wait_no state outcome"),
    "decisions.json": TableFile(
        VerdictRow,
        "no idx label connector operation digest version outcome rules tier people people_in within_us error at",
    ),
    "deliveries.json": TableFile(InboxRow, "no name event_id source received_at wait_no payload"),
    "receipts.json": TableFile(
        ReceiptRow,
        "no idx label try_no connector operation tier name digest repeats reversible verdict_no approval_no n intent_at call_by "
        "state settled_at settled_by error eligible_at wait_no reverses_run reverses_no reversed_run reversed_no source_run "
        "source_no request before result",
    ),
    "steps.json": TableFile(
        StepRow,
        "idx name kind tool required max_attempts idempotency_key created_at state attempt charged finished_at reason last_error "
        "condition input output error",
    ),
    "waits.json": TableFile(
        WaitRow, "no idx kind name label gate fatal opened_at expires_at state outcome settled_at result"
    ),
}

RUN_IDS = frozenset(
    {
        "reverses_run",
        "reversed_run",
        "source_run",
        "child_id",
        "parent_id",
        "resumed_from",
        "rerun_of",
        "undo_of",
    }
)
"""Columns with run ids, which are shown as texts."""
COST_NAMES = ("provider", "model", "currency")
COST_SUMS = ("calls", "tokens_in", "tokens_out", "micros")
AT_WORK = frozenset({"work", "body", "plan"})
CHILD = "workflow:"
"""The prefix of steps that start another workflow and do nothing themselves."""
RECORDED = frozenset({"now", "uuid", "random", "sleep"})
"""Checkpoints that record a value instead of a step."""


class FoldedRun:
    def __init__(self, events: Iterable[EventRow]) -> None:
        self.tables: Tables = {}
        self.payloads: dict[str, str] = {}
        for event in events:
            self.add(msgspec.json.decode(event.body))

    def add(self, body: Json) -> None:
        self.payloads |= body.get("payloads", {})
        for table, changed in body.get("set", {}).items():
            rows = self.tables.setdefault(table, {})
            for key, columns in changed.items():
                rows.setdefault(key, {}).update(columns)

    def rows(self, row: type[Row]) -> list[Json]:
        """The rows of a table with all columns, in the order of their keys."""
        fields = {f.name: f for f in msgspec.structs.fields(row)}
        rest = row.key[1:]
        made = []
        usual = {name: None if f.default is msgspec.NODEFAULT else f.default for name, f in fields.items()}
        for key, columns in self.tables.get(row.table, {}).items():
            parts = zip(rest, key.split("/", len(rest) - 1) if rest else [], strict=True)
            keys = {name: int(part) if fields[name].type is int else part for name, part in parts}
            whole = keys | {name: columns.get(name, usual[name]) for name in fields if name not in keys}
            made.append({name: _plain(fields[name].type, name, value) for name, value in whole.items()})
        return sorted(made, key=lambda one: [one[name] for name in rest])

    def shown(self, whole: Json, columns: str) -> Json:
        """Some columns of a row, with payloads as digests."""
        return {
            name: self._payload(whole[f"{name}_ref"]) if f"{name}_ref" in whole else whole[name]
            for name in columns.split()
        }

    def _payload(self, ref: int | None) -> Json | None:
        return None if ref is None else {"ref": ref, "digest": self.payloads.get(str(ref))}


def _plain(kind: Any, name: str, value: Any) -> Any:
    """A value as it is shown: bytes in hex, runs as texts."""
    if value is None:
        return None
    if kind is bytes:
        return (value if isinstance(value, bytes) else base64.b64decode(value)).hex()
    if name in RUN_IDS:
        return ids.run_text(value)
    return value


def build_files(folded: FoldedRun, run_id: int) -> dict[str, bytes]:
    lists = {
        name: [folded.shown(one, listed.columns) for one in folded.rows(listed.row)]
        for name, listed in LISTS.items()
    }
    for one in lists["decisions.json"]:
        one["rules"] = msgspec.json.decode(one["rules"])
    for one in lists["approvals.json"]:
        one["votes"] = one["votes"].split()
    made = {
        **lists,
        "run.json": run_facts(folded, run_id),
        "ungoverned.json": find_ungoverned_steps(lists),
        "costs.json": sum_costs(folded),
    }
    return {name: encode_file(value) for name, value in made.items()}


def run_facts(folded: FoldedRun, run_id: int) -> Json:
    [run], specs = folded.rows(RunRow), folded.rows(RunSpecRow)
    run["id"] = ids.run_text(run_id)
    facts = folded.shown(run, RUN_FACTS)
    for spec in specs:
        facts |= folded.shown(spec, SPEC_FACTS)
        facts["involved"] = facts["involved"].split()
    facts |= {"spent": 0, "writes": 0}
    for run_spend in folded.rows(RunSpendRow):
        facts |= folded.shown(run_spend, "spent writes")
    return facts


def find_ungoverned_steps(lists: dict[str, list[Json]]) -> list[Json]:
    """The steps that may have had effects outside of `act` (law 3): steps with tools or commands, and the inner steps of workflow bodies, by name."""
    acts = {one["idx"] for name in ("decisions.json", "receipts.json") for one in lists[name]}
    done: dict[int, Counter[str]] = {}
    for checkpoint in lists["checkpoints.json"]:
        name = checkpoint["name"].partition("#")[0]
        if checkpoint["arguments"] or name.rpartition("/")[2] not in RECORDED:
            done.setdefault(checkpoint["idx"], Counter())[name] += checkpoint["tries"]
    found: list[Json] = []
    for step in lists["steps.json"]:
        idx = step["idx"]
        if step["kind"] not in AT_WORK or not step["attempt"] or step["tool"].startswith(CHILD):
            continue
        inside = [{"name": name, "tries": tries} for name, tries in sorted(done.get(idx, {}).items())]
        if inside or (step["kind"] != "body" and idx not in acts):
            found.append(
                {
                    "idx": idx,
                    "step": step["name"],
                    "kind": step["kind"],
                    "tool": step["tool"],
                    "attempts": step["attempt"],
                    "inside": inside,
                }
            )
    return found


def sum_costs(folded: FoldedRun) -> list[Json]:
    """The costs per provider, model and currency, summed over all days."""
    sums: dict[tuple[str, str, str], Json] = {}
    for one in folded.rows(CostLineRow):
        name = (one["provider"], one["model"], one["currency"])
        total = sums.setdefault(name, dict(zip(COST_NAMES, name, strict=True)) | dict.fromkeys(COST_SUMS, 0))
        for column in COST_SUMS:
            total[column] += one[column]
    return [sums[name] for name in sorted(sums)]


def build_changes_file(folded: FoldedRun) -> bytes:
    """For a supplement: the columns that its events changed, by table."""
    return encode_file({table: folded.tables[table] for table in sorted(folded.tables)})


def encode_file(value: Any) -> bytes:
    """Indented JSON with a trailing newline. The names keep the order of the lists above."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
