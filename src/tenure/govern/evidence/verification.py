"""Verifies a bundle with nothing but its files: no database, no network, no trust in the sender.

Laws:
1. It reports the first defect (`defects.DEFECT_CODES`) and its place. The order is from the inside out: the zip, the manifest, the events, the
   other files, their agreement with the events, the statement, its signature, the ledger.
2. It says what was not checked: the payloads, which no bundle contains; without a key who sealed it; without a checkpoint whether a run was
   dropped, a history truncated or an old backup restored.
3. Nothing in a bundle is trusted before it is checked, and reading is bounded: see `archive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.evidence.archive import MANIFEST, unpack_zip
from tenure.govern.evidence.bundle import (
    EVENTS,
    FORMAT,
    EventLine,
    Manifest,
    assemble_part,
    digest_file,
    file_name,
)
from tenure.govern.evidence.defects import EvidenceDefect
from tenure.govern.evidence.statement import EvidenceStatement, Predicate, build_predicate, open_envelope
from tenure.kernel import history
from tenure.kernel.run_rows import EventRow
from tenure.proof import ledger_leaves, signed_notes
from tenure.proof.signatures import TrustedKeys

PROVEN, WRONG, UNPROVEN = 0, 1, 3
"""Exit codes of `tenure verify`: everything requested is proven; there is a defect; there is no defect, but who sealed it was not checked.
(2 is a usage error.)
"""

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
NO_KEY = "who sealed it: give --key or --trust"
NO_PAYLOADS = "the contents of payloads (inputs, outputs, questions, results): a bundle has their salted digests, not the bytes"
NO_CHECKPOINT = "whether runs were dropped, histories truncated or an old backup restored: give --checkpoint"


class EvidenceProblem(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    place: str
    message: str


class EvidenceReport(msgspec.Struct, frozen=True, kw_only=True):
    bundle: str
    run: str | None = None
    tenant: str | None = None
    part: int | None = None
    events: int | None = None
    head: str | None = None
    outcome: str | None = None
    key: str | None = None
    sealed_at: int | None = None
    checked: list[str] = []
    not_checked: list[str] = []
    wrong: EvidenceProblem | None = None


class EvidenceFiles(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    zip: bytes
    envelope: bytes | None = None
    proof: bytes | None = None


def exit_code(reports: Sequence[EvidenceReport], trust: TrustedKeys | None) -> int:
    if any(report.wrong is not None for report in reports):
        return WRONG
    return UNPROVEN if trust is None else PROVEN


def verify_parts(
    parts: Sequence[EvidenceFiles], trust: TrustedKeys | None = None, checkpoint: bytes | None = None
) -> list[EvidenceReport]:
    """Verify parts, each on its own, and that the parts of one run continue each other. Stops at the first defect."""
    reports: list[EvidenceReport] = []
    ends: dict[str, EvidenceReport] = {}
    for given in parts:
        check = _Check(given, trust, checkpoint)
        problem = None
        try:
            check.all(ends)
        except EvidenceDefect as wrong:
            problem = EvidenceProblem(code=wrong.code, place=wrong.place, message=wrong.message)
        report = EvidenceReport(
            **check.facts, checked=check.checked, not_checked=check.not_checked, wrong=problem
        )
        reports.append(report)
        if problem is not None:
            break
        ends[str(report.run)] = report
    return reports


class _Check:
    def __init__(self, given: EvidenceFiles, trust: TrustedKeys | None, checkpoint: bytes | None) -> None:
        self.given = given
        self.trust = trust
        self.checkpoint = checkpoint
        self.facts: dict[str, Any] = {"bundle": given.name}
        self.checked: list[str] = []
        self.not_checked: list[str] = []

    def all(self, ends: dict[str, EvidenceReport]) -> None:
        """Run all checks (law 1). `ends` has the previous part of each run."""
        files = unpack_zip(self.given.zip)
        manifest = read_manifest(files)
        chain = manifest.chain
        self.facts |= {
            "run": manifest.run,
            "tenant": manifest.tenant,
            "part": manifest.part,
            "events": chain.last,
            "head": chain.head,
            "outcome": manifest.outcome,
        }
        check_names(files, manifest)
        events = read_events(files[EVENTS], manifest)
        for name, listed in manifest.files.items():
            if digest_file(files[name]) != listed:
                raise EvidenceDefect("FILE_CHANGED", name, "its SHA-256 differs from the manifest")
        check_contents(files, manifest, events)
        self.checked += [
            f"{len(files)} files match the manifest",
            f"events {chain.first} to {chain.last} chain to {chain.head[:12]}",
            "the contents of the files follow from the events",
        ]
        self.not_checked.append(NO_PAYLOADS)
        self._check_continuation(manifest, ends)
        predicate = self._check_statement(manifest, files)
        if self.checkpoint is None:
            self.not_checked.append(NO_CHECKPOINT)
        else:
            self.checked.append(check_ledger_proof(predicate, self.given.proof, self.checkpoint, self.trust))

    def _check_continuation(self, manifest: Manifest, ends: dict[str, EvidenceReport]) -> None:
        if manifest.part == 0:
            return
        before = ends.get(manifest.run)
        if before is None:
            self.not_checked.append(
                f"that it continues part {manifest.part - 1}: give that part too, before it"
            )
            return
        chain = manifest.chain
        expected = ((before.part or 0) + 1, (before.events or 0) + 1, before.head, before.tenant)
        if (manifest.part, chain.first, chain.before, manifest.tenant) != expected:
            raise EvidenceDefect(
                "PART_GAP",
                f"part {manifest.part}",
                f"it begins after event {chain.first - 1} and does not continue part {before.part}, which ends with event {before.events}",
            )
        self.checked.append(f"it continues part {before.part}")

    def _check_statement(self, manifest: Manifest, files: dict[str, bytes]) -> Predicate:
        """Check the envelope (law 1). Returns the statement's predicate."""
        if self.given.envelope is None:
            if self.trust is not None:
                raise EvidenceDefect("STATEMENT_MISSING", "the statement", "there is none next to the bundle")
            self.not_checked += ["its statement: there is none next to it", NO_KEY]
            return build_predicate(manifest, 0)
        try:
            envelope = open_envelope(self.given.envelope)
        except ValueError as fault:
            raise EvidenceDefect(
                "STATEMENT_INVALID", "the statement", f"it cannot be read: {fault}"
            ) from None
        check_statement(envelope.statement, manifest, files, sha256(self.given.zip).hexdigest())
        predicate = envelope.statement.predicate
        self.facts["sealed_at"] = predicate.sealed_at
        self.checked.append("its statement lists the zip and every file")
        if self.trust is None:
            self.not_checked.append(NO_KEY)
        else:
            self.facts["key"] = check_signature(
                envelope.signatures, envelope.signed, predicate.sealed_at, self.trust
            )
            self.checked.append(f"sealed by key {self.facts['key'][:12]}")
        return predicate


