"""Builds bundles from a run's events: the same events always give the same bytes.

Laws:
1. Part 0 has the events up to the end of the run, whenever it is built. A supplement has the events after the previous part and continues
   its chain. So each event is in one part, and no part ever changes.
2. The chain is verified before a part is built: each hash follows from the previous one, up to the head. Altered rows do not become
   evidence.
3. Only the events are read; see `contents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.evidence import contents
from tenure.govern.evidence.archive import MANIFEST, pack_zip
from tenure.kernel import history
from tenure.kernel.run_rows import EventRow

FORMAT = "tenure-evidence-1"
EVENTS, CHANGES = "events.jsonl", "changes.json"


class EventLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seq: int
    kind: str
    at: int
    actor: str
    initiator: str
    cause: str
    body: str
    """The exact text that was hashed."""
    hash: str


class ChainSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    first: int
    last: int
    before: str
    """The hash of the event before the first one, in hex; empty if there is none."""
    head: str


class FileDigest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: str
    size: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    part: int
    run: str
    tenant: str
    outcome: str | None
    finished_at: int | None
    chain: ChainSegment
    counts: dict[str, int]
    files: dict[str, FileDigest]


class BuiltPart(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest
    files: dict[str, bytes]
    zip: bytes
    sha256: bytes

    @property
    def head(self) -> bytes:
        return bytes.fromhex(self.manifest.chain.head)

    @property
    def name(self) -> str:
        return file_name(self.manifest.run, self.manifest.part)


def file_name(run: str, part: int) -> str:
    return f"{run}.evidence{f'.{part}' if part else ''}.zip"


def count_events_at_end(events: Sequence[EventRow]) -> int | None:
    """How many events a run had when it ended, or None if it has not ended."""
    return next((event.seq for event in events if _ends_run(event)), None)


class _EventSet(msgspec.Struct):
    set: dict[str, dict[str, dict[str, Any]]] = {}


def _ends_run(event: EventRow) -> bool:
    columns = msgspec.json.decode(event.body, type=_EventSet).set.get("run", {}).get("", {})
    return columns.get("finished_at") is not None


def build_bundle(run_id: int, tenant: str, events: Sequence[EventRow]) -> BuiltPart:
    """Part 0 of a run: the events up to its end."""
    last = count_events_at_end(events)
    if last is None:
        raise TenureError(
            "RUN_INVALID_TRANSITION",
            f"{ids.run_text(run_id)} has not ended, so there is no evidence of it yet",
        )
    mine = events[:last]
    check_chain(run_id, tenant, b"", 1, mine)
    return assemble_part(run_id, tenant, 0, b"", mine)


def build_supplement(
    run_id: int, tenant: str, part: int, before: bytes, events: Sequence[EventRow], outcome: str
) -> BuiltPart:
    """A numbered part of later events. `before` is the head of the previous part."""
    check_chain(run_id, tenant, before, events[0].seq, events)
    return assemble_part(run_id, tenant, part, before, events, outcome=outcome)


def check_chain(run_id: int, tenant: str, before: bytes, first: int, events: Sequence[EventRow]) -> None:
    """EVIDENCE_BROKEN unless the hashes of the events follow from each other (law 2)."""
    for seq, event in enumerate(events, first):
        if event.seq != seq or event.run_id != run_id or history.rehash(event, before, tenant) != event.hash:
            raise TenureError(
                "EVIDENCE_BROKEN",
                f"the history of {ids.run_text(run_id)} is inconsistent at event {seq}: its hash does not match",
            )
        before = event.hash


def assemble_part(
    run_id: int,
    tenant: str,
    part: int,
    before: bytes,
    events: Sequence[EventRow],
    *,
    outcome: str | None = None,
) -> BuiltPart:
    """The zip of a part. `outcome` is for supplements, whose events do not contain it."""
    folded = contents.FoldedRun(events)
    files = {EVENTS: b"".join(_line(event) for event in events)}
    finished_at: int | None = None
    counts = {"events": len(events)}
    if part == 0:
        files |= contents.build_files(folded, run_id)
        ended = folded.tables["run"][""]
        outcome, finished_at = ended["status"], ended["finished_at"]
        counts |= {
            name.removesuffix(".json"): len(folded.tables.get(listed.row.table, ()))
            for name, listed in contents.LISTS.items()
        }
    else:
        files[CHANGES] = contents.build_changes_file(folded)
    manifest = Manifest(
        format=FORMAT,
        part=part,
        run=ids.run_text(run_id),
        tenant=tenant,
        outcome=outcome,
        finished_at=finished_at,
        chain=ChainSegment(
            first=events[0].seq, last=events[-1].seq, before=before.hex(), head=events[-1].hash.hex()
        ),
        counts=counts,
        files={name: digest_file(files[name]) for name in sorted(files)},
    )
    files[MANIFEST] = contents.encode_file(manifest)
    body = pack_zip(files)
    return BuiltPart(manifest=manifest, files=files, zip=body, sha256=sha256(body).digest())


def digest_file(body: bytes) -> FileDigest:
    return FileDigest(sha256=sha256(body).hexdigest(), size=len(body))


def _line(event: EventRow) -> bytes:
    line = EventLine(
        seq=event.seq,
        kind=event.kind,
        at=event.at,
        actor=event.actor,
        initiator=event.initiator,
        cause=event.cause,
        body=event.body.decode(),
        hash=event.hash.hex(),
    )
    return msgspec.json.encode(line) + b"\n"
