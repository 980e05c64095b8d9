"""A bundle built from a run's events: the same events, the same bytes.

Laws:
1. Part 0 has the events up to the one that ended the run, whenever it is built; a supplement has those behind the part before
   it, and goes on with its chain. So each event is in one part, and no part ever changes.
2. What is built was checked: the events' hashes follow from each other and lead to the head. Rows that somebody has written into
   are not made into evidence.
3. Nothing but the events is looked at; see `contents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.evidence import contents
from tenure.govern.evidence.archive import MANIFEST, packed
from tenure.kernel import history
from tenure.kernel.model import Event

FORMAT = "tenure-evidence-1"
EVENTS, CHANGES = "events.jsonl", "changes.json"


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event as it stands in `events.jsonl`."""

    seq: int
    kind: str
    at: int
    actor: str
    initiator: str
    cause: str
    body: str
    """The exact text that was hashed."""
    hash: str


class Chain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which piece of the chain a part has."""

    first: int
    last: int
    before: str
    """The hash of the event before the first, in hex; empty before the first of all."""
    head: str
    """That of the last."""


class FileDigest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a bundle."""

    sha256: str
    size: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`manifest.json`."""

    format: str
    part: int
    run: str
    tenant: str
    outcome: str | None
    """How the run ended."""
    finished_at: int | None
    chain: Chain
    counts: dict[str, int]
    files: dict[str, FileDigest]


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A part, ready to be kept."""

    manifest: Manifest
    files: dict[str, bytes]
    zip: bytes
    sha256: bytes

    @property
    def head(self) -> bytes:
        """The hash of its last event."""
        return bytes.fromhex(self.manifest.chain.head)

    @property
    def name(self) -> str:
        """What the zip is called."""
        return file_name(self.manifest.run, self.manifest.part)


def file_name(run: str, part: int) -> str:
    """What the zip of a part is called where it is a file."""
    return f"{run}.evidence{f'.{part}' if part else ''}.zip"


def ended_with(events: Sequence[Event]) -> int | None:
    """How many of a run's events there were when it had ended; None: it has not."""
    for event in events:
        run = msgspec.json.decode(event.body, type=_Glance).set.get("run", {}).get("", {})
        if run.get("finished_at") is not None:
            return event.seq
    return None


class _Glance(msgspec.Struct):
    set: dict[str, dict[str, dict[str, Any]]] = {}


def build(run_id: int, tenant: str, events: Sequence[Event]) -> Built:
    """The bundle of a run: part 0, of the events up to its end."""
    last = ended_with(events)
    if last is None:
        raise TenureError(
            "RUN_INVALID_TRANSITION", f"{ids.run_text(run_id)} has not ended: there is no evidence of it yet"
        )
    mine = events[:last]
    check_chain(run_id, tenant, b"", 1, mine)
    return assembled(run_id, tenant, 0, b"", mine)


def supplement(
    run_id: int, tenant: str, part: int, before: bytes, events: Sequence[Event], outcome: str
) -> Built:
    """A numbered part of what came later; `before` is the head of the part before it."""
    check_chain(run_id, tenant, before, events[0].seq, events)
    return assembled(run_id, tenant, part, before, events, outcome=outcome)


def check_chain(run_id: int, tenant: str, before: bytes, first: int, events: Sequence[Event]) -> None:
    """EVIDENCE_BROKEN unless the events follow from each other (law 2)."""
    for seq, event in enumerate(events, first):
        if event.seq != seq or event.run_id != run_id or history.rehash(event, before, tenant) != event.hash:
            raise TenureError(
                "EVIDENCE_BROKEN", f"the history of {ids.run_text(run_id)} does not recompute at event {seq}"
            )
        before = event.hash


def assembled(
    run_id: int,
    tenant: str,
    part: int,
    before: bytes,
    events: Sequence[Event],
    *,
    outcome: str | None = None,
) -> Built:
    """The zip of a part; `outcome` is for supplements, whose events do not tell it."""
    folded = contents.Folded(events)
    run = ids.run_text(run_id)
    files = {EVENTS: b"".join(_line(event) for event in events)}
    finished_at: int | None = None
    counts = {"events": len(events)}
    if part == 0:
        files |= contents.files_of(folded, run_id)
        ended = folded.tables["run"][""]
        outcome, finished_at = ended["status"], ended["finished_at"]
        counts |= {
            name.removesuffix(".json"): len(folded.tables.get(listed.row.table, ()))
            for name, listed in contents.LISTS.items()
        }
    else:
        files[CHANGES] = contents.changes_file(folded)
    manifest = Manifest(
        format=FORMAT,
        part=part,
        run=run,
        tenant=tenant,
        outcome=outcome,
        finished_at=finished_at,
        chain=Chain(
            first=events[0].seq, last=events[-1].seq, before=before.hex(), head=events[-1].hash.hex()
        ),
        counts=counts,
        files={name: digest_of(files[name]) for name in sorted(files)},
    )
    files[MANIFEST] = contents.encoded(manifest)
    body = packed(files)
    return Built(manifest=manifest, files=files, zip=body, sha256=sha256(body).digest())


def digest_of(body: bytes) -> FileDigest:
    """What the manifest says of a file."""
    return FileDigest(sha256=sha256(body).hexdigest(), size=len(body))


def _line(event: Event) -> bytes:
    line = Line(
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