def read_manifest(files: dict[str, bytes]) -> Manifest:
    if MANIFEST not in files:
        raise EvidenceDefect("FILE_MISSING", MANIFEST, "it is not in the bundle")
    try:
        named = msgspec.json.decode(files[MANIFEST], type=_Format)
        if named.format != FORMAT:
            raise EvidenceDefect(
                "FORMAT_UNKNOWN",
                MANIFEST,
                f"the format is {named.format[:60]!r}; this version supports {FORMAT}",
            )
        manifest = msgspec.json.decode(files[MANIFEST], type=Manifest)
        ids.run_int(manifest.run)
        bytes.fromhex(manifest.chain.before + manifest.chain.head)
    except (*UNREADABLE, TenureError) as fault:
        raise EvidenceDefect("MANIFEST_INVALID", MANIFEST, f"it cannot be read: {fault}") from None
    chain = manifest.chain
    if (
        manifest.part < 0
        or chain.first < 1
        or chain.last < chain.first
        or (manifest.part == 0) != (chain.first == 1)
    ):
        raise EvidenceDefect("MANIFEST_INVALID", MANIFEST, "its range of the chain is not valid")
    return manifest


class _Format(msgspec.Struct):
    format: str


def check_names(files: dict[str, bytes], manifest: Manifest) -> None:
    for name in sorted({EVENTS, *manifest.files}):
        if name not in files:
            raise EvidenceDefect(
                "FILE_MISSING", name, "the manifest lists it, but it is missing from the bundle"
            )
    for name in files:
        if name != MANIFEST and name not in manifest.files:
            raise EvidenceDefect("FILE_EXTRA", name, "the manifest does not list it")


def read_events(body: bytes, manifest: Manifest) -> list[EventRow]:
    """The events, whose hashes follow from each other up to the manifest's head."""
    chain, run_id = manifest.chain, ids.run_int(manifest.run)
    lines = _parse_lines(body)
    before, events = bytes.fromhex(chain.before), list[EventRow]()
    for place, (seq, line) in enumerate(zip(range(chain.first, chain.last + 1), lines, strict=False), 1):
        where = f"{EVENTS} line {place}"
        if line.seq != seq:
            raise _out_of_order(lines, place, seq, where)
        try:
            event = EventRow(
                run_id,
                seq,
                line.kind,
                line.at,
                line.actor,
                line.initiator,
                line.cause,
                line.body.encode(),
                bytes.fromhex(line.hash),
            )
            expected = history.rehash(event, before, manifest.tenant)
        except ValueError:
            raise EvidenceDefect("EVENT_INVALID", where, "its texts or its hash are not valid") from None
        if expected != event.hash:
            raise EvidenceDefect(
                "EVENT_CHANGED",
                where,
                f"the hash of event {seq} does not follow from the event and the previous hash",
            )
        before = event.hash
        events.append(event)
    if len(events) < chain.last - chain.first + 1:
        raise EvidenceDefect(
            "EVENTS_TRUNCATED", EVENTS, f"it ends with event {chain.first + len(events) - 1} of {chain.last}"
        )
    if len(lines) > len(events):
        raise EvidenceDefect(
            "EVENT_INSERTED",
            f"{EVENTS} line {len(events) + 1}",
            f"the chain ends with event {chain.last}, but here is another event",
        )
    if before.hex() != chain.head:
        raise EvidenceDefect(
            "CHAIN_HEAD_DIFFERS",
            EVENTS,
            f"the chain leads to {before.hex()[:12]}, but the manifest says {chain.head[:12]}",
        )
    return events


def _parse_lines(body: bytes) -> list[EventLine]:
    lines = []
    for place, text in enumerate(body.splitlines(), 1):
        try:
            lines.append(msgspec.json.decode(text, type=EventLine))
        except UNREADABLE as fault:
            raise EvidenceDefect(
                "EVENT_INVALID", f"{EVENTS} line {place}", f"it cannot be read: {fault}"
            ) from None
    return lines


def _out_of_order(lines: list[EventLine], place: int, seq: int, where: str) -> EvidenceDefect:
    """Why the line at a place is not the expected event."""
    found = lines[place - 1].seq
    numbers = [line.seq for line in lines]
    if numbers.count(found) > 1:
        return EvidenceDefect("EVENT_INSERTED", where, f"event {found} occurs twice")
    if seq in numbers[place:]:
        return EvidenceDefect("EVENTS_REORDERED", where, f"event {found} is in the place of event {seq}")
    return EvidenceDefect("EVENT_MISSING", where, f"event {seq} is missing")


def check_contents(files: dict[str, bytes], manifest: Manifest, events: list[EventRow]) -> None:
    """Build the bundle again from the events and compare the files."""
    try:
        again = assemble_part(
            ids.run_int(manifest.run),
            manifest.tenant,
            manifest.part,
            bytes.fromhex(manifest.chain.before),
            events,
            outcome=manifest.outcome,
        )
    except (KeyError, TypeError, AttributeError, *UNREADABLE, TenureError) as fault:
        raise EvidenceDefect(
            "CONTENTS_DIFFER", EVENTS, f"the events do not describe a finished run: {fault!r}"
        ) from None
    for name, body in again.files.items():
        if name not in files:
            raise EvidenceDefect("FILE_MISSING", name, "every bundle must have it")
        if name != MANIFEST and _decoded(name, files[name]) != _decoded(name, body):
            raise EvidenceDefect("CONTENTS_DIFFER", name, "it contradicts the events")
    for fact in ("outcome", "finished_at", "chain", "counts"):
        if getattr(manifest, fact) != getattr(again.manifest, fact):
            raise EvidenceDefect("CONTENTS_DIFFER", f"{MANIFEST} {fact}", "it contradicts the events")
    if files.keys() != again.files.keys():
        raise EvidenceDefect(
            "FILE_EXTRA", min(files.keys() - again.files.keys()), "no bundle has such a file"
        )


def _decoded(name: str, body: bytes) -> Any:
    if name == EVENTS:
        return None  # checked already
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return body


def check_statement(
    statement: EvidenceStatement, manifest: Manifest, files: dict[str, bytes], digest: str
) -> None:
    predicate, subjects = statement.predicate, {one.name: one.digest.sha256 for one in statement.subject}
    if predicate != build_predicate(manifest, predicate.sealed_at):
        raise EvidenceDefect(
            "STATEMENT_OF_ANOTHER",
            "the statement",
            f"it is about part {predicate.part} of {predicate.run[:60]}, {predicate.events} events to {predicate.head[:12]}",
        )
    # From the inside out: the manifest and the zip change with every other file.
    inside_out = sorted(files, key=lambda name: (name == MANIFEST, name))
    expected = {name: digest_file(files[name]).sha256 for name in inside_out}
    expected[file_name(manifest.run, manifest.part)] = digest
    for name, found in expected.items():
        if subjects.get(name) != found:
            raise EvidenceDefect(
                "STATEMENT_OF_ANOTHER", f"the statement's {name}", "its SHA-256 differs, or is not listed"
            )
    if len(statement.subject) != len(expected):
        raise EvidenceDefect(
            "STATEMENT_OF_ANOTHER", "the statement", "it lists files that are not in the bundle"
        )


def check_signature(signatures: dict[str, bytes], signed: bytes, at: int, trust: TrustedKeys) -> str:
    """The trusted key that signed. One is enough, but a wrong signature in the name of a trusted key is a defect."""
    if not signatures:
        raise EvidenceDefect("UNSIGNED", "the statement", "it has no signature: it was sealed without a key")
    first: EvidenceDefect | None = None
    by: str | None = None
    for key, signature in signatures.items():
        problem = trust.key_problem(key)
        if problem is not None:
            first = first or EvidenceDefect("KEY_UNTRUSTED", "the signature", problem)
        elif (problem := trust.problem(key, signed, signature, at)) is None:
            by = by or key
        elif trust.key_problem(key, at) is not None:
            first = first or EvidenceDefect("KEY_REVOKED", "the signature", problem)
        else:
            raise EvidenceDefect("SIGNATURE_WRONG", "the signature", problem)
    if by is None:
        assert first is not None
        raise first
    return by


# ---- Whether a part is in its tenant's ledger, by a proof next to it and a checkpoint that was stored elsewhere.


def build_leaf(predicate: Predicate) -> ledger_leaves.LedgerEntry:
    return ledger_leaves.seal_leaf(
        predicate.tenant,
        ids.run_int(predicate.run),
        predicate.part,
        bytes.fromhex(predicate.head),
        predicate.events,
        predicate.outcome or "",
    )


def check_ledger_proof(
    predicate: Predicate, proof: bytes | None, checkpoint: bytes, trust: TrustedKeys | None
) -> str:
    """Returns what was proven, in words, or raises `EvidenceDefect`. The checkpoint is trusted by its signature, and the proof by its hashes.
    The leaf is derived from the bundle.
    """
    try:
        kept = signed_notes.parse_checkpoint(checkpoint)
        if trust is not None:
            signed_notes.find_signer(kept, trust)
    except TenureError as fault:
        raise EvidenceDefect("CHECKPOINT_INVALID", "the checkpoint", fault.message) from None
    if proof is None:
        raise EvidenceDefect(
            "PROOF_MISSING",
            "the proof",
            f"there is none next to the bundle; an export with the checkpoint writes it to NAME{signed_notes.PROOF_SUFFIX}",
        )
    try:
        given = signed_notes.parse_proof(proof)
    except TenureError as fault:
        raise EvidenceDefect("PROOF_INVALID", "the proof", fault.message) from None
    if (given.checkpoint.origin, given.checkpoint.size) != (kept.origin, kept.size):
        raise EvidenceDefect(
            "PROOF_MISSING", "the proof", signed_notes.find_inclusion_problem(b"", given, kept) or ""
        )
    if (problem := signed_notes.find_inclusion_problem(build_leaf(predicate).body, given, kept)) is not None:
        raise EvidenceDefect("NOT_IN_LEDGER", "the ledger", problem)
    if (problem := signed_notes.find_own_checkpoint_problem(given, kept, trust)) is not None:
        raise EvidenceDefect("PROOF_INVALID", "the proof's checkpoint", problem)
    signed = "" if trust is not None else ", whose signature was not checked"
    return f"leaf {given.index} of the ledger, according to the checkpoint of {kept.size} leaves{signed}"
